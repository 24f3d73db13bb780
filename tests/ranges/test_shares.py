"""Clients may always have more waiting than a proposal holds; upkeep has its share of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from postroom import limits
from postroom.kv import keys
from postroom.messaging.counters import read_counters
from postroom.ranges import proposer
from postroom.ranges.calls import Call
from postroom.ranges.requests import CommitTransaction, Increment, Put
from tests.client.stores import Store

VALUE = bytes(10_000)
TURNS = 60


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return a store of small proposals: a client's write is a third of one."""
    monkeypatch.setattr(limits, "PROPOSAL_BYTES_MAX", 30_000)
    monkeypatch.setattr(limits, "UPKEEP_BYTES", 6_000)
    store = Store(gc_interval_seconds=0.1)
    yield store
    store.db.close()


class _Put(Call):
    """A client's commit."""

    __slots__ = ("flood",)

    def __init__(self, flood: Flood, request: Any) -> None:
        super().__init__(request)
        self.flood = flood

    def complete(self, result: Any, error: BaseException | None) -> None:
        assert error is None, error
        self.flood.committed += 1
        self.flood.waiting -= 1


class Flood:
    """More is queued with every write: there is never less than a proposal may hold.

    Attributes:
        committed: how many of the clients' commits were.
    """

    def __init__(self, store: Store, value: bytes = VALUE, puts: int = 1) -> None:
        self.committed = self.waiting = 0
        self._store = store
        self._value = value
        self._puts = puts
        self._turns = 0
        self._numbers = itertools.count()
        store.engine.before_write = lambda _: self.fill()

    def fill(self) -> None:
        self._turns += 1
        while self._turns < TURNS and self.waiting < 8:
            number = next(self._numbers)
            self.waiting += 1
            request = CommitTransaction(
                number.to_bytes(16, "big"), self._store.driver.reading(), 60.0, 0,
                b"f", [], [],
                [Put(b"f%d/%d" % (number % 3, n), self._value) for n in range(self._puts)],
            )  # fmt: skip
            self._store.node.replicas.submit(_Put(self, request))

    def run(self, wanted: Any) -> int:
        """Take turns until ``wanted``, or the end of the flood; return how many."""
        self.fill()
        while not wanted() and self._turns < TURNS:
            self._store.node.turn()
        return self._turns


def garbage(store: Store) -> int:
    start = keys.garbage_prefix(1)
    return sum(1 for _ in store.engine.inner.iterate(start, keys.after_prefix(start)))


def test_due_messages_are_delivered_under_a_flood(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"q", b"m", deliver_at=1)
        tx.enqueue_update(Increment(b"n"), execute_at=1)
    flood = Flood(store)
    store.clock.seconds += 2
    turns = flood.run(lambda: not store.node.root.replica.waiting_for and _pending(store) == 0)
    assert turns < TURNS / 2
    assert flood.committed >= turns, "clients have the larger share"


def _pending(store: Store) -> int:
    return read_counters(store.engine.inner, 1).pending


def test_garbage_is_collected_under_a_flood(store: Store) -> None:
    for number in range(5):
        store.db.put(b"old", b"%d" % number)
    lists = garbage(store)
    assert lists > 0
    flood = Flood(store)
    store.clock.seconds += 100
    first = next(iter(store.engine.inner.iterate(keys.garbage_prefix(1), b"\x04")))[0]
    assert flood.run(lambda: store.engine.inner.get(first) is None) < TURNS / 2


def test_both_go_on_if_together_they_are_too_large(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's commit and what is due fit into a command each, but not both."""
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", 30_000)
    with store.db.begin() as tx:
        for _ in range(4):
            tx.enqueue_message(b"q", bytes(5_000), deliver_at=1)
    flood = Flood(store)
    store.clock.seconds += 2
    turns = flood.run(lambda: _pending(store) == 0)
    assert turns < TURNS / 2
    flood.run(lambda: flood.committed > 10)
    assert flood.committed > 10


def test_due_messages_are_delivered_beside_long_transactions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each proposal holds one of those, and nothing else."""
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 100)
    with store.db.begin() as tx:
        tx.enqueue_message(b"q", b"m", deliver_at=1)
        tx.enqueue_update(Increment(b"n"), execute_at=1)
    flood = Flood(store, b"v", puts=300)
    store.clock.seconds += 2
    turns = flood.run(lambda: _pending(store) == 0)
    assert turns < TURNS / 2
    flood.run(lambda: flood.committed > 10)
    assert flood.committed > 10
