"""Transactions: what they see, when they conflict, how they end, what their limits are."""

from __future__ import annotations

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
from postroom.kv.memory import WriteFault
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.ranges.requests import CommitTransaction, Put
from tests.client.stores import Store


@pytest.fixture
def letters(db: postroom.Database) -> postroom.Database:
    """A store that holds a, b, c and d."""
    for name in (b"a", b"b", b"c", b"d"):
        db.put(name, name.upper())
    return db


# --- what it sees


def test_it_sees_its_own_writes(letters: postroom.Database) -> None:
    with letters.begin() as tx:
        tx.put(b"a", b"1")
        tx.delete(b"b")
        tx.put(b"e", b"2")
        assert tx.get(b"a") == b"1"
        assert tx.get(b"b") is None
        assert tx.get_for_update(b"a") == b"1"
        assert tx.get_many([b"e", b"b", b"c", b"a"]) == [b"2", None, b"C", b"1"]
        assert list(tx.scan(b"a", b"e")) == [(b"a", b"1"), (b"c", b"C"), (b"d", b"D")]
        assert [name for name, _ in tx.scan(reverse=True)] == [b"e", b"d", b"c", b"a"]
    assert list(letters.scan()) == [(b"a", b"1"), (b"c", b"C"), (b"d", b"D"), (b"e", b"2")]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", range(6))
def test_a_limited_scan_counts_its_own_writes(
    letters: postroom.Database, limit: int, reverse: bool
) -> None:
    with letters.begin() as tx:
        tx.delete(b"a")
        tx.delete(b"d")
        tx.put(b"bb", b"own")
        tx.put(b"b", b"own")
        names = [name for name, _ in tx.scan(limit=limit, reverse=reverse)]
    assert names == sorted([b"b", b"bb", b"c"], reverse=reverse)[:limit]


def test_increments_and_conditions_build_on_its_own_writes(letters: postroom.Database) -> None:
    with letters.begin() as tx:
        assert [tx.increment(b"n", 5), tx.increment(b"n", -1)] == [5, 4]
        tx.conditional_put(b"e", b"1", None)
        tx.conditional_put(b"e", b"2", b"1")
        with pytest.raises(ConditionFailed) as failed:
            tx.conditional_put(b"e", b"3", None)
        assert failed.value.actual == b"2"
    assert postroom.integer(letters.get(b"n")) == 4
    assert letters.get(b"e") == b"2"


def test_delete_range_counts_its_own_writes(letters: postroom.Database) -> None:
    with letters.begin() as tx:
        tx.put(b"bb", b"own")
        tx.delete(b"c")
        assert tx.delete_range(b"b", b"d") == 2
        assert tx.delete_range(b"b", b"d") == 0
        tx.put(b"c", b"again")
    assert [name for name, _ in letters.scan()] == [b"a", b"c", b"d"]


def test_nobody_else_sees_it_before_it_commits(letters: postroom.Database) -> None:
    with letters.begin() as tx:
        tx.put(b"a", b"1")
        tx.delete(b"b")
        tx.enqueue_message(b"a", b"m")
        tx.enqueue_update(postroom.Delete(b"c"))
        assert letters.get_many([b"a", b"b", b"c"]) == [b"A", b"B", b"C"]
        assert letters.peek(b"a") == []
    assert letters.get_many([b"a", b"b"]) == [b"1", None]
    assert [message.value for message in letters.peek(b"a")] == [b"m"]


def test_it_reads_at_one_timestamp(letters: postroom.Database) -> None:
    with letters.begin() as tx:
        assert tx.read_timestamp is None
        assert tx.get(b"a") == b"A"
        moment = tx.read_timestamp
        letters.put(b"b", b"new")
        letters.delete(b"c")
        assert tx.get(b"b") == b"B"
        assert tx.get_many([b"b", b"c"]) == [b"B", b"C"]
        assert list(tx.scan(b"b", b"d")) == [(b"b", b"B"), (b"c", b"C")]
        assert tx.read_timestamp == moment


# --- ending


