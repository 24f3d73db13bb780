"""Deletions of spans: in parts outside of transactions, as a whole or not at all inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom import errors, limits
from postroom.client import buffer, database
from postroom.limits import TRANSACTION_BYTES_MAX
from postroom.ranges import evaluation
from postroom.ranges.requests import Put
from tests.client.refusals import MIB
from tests.client.stores import Store


@pytest.fixture
def store() -> Iterator[Store]:
    """Make an empty store."""
    store = Store()
    yield store
    store.db.close()


def test_a_deletion_in_a_transaction_says_how_far_it_came(store: Store) -> None:
    for first in range(0, 400, 40):
        with store.db.begin() as tx:
            for number in range(first, first + 40):
                tx.put(b"%04d" % number + bytes(8000), b"")
    tx: Any = store.db.begin()
    tx._core._buffer._bytes = TRANSACTION_BYTES_MAX - 1_000_000
    with pytest.raises(
        errors.TransactionTooLarge, match=r"400 keys were to be.*room for 15,.*enqueue_update"
    ):
        tx.delete_range(b"", None)
    tx.rollback()


@pytest.mark.parametrize("is_too_much", [False, True])
def test_a_deletion_in_a_transaction_counts_as_much_as_its_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_too_much: bool
) -> None:
    for number in range(100):
        store.db.put(b"%04d" % number, b"")
    for module in (buffer, evaluation):
        monkeypatch.setattr(module, "TRANSACTION_BYTES_MAX", 100 * 48 - is_too_much)
    tx = store.db.begin()
    if is_too_much:
        with pytest.raises(errors.TransactionTooLarge, match="has room for 99, those below b'0099"):
            tx.delete_range(b"", None)
        tx.rollback()
    else:
        tx.delete_range(b"", None)
        tx.commit()
    assert len(list(store.db.scan())) == 100 * is_too_much


def test_a_deletion_goes_in_parts_and_says_how_many(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DELETED_AT_ONCE_MAX", 10)
    for number in range(95):
        store.db.put(b"%02d" % number, b"1")
    assert store.db.delete_range(b"05", None) == 90
    assert [key for key, _ in store.db.scan()] == [b"%02d" % number for number in range(5)]
    assert store.db.delete_range(b"05", None) == 0


def test_a_deletion_of_more_bytes_than_a_transaction_may_write(store: Store) -> None:
    for number in range(17):
        store.db.put(b"big/%d" % number, bytes(MIB))
    assert store.db.delete_range(b"", None) == 17


def test_a_deletion_that_fails_says_how_far_it_came(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DELETED_AT_ONCE_MAX", 10)
    for number in range(30):
        store.db.put(b"%02d" % number, b"1")
    commit_one, parts = database.commit_one, []

    async def fails_at_the_third(*arguments: Any) -> Any:
        parts.append(arguments)
        if len(parts) == 3:
            raise errors.Unavailable("no leader")
        return await commit_one(*arguments)

    monkeypatch.setattr(database, "commit_one", fails_at_the_third)
    with pytest.raises(errors.Unavailable, match=r"no leader \(before that, 20 keys.*b'20'"):
        store.db.delete_range(b"", None)
    assert len(list(store.db.scan())) == 10


def test_a_write_during_a_deletion_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELETED_AT_ONCE_MAX", 5)
    for number in range(20):
        store.db.put(b"%02d" % number, b"1")
    commit_one, parts = database.commit_one, []

    async def put_between(sender: Any, anchor: bytes, write: Any) -> Any:
        parts.append(write)
        if len(parts) == 2:
            await commit_one(sender, b"17", Put(b"17", b"2"))
        return await commit_one(sender, anchor, write)

    monkeypatch.setattr(database, "commit_one", put_between)
    assert store.db.delete_range(b"", None) == 19
    assert list(store.db.scan()) == [(b"17", b"2")]
