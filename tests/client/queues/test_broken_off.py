"""Claims that are broken off half-way: what had come already is handed out, or given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import postroom
from postroom.client.codec import resolve
from postroom.client.queues.queue import Queue
from postroom.messaging.queues.claim_requests import Claimed
from postroom.messaging.queues.definition_requests import QueueDefinition, QueueSettings
from postroom.messaging.queues.requests import RejectMessages
from tests.client.queues.fakes import FakeSender, stored

TWO = Claimed([stored("a"), stored("b")])
BATCHES_OF_TWO = [QueueDefinition("q", 1, 1, QueueSettings(batch_size=2))]


def queue(*answers: Any) -> tuple[Queue, FakeSender]:
    sender = FakeSender()
    sender.answers.extend(answers)
    return Queue(sender, resolve(None), "q"), sender


def given_back(sender: FakeSender) -> list[bytes]:
    """Return the messages that the last commit gives back."""
    (write,) = sender.asked[-1]
    assert type(write) is RejectMessages
    assert (write.uncounted, write.delay) == (True, 0.0)
    return [each.id for each in write.attempts]


@pytest.mark.parametrize("before", [[], [BATCHES_OF_TWO]], ids=["asking the size", "claiming on"])
def test_a_claim_of_several_answers_that_fails_has_what_came_before(before: list[Any]) -> None:
    q, sender = queue(TWO, *before, postroom.Unavailable("nobody leads", retry_after=60))
    assert [each.id for each in sender.run(q.claim(5))] == ["a", "b"]


@pytest.mark.parametrize("before", [[], [BATCHES_OF_TWO]], ids=["asking the size", "claiming on"])
def test_a_claim_of_several_answers_that_is_cancelled_gives_back(before: list[Any]) -> None:
    q, sender = queue(TWO, *before, asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        sender.run(q.claim(5))
    assert given_back(sender) == [b"a", b"b"]


def test_giving_back_is_done_also_if_it_is_cancelled() -> None:
    q, sender = queue(Claimed([stored("a")]), asyncio.CancelledError())
    consumer = q.consumer()
    assert sender.run(consumer._claim(1, None))
    with pytest.raises(asyncio.CancelledError):
        sender.run(consumer.give_back())
    assert len(sender.asked) == 3
    assert given_back(sender) == [b"a"]
