"""Claims of messages: one request, repeated if one answer holds fewer than are wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from postroom.client.sender import Sender, post, taken_back_by
from postroom.errors import Error, Invalid
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.queues.requests import (
    Attempt,
    Claimed,
    ClaimQueue,
    ClaimSelection,
    QueueDefinition,
    StoredQueueMessage,
)
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
    """Return the messages of one answer; none if nothing was ready in time.

    Args:
        sender: the client's sender.
        request: the claim.
        patience: seconds to wait for the first one; ``None``: for ever, if it waits.
    """
    try:
        reply: Claimed = await sender.send(request, patience)
    except DeadlineExceeded:
        return []
    return reply.messages


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
    found = await claim(sender, request, patience if request.wait else None)
    try:
        await _claim_on(sender, request, found, batch_size)
    except Error:
        return found
    except BaseException:
        back = taken_back_by(sender, request, Claimed(found))
        if back is not None:
            post(sender, back)
        raise
    return found


async def _claim_on(
    sender: Sender, request: ClaimQueue, found: list[StoredQueueMessage], batch_size: BatchSize
) -> None:
    """Add to ``found`` until it holds the wanted number, or nothing is ready any more."""
    wanted, last = request.messages_max, len(found)
    while last > 0 and len(found) < wanted and last >= await batch_size():
        left = wanted - len(found)
        further = msgspec.structs.replace(request, messages_max=left, wait=False)
        answer = await claim(sender, further, None)
        found += answer
        last = len(answer)
