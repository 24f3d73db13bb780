"""Claiming messages: one question, asked again where one answer holds fewer than are wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from postroom.client.sender import Sender, post, taken_back_by
from postroom.errors import Error, Invalid
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.queues.requests import (
    Claimed,
    ClaimQueue,
    QueueDefinition,
    QueueMessage,
)
from postroom.protocol.failures import DeadlineExceeded

BatchSize: TypeAlias = Callable[[], Awaitable[int]]
"""Tells how many messages one answer of the queue holds at most."""


async def definition(sender: Sender, queue: str) -> QueueDefinition:
    """A queue as it is stored.

    Raises:
        Invalid: there is none of that name.
    """
    found: list[QueueDefinition] = await sender.send(ReadQueues(queue))
    for each in found:
        if not each.dropped:
            return each
    raise Invalid(f"there is no queue {queue!r}; nothing was changed: make it with create_queue")


async def claim(sender: Sender, request: ClaimQueue, patience: float | None) -> list[QueueMessage]:
    """One answer; empty if nothing was ready in time.

    Args:
        sender: of the client.
        request: what is asked.
        patience: seconds to wait for the first one; ``None``: for ever, if it waits.
    """
    try:
        reply: Claimed = await sender.send(request, patience)
    except DeadlineExceeded:
        return []
    return reply.messages


async def claim_all(
    sender: Sender, request: ClaimQueue, patience: float, batch_size: BatchSize
) -> list[QueueMessage]:
    """As many as are asked for, if so many are ready, in as many answers as that takes.

    Only the first one is waited for. What came before one that has failed is answered; if who asks
    is cancelled meanwhile, it is given back.
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
    sender: Sender, request: ClaimQueue, found: list[QueueMessage], batch_size: BatchSize
) -> None:
    """Adds to ``found`` until it holds what is wanted, or nothing is ready any more."""
    wanted, last = request.messages_max, len(found)
    while last > 0 and len(found) < wanted and last >= await batch_size():
        left = wanted - len(found)
        further = msgspec.structs.replace(request, messages_max=left, wait=False)
        answer = await claim(sender, further, None)
        found += answer
        last = len(answer)
