"""Random histories of claims that wait at three nodes, whose ranges change hands.

Each message is given to one claim or is ready, uncounted. No claim waits where one is ready.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

import pytest

from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings
from postroom.messaging.queues.queries import ReadQueueStats
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import CommitTransaction
from tests.messaging.one_range import Asked
from tests.server.hosting import MEMBERS, ThreeNodes
from tests.sim.checkers import require

Q: Final = "work"
CUTS: Final = (b"m", b"w")
CLIENT: Final = b"a client"
STEPS: Final = 60
SETTLING: Final = 10
GIVEN_BACK_SECONDS: Final = 0.02
"""The time in which messages of cancelled claims go back; another leader would not know of them."""


class History:
    """A random history.

    Attributes:
        calls: each claim that waited, and the node where it did.
        sent: the ids of the messages.
        cancelled: the claims that were cancelled.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nodes = ThreeNodes(*CUTS, seed=seed)
        self.calls: dict[Asked, int] = {}
        self.sent: list[bytes] = []
        self.cancelled: set[Asked] = set()
        self._numbers = itertools.count(1)
        settings = QueueSettings(ack_wait=3600.0)
        self.nodes.ask(self.nodes.awaited_leader(ROOT_ID), self._commit(CreateQueue(Q, settings)))
        self.nodes.until(lambda: all(map(self.knows, self.nodes.range_ids)))

    def leader(self, range_id: int) -> int | None:
        """Return the node that leads a range; its lease may be over while nobody asks."""
        leading = (each for each in MEMBERS if self.nodes.hosted(each, range_id).group.is_leader)
        return next(leading, None)

    def ask(self, range_id: int, request: Any) -> Any:
        """Return the answer of a range, once somebody leads it."""
        self.nodes.until(lambda: self.leader(range_id))
        asked = Asked(request)
        self.nodes.hosted(self.leader(range_id) or 0, range_id).replica.submit(asked)
        self.nodes.until(lambda: asked.answers)
        result, error = asked.answers[0]
        if error is not None:
            raise error
        return result

    def queues(self, range_id: int) -> Any:
        """Return the queues of a range at its leader."""
        return self.nodes.hosted(self.nodes.awaited_leader(range_id), range_id).messaging.queues

    def knows(self, range_id: int) -> bool:
        queues = self.queues(range_id)
        return Q in queues._directory.defined and queues._learning.knows

    def _id(self) -> bytes:
        return CLIENT + next(self._numbers).to_bytes(8, "big")

    def _commit(self, write: Any, anchor: bytes = b"") -> CommitTransaction[Any]:
        began = self.nodes.nodes[1].clock.reading()
        return CommitTransaction(self._id(), began, 60.0, 0, anchor, [], [], [write])

    # --- steps

    def enqueue(self) -> int:
        """Send a message to the range of its key, which may refuse it; return the range."""
        range_id, node_id = self.random.choice(self.nodes.range_ids), self.random.choice(MEMBERS)
        id_ = (b"", *CUTS)[range_id - 1] + b"%d" % next(self._numbers)
        write = EnqueueInQueue(Q, id_, "", id_, b"payload")
        leader = self.leader(range_id) or node_id
        self.nodes.nodes[leader].replicas.submit(Asked(self._commit(write, id_)))
        self.sent.append(id_)
        return range_id

    def wait(self) -> None:
        """Have a claim wait at a node."""
        node_id = self.random.choice(MEMBERS)
        consumer, most = self._id(), self.random.choice([1, 1, 3])
        call = Asked(
            ClaimQueue(Q, consumer, most, ClaimSelection(), wait=True, number=1, at_node=True)
        )
        self.calls[call] = node_id
        self.nodes.nodes[node_id].replicas.submit(call)

    def cancel(self) -> None:
        """Cancel a claim that waits."""
        waiting = [call for call in self.calls if not call.answers and call not in self.cancelled]
        if waiting:
            call = self.random.choice(waiting)
            self.cancelled.add(call)
            self.nodes.nodes[self.calls[call]].replicas.cancel(call)

    def hand_over(self) -> None:
        """Have another node lead a range."""
        self.pass_time(GIVEN_BACK_SECONDS)
        range_id = self.random.choice(self.nodes.range_ids)
        leader = self.leader(range_id)
        if leader is not None:
            others = [each for each in MEMBERS if each != leader]
            self.nodes.hosted(leader, range_id).hand_over(self.random.choice(others))

    def lose(self) -> None:
        """Have a leader lose its lease of a range, in the middle of what it does."""
        self.pass_time(GIVEN_BACK_SECONDS)
        range_id = self.enqueue()
        self.pass_time(self.random.choice([0.0, 0.001, 0.002]))
        leader = self.leader(range_id)
        if leader is not None:
            self.nodes.hosted(leader, range_id).replica.stop_serving()

    def pass_time(self, seconds: float) -> None:
        until = self.nodes.clock.seconds + seconds
        self.nodes.until(lambda: self.nodes.clock.seconds >= until)

    def step(self) -> None:
        """Take a step."""
        acts = (
            [self.enqueue] * 3 + [self.wait] * 3 + [self.cancel] * 2 + [self.hand_over, self.lose]
        )
        self.random.choice(acts)()
        self.pass_time(self.random.choice([0.0, 0.0, 0.001, 0.002, 0.005, 0.1]))

    # --- the end

    def check(self) -> None:
        """Check what has become of all messages."""
        for _ in range(SETTLING):
            self.pass_time(0.2)
            for range_id in self.nodes.range_ids:
                self.ask(range_id, ReadQueueStats(Q))
        given = Counter(self._given())
        for range_id in self.nodes.range_ids:
            self._check_range(range_id, given)
        given.update(self._ready())
        require(max(given.values(), default=1) == 1, f"some were given twice: {given}")
        require(set(given) <= set(self.sent), f"nobody has sent some: {given}")

    def _given(self) -> Iterator[bytes]:
        """Yield the ids of the messages that claims were given, as their clients find out."""
        for call in self.calls:
            require(len(call.answers) <= 1, "a claim was answered twice")
            for claimed, error in call.answers:
                messages = self._given_before(call) if error is not None else claimed.messages
                for each in messages:
                    require(each.epoch == 0, f"{each} was counted")
                    yield each.id

    def _given_before(self, call: Asked) -> Iterator[Any]:
        """Yield what a claim was given before it was told an error."""
        wanted = call.request
        for range_id in self.nodes.range_ids:
            again = ClaimQueue(
                Q, wanted.consumer, 0, ClaimSelection(), number=1, again=True,
                homes=self._homes(range_id),
            )  # fmt: skip
            yield from self.ask(range_id, again).messages

    def _check_range(self, range_id: int, given: Counter[bytes]) -> None:
        """Check that its leased messages are those given, and that no claim waits in vain."""
        counted = self.queues(range_id)._directory.known(Q).counted
        start, end = self._homes(range_id)
        own = [each for each in given if each >= start and (end is None or each < end)]
        require(counted.leased == len(own), f"{counted} were leased, and {own} given")
        claims = self.nodes.nodes[self.nodes.awaited_leader(range_id)].replicas.claims
        require(not (counted.ready and len(claims)), f"{len(claims)} claims wait, and {counted}")

    def _ready(self) -> Iterator[bytes]:
        """Claim what is ready; yield the ids."""
        for range_id in self.nodes.range_ids:
            rest = ClaimQueue(Q, self._id(), 1000, ClaimSelection(), homes=self._homes(range_id))
            for each in self.ask(range_id, rest).messages:
                require(each.epoch == 0, f"{each} was counted")
                yield each.id

    def _homes(self, range_id: int) -> tuple[bytes, bytes | None]:
        starts = (b"", *CUTS, None)
        return starts[range_id - 1] or b"", starts[range_id]


def claims_at_random(seed: int) -> None:
    """Run a history; fail if a message is lost, doubled or counted, or a claim waits in vain."""
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.check()
    history.nodes.close()


@pytest.mark.parametrize("seed", range(5))
def test_claims_at_nodes_lose_and_double_nothing(seed: int) -> None:
    claims_at_random(seed)
