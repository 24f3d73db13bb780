"""Outcomes of transactions: ``run``, which tries again, and commits of which nobody can tell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import postroom
from postroom.client.codec import resolve
from postroom.client.transaction import Transaction
from postroom.errors import (
    CommitUnknown,
    ConditionFailed,
    TransactionClosed,
    TransactionConflict,
    TransactionExpired,
)
from postroom.kv.log_device import WriteFault
from postroom.ranges.requests import CommitTransaction, Put
from tests.client.stores import Store

# --- run


def test_run_commits_and_returns_what_the_function_returned(db: postroom.Database) -> None:
    def credit(tx: postroom.Transaction, name: bytes, *, by: int) -> int:
        return tx.increment(name, by)

    assert db.run(credit, b"n", by=3) == 3
    assert postroom.integer(db.get(b"n")) == 3


def test_run_tries_again_on_conflict(store: Store) -> None:
    ids = []

    def disturbed(tx: postroom.Transaction) -> None:
        ids.append(tx.id)
        tx.increment(b"n")
        if len(ids) < 4:
            tx.get(b"%d" % len(ids))
            store.db.put(b"%d" % len(ids), b"new")

    store.db.run(disturbed)
    assert len(set(ids)) == 4
    assert postroom.integer(store.db.get(b"n")) == 1
    assert store.clock.seconds > 0


def test_run_gives_up_after_a_minute(store: Store) -> None:
    numbers = itertools.count()

    def hopeless(tx: postroom.Transaction) -> None:
        key = b"%d" % next(numbers)
        tx.increment(key)
        store.db.increment(key)

    with pytest.raises(TransactionConflict):
        store.db.run(hopeless)
    assert 60 < store.clock.seconds < 65


def test_run_passes_other_errors_on_and_rolls_back(db: postroom.Database) -> None:
    def broken(tx: postroom.Transaction) -> None:
        tx.put(b"a", b"1")
        raise ConditionFailed("the application's own")

    with pytest.raises(ConditionFailed):
        db.run(broken)
    assert db.get(b"a") is None


def test_run_accepts_that_the_function_ends_the_transaction(db: postroom.Database) -> None:
    db.run(lambda tx: (tx.put(b"a", b"1"), tx.commit()))
    db.run(lambda tx: (tx.put(b"a", b"2"), tx.rollback()))
    assert db.get(b"a") == b"1"


# --- outcomes


@pytest.fixture
def failing(store: Store) -> Iterator[Callable[[WriteFault], postroom.Transaction]]:
    """Yield a maker of transactions whose first commit meets a failing write.

    The store is back then.
    """

    def commit(fault: WriteFault) -> postroom.Transaction:
        tx = store.db.begin()
        tx.increment(b"n")
        tx.enqueue_message(b"inbox", b"m")
        tx.enqueue_update(postroom.Increment(b"m"))
        store.engine.fault = fault
        with pytest.raises(CommitUnknown, match="commit again with the same transaction id"):
            tx.commit()
        store.kill()
        return tx

    return commit  # type: ignore[return-value]


@pytest.mark.parametrize("fault", WriteFault)
def test_committing_again_tells_the_outcome(
    store: Store, failing: Callable[[WriteFault], postroom.Transaction], fault: WriteFault
) -> None:
    tx = failing(fault)
    there = store.db.get(b"n") is not None
    assert there is (fault is WriteFault.THERE_WHOLE)
    moment = tx.commit()
    assert postroom.integer(store.db.get(b"n", at=moment)) == 1
    assert postroom.integer(store.db.get(b"m")) == 1
    assert [message.value for message in store.db.peek(b"inbox")] == [b"m"]
    counters = store.counters()
    assert (counters.enqueued, counters.delivered, counters.executed) == (2, 1, 1)


@pytest.mark.parametrize("fault", WriteFault)
def test_a_transaction_that_may_have_committed_takes_no_more_writes(
    store: Store, failing: Callable[[WriteFault], postroom.Transaction], fault: WriteFault
) -> None:
    """Committed again, it was answered as the first time, and what was added since was lost."""
    tx = failing(fault)
    calls: list[Callable[[], object]] = [
        lambda: tx.put(b"later", b"1"),
        lambda: tx.delete(b"n"),
        lambda: tx.enqueue_message(b"inbox", b"later"),
        lambda: tx.enqueue_update(postroom.Increment(b"m")),
        lambda: tx.increment(b"n"),
        lambda: tx.get(b"n"),
        lambda: tx.reap_queue(b"inbox"),
    ]
    for call in calls:
        with pytest.raises(TransactionClosed, match="sent to be committed already"):
            call()
    assert not tx.closed
    tx.commit()
    assert tx.closed
    assert postroom.integer(store.db.get(b"n")) == 1
    assert [message.value for message in store.db.peek(b"inbox")] == [b"m"]


def test_a_transaction_that_may_have_committed_can_be_rolled_back(
    failing: Callable[[WriteFault], postroom.Transaction],
) -> None:
    tx = failing(WriteFault.NOT_AT_ALL)
    tx.rollback()
    assert tx.closed
    with pytest.raises(TransactionClosed, match="rolled back already"):
        tx.commit()


def test_run_resolves_an_unknown_commit_by_itself(store: Store) -> None:
    tries = []

    def count(tx: postroom.Transaction) -> None:
        tries.append(tx.id)
        tx.increment(b"n")
        store.engine.fault = WriteFault.THERE_WHOLE

    async def restart() -> None:
        await store.driver.sleep(0)
        store.kill()

    store.engine.before_write = lambda _: (
        None if store.engine.fault is None else _begin(store, restart)
    )
    store.db.run(count)
    assert postroom.integer(store.db.get(b"n")) == 1
    assert len(tries) == 1


def _begin(store: Store, function: Callable[[], Any]) -> None:
    store.engine.before_write = lambda _: None
    store.driver.later(function())


@pytest.mark.parametrize("restarted", [False, True])
def test_the_same_commit_sent_twice_is_applied_once(store: Store, restarted: bool) -> None:
    request = CommitTransaction(
        store.driver.next_id(), store.node.clock.now(), 60.0, 0, b"a", [], [], [Put(b"a", b"1")]
    )

    async def send() -> Any:
        return await store.driver.send(request)

    first = store.driver.run(send())
    store.db.put(b"a", b"2")
    if restarted:
        store.kill()
    assert store.driver.run(send()) == first
    assert store.db.get(b"a") == b"2"


@pytest.mark.parametrize(("asked", "granted"), [(5.0, 5), (61.0, 60)])
def test_a_commit_that_comes_too_late_is_refused_by_the_store_as_well(
    store: Store, asked: float, granted: int
) -> None:
    request = CommitTransaction(
        store.driver.next_id(), store.node.clock.now(), asked, 0, b"a", [], [], [Put(b"a", b"1")]
    )
    store.advance(granted + 0.1)

    async def send() -> Any:
        return await store.driver.send(request)

    with pytest.raises(TransactionExpired, match=f"more than {granted} s"):
        store.driver.run(send())
    assert store.db.get(b"a") is None


def test_a_commit_so_late_that_its_record_may_be_gone_is_unknown(store: Store) -> None:
    request = CommitTransaction(
        store.driver.next_id(), store.node.clock.now(), 60.0, 0, b"a", [], [], [Put(b"a", b"1")]
    )
    store.advance(80)

    async def send() -> Any:
        return await store.driver.send(request)

    with pytest.raises(CommitUnknown, match="read what it would have written"):
        store.driver.run(send())
    assert store.db.get(b"a") is None


class _Down:
    """A sender whose store is down since the transaction began."""

    def __init__(self) -> None:
        self.is_down = False

    def monotonic(self) -> float:
        return 0.0

    def reading(self) -> int:
        if self.is_down:
            raise postroom.Unavailable("down")
        return 1


def test_a_store_that_cannot_tell_the_time_may_tell_the_outcome_yet() -> None:
    """``run`` does not begin anew after an outcome that is unknown.

    Otherwise the error takes the place of ``CommitUnknown``, and the work is done twice.
    """
    sender: Any = _Down()
    tx = Transaction(sender, resolve(None), b"0123456789abcdef", 60.0)
    sender.is_down = True
    assert tx.may_be_told
