"""Locks: who waits for one, how long, and what frees it."""

from __future__ import annotations

import pytest

from postroom import Transaction
from postroom.errors import (
    TransactionConflict,
    TransactionExpired,
    TransactionTooLarge,
)
from postroom.ranges import locks as lock_table
from tests.client.stores import Store


def test_get_for_update_waits_until_the_other_one_ends(store: Store) -> None:
    store.db.put(b"a", b"1")
    first, second = store.db.begin(), store.core.begin()
    first.get_for_update(b"a")
    waiting = store.start(second.get_for_update(b"a"))
    assert not waiting.done
    first.put(b"a", b"2")
    first.commit()
    assert waiting.result() == b"2"
    second.put(b"a", b"3")
    store.driver.run(second.commit())
    assert store.db.get(b"a") == b"3"


@pytest.mark.parametrize("ending", ["rollback", "conflict", "expiry", "exception"])
def test_the_locks_of_a_transaction_are_free_after_each_ending(store: Store, ending: str) -> None:
    first, second = store.db.begin(timeout=5), store.core.begin()
    first.get(b"b")
    first.get_for_update(b"a")
    waiting = store.start(second.get_for_update(b"a"))
    match ending:
        case "rollback":
            first.rollback()
        case "exception":
            with pytest.raises(ZeroDivisionError), first:
                raise ZeroDivisionError
        case "conflict":
            store.db.put(b"b", b"new")
            first.put(b"c", b"1")
            with pytest.raises(TransactionConflict):
                first.commit()
        case "expiry":
            store.advance(6)
            with pytest.raises(TransactionExpired):
                first.commit()
    assert waiting.result() is None


def test_a_lock_that_its_client_forgot_ends_with_its_time(store: Store) -> None:
    forgotten = store.db.begin(timeout=5)
    forgotten.get_for_update(b"a")
    store.advance(5.1)
    with store.db.begin() as tx:
        assert tx.get_for_update(b"a") is None
        assert store.clock.seconds < 6


def test_a_forgotten_lock_is_free_when_its_time_is_over(store: Store) -> None:
    store.db.begin(timeout=5).get_for_update(b"a")
    waiting = store.start(store.core.begin().get_for_update(b"a"))
    store.advance(6)
    assert waiting.done


def test_a_wait_for_a_lock_that_is_too_long_is_a_conflict(store: Store) -> None:
    holder = store.db.begin()
    holder.get_for_update(b"a")
    with (
        pytest.raises(TransactionConflict, match="holds b'a'"),
        store.db.begin(timeout=10) as tx,
    ):
        tx.get_for_update(b"a")
    holder.put(b"a", b"1")
    holder.commit()


def test_a_lock_does_not_hide_that_the_key_has_changed(store: Store) -> None:
    tx = store.db.begin()
    tx.get(b"b")
    store.db.put(b"a", b"new")
    with pytest.raises(TransactionConflict, match="b'a'"):
        tx.get_for_update(b"a")


def test_locks_do_not_keep_others_from_reading(store: Store) -> None:
    store.db.put(b"a", b"1")
    holder = store.db.begin()
    holder.get_for_update(b"a")
    assert store.db.get(b"a") == b"1"
    with store.db.begin() as tx:
        assert tx.get(b"a") == b"1"


def test_a_transaction_that_locks_too_much_is_told_and_frees_all_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_table, "LOCKS_MAX", 3)

    def lock_four(tx: Transaction) -> None:
        for number in range(4):
            tx.get_for_update(b"%d" % number)

    with pytest.raises(TransactionTooLarge, match="locks at most 3"):
        store.db.run(lock_four)
    for number in range(4):
        store.db.put(b"%d" % number, b"free")
    assert not store.node.sizes()["locks"]
