"""The memory of locks, which a transaction, a client and a range may have."""

from __future__ import annotations

import tracemalloc

import pytest

from postroom.errors import TransactionTooLarge, Unavailable
from postroom.kv.clock import from_milliseconds
from postroom.limits import LOCK_BYTES, LOCKED_SPANS_MAX, LOCKS_MAX, TRANSACTION_BYTES_MAX
from postroom.ranges import locks as lock_table
from postroom.ranges.locks import LockMemory, LockTable
from postroom.ranges.requests import (
    CLIENT_ID_BYTES,
    CommitTransaction,
    GetForUpdate,
    Lock,
    Put,
    ReleaseLocks,
)
from postroom.ranges.waiting import Waiting
from tests.messaging.one_range import EPOCH_MILLISECONDS, OneRange

BEGAN = from_milliseconds(EPOCH_MILLISECONDS)
LONG_KEY_BYTES = 8192


def transaction(client: int, number: int = 0) -> bytes:
    return client.to_bytes(8, "big") + number.to_bytes(8, "big")


def lock(transaction_id: bytes, *keys: bytes) -> Lock:
    return Lock([*keys], [], transaction_id, 60.0, BEGAN)


def test_a_transaction_has_so_many_locks_at_most() -> None:
    memory = LockMemory()
    for number in range(LOCKS_MAX):
        memory.take(b"%d" % number, transaction(1))
    with pytest.raises(TransactionTooLarge, match=r"10,000 keys and spans.* at most 10,000"):
        memory.take(b"one more", transaction(1))
    memory.take(b"one more", transaction(1, 1))


def test_a_transaction_locks_so_many_spans_at_most() -> None:
    memory = LockMemory()
    for number in range(LOCKED_SPANS_MAX):
        memory.take((b"%d" % number, None), transaction(1))
    with pytest.raises(TransactionTooLarge, match=f"{LOCKED_SPANS_MAX} spans among them"):
        memory.take((b"one more", None), transaction(1))
    memory.take(b"a key", transaction(1))


def test_long_keys_count_as_what_they_take() -> None:
    memory = LockMemory()
    fit = TRANSACTION_BYTES_MAX // (LONG_KEY_BYTES + LOCK_BYTES)
    for number in range(fit):
        memory.take(b"%08192d" % number, transaction(1))
    with pytest.raises(TransactionTooLarge, match="nothing was changed"):
        memory.take(b"%08192d" % fit, transaction(1))


def test_a_client_with_its_share_does_not_keep_others_from_locking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_table, "LOCKED_BYTES_MAX", 10 * (LOCK_BYTES + 1))
    memory = LockMemory()
    for number in range(10):
        memory.take(b"%d" % number, transaction(1, number))
    with pytest.raises(Unavailable, match="run\\(\\) does") as refused:
        memory.take(b"x", transaction(1, 11))
    assert refused.value.retry_after
    for number in range(5):
        memory.take(b"%d" % number, transaction(2, number))
    with pytest.raises(Unavailable):
        memory.take(b"x", transaction(2, 11))
    memory.give_back(transaction(1, 0))
    with pytest.raises(Unavailable):  # it has more than half as yet
        memory.take(b"x", transaction(1, 11))


def test_a_refused_lock_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_table, "LOCKED_BYTES_MAX", 0)
    memory = LockMemory()
    with pytest.raises(Unavailable):
        memory.take(b"x", transaction(1))
    assert not memory._by_transaction
    assert not memory._by_client


def test_locks_taken_before_the_limit_was_met_can_be_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_table, "LOCKS_MAX", 2)
    one_range = OneRange()
    locks = one_range.replica.commit_waits.locks
    refused = one_range.ask(lock(transaction(1), b"a", b"b", b"c"))
    assert isinstance(refused.answers[0][1], TransactionTooLarge)
    assert len(locks) == 2
    one_range.ask(ReleaseLocks(transaction(1)))
    assert len(locks) == 0
    assert locks.memory.bytes == 0


@pytest.mark.parametrize("ends", ["its client vanishes", "its time is over", "a new lease"])
def test_the_memory_of_locks_is_given_back(ends: str) -> None:
    one_range = OneRange()
    locks = one_range.replica.commit_waits.locks
    one_range.ask(lock(transaction(1), *(b"%d" % number for number in range(100))))
    one_range.ask(Lock([], [(b"a", b"b"), (b"c", None)], transaction(1, 1), 60.0, BEGAN))
    waiting = one_range.ask(GetForUpdate(b"1", 0, transaction(2), 60.0))
    assert locks.memory.bytes > 102 * LOCK_BYTES
    match ends:
        case "its client vanishes":
            one_range.replica.release_client(transaction(1)[:CLIENT_ID_BYTES])
        case "its time is over":
            one_range.replica.cancel(waiting)
            one_range.pass_time(61.0)
        case "a new lease":
            one_range.lead()
    left = 1 if ends == "its client vanishes" else 0
    assert len(locks) == left
    assert locks.memory.bytes == left * (LOCK_BYTES + 1)
    assert len(locks.memory._by_client) == len(locks.memory._by_transaction) == left


def test_a_commit_that_may_lock_no_more_waits_as_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit that meets a second lock would lock what it writes; its writes are too many."""
    monkeypatch.setattr(lock_table, "LOCKS_MAX", 1)
    one_range = OneRange()
    one_range.ask(lock(transaction(1), b"b"))
    one_range.ask(lock(transaction(2), b"c"))
    writes = [Put(key, b"new") for key in (b"a", b"b", b"c")]
    commit = one_range.ask(CommitTransaction(transaction(3), BEGAN, 60.0, 0, b"a", [], [], writes))
    one_range.ask(ReleaseLocks(transaction(1)))
    assert not commit.answers
    one_range.ask(ReleaseLocks(transaction(2)))
    assert commit.answers[0][1] is None
    assert len(one_range.replica.commit_waits.locks) == 0


def test_a_lock_takes_no_more_memory_than_it_is_counted_with() -> None:
    names = [b"a key of some length/%08d" % number for number in range(LOCKS_MAX)]
    ids = [transaction(1, number) for number in range(100)]
    table = LockTable(Waiting(lambda _: None))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, name in enumerate(names):
            table.acquire(name, ids[number % len(ids)])
        assert not list(table._keys.within(b"b", b"c"))  # sorted, too
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken + sum(map(len, names)) <= table.memory.bytes
