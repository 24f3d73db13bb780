"""All ranges learn of a dropped queue before its name is free again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import pytest

from postroom.errors import Unavailable
from postroom.messaging.queues.dropping import DropTeller
from postroom.messaging.queues.maintenance import LearnDefinitions, Learned, NoteAllKnow
from postroom.ranges.carrier import Recipient
from postroom.ranges.contract import ROOT_ID, Request


class Ranges:
    """Ranges that tell what they have learned, and what the node of the service knows of them.

    Attributes:
        learned: the answers by range id; an error is raised.
        known: the ranges, as the node knows them.
        asked: the ids of the ranges that were asked.
    """

    def __init__(self) -> None:
        self.learned: dict[int, Learned | Exception] = {}
        self.known = [
            Recipient(ROOT_ID, b"", b"d"),
            Recipient(2, b"d", b"m"),
            Recipient(3, b"m", None),
        ]
        self.asked: list[int] = []

    def recipient_of(self, key: bytes) -> Recipient:
        return next(each for each in self.known if each.end is None or key < each.end)

    async def ask(self, recipient: Recipient, request: Request) -> Any:
        assert request == LearnDefinitions()
        self.asked.append(recipient.range_id)
        answer = self.learned[recipient.range_id]
        if isinstance(answer, Exception):
            raise answer
        return answer


class WakeUp:
    """A wake-up that counts the pauses, and lets the service end after some."""

    def __init__(self, rounds: int) -> None:
        self.pauses: list[float] = []
        self._rounds = rounds

    def set(self, *, urgent: bool = False) -> None:
        raise NotImplementedError

    async def wait(self, timeout_seconds: float = math.inf) -> None:
        self.pauses.append(timeout_seconds)
        if len(self.pauses) == self._rounds:
            raise asyncio.CancelledError


def run(ranges: Ranges, version: int, rounds: int = 1) -> tuple[list[float], list[Any]]:
    """Let the service run for some rounds; return its pauses, and what it has sent."""
    sent: list[Any] = []
    wake_up = WakeUp(rounds)

    async def send(request: Any) -> None:
        sent.append(request)

    teller = DropTeller(lambda: 0 if sent else version, ranges, send, wake_up)
    service: Coroutine[Any, Any, None] = teller.run()
    with pytest.raises(asyncio.CancelledError):
        service.send(None)
    return wake_up.pauses, sent


def test_the_name_is_free_once_all_ranges_have_learned() -> None:
    ranges = Ranges()
    ranges.learned = {2: Learned(7, b"m"), 3: Learned(8, None)}
    assert run(ranges, 7) == ([math.inf], [NoteAllKnow(7)])
    assert ranges.asked == [2, 3]


def test_the_service_asks_nobody_if_no_queue_was_dropped() -> None:
    ranges = Ranges()
    assert run(ranges, 0) == ([math.inf], [])
    assert ranges.asked == []


@pytest.mark.parametrize("answer", [Learned(6, None), Unavailable("no leader")])
def test_ranges_are_asked_again_until_all_have_learned(answer: Learned | Exception) -> None:
    ranges = Ranges()
    ranges.learned = {2: Learned(7, b"m"), 3: answer}
    assert run(ranges, 7, rounds=7) == ([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0], [])


def test_a_range_that_has_split_meanwhile_is_not_left_out() -> None:
    """The node of the service has not heard that range 2 was split at ``f``."""
    ranges = Ranges()
    ranges.learned = {2: Learned(7, b"f"), 3: Learned(7, None)}
    assert run(ranges, 7) == ([0.05], [])
    ranges.known.insert(2, Recipient(4, b"f", b"m"))
    ranges.known[1] = Recipient(2, b"d", b"f")
    ranges.learned[4] = Learned(7, b"m")
    assert run(ranges, 7) == ([math.inf], [NoteAllKnow(7)])
