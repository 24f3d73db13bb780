"""A keeper of the messages in work: it extends leases and keeps transactions young.

It looks at all messages that a task works on, four times a lease. A message that has less than half
of its lease left gets a whole one more. A transaction in which nothing could become too old begins
its time again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from postroom.client.queues.consuming import Consumer
from postroom.client.queues.messages import QueueMessage
from postroom.client.sender import Sender
from postroom.client.worker.calls import Running
from postroom.errors import Error, LeaseLost

LOOKS_PER_LEASE: Final = 4
YOUNG_SECONDS: Final = 20.0
"""The longest pause between two looks, in seconds: a third of a transaction's time."""
LOOK_SECONDS_MIN: Final = 0.01


class Keeper:
    """A keeper of the messages that one task is working on.

    Args:
        sender: tells the time.
        consumer: the consumer that has claimed them.
    """

    def __init__(self, sender: Sender, consumer: Consumer) -> None:
        self._sender = sender
        self._consumer = consumer
        self._held: dict[QueueMessage, tuple[Running, float]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._pause = 0.0

    def begins(self, message: QueueMessage, running: Running) -> None:
        """Keep ``message``, which is being worked on from now on."""
        lease = self._left(message)
        self._held[message] = running, lease
        pause = min(max(lease / LOOKS_PER_LEASE, LOOK_SECONDS_MIN), YOUNG_SECONDS)
        if self._looking is None or pause < self._pause:
            self.close()
            self._pause = pause
            self._looking = asyncio.ensure_future(self._look())

    def ends(self, message: QueueMessage) -> None:
        """Stop keeping ``message``."""
        self._held.pop(message, None)

    def close(self) -> None:
        """Stop looking, until another message begins."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            short = []
            for message, (running, lease) in self._held.items():
                running.keep_young()
                if self._left(message) < lease / 2:
                    short.append(self._extend(message, lease))
            if short:
                await asyncio.gather(*short, return_exceptions=True)

    async def _extend(self, message: QueueMessage, lease: float) -> None:
        try:
            await message.extend(lease)
        except LeaseLost:
            self.ends(message)  # the commit will raise it
        except Error:
            return  # there are more looks before the lease has passed
        else:
            self._consumer.extended(message, lease)

    def _left(self, message: QueueMessage) -> float:
        return message.held_until - self._sender.monotonic()


__all__ = ["Keeper"]
