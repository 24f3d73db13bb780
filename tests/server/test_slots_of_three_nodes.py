"""A limit over ranges that three nodes lead in turn, while leaders are killed: never one too many.

An observer notes what its consumers hold: from the answer to a claim until they acknowledge.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

import pytest

from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    ClaimQueue,
    ClaimSelection,
    CreateQueue,
    EnqueueInQueue,
    QueueSettings,
    StoredQueueMessage,
)
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import CommitTransaction
from tests.messaging.one_range import Asked
from tests.server.hosting import MEMBERS, ThreeNodes

Q: Final = "work"
LIMIT: Final = 7
CUTS: Final = tuple(b"%d" % each for each in range(1, 9))
CLIENT: Final = b"observer"
STEP_SECONDS: Final = 0.01


class Observer:
    """The consumers of a queue in all ranges, and what they hold."""

    def __init__(self, nodes: ThreeNodes, seed: int) -> None:
        self.nodes, self.random = nodes, Random(seed)
        self.number = 0
        self.waiting: list[tuple[int, int, Asked]] = []
        self.held: list[tuple[float, int, StoredQueueMessage]] = []
        self.most = self.fired = 0

    def id(self) -> bytes:
        self.number += 1
        return CLIENT + self.number.to_bytes(8, "big")

    def submit(self, range_id: int, request: Any) -> Asked | None:
        """Send a request to the leader of a range, if there is one."""
        leader = self.nodes.leader(range_id)
        if leader is None:
            return None
        asked = Asked(request)
        self.nodes.hosted(leader, range_id).replica.submit(asked)
        return asked

    def commit(self, range_id: int, *writes: Any) -> Asked | None:
        now = self.nodes.nodes[next(iter(self.nodes.nodes))].clock.reading()
        anchor = self.start(range_id)
        return self.submit(
            range_id, CommitTransaction(self.id(), now, 60.0, 0, anchor, [], [], list(writes))
        )

    def homes(self, range_id: int) -> tuple[bytes, bytes | None]:
        """Return the bounds of a range."""
        bounds = self.nodes.hosted(next(iter(self.nodes.nodes)), range_id).replica.bounds
        return bounds.start, bounds.end

    def start(self, range_id: int) -> bytes:
        """Return a key of a range."""
        return self.homes(range_id)[0] or b"0"

    def committed(self, range_id: int, *writes: Any) -> None:
        """Commit, and try again until the range has a leader that knows the queue."""
        for _ in range(1000):
            asked = self.commit(range_id, *writes)
            self.nodes.until(lambda: asked is None or asked.answers)  # noqa: B023
            if asked is not None and asked.answers[0][1] is None:
                return
            until = self.nodes.clock.seconds + STEP_SECONDS
            self.nodes.until(lambda: self.nodes.clock.seconds >= until)  # noqa: B023
        raise AssertionError("nobody commits")

    def enqueue(self, range_id: int, number: int) -> None:
        home = self.start(range_id)
        for _ in range(0, number, 50):
            ids = [home + b"/" + self.id()[8:] for _ in range(50)]
            self.committed(
                range_id, *(EnqueueInQueue(Q, each, "", each, b"", is_unique=True) for each in ids)
            )

    def step(self, hold_seconds: float) -> None:
        """Let a moment pass; take answers, acknowledge, and claim again."""
        until = self.nodes.clock.seconds + STEP_SECONDS
        self.nodes.until(lambda: self.nodes.clock.seconds >= until)
        now, left = self.nodes.clock.seconds, []
        for range_id, node_id, asked in self.waiting:
            if not asked.answers:
                left.append((range_id, node_id, asked))
                continue
            claimed, error = asked.answers[0]
            for each in () if error is not None else claimed.messages:
                self.fired += 1
                self.held.append((now + hold_seconds * self.random.random(), range_id, each))
        self.waiting = left
        self.most = max(self.most, len(self.held))
        over = [each for each in self.held if each[0] <= now]
        self.held = [each for each in self.held if each[0] > now]
        for _, range_id, message in over:
            named = Attempt(*message.locator, message.epoch)
            self.commit(range_id, Acknowledge(Q, [named]))
        for range_id in self.nodes.range_ids:
            while self.number_waiting(range_id) < LIMIT:
                claim = ClaimQueue(
                    Q, self.id(), 1, ClaimSelection(), wait=True, homes=self.homes(range_id)
                )
                asked = self.submit(range_id, claim)
                if asked is None:
                    break
                self.waiting.append((range_id, self.nodes.leader(range_id) or 0, asked))

    def number_waiting(self, range_id: int) -> int:
        return sum(each == range_id for each, _, _ in self.waiting)

    def held_in(self, range_id: int) -> int:
        return sum(each == range_id for _, each, _ in self.held)

    def crash(self, node_id: int) -> None:
        """Kill a node, and forget the claims that wait there."""
        self.nodes.crash(node_id)
        self.waiting = [each for each in self.waiting if each[1] != node_id]


@pytest.fixture
def nodes() -> Iterator[ThreeNodes]:
    made = ThreeNodes(*CUTS)
    made.turn_seconds = 0.005
    yield made
    made.close()


def begun(nodes: ThreeNodes, seed: int, **settings: Any) -> Observer:
    observer = Observer(nodes, seed)
    for place, range_id in enumerate(nodes.range_ids):
        nodes.lead(range_id, MEMBERS[place % len(MEMBERS)])
    limited = QueueSettings(max_concurrency=LIMIT, ack_wait=2.0, max_attempts=None, **settings)
    observer.committed(ROOT_ID, CreateQueue(Q, limited))
    return observer


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_holds_while_leaders_are_killed(nodes: ThreeNodes, seed: int) -> None:
    observer = begun(nodes, seed)
    for range_id in nodes.range_ids:
        observer.enqueue(range_id, 300)
    for _ in range(4):
        for _ in range(60):
            observer.step(hold_seconds=0.2)
        victim = nodes.leader(observer.random.choice(nodes.range_ids)) or MEMBERS[0]
        observer.crash(victim)
        for _ in range(60):
            observer.step(hold_seconds=0.2)
        nodes.open(victim)
    for _ in range(300):
        observer.step(hold_seconds=0.2)
    assert observer.most == LIMIT
    assert observer.fired > 100


def test_all_slots_are_used_within_a_second_after_demand_has_moved(nodes: ThreeNodes) -> None:
    observer = begun(nodes, 0)
    first, second = nodes.range_ids[1], nodes.range_ids[2]
    for range_id in (first, second, first, second):
        observer.enqueue(range_id, 50)
        began = nodes.clock.seconds
        while observer.held_in(range_id) < LIMIT:
            observer.step(hold_seconds=0.3)
            assert nodes.clock.seconds < began + 1.0, observer.held
        while observer.held:
            observer.step(hold_seconds=0.3)
    assert observer.most == LIMIT
