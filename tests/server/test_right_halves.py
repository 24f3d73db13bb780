"""The right half of a split, with what came to its keys before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import postroom
from postroom.kv.engine import WriteSet
from postroom.ranges.bounds import Bounds, WrongRange
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.split.records import halved_key
from postroom.ranges.split.requests import AwaitSplit
from postroom.ranges.transactions.intents import Intent, IntentTable
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.splitting import counters, hosted, prepare, split


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.node.close()


def test_a_message_of_before_the_split_can_be_postponed(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"z", b"message")
    right = split(store, b"m")
    with store.db.begin() as tx:
        tx.postpone(tx.reap_queue(b"z"), 1.0, "not now")
    assert (counters(right).delivered, counters(right).pending_messages) == (-1, 1)
    store.advance(2.0)
    with store.db.begin() as tx:
        assert [each.value for each in tx.reap_queue(b"z")] == [b"message"]
    assert (counters(right).delivered, counters(right).reaped) == (0, 1)


def test_a_message_of_before_the_split_can_be_buried(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"z", b"message")
    right = split(store, b"m")
    with store.db.begin() as tx:
        tx.bury(tx.reap_queue(b"z"), "unreadable")
    assert (counters(right).delivered, counters(right).dead) == (-1, 1)


def test_a_caller_that_asks_while_the_split_is_written_is_sent_to_the_right_half(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Asked(AwaitSplit(b"m"))
    write = store.node.write

    def written(staged: WriteSet) -> Any:
        if halved_key(ROOT_ID) in staged:
            store.node.replicas.submit(late)
        return write(staged)

    monkeypatch.setattr(store.node, "write", written)
    prepare(store, b"m")
    store.advance(1.0)
    ((_, error),) = late.answers
    assert isinstance(error, WrongRange)


def test_a_thread_that_reads_beside_a_split_reads_no_version_after_its_timestamp(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has looked at the bounds when the range splits, and a new version is written."""
    store.db.put(b"n", b"old")
    split(store, b"x")
    left = hosted(store, ROOT_ID).replica
    contains = Bounds.contains

    def looked_at(bounds: Bounds, key: bytes) -> bool:
        answer = contains(bounds, key)
        monkeypatch.undo()
        split(store, b"m")
        store.db.put(b"n", b"new")
        return answer

    monkeypatch.setattr(Bounds, "contains", looked_at)
    assert left.try_get(b"n") is None


def test_a_thread_reads_no_value_that_a_commit_over_ranges_replaces_at_an_earlier_timestamp(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is evaluated in the other range, but not proposed yet, when the thread reads."""
    store.db.put(b"z", b"old")
    right = split(store, b"m").replica
    seen = []
    remove = IntentTable.remove

    def removed(table: IntentTable, intent: Intent) -> None:
        remove(table, intent)
        if table is right.intents:
            seen.append(right.try_get(b"z"))

    monkeypatch.setattr(IntentTable, "remove", removed)
    with store.db.begin() as tx:
        tx.put(b"a", b"new")
        tx.put(b"z", b"new")
    store.advance(1.0)
    assert seen == [None]
    assert store.db.get(b"z") == b"new"


def test_a_transaction_sees_what_was_acknowledged_in_each_range_before_it_began(
    store: Store,
) -> None:
    split(store, b"m")
    store.db.put(b"a", b"1")
    store.db.put(b"z", b"1")
    store.db.put(b"z", b"2")
    with store.db.begin() as tx:
        assert (tx.get(b"a"), tx.get(b"z")) == (b"1", b"2")


def test_run_tries_again_what_has_lost_keys_of_several_ranges() -> None:
    tries = []
    with postroom.open(":memory:") as db:
        db.split(b"m")

        def lose(tx: postroom.Transaction) -> None:
            tries.append((tx.get(b"a"), tx.get(b"z")))
            if len(tries) == 1:
                db.put(b"a", b"another")
                db.put(b"z", b"another")
            tx.put(b"a", b"1")
            tx.put(b"z", b"1")

        db.run(lose)
    assert len(tries) == 2
