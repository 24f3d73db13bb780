"""Ranges with queues, for scripts of transactions over several ranges."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
import pytest

from postroom.kv import keys
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.definition_requests import CreateQueue, DropQueue, QueueSettings
from postroom.messaging.queues.definitions import (
    DEFINITIONS_RECORD,
    Definitions,
    encode_version,
)
from postroom.messaging.queues.maintenance import AdvanceQueues
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.requests import Attempt, EnqueueInQueue
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import ROOT_ID
from tests.messaging.one_range import Notice
from tests.ranges.transactions.participant import Participant, answer_of
from tests.ranges.transactions.several import Leaseholder, Several

Q: Final = "work"
DEAD: Final = "dead"

_numbers = itertools.count(1)


def message(home: bytes, payload: bytes = b"", **options: Any) -> EnqueueInQueue:
    """Return a message with an id of its own, which is its home."""
    return EnqueueInQueue(Q, home, "", home, payload, **options)


def attempt(of: StoredQueueMessage) -> Attempt:
    """Return the name of an attempt."""
    return Attempt(*of.locator, of.epoch, fired_at=of.fired_at)


def create(member: Participant, queue: str = Q, **settings: Any) -> None:
    """Make a queue in a range, whose keys need not be all."""
    _define(member, CreateQueue(queue, QueueSettings(**settings)))


def drop(member: Participant) -> None:
    """Drop the queue in a range."""
    _define(member, DropQueue(Q))


def _define(member: Participant, change: CreateQueue | DropQueue) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bounds, "is_whole", True)
        member.commit(change, anchor=member.replica.bounds.start)
    if member.range_id != ROOT_ID:
        learned = encode_version(Definitions(ROOT_ID).version(member.engine))
        key = keys.record_key(member.range_id, DEFINITIONS_RECORD)
        member.engine.write({key: learned}, sync=True)


def claim(member: Participant, number: int = 10, **options: Any) -> list[StoredQueueMessage]:
    """Claim messages at a range."""
    consumer = b"a client" + next(_numbers).to_bytes(8, "big")
    homes = member.replica.bounds.start, member.replica.bounds.end
    asked = member.ask(ClaimQueue(Q, consumer, number, ClaimSelection(), homes=homes, **options))
    for _ in range(5):
        if not asked.answers:
            advance(member)
    [(claimed, error)] = asked.answers
    assert error is None
    found: list[StoredQueueMessage] = claimed.messages
    return found


def advance(member: Participant) -> None:
    """Let the service of the queues do what is due."""
    member.ask(AdvanceQueues(1000), urgent=False)


def counted(member: Participant, queue: str = Q) -> QueueCounts:
    """Return the counters of a queue in a range; its equation holds."""
    manager = member.messaging.queues._directory.known(queue)
    assert manager.counted.conserved()
    return manager.counted


class QueueRanges(Several):
    """Ranges with a part of a queue each, which hand over what is outgoing.

    Args:
        cuts: the first keys of all ranges but the first one.
        settings: those of the queue.
    """

    def __init__(self, *cuts: bytes, **settings: Any) -> None:
        self._sending: dict[Leaseholder, Coroutine[Any, Any, None]] = {}
        super().__init__(*cuts)
        for each in self.members:
            create(each, DEAD)
            create(each, **settings)

    def _served(self, member: Leaseholder) -> Leaseholder:
        member = super()._served(member)
        service = SendingService(
            member.range_id, member.messaging.outboxes, member.engine, self.network,
            member.upkeep, Notice(), member.monotonic, lambda: 5.0,
            member.replica.memory.held,
        )  # fmt: skip
        member.messaging.queues.departures.has_sent = member.replica.answers.departs
        self._sending[member] = service.run()
        return member

    def take_over(self, number: int, *, ahead_seconds: float = 0.0) -> Leaseholder:
        """Let another node take over a range. The one before forgets its memory."""
        before = self.members[number - 1]
        self._sending.pop(before).close()
        before.replica.memory.end()
        return super().take_over(number, ahead_seconds=ahead_seconds)

    def step(self) -> None:
        """Let all services take a step."""
        super().step()
        for member in self.members:
            self._sending[member].send(None)
            member.settle()

    def settle(self, *, rounds: int = 50) -> None:
        """Deliver everything until nothing is on its way and nothing is outgoing."""
        for _ in range(rounds):
            super().settle(rounds=rounds)
            if not self.outgoing():
                return
            for member in self.members:  # a receiver's clock has to pass that of the sender
                member.pass_time(0.1)

    def outgoing(self) -> int:
        """Return how many changes are on their way to other ranges, or not known to be there."""
        found = [each.messaging.conservation.applied for each in self.members]
        assert all(each.conserved() for each in found)
        return sum(each.outgoing for each in found)

    def close(self) -> None:
        """End the services."""
        for service in self._sending.values():
            service.close()

    def enqueued(self, *writes: Any, **fields: Any) -> list[Any]:
        """Commit, let everything arrive, and return what was answered about each write."""
        asked = self.commit(*writes, **fields)
        self.settle()
        committed = answer_of(asked)
        return committed.answers or [None] * len(writes)

    def counted(self) -> dict[str, int]:
        """Return the sums of the counters of all parts that are not zero."""
        sums: Counter[str] = Counter()
        for each in self.members:
            sums.update(msgspec.structs.asdict(counted(each)))
        return {name: number for name, number in sums.items() if number}

    def pointers(self) -> dict[bytes, bytes]:
        """Return the homes to which the ids of messages point."""
        found = {}
        for member in self.members:
            for raw, home in member.engine.iterate(*member.replica.bounds.data):
                end = raw.index(keys.END_OF_KEY, 1) + 2
                if raw[end : end + 1] == keys.QUEUE_POINTER:
                    found[keys.user_key(raw)] = home
        return found
