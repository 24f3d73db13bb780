"""Bulk loads: into an empty span, each row once, whatever is repeated, late or resumed."""

from __future__ import annotations

import pytest

import postroom
from postroom.client.commits import repeat_one
from postroom.client.sync import CoreDatabase
from postroom.errors import ConditionFailed, Invalid
from postroom.messaging.ingest.requests import LoadRows
from tests.client.stores import Store

NAME = b"load"
FIRST, SECOND = b"1" * 16, b"2" * 16


def load(db: CoreDatabase, *pairs: tuple[bytes, bytes], run: bytes = FIRST) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    db.sender.run(repeat_one(db.sender, LoadRows(NAME, run, keys, values)))


def test_a_load_is_repeated_and_resumed(db: postroom.Database) -> None:
    assert not db.staging.begin_load(NAME, FIRST, b"a", b"b")
    load(db, (b"a1", b"1"), (b"a3", b"3"))
    load(db, (b"a1", b"1"), (b"a3", b"3"))
    assert db.staging.end_load(NAME, FIRST, b"a", b"b", done=False, keep=True)
    with pytest.raises(Invalid, match="late"):
        load(db, (b"a5", b"5"))
    assert not db.staging.begin_load(NAME, SECOND, b"a", b"b")
    with pytest.raises(Invalid, match="late"):
        load(db, (b"a5", b"5"))
    load(db, (b"a1", b"1"), (b"a2", b"2"), run=SECOND)
    assert not db.staging.end_load(NAME, FIRST, b"a", b"b", done=True, keep=True)
    assert db.staging.end_load(NAME, SECOND, b"a", b"b", done=True, keep=True)
    assert db.staging.begin_load(NAME, FIRST, b"a", b"b")
    assert list(db.scan()) == [(b"a1", b"1"), (b"a2", b"2"), (b"a3", b"3")]


def test_a_repeated_load_does_not_write_present_rows_again(store: Store) -> None:
    db = store.db
    db.staging.begin_load(NAME, FIRST, b"", None)
    load(db, (b"a", b"1"), (b"b", b"2"))
    before = {key: value for key, value in store.dump().items() if key[0] == 6}
    load(db, (b"a", b"1"), (b"b", b"2"))
    assert {key: value for key, value in store.dump().items() if key[0] == 6} == before


def test_a_load_does_not_overwrite_other_values(db: postroom.Database) -> None:
    db.staging.begin_load(NAME, FIRST, b"", None)
    db.put(b"b", b"mine")
    db.increment(b"d")
    for key in (b"b", b"d"):
        with pytest.raises(ConditionFailed, match="another value"):
            load(db, (b"a", b"1"), (key, b"theirs"))
    assert db.get(b"a") is None
    load(db, (b"a", b"1"), (b"c", b"3"))
    assert db.get(b"b") == b"mine"


def test_the_span_is_empty(db: postroom.Database) -> None:
    db.put(b"b", b"1")
    with pytest.raises(Invalid, match="not empty"):
        db.staging.begin_load(NAME, FIRST, b"a", None)
    db.delete(b"b")
    with db.begin() as tx:
        tx.enqueue_message(b"b", b"mail does not matter")
    assert not db.staging.begin_load(NAME, FIRST, b"a", None)
    with pytest.raises(Invalid, match="another span"):
        db.staging.begin_load(NAME, SECOND, b"b", None)
    load(db, (b"a", b"1"), (b"b", b"2"))
    assert db.get(b"b") == b"2"


def test_only_sorted_keys_of_the_span(db: postroom.Database) -> None:
    db.staging.begin_load(NAME, FIRST, b"b", b"d")
    for pairs in ([(b"c", b""), (b"b", b"")], [(b"b", b""), (b"b", b"")]):
        with pytest.raises(Invalid, match="sort"):
            load(db, *pairs)
    for key in (b"a", b"d"):
        with pytest.raises(Invalid, match="outside"):
            load(db, *sorted([(key, b""), (b"c", b"")]))
    with pytest.raises(Invalid, match="a value for each"):
        load(db)


def test_a_load_that_is_not_kept_is_forgotten(db: postroom.Database) -> None:
    db.staging.begin_load(NAME, FIRST, b"", None)
    assert db.staging.end_load(NAME, FIRST, b"", None, done=False, keep=False)
    assert db.staging.read().loads == 0
    with pytest.raises(Invalid, match="late"):
        load(db, (b"a", b"1"))


def test_a_finished_load_is_forgotten_after_a_time(store: Store) -> None:
    db = store.db
    db.staging.begin_load(NAME, FIRST, b"", None)
    db.staging.end_load(NAME, FIRST, b"", None, done=True, keep=True)
    store.advance(61.0)
    db.staging.sweep(100.0)
    assert db.staging.read().loads == 1
    db.staging.sweep(60.0)
    assert db.staging.read().loads == 0


def test_a_load_without_a_name_is_forgotten_some_time_after_its_program_is_gone(
    store: Store,
) -> None:
    db = store.db
    run, other = b"r" * 16, b"o" * 16
    db.staging.begin_load(run, run, b"a", b"b")
    db.staging.begin_load(b"named", other, b"b", b"c")  # somebody may go on with this one
    store.advance(50.0)
    db.staging.sweep(60.0)
    assert db.staging.read().loads == 2
    store.advance(11.0)
    db.staging.sweep(60.0)
    assert db.staging.read().loads == 1
    assert not db.staging.begin_load(b"named", other, b"b", b"c")
