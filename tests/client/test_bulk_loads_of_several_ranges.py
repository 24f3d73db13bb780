"""Bulk loads into several ranges: each row once, whatever is repeated, late, resumed or split."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import postroom
from postroom.client import staging as client_staging
from postroom.client.commits import repeat_one
from postroom.errors import ConditionFailed, Invalid
from postroom.messaging.ingest.requests import BeginLoad, EndLoad, LoadRows

NAME = b"load"
FIRST, SECOND = b"1" * 16, b"2" * 16
KEYS = [b"%02d" % number for number in range(40)]


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    """Return a store of three ranges."""
    with postroom.open(":memory:") as store:
        for key in (b"10", b"20"):
            store.split(key)
        yield store


def ask(db: postroom.Database, write: Any) -> Any:
    return db.sender.run(repeat_one(db.sender, write))


def load(db: postroom.Database, keys: list[bytes], run: bytes = FIRST, value: bytes = b"1") -> None:
    stream = db.staging.stream()
    stream.send(LoadRows(NAME, run, keys, [value] * len(keys)))
    stream.flush()


def begin(db: postroom.Database, run: bytes = FIRST) -> bool:
    return db.staging.begin_load(NAME, run, b"0", b"4")


def end(db: postroom.Database, run: bytes = FIRST, *, done: bool = True) -> bool:
    return db.staging.end_load(NAME, run, b"0", b"4", done=done, keep=True)


def loads(db: postroom.Database) -> int:
    return db.staging.read().loads


def test_a_chunk_of_rows_is_loaded_into_all_of_its_ranges(db: postroom.Database) -> None:
    assert not begin(db)
    load(db, KEYS)
    load(db, KEYS[5:15])  # sent again
    assert end(db)
    assert [key for key, _ in db.scan()] == KEYS
    assert begin(db, SECOND)
    with pytest.raises(Invalid, match="late"):
        load(db, [b"005"])


def test_a_load_goes_on_while_its_ranges_split(db: postroom.Database) -> None:
    begin(db)
    load(db, KEYS[:15])
    for at in (b"05", b"15", b"3"):
        db.split(at)
    load(db, KEYS[10:])
    db.split(b"25")
    with pytest.raises(Invalid, match="another run"):
        load(db, [b"255"], SECOND)
    assert end(db)
    assert [key for key, _ in db.scan()] == KEYS
    for at in (b"0", b"05", b"10", b"15", b"20", b"25", b"3"):
        with pytest.raises(Invalid, match="late"):
            load(db, [at + b"5"])
    assert begin(db, SECOND)


def test_another_run_of_a_load_goes_on_in_every_range(db: postroom.Database) -> None:
    begin(db)
    load(db, KEYS[5:25])
    end(db, done=False)
    db.split(b"25")
    assert not begin(db, SECOND)
    with pytest.raises(Invalid, match="late"):
        load(db, [b"30"])
    load(db, KEYS, SECOND)
    assert end(db, SECOND)
    assert [key for key, _ in db.scan()] == KEYS


def test_a_load_whose_end_was_cut_short_goes_on(db: postroom.Database) -> None:
    begin(db)
    load(db, KEYS[:25])
    for at in (b"10", b"20"):  # its client dies before it tells the first range
        assert ask(db, EndLoad(NAME, FIRST, True, True, at))
    assert not begin(db, SECOND)
    load(db, KEYS, SECOND)
    assert end(db, SECOND)
    assert begin(db, FIRST)


def test_a_load_whose_beginning_was_cut_short_goes_on(db: postroom.Database) -> None:
    assert not ask(db, BeginLoad(NAME, FIRST, b"0", b"4", b"0"))
    load(db, KEYS[:5])
    with pytest.raises(Invalid, match="is over"):
        load(db, KEYS)
    assert not begin(db, SECOND)
    load(db, KEYS, SECOND)
    assert end(db, SECOND)


def test_a_span_with_data_in_any_range_is_refused(db: postroom.Database) -> None:
    db.put(b"25", b"mine")
    with pytest.raises(Invalid, match="not empty"):
        begin(db)
    db.delete(b"25")
    assert not begin(db, SECOND)
    load(db, KEYS, SECOND)


def test_two_loads_into_one_span_do_not_overwrite_each_other(db: postroom.Database) -> None:
    begin(db)
    assert not db.staging.begin_load(b"another", SECOND, b"0", b"4")
    load(db, KEYS)
    with pytest.raises(ConditionFailed, match="another value"):
        ask(db, LoadRows(b"another", SECOND, [b"15"], [b"2"]))
    ask(db, LoadRows(b"another", SECOND, [b"15", b"155"], [b"1", b"2"]))
    assert db.get(b"15") == b"1"


def test_halves_keep_only_the_loads_that_concern_them(db: postroom.Database) -> None:
    assert not db.staging.begin_load(NAME, FIRST, b"10", b"15")
    assert not db.staging.begin_load(b"another", SECOND, b"15", b"2")
    assert loads(db) == 2
    db.split(b"15")
    assert loads(db) == 2
    db.split(b"12")
    assert loads(db) == 3
    db.staging.end_load(NAME, FIRST, b"10", b"15", done=True, keep=False)
    db.staging.end_load(b"another", SECOND, b"15", b"2", done=True, keep=False)
    assert loads(db) == 0


def test_a_range_that_splits_while_a_load_ends_is_told_in_both_halves(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(db)
    load(db, KEYS)
    told = client_staging.EndLoad
    splits = [b"25", b"05"]

    def ends(*arguments: Any) -> EndLoad:
        if splits:
            db.split(splits.pop())
        return told(*arguments)

    monkeypatch.setattr(client_staging, "EndLoad", ends)
    assert end(db)
    assert not splits
    for at in (b"0", b"05", b"10", b"20", b"25"):
        with pytest.raises(Invalid, match="late"):
            load(db, [at + b"5"])


def test_a_range_remembers_a_number_of_loads(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.messaging.ingest.loads.LOADS_MAX", 3)
    for number in range(3):
        db.staging.begin_load(b"%d" % number, FIRST, b"30", b"4")
    with pytest.raises(Invalid, match="3 bulk loads"):
        db.staging.begin_load(b"one more", FIRST, b"30", b"4")
    assert not db.staging.begin_load(b"2", SECOND, b"30", b"4")
    assert not db.staging.begin_load(b"one more", FIRST, b"10", b"2")


# --- spans that are split beforehand --------------------------------------------------------------


def starts(db: postroom.Database) -> list[bytes]:
    return [each.start for each in db.ranges()]


def test_an_empty_span_is_split_beforehand() -> None:
    with postroom.open(":memory:") as db:
        db.put(b"3", b"outside")
        assert db.staging.prepare_load(b"0", b"3", [b"2", b"1", b"15", b"1"]) == 3
        assert starts(db) == [b"", b"1", b"15", b"2"]
        assert not db.staging.begin_load(NAME, FIRST, b"0", b"3")
        assert db.staging.prepare_load(b"0", b"3", [b"1", b"25"]) == 1
        load(db, KEYS[:30])
        assert db.staging.prepare_load(b"0", b"3", [b"1", b"25"]) == 0  # it is run again
        assert db.staging.end_load(NAME, FIRST, b"0", b"3", done=True, keep=True)
        assert [key for key, _ in db.scan(b"0", b"3")] == KEYS[:30]


def test_a_span_with_data_is_not_split_for_a_load(db: postroom.Database) -> None:
    db.put(b"25", b"data")
    with pytest.raises(Invalid, match="not empty"):
        db.staging.prepare_load(b"0", b"4", [b"3"])
    assert len(starts(db)) == 3
    db.delete(b"25")
    assert db.staging.prepare_load(b"0", b"4", [b"3"]) == 1


@pytest.mark.parametrize(
    ("cuts", "told"),
    [
        ([b"%05d" % number for number in range(10_000)], "10000 cuts are too many"),
        ([b"0"], "not within"),
        ([b"1", b"4"], "not within"),
        ([b"3", b""], "not within"),
    ],
)
def test_impossible_cuts_are_refused_and_nothing_is_split(cuts: list[bytes], told: str) -> None:
    with postroom.open(":memory:") as db:
        with pytest.raises(Invalid, match=told):
            db.staging.prepare_load(b"0", b"4", cuts)
        assert starts(db) == [b""]


def test_two_clients_that_split_a_span_at_once_split_it_once() -> None:
    cuts = [b"%02d" % number for number in range(1, 9)]
    with postroom.open(":memory:") as db, ThreadPoolExecutor(2) as threads:
        both = [threads.submit(db.staging.prepare_load, b"0", b"4", cuts) for _ in range(2)]
        assert all(each.result() <= len(cuts) for each in both)
        assert starts(db) == [b"", *cuts]


def test_a_load_is_begun_only_in_ranges_of_its_span(db: postroom.Database) -> None:
    for at in (b"", b"2", b"20"):
        with pytest.raises(Invalid, match="not in the span"):
            ask(db, BeginLoad(NAME, FIRST, b"10", b"2", at))
    assert loads(db) == 0
