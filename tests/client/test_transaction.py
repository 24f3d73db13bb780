"""Transactions: what they see, when they conflict, what their limits are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import postroom
from postroom.errors import (
    ConditionFailed,
    TransactionClosed,
    TransactionConflict,
    TransactionExpired,
)
from postroom.limits import TRANSACTION_SECONDS_MAX
from tests.client.stores import Store


@pytest.fixture
def letters(db: postroom.Database) -> postroom.Database:
    """Return a store that holds a, b, c and d."""
    for name in (b"a", b"b", b"c", b"d"):
        db.put(name, name.upper())
    return db


# --- its reads


def test_a_transaction_sees_its_own_writes(letters: postroom.Database) -> None:
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


def test_writes_are_invisible_to_others_before_the_commit(letters: postroom.Database) -> None:
    with letters.begin() as tx:
        tx.put(b"a", b"1")
        tx.delete(b"b")
        tx.enqueue_message(b"a", b"m")
        tx.enqueue_update(postroom.Delete(b"c"))
        assert letters.get_many([b"a", b"b", b"c"]) == [b"A", b"B", b"C"]
        assert letters.peek(b"a") == []
    assert letters.get_many([b"a", b"b"]) == [b"1", None]
    assert [message.value for message in letters.peek(b"a")] == [b"m"]


def test_a_transaction_reads_at_one_timestamp(letters: postroom.Database) -> None:
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
    "scan": lambda tx: list(tx.scan(b"b", b"d")),
    "reverse scan": lambda tx: list(tx.scan(b"b", b"d", reverse=True)),
    "conditional_put": lambda tx: tx.conditional_put(b"c", b"x", b"C"),
    "delete_range": lambda tx: tx.delete_range(b"b", b"d"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", READS)
def test_a_transaction_whose_reads_have_changed_conflicts(
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
def test_changes_of_unread_keys_do_not_conflict(letters: postroom.Database, read: str) -> None:
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

    index = store.node.root.replica.state.applied_index
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
