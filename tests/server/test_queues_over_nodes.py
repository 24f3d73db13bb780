"""Messages of queues go from ranges that one node leads to those of another one, each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from postroom.errors import CommitUnknown, Unavailable
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.requests import Acknowledge, Attempt, EnqueueInQueue
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.requests import CommitTransaction, Get, Put
from tests.messaging.one_range import Asked
from tests.server.hosting import MEMBERS, ThreeNodes

Q: Final = "work"
HERE, THERE = b"a", b"z"
"""A key of range 1, and one of range 2."""


class Nodes(ThreeNodes):
    """Three nodes, of which node 1 leads range 1 and node 2 leads range 2, with a queue."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = 0
        self.lead(1, 1)
        self.lead(2, 2)
        self.commit(CreateQueue(Q, QueueSettings(ack_wait=5.0)))
        self.until(lambda: self._knows(1) and self._knows(2))

    def _knows(self, range_id: int) -> bool:
        leader = self.awaited_leader(range_id)
        return Q in self.hosted(leader, range_id).messaging.queues._directory.defined

    def commit(self, *writes: Any) -> Any:
        """Commit a transaction at the node that leads range 1, as often as it takes."""
        self._numbers += 1
        id_ = b"a client" + self._numbers.to_bytes(8, "big")
        began = self.nodes[1].clock.reading()
        request = CommitTransaction(id_, began, 60.0, 0, HERE, [], [], list(writes))
        asked = self._sent(request)
        self.until(lambda: asked.answers)
        while isinstance(asked.answers[0][1], CommitUnknown | NotLeaseholder | Unavailable):
            asked = self._sent(request)
            self.until(lambda: asked.answers)  # noqa: B023 - it is asked for at once
        result, error = asked.answers[0]
        if error is not None:
            raise error
        return result

    def _sent(self, request: Any) -> Asked:
        asked = Asked(request)
        self.nodes[self.awaited_leader(1)].replicas.submit(asked)
        return asked

    def counted(self, range_id: int) -> QueueCounts:
        """Return the counters of a part of the queue, where they are kept."""
        leader = self.awaited_leader(range_id)
        return self.hosted(leader, range_id).messaging.queues._directory.known(Q).counted

    def is_quiet(self) -> bool:
        """Return whether nothing is on its way between ranges."""
        ranges = [self.hosted(self.awaited_leader(each), each) for each in (1, 2)]
        return not any(each.messaging.conservation.applied.pending for each in ranges)

    def claim(self, range_id: int, home: tuple[bytes, bytes | None]) -> list[Attempt]:
        """Claim what is ready in a range."""
        request = ClaimQueue(
            Q, b"a client" + bytes(7) + b"c", 10, ClaimSelection(), wait=True, homes=home
        )
        found = self.ask(self.awaited_leader(range_id), request).messages
        return [Attempt(*each.locator, each.epoch, fired_at=each.fired_at) for each in found]


@pytest.fixture
def store() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.close()


def made_up(number: int, home: bytes) -> EnqueueInQueue:
    id_ = b"a made up by a client %d" % number
    return EnqueueInQueue(Q, home, "", id_, b"%d" % number, is_unique=True)


def given(id_: bytes, home: bytes) -> EnqueueInQueue:
    return EnqueueInQueue(Q, home, "", id_, b"payload")


def test_messages_go_home_to_a_range_that_another_node_leads(store: Nodes) -> None:
    for number in range(20):
        store.commit(Put(HERE, b""), made_up(number, THERE), given(b"z%d" % number, HERE))
    store.until(store.is_quiet)
    assert (store.counted(1).ready, store.counted(2).ready) == (20, 20)


def test_an_id_is_unique_at_the_node_that_leads_its_range(store: Nodes) -> None:
    answers = [store.commit(Put(HERE, b""), given(b"z1", home)).answers for home in (HERE, THERE)]
    assert answers == [[], [None, "ignored"]]


def test_an_attempt_ends_at_another_node_together_with_a_write(store: Nodes) -> None:
    store.commit(Put(HERE, b""), given(b"z1", THERE))
    store.until(lambda: store.counted(2).ready)
    attempts = store.claim(2, (b"m", None))
    assert store.commit(Put(HERE, b"done"), Acknowledge(Q, attempts)).answers == [None, 1]
    store.until(lambda: store.counted(2).acknowledged)
    assert store.ask(1, Get(HERE)).value == b"done"


@pytest.mark.parametrize("range_id", [1, 2])
def test_messages_come_once_while_leads_move(store: Nodes, range_id: int) -> None:
    for number in range(1, 7):
        store.commit(Put(HERE, b""), made_up(number, THERE), given(b"z%d" % number, HERE))
        for _ in range(number):
            for node in store.nodes.values():
                node.turn()
        before = store.leader(range_id) or 1
        store.lead(range_id, MEMBERS[before % len(MEMBERS)])
    store.until(store.is_quiet)
    store.until(lambda: store.counted(1).enqueued + store.counted(2).enqueued == 12)
    assert (store.counted(1).ready, store.counted(2).ready) == (6, 6)
