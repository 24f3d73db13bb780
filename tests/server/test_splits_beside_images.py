"""Images, and timestamps that are protected as a whole, beside the split of their range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from postroom.errors import Invalid, Unavailable
from postroom.kv.engine import WriteSet
from postroom.messaging.bulk_requests import RecordFilter, ScanRecords
from postroom.messaging.ingest.requests import BeginRestore, CheckImage
from postroom.ranges.bounds import WrongRange
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import Protect, Unprotect
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


def test_a_range_is_not_split_while_a_timestamp_is_protected_as_a_whole(store: Store) -> None:
    with store.db.hold(whole=True), pytest.raises(Unavailable, match="protected as a whole"):
        prepare(store, b"m")
    split(store, b"m")
    assert len(spans(store)) == 2


def test_a_split_that_is_prepared_waits_for_a_protection_as_a_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = split_key(ROOT_ID)
    ((at, error),) = asked_while_written(store, monkeypatch, Protect(whole=True), record).answers
    assert error is None
    assert len(spans(store)) == 1
    ask(store, Unprotect(at))
    store.advance(3.0)
    assert len(spans(store)) == 2


def test_a_range_other_than_the_root_has_nothing_of_a_queue_that_it_does_not_know(
    store: Store,
) -> None:
    split(store, b"m")
    request = ScanRecords("places", b"m", None, 0, RecordFilter(queue="unheard of"))
    assert ask(store, request).rows == 0
    with pytest.raises(Invalid, match="there is no queue 'unheard of'"):
        ask(store, msgspec.structs.replace(request, start=b""))
