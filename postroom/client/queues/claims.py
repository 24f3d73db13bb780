"""Claims of messages: one request, repeated if one answer holds fewer than are wanted.

If the store has several ranges, each answer tells the span of homes that was asked. A claim that
wants more goes on with the next span, until it has asked all of them once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from postroom.client.queues.placing import home_of_message, in_ranges
from postroom.client.routing.claims import in_order, left_of
from postroom.client.sender import Sender, post, taken_back_by
from postroom.errors import Error, Invalid
from postroom.messaging.queues.claim_requests import (
    Claimed,
    ClaimQueue,
    ClaimSelection,
    HomeSpan,
    StoredQueueMessage,
)
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.queues.requests import Attempt
from postroom.protocol.failures import DeadlineExceeded

BatchSize: TypeAlias = Callable[[], Awaitable[int]]
"""A function that returns how many messages one answer of the queue holds at most."""


async def definition(sender: Sender, queue: str) -> QueueDefinition:
    """Return the stored definition of a queue.

    Raises:
        Invalid: there is no queue of that name.
    """
    found: list[QueueDefinition] = await sender.send(ReadQueues(queue))
    for each in found:
        if not each.dropped:
            return each
    raise Invalid(f"there is no queue {queue!r}; nothing was changed: make it with create_queue")


async def claim(
    sender: Sender, request: ClaimQueue, patience: float | None
) -> list[StoredQueueMessage]:
    """Return the first messages that there are; none if nothing was ready in time.

    Args:
        sender: the client's sender.
        request: the claim.
        patience: seconds to wait for the first one; ``None``: for ever, if it waits.
    """
    answer, _ = await _first_answer(sender, request, patience)
    return answer.messages


async def _first_answer(
    sender: Sender, request: ClaimQueue, patience: float | None
) -> tuple[Claimed, _Round]:
    """Return the first answer with messages; without a wait, range after range is asked."""
    answer = await _answer(sender, request, patience)
    spans = _Round(answer, request)
    while not answer.messages and spans.go_on():
        request = msgspec.structs.replace(request, homes=spans.asked)
        answer = await _answer(sender, request, patience)
        spans.answered(answer)
    return answer, spans


async def _answer(sender: Sender, request: ClaimQueue, patience: float | None) -> Claimed:
    try:
        reply: Claimed = await sender.send(request, patience)
    except DeadlineExceeded:
        return Claimed([])
    return reply


def not_asked(begun: HomeSpan, asked: HomeSpan) -> HomeSpan | None:
    """Return the next span of homes to ask in a round through all of them; ``None``: it is over.

    Args:
        begun: the span that was asked first.
        asked: the span that was asked last.
    """
    first, (start, end) = begun[0], asked
    if start >= first:
        if end is not None:
            return end, None
        end = b""
    return None if end is None or end >= first else (end, first)


async def over(
    sender: Sender, queue: str, consumer: bytes, in_hand: list[Attempt], patience: float
) -> list[int]:
    """Return which attempts of a consumer are over, by their indexes in ``in_hand``.

    Args:
        sender: the client's sender.
        queue: the name of the queue.
        consumer: the id of the consumer.
        in_hand: the attempts, ``IN_HAND_MAX`` at most.
        patience: seconds to wait for the first one; 0: not at all.
    """
    request = ClaimQueue(queue, consumer, 0, ClaimSelection(), wait=patience > 0, in_hand=in_hand)
    try:
        reply: Claimed = await sender.send(request, patience or None)
    except DeadlineExceeded:
        return []
    return reply.over


async def claim_all(
    sender: Sender, request: ClaimQueue, patience: float, batch_size: BatchSize
) -> list[StoredQueueMessage]:
    """Return as many ready messages as are wanted, in as many answers as that takes.

    Only the first answer is waited for. If a later claim fails, the messages that have come are
    returned. If the caller is cancelled meanwhile, they are given back.
    """
    first, spans = await _first_answer(sender, request, patience if request.wait else None)
    found = first.messages
    if not found:
        return found
    try:
        await _claim_on(sender, request, found, spans, batch_size)
    except Error:
        return found
    except BaseException:
        for messages in in_ranges(sender, found, home_of_message):
            back = taken_back_by(sender, request, Claimed(messages))
            if back is not None:
                post(sender, back)
        raise
    return found


async def _claim_on(
    sender: Sender,
    request: ClaimQueue,
    found: list[StoredQueueMessage],
    spans: _Round,
    batch_size: BatchSize,
) -> None:
    """Add to ``found`` until it holds the wanted number, or nothing is ready any more."""
    last = len(found)
    while len(found) < request.messages_max:
        if (not last or last < await batch_size()) and not spans.go_on():
            return
        left = request.messages_max - len(found)
        further = msgspec.structs.replace(request, messages_max=left, wait=False, homes=spans.asked)
        answer = await _answer(sender, further, None)
        found += answer.messages
        spans.answered(answer)
        last = len(answer.messages)


class _Round:
    """A round of a claim through all spans of homes.

    Args:
        answer: the answer to the first request.
        request: that request.

    Attributes:
        asked: the span that was asked last.
    """

    def __init__(self, answer: Claimed, request: ClaimQueue) -> None:
        self.asked = answer.asked or request.homes
        self._begun = answer.asked
        self._without = in_order(answer.without)

    def answered(self, answer: Claimed) -> None:
        """Take the answer to a request for the next span."""
        self.asked = answer.asked or self.asked
        self._without = in_order([*self._without, *answer.without])

    def go_on(self) -> bool:
        """Go to the next span that may have something; return false if there is none."""
        homes = None if self._begun is None else not_asked(self._begun, self.asked)
        while homes is not None and self._begun is not None:
            left = left_of(homes, self._without)
            if left is not None:
                self.asked = left
                return True
            homes = not_asked(self._begun, homes)
        return False
