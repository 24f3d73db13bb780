"""Ranges with queues, for scripts of transactions over several ranges."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest

from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.requests import (
    AdvanceQueues,
    Attempt,
    ClaimQueue,
    ClaimSelection,
    CreateQueue,
    EnqueueInQueue,
    QueueSettings,
    StoredQueueMessage,
)
from postroom.ranges.bounds import Bounds
from tests.ranges.transactions.participant import Participant

Q: Final = "work"

_numbers = itertools.count(1)


def message(home: bytes, payload: bytes = b"", **options: Any) -> EnqueueInQueue:
    """Return a message with an id of its own, which is its home."""
    return EnqueueInQueue(Q, home, "", home, payload, **options)


def attempt(of: StoredQueueMessage) -> Attempt:
    """Return the name of an attempt."""
    return Attempt(*of.locator, of.epoch, fired_at=of.fired_at)


def create(member: Participant, **settings: Any) -> None:
    """Make the queue in a range, whose keys need not be all."""
    descriptor = member.replica.bounds.descriptor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bounds, "is_whole", True)
        member.commit(CreateQueue(Q, QueueSettings(**settings)), anchor=descriptor.start)


def claim(member: Participant, number: int = 10, **options: Any) -> list[StoredQueueMessage]:
    """Claim messages at a range."""
    consumer = b"a client" + next(_numbers).to_bytes(8, "big")
    selection = ClaimSelection(member.replica.bounds.start, member.replica.bounds.end)
    asked = member.ask(ClaimQueue(Q, consumer, number, selection, **options))
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


def counted(member: Participant) -> QueueCounts:
    """Return the counters of the queue in a range; its equation holds."""
    manager = member.messaging.queues._directory.known(Q)
    assert manager.counted.conserved()
    return manager.counted
