"""Limits over 20 ranges that three nodes lead in turn, while leaders are killed and ranges split.

An observer notes what its consumers hold: from the answer to a claim until they acknowledge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

import pytest

from postroom.kv.clock import LOGICAL_BITS
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings
from postroom.messaging.queues.requests import Acknowledge, Attempt, EnqueueInQueue
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.split.requests import NewRangeId, PrepareSplit
from tests.messaging.one_range import Asked
from tests.server.hosting import MEMBERS, ThreeNodes
from tests.server.test_slots import most_in_a_second

Q: Final = "work"
LIMIT: Final = 7
RATE: Final = 20.0
RANGES: Final = 20
KILLS: Final = 4
CUTS: Final = tuple(b"%02d" % each for each in range(1, RANGES - KILLS))
CLIENT: Final = b"observer"
STEP_SECONDS: Final = 0.01


class Observer:
    """The consumers of a queue in all ranges, and what they hold.

    Attributes:
        starts: the first keys of the ranges, in order, with the ids of these.
        uncut: the first keys of the ranges that may be split.
        waiting: the claims that wait, with their ranges and nodes.
        held: the messages in hand, with the time at which each is acknowledged.
        most: how many were in hand at a time.
        fired: when each message was fired, in microseconds.
    """

    def __init__(self, nodes: ThreeNodes, seed: int) -> None:
        self.nodes, self.random = nodes, Random(seed)
        self.number = 0
        self.starts = list(zip((b"", *CUTS), nodes.range_ids, strict=True))
        self.uncut = list(CUTS)
        self.waiting: list[tuple[int, int, Asked]] = []
        self.held: list[tuple[float, StoredQueueMessage]] = []
        self.most = 0
        self.fired: list[int] = []

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

    def commit(self, anchor: bytes, *writes: Any) -> Asked | None:
        now = self.nodes.nodes[next(iter(self.nodes.nodes))].clock.reading()
        return self.submit(
            self.range_of(anchor),
            CommitTransaction(self.id(), now, 60.0, 0, anchor, [], [], list(writes)),
        )

    def range_of(self, key: bytes) -> int:
        """Return the range of a key."""
        return self.starts[bisect_right(self.starts, key, key=lambda each: each[0]) - 1][1]

    def homes(self, range_id: int) -> tuple[bytes, bytes | None]:
        """Return the bounds of a range."""
        starts, ids = zip(*self.starts, strict=True)
        place = ids.index(range_id)
        return starts[place], (*starts, None)[place + 1]

    def committed(self, anchor: bytes, *writes: Any) -> None:
        """Commit, and try again until the range has a leader that knows the queue."""
        self.answered(lambda: self.commit(anchor, *writes))

    def answered(self, submit: Callable[[], Asked | None]) -> Any:
        """Return the answer to a request, which is submitted again after an error."""
        for _ in range(1000):
            asked = submit()
            self.nodes.until(lambda: asked is None or asked.answers)  # noqa: B023
            if asked is not None and asked.answers[0][1] is None:
                return asked.answers[0][0]
            self.pass_time()
        raise AssertionError("nobody answers")

    def pass_time(self) -> None:
        until = self.nodes.clock.seconds + STEP_SECONDS
        self.nodes.until(lambda: self.nodes.clock.seconds >= until)

    def enqueue(self, range_id: int, number: int) -> None:
        """Enqueue messages in both halves of a range."""
        home = self.homes(range_id)[0] or b"00"
        ids = [home + b"/%d/" % (each % 2) + self.id()[8:] for each in range(number)]
        self.committed(
            home, *(EnqueueInQueue(Q, each, "", each, b"", is_unique=True) for each in ids)
        )

    def step(self, hold_seconds: float, claims: int = 2) -> None:
        """Let a moment pass; take answers, acknowledge, and claim again.

        Args:
            hold_seconds: the longest time for which a message is in hand.
            claims: how many wait in each range.
        """
        self.pass_time()
        now, left = self.nodes.clock.seconds, []
        for range_id, node_id, asked in self.waiting:
            if not asked.answers:
                left.append((range_id, node_id, asked))
                continue
            claimed, error = asked.answers[0]
            for each in () if error is not None else claimed.messages:
                self.fired.append(each.fired_at * 1000 >> LOGICAL_BITS)
                self.held.append((now + hold_seconds * self.random.random(), each))
        self.waiting = left
        self.most = max(self.most, len(self.held))
        over = [each for each in self.held if each[0] <= now]
        self.held = [each for each in self.held if each[0] > now]
        for _, message in over:
            named = Attempt(*message.locator, message.epoch)
            self.commit(message.locator[0], Acknowledge(Q, [named]))
        self._claim(claims)

    def _claim(self, claims: int) -> None:
        waiting = Counter(range_id for range_id, _, _ in self.waiting)
        for range_id in self.nodes.range_ids:
            for _ in range(claims - waiting[range_id]):
                claim = ClaimQueue(
                    Q, self.id(), 1, ClaimSelection(), wait=True, homes=self.homes(range_id)
                )
                asked = self.submit(range_id, claim)
                if asked is None:
                    break
                self.waiting.append((range_id, self.nodes.leader(range_id) or 0, asked))

    def held_in(self, range_id: int) -> int:
        return sum(self.range_of(each.locator[0]) == range_id for _, each in self.held)

    def crash(self, node_id: int) -> None:
        """Kill a node, and forget the claims that wait there."""
        self.nodes.crash(node_id)
        self.waiting = [each for each in self.waiting if each[1] != node_id]

    def split(self) -> None:
        """Split a range in the middle of its messages, once all nodes have it."""
        nodes = self.nodes
        start = self.uncut.pop(self.random.randrange(len(self.uncut)))
        right, cut = self.answered(lambda: self.submit(ROOT_ID, NewRangeId())), start + b"/1/"
        self.answered(lambda: self.submit(self.range_of(start), PrepareSplit(cut, right)))
        nodes.until(lambda: all(right in each.replicas.hosted for each in nodes.nodes.values()))
        nodes.range_ids.append(right)
        self.starts = sorted([*self.starts, (cut, right)])


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
    limited = QueueSettings(ack_wait=2.0, max_attempts=None, **settings)
    observer.committed(b"", CreateQueue(Q, limited))
    return observer


def kill_and_split(observer: Observer) -> None:
    """Work off messages while leaders are killed one after the other, and a range split each."""
    nodes = observer.nodes
    for range_id in nodes.range_ids:
        observer.enqueue(range_id, 50)
    for _ in range(KILLS):
        for _ in range(50):
            observer.step(hold_seconds=0.2)
        victim = nodes.leader(observer.random.choice(nodes.range_ids)) or MEMBERS[0]
        observer.crash(victim)
        for _ in range(50):
            observer.step(hold_seconds=0.2)
        nodes.open(victim)
        observer.split()
    for _ in range(200):
        observer.step(hold_seconds=0.2)
    assert len(nodes.range_ids) == RANGES


@pytest.mark.parametrize("seed", range(2))
def test_a_limit_holds_while_leaders_are_killed_and_ranges_split(
    nodes: ThreeNodes, seed: int
) -> None:
    observer = begun(nodes, seed, max_concurrency=LIMIT)
    kill_and_split(observer)
    assert observer.most == LIMIT
    assert len(observer.fired) > 100


def test_a_rate_holds_while_leaders_are_killed_and_ranges_split(
    nodes: ThreeNodes,
) -> None:
    observer = begun(nodes, 0, max_rate=RATE)
    kill_and_split(observer)
    assert most_in_a_second(observer.fired) <= RATE
    assert len(observer.fired) > 50


def test_all_slots_are_used_within_a_second_after_demand_has_moved(nodes: ThreeNodes) -> None:
    observer = begun(nodes, 0, max_concurrency=LIMIT)
    first, second = nodes.range_ids[1], nodes.range_ids[2]
    for range_id in (first, second, first, second):
        observer.enqueue(range_id, 50)
        began = nodes.clock.seconds
        while observer.held_in(range_id) < LIMIT:
            observer.step(hold_seconds=0.3, claims=LIMIT)
            assert nodes.clock.seconds < began + 1.0, observer.held
        while observer.held:
            observer.step(hold_seconds=0.3, claims=LIMIT)
    assert observer.most == LIMIT
