"""A coordinator that hangs for a minute keeps nobody waiting for more than three seconds.

Its process has stopped, or it cannot be reached: by no other node, or only by the node that leads
the other range of its transaction. The minute is one of an artificial clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from postroom.errors import CommitUnknown, Retryable
from postroom.kv import keys
from postroom.ranges.requests import CommitTransaction, Get, Put
from tests.messaging.one_range import Asked
from tests.server.hosting import ThreeNodes

HERE, THERE = b"a", b"z"
"""A key of range 1, which node 1 leads, and one of range 2, which node 2 leads."""
MINUTE, EVERY, LONGEST = 60.0, 4.0, 3.0
RETRY_SECONDS = 0.05

_numbers = itertools.count(1)


@pytest.fixture
def store() -> Iterator[ThreeNodes]:
    made = ThreeNodes()
    made.lead(1, 1)
    made.lead(2, 2)
    made.turn_seconds = 0.004
    yield made
    made.close()


class Patient:
    """A client that sends a request again and again, to the nodes that it can reach.

    Attributes:
        took: the seconds until it was answered; ``None``: it is not yet.
    """

    def __init__(self, store: ThreeNodes, request: Any, key: bytes) -> None:
        self.took: float | None = None
        self._store, self._request = store, request
        self._range_id = 1 if key < b"m" else 2
        self._begun = self._next = store.clock.seconds
        self._asked: Asked | None = None

    def go_on(self) -> None:
        now = self._store.clock.seconds
        if self._asked is not None and self._asked.answers:
            _, error = self._asked.answers[0]
            self._asked = None
            if not isinstance(error, Retryable | CommitUnknown):
                assert error is None, error
                self.took = now - self._begun
            self._next = now + RETRY_SECONDS
        if self.took is None and self._asked is None and self._next <= now:
            nodes = self._store.nodes
            groups = {each: self._store.hosted(each, self._range_id).group for each in nodes}
            leaders = [each for each, group in groups.items() if group.is_leader]
            if leaders:
                newest = max(leaders, key=lambda each: groups[each].term)
                self._asked = Asked(self._request)
                nodes[newest].replicas.submit(self._asked)


def transaction(store: ThreeNodes, *writes: Put) -> CommitTransaction[Any]:
    began = max(node.clock.reading() for node in store.nodes.values())
    return CommitTransaction(
        b"a client" + next(_numbers).to_bytes(8, "big"), began, 60.0, 0, writes[0].key, [], [],
        list(writes),
    )  # fmt: skip


def stop(store: ThreeNodes, _: pytest.MonkeyPatch) -> Callable[[], None]:
    """Stop the process of node 1, and return how it goes on."""
    node = store.nodes.pop(1)

    def go_on() -> None:
        store.nodes[1] = node

    return go_on


def isolate(store: ThreeNodes, _: pytest.MonkeyPatch) -> Callable[[], None]:
    """Cut node 1 off from both others."""
    store.network.partition({1}, {2, 3})
    return store.network.heal


def cut_link(store: ThreeNodes, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Cut the link between nodes 1 and 2. Both reach node 3, and go on leading."""
    patch.setattr(store.network, "_same_side", lambda one, other: {one, other} != {1, 2})

    def heal() -> None:
        patch.setattr(store.network, "_same_side", lambda *_: True)

    return heal


@pytest.mark.parametrize("hang", [stop, isolate, cut_link], ids=lambda each: each.__name__)
def test_a_coordinator_that_hangs_for_a_minute_blocks_nobody_for_more_than_three_seconds(
    store: ThreeNodes, hang: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = Asked(transaction(store, Put(HERE, b"hung"), Put(THERE, b"hung")))
    store.nodes[1].replicas.submit(hung)
    second = store.hosted(2, 2).replica
    store.until(lambda: second.intents)
    go_on = hang(store, monkeypatch)
    clients: list[Patient] = []
    begun = sent = store.clock.seconds

    def send() -> None:
        both = Put(HERE + b"1", b"both"), Put(THERE + b"1", b"both")
        requests = [Get(THERE), transaction(store, Put(THERE, b"t")), Get(HERE)]
        requests.append(transaction(store, Put(HERE, b"h")))
        requests += [transaction(store, *both), transaction(store, *reversed(both))]
        for each in requests:
            key = each.anchor if isinstance(each, CommitTransaction) else each.key
            clients.append(Patient(store, each, key))

    send()

    def is_over() -> bool:
        nonlocal sent
        if store.clock.seconds - sent >= EVERY:
            sent = store.clock.seconds
            send()
        for each in clients:
            each.go_on()
        return store.clock.seconds - begun >= MINUTE

    store.until(is_over, MINUTE + 1.0)
    took = [each.took if each.took is not None else MINUTE for each in clients[:-6]]
    assert max(took) <= LONGEST, sorted(took)[-5:]
    go_on()
    store.until(lambda: hung.answers and not records(store))
    assert isinstance(hung.answers[0][1], Retryable | CommitUnknown | None)


def records(store: ThreeNodes) -> int:
    prefixes = [keys.prepared_prefix(range_id) for range_id in (1, 2)]
    return sum(
        len([*node.engine.iterate(prefix, keys.after_prefix(prefix))])
        for node in store.nodes.values()
        for prefix in prefixes
    )
