"""Claiming messages: one question, asked again where one answer holds fewer than are wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from postroom.client.sender import Sender
from postroom.errors import Invalid
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

    Only the first one is waited for.
    """
    found = await claim(sender, request, patience if request.wait else None)
    wanted = request.messages_max
    last = len(found)
    while last > 0 and len(found) < wanted and last >= await batch_size():
        left = wanted - len(found)
        further = msgspec.structs.replace(request, messages_max=left, wait=False)
        answer = await claim(sender, further, None)
        found += answer
        last = len(answer)
    return found
