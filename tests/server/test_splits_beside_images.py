"""Images, and timestamps that are protected as a whole, beside the split of their range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.messaging.bulk_requests import RecordFilter, ScanRecords
from postroom.messaging.ingest.requests import BeginRestore, CheckImage
from postroom.ranges.bounds import WrongRange
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import Accounting, Protect, Unprotect
from postroom.ranges.split.records import halved_key, split_key
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.splitting import ask, prepare, spans, split


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.node.close()


def asked_while_written(
    store: Store, monkeypatch: pytest.MonkeyPatch, request: Any, record: bytes = halved_key(ROOT_ID)
) -> Asked:
    """Return a request that comes while a record of a split at m is written."""
    asked = Asked(request)
    write = store.node.write

    def written(staged: WriteSet) -> Any:
        if staged.get(record):
            store.node.replicas.submit(asked)
        return write(staged)

    monkeypatch.setattr(store.node, "write", written)
    prepare(store, b"m")
    store.advance(3.0)
    return asked


def test_a_count_of_an_image_that_waits_for_a_split_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, error),) = asked_while_written(store, monkeypatch, CheckImage()).answers
    assert isinstance(error, WrongRange)


def test_a_restore_that_waits_for_a_split_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = BeginRestore(bytes(16), bytes(16), 1)
    ((_, error),) = asked_while_written(store, monkeypatch, restore).answers
    assert "several ranges" in str(error)


def test_a_protection_as_a_whole_that_waits_for_a_split_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, error),) = asked_while_written(store, monkeypatch, Protect(whole=True)).answers
    assert isinstance(error, Invalid)
    assert len(store.node.root.replica.protections) == 0


def test_a_range_refuses_to_protect_a_timestamp_as_a_whole_beside_others(store: Store) -> None:
    split(store, b"m")
    with pytest.raises(Invalid, match="this store has several"):
        ask(store, Protect(whole=True))


def test_both_halves_have_what_the_only_range_had_when_it_was_protected_as_a_whole(
    store: Store,
) -> None:
    store.db.create_queue("q")
    for key in (b"a", b"n"):
        with store.db.begin() as tx:
            tx.enqueue_update(Accounting(key, {"n": 1}))
            tx.enqueue_message(key, b"later", deliver_at=100)
            tx.enqueue("q", b"work", key=key)
    store.advance(1.0)
    with store.db.hold(whole=True) as at:
        before = everything(store, at)
        split(store, b"m")
        for key in (b"a", b"n"):
            with store.db.begin() as tx:
                tx.enqueue_update(Accounting(key, {"n": 1}))
                tx.enqueue_message(key, b"more", deliver_at=100)
                tx.enqueue("q", b"more", key=key)
        store.advance(1.0)
        assert everything(store, at) == before
    assert len(spans(store)) == 2
    assert store.node.root.replica.protections.whole == 0


def everything(store: Store, at: int) -> list[object]:
    """Return all records without versions, page by page."""
    tables = ("accounting", "outbox", "counters", "inbox_index", "beside", "places")
    found: list[object] = [
        each for table in tables for page in store.db.bulk.records(table, at=at) for each in page
    ]
    in_queue = store.db.bulk.records("places", at=at, wanted=RecordFilter(queue="q"))
    return found + [each for page in in_queue for each in page]


def test_a_split_that_is_prepared_goes_on_beside_a_protection_as_a_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = split_key(ROOT_ID)
    ((at, error),) = asked_while_written(store, monkeypatch, Protect(whole=True), record).answers
    assert error is None
    store.advance(3.0)
    assert len(spans(store)) == 2
    ask(store, Unprotect(at))
    assert store.node.root.replica.protections.whole == 0


def test_copies_of_a_split_under_way_are_no_entries_of_the_half_that_has_begun_since(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.db.create_queue("q")
    with store.db.begin() as tx:
        tx.enqueue("q", b"work", id="n")
    record = keys.record_key(ROOT_ID, "division")
    ((at, error),) = asked_while_written(store, monkeypatch, Protect(whole=True), record).answers
    assert error is None
    assert len(spans(store)) == 2
    counted = store.db.images.check(at)
    assert counted.wrong == []
    assert counted.tables["queue_index"] == 2
    ask(store, Unprotect(at))


def test_a_range_other_than_the_root_has_nothing_of_a_queue_that_it_does_not_know(
    store: Store,
) -> None:
    split(store, b"m")
    request = ScanRecords("places", b"m", None, 0, RecordFilter(queue="unheard of"))
    assert ask(store, request).rows == 0
    with pytest.raises(Invalid, match="there is no queue 'unheard of'"):
        ask(store, msgspec.structs.replace(request, start=b""))