def test_a_block_commits_at_its_end_and_rolls_back_on_an_exception(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.put(b"a", b"1")
        assert (tx.closed, tx.commit_timestamp) == (False, None)
    assert tx.closed
    with pytest.raises(ZeroDivisionError), db.begin() as tx:
        tx.put(b"a", b"%d" % (1 // 0))
    assert (tx.closed, tx.commit_timestamp) == (True, None)
    assert db.get(b"a") == b"1"


def test_commit_returns_the_timestamp_of_its_writes(db: postroom.Database) -> None:
    tx = db.begin()
    tx.get(b"a")
    tx.put(b"a", b"1")
    moment = tx.commit()
    assert isinstance(moment, postroom.Timestamp)
    assert tx.commit_timestamp == moment
    assert tx.read_timestamp is not None
    assert tx.read_timestamp < moment
    assert db.get(b"a", at=moment) == b"1"
    assert db.get(b"a", at=moment - 1) is None


def test_a_transaction_that_only_reads_commits_where_it_read(store: Store) -> None:
    tx = store.db.begin()
    tx.get(b"a")
    store.db.put(b"a", b"1")
    assert store.writes_of(tx.commit) == 0
    assert tx.commit_timestamp == tx.read_timestamp
    assert store.db.begin().commit() > 0


def test_ids_are_unique(db: postroom.Database) -> None:
    ids = {db.begin().id for _ in range(100)}
    assert len(ids) == 100
    assert {len(each) for each in ids} == {16}


def test_a_block_may_end_its_transaction_itself(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.put(b"a", b"1")
        tx.commit()
    with db.begin() as tx:
        tx.put(b"a", b"2")
        tx.rollback()
    assert db.get(b"a") == b"1"


CALLS: dict[str, Callable[[postroom.Transaction], Any]] = {
    "get": lambda tx: tx.get(b"a"),
    "get_many": lambda tx: tx.get_many([b"a"]),
    "get_for_update": lambda tx: tx.get_for_update(b"a"),
    "scan": lambda tx: list(tx.scan()),
    "put": lambda tx: tx.put(b"a", b"1"),
    "delete": lambda tx: tx.delete(b"a"),
    "delete_range": lambda tx: tx.delete_range(b"a", b"b"),
    "increment": lambda tx: tx.increment(b"a"),
    "conditional_put": lambda tx: tx.conditional_put(b"a", b"1", None),
    "enqueue_message": lambda tx: tx.enqueue_message(b"a", b"1"),
    "enqueue_update": lambda tx: tx.enqueue_update(postroom.Delete(b"a")),
    "reap_queue": lambda tx: tx.reap_queue(b"a"),
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_every_call_after_its_end_says_so(store: Store, ending: str, call: str) -> None:
    tx = store.db.begin()
    tx.put(b"x", b"1")
    getattr(tx, ending)()
    before = store.dump()
    with pytest.raises(TransactionClosed, match=r"was (committed|rolled back).*begin a new one"):
        CALLS[call](tx)
    assert store.dump() == before


# --- conflicts


CHANGES: dict[str, Callable[[postroom.Database], Any]] = {
    "put": lambda db: db.put(b"c", b"new"),
    "delete": lambda db: db.delete(b"c"),
    "delete_range": lambda db: db.delete_range(b"b", b"d"),
    "increment": lambda db: db.run(lambda tx: (tx.delete(b"c"), tx.increment(b"c"))),
    "update": lambda db: db.run(lambda tx: tx.enqueue_update(postroom.Put(b"c", b"new"))),
}
READS: dict[str, Callable[[postroom.Transaction], Any]] = {
    "get": lambda tx: tx.get(b"c"),
    "get_many": lambda tx: tx.get_many([b"a", b"c"]),
    "get_for_update": lambda tx: tx.get_for_update(b"c"),
    "scan": lambda tx: list(tx.scan(b"b", b"d")),
    "reverse scan": lambda tx: list(tx.scan(b"b", b"d", reverse=True)),
    "conditional_put": lambda tx: tx.conditional_put(b"c", b"x", b"C"),
    "delete_range": lambda tx: tx.delete_range(b"b", b"d"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", READS)
def test_what_it_read_must_not_have_changed(
    letters: postroom.Database, read: str, change: str
) -> None:
    tx = letters.begin()
    READS[read](tx)
    CHANGES[change](letters)
    tx.put(b"other", b"1")
    tx.enqueue_message(b"other", b"m")
    with pytest.raises(TransactionConflict, match=r"changed b'[bc]' after this one had read it"):
        tx.commit()
    assert letters.get(b"other") is None
    assert letters.peek(b"other") == []
    assert tx.closed


@pytest.mark.parametrize("read", READS)
def test_what_it_did_not_read_may_change(letters: postroom.Database, read: str) -> None:
    tx = letters.begin()
    READS[read](tx)
    for name in (b"A", b"d", b"e", b"cc" if "scan" not in read and "range" not in read else b"f"):
        letters.put(name, b"new")
    tx.put(b"other", b"1")
    tx.commit()


def test_a_phantom_conflicts_with_a_scan(letters: postroom.Database) -> None:
    tx = letters.begin()
    assert len(list(tx.scan())) == 4
    letters.put(b"bb", b"new")
    tx.put(b"count", b"4")
    with pytest.raises(TransactionConflict, match="b'bb'"):
        tx.commit()


def test_a_limited_scan_read_only_as_far_as_it_came(letters: postroom.Database) -> None:
    for reverse, beyond, within in ((False, b"d", b"aa"), (True, b"a", b"cc")):
        for name, conflicts in ((beyond, False), (within, True)):
            tx = letters.begin()
            assert len(list(tx.scan(limit=2, reverse=reverse))) == 2
            letters.put(name, b"new")
            tx.put(b"x", b"1")
            if conflicts:
                with pytest.raises(TransactionConflict):
                    tx.commit()
                letters.delete(name)
            else:
                tx.commit()
            letters.delete(b"x")


def test_blind_writes_conflict_with_nothing(letters: postroom.Database) -> None:
    tx, other = letters.begin(), letters.begin()
    for number, each in enumerate((tx, other)):
        each.put(b"a", b"%d" % number)
        each.enqueue_message(b"a", b"%d" % number)
        each.enqueue_update(postroom.Increment(b"n"))
    other.commit()
    tx.commit()
    assert letters.get(b"a") == b"0"
    assert [message.value for message in letters.peek(b"a")] == [b"1", b"0"]


# --- locks


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
def test_however_it_ends_its_locks_are_free(store: Store, ending: str) -> None:
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


def test_who_waits_for_a_forgotten_lock_gets_it_when_its_time_is_over(store: Store) -> None:
    store.db.begin(timeout=5).get_for_update(b"a")
    waiting = store.start(store.core.begin().get_for_update(b"a"))
    store.advance(6)
    assert waiting.done


def test_who_waits_too_long_for_a_lock_gets_a_conflict(store: Store) -> None:
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


def test_locks_do_not_keep_others_from_reading_or_writing(store: Store) -> None:
    holder = store.db.begin()
    holder.get_for_update(b"a")
    store.db.put(b"a", b"new")
    assert store.db.get(b"a") == b"new"
    holder.put(b"b", b"1")
    with pytest.raises(TransactionConflict):
        holder.commit()


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
        value = tx.increment(b"n")
        if len(ids) < 4:
            store.db.put(b"n", (10 * value).to_bytes(8, "big"))

    store.db.run(disturbed)
    assert len(set(ids)) == 4
    assert postroom.integer(store.db.get(b"n")) == 1111
    assert store.clock.seconds > 0


def test_run_gives_up_after_a_minute(store: Store) -> None:
    def hopeless(tx: postroom.Transaction) -> None:
        tx.increment(b"n")
        store.db.increment(b"n")

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
    """Makes a transaction whose first commit meets a write that fails; the store is back then."""

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


def test_run_resolves_an_unknown_commit_by_itself(store: Store) -> None:
    attempts = []

    def count(tx: postroom.Transaction) -> None:
        attempts.append(tx.id)
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
    assert len(attempts) == 1


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
    """Found by the simulator: the error took the place of ``CommitUnknown``, and ``run`` began anew
    what had happened already.
    """
    sender: Any = _Down()
    tx = Transaction(sender, resolve(None), b"0123456789abcdef", 60.0)
    sender.is_down = True
    assert tx.may_be_told


# --- limits, costs


@pytest.mark.parametrize("timeout", [60.0, 1])
def test_a_transaction_expires(store: Store, timeout: float) -> None:
    tx = store.db.begin(timeout=timeout)
    tx.put(b"a", b"1")
    store.advance(timeout)
    late = store.db.begin(timeout=timeout)
    late.put(b"b", b"1")
    store.advance(0.1)
    before = store.dump()
    advice = "shorter transactions" if timeout == 60 else "a longer timeout .*\\(60 s at most\\)"
    with pytest.raises(TransactionExpired, match=f"more than {timeout:g} s.*{advice}"):
        tx.get(b"a")
    with pytest.raises(TransactionExpired) as refused:
        tx.commit()
    longer = "longer timeout" in str(refused.value)
    assert longer == (timeout < TRANSACTION_SECONDS_MAX)  # more than the most is no advice
    assert store.dump() == before
    late.commit()


def test_messages_and_updates_cost_no_write_of_their_own(store: Store) -> None:
    def plain() -> None:
        with store.db.begin() as tx:
            tx.put(b"a", b"1")

    def sending() -> None:
        with store.db.begin() as tx:
            tx.put(b"a", b"1")
            for number in range(10):
                tx.enqueue_message(b"inbox%d" % number, b"m")
                tx.enqueue_update(postroom.Increment(b"n%d" % number))
            tx.enqueue_message(b"later", b"m", deliver_at=3600)

    index = store.node.replica.state.applied_index
    cost = []
    for action in (plain, sending):
        before = index()
        cost.append((store.writes_of(action), index() - before))
    assert cost == [(1, 1), (1, 1)]
    assert store.counters().pending == 1


def test_a_reap_and_its_state_change_are_one_write(store: Store) -> None:
    with store.db.begin() as tx:
        for _ in range(100):
            tx.enqueue_message(b"inbox", b"m")

    def work() -> None:
        with store.db.begin() as tx:
            tx.increment(b"done", len(tx.reap_queue(b"inbox")))

    assert store.writes_of(work) == 1


def test_reads_cost_no_write(store: Store) -> None:
    def read() -> None:
        store.db.get(b"a")
        list(store.db.scan())
        store.db.peek(b"a")
        store.db.inboxes()
        store.db.dead_letters()
        with store.db.begin() as tx:
            tx.get_for_update(b"a")
            tx.reap_queue(b"a")

    store.db.put(b"a", b"1")
    assert store.writes_of(read) == 0
