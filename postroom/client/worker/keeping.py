"""Keeping what is being worked on: leases are extended, and transactions kept young.

One look at everything that a task is working on, four times a lease: what has less than half of its
lease left is extended by a whole one. A transaction that knows nothing yet begins its time anew.
"""

from __future__ import annotations

import asyncio
from typing import Final

from postroom.client.queues.consuming import Consumer
from postroom.client.queues.messages import QueueMessage
from postroom.client.sender import Sender
from postroom.client.worker.calling import Running
from postroom.errors import Error, LeaseLost
from postroom.kv.clock import LOGICAL_BITS

LOOKS_PER_LEASE: Final = 4
YOUNG_SECONDS: Final = 20.0
"""A transaction that knows nothing is made young again so often; its time is three times that."""
LOOK_SECONDS_MIN: Final = 0.01


class Keeper:
    """Keeps the messages that one task is working on.

    Args:
        sender: tells the time.
        consumer: which claimed them.
    """

    def __init__(self, sender: Sender, consumer: Consumer) -> None:
        self._sender = sender
        self._consumer = consumer
        self._held: dict[QueueMessage, tuple[Running, float]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._pause = 0.0

    def begins(self, message: QueueMessage) -> Running:
        """``message`` is being worked on."""
        running, lease = Running(), self._left(message)
        self._held[message] = running, lease
        pause = min(max(lease / LOOKS_PER_LEASE, LOOK_SECONDS_MIN), YOUNG_SECONDS)
        if self._looking is None or pause < self._pause:
            self.close()
            self._pause = pause
            self._looking = asyncio.ensure_future(self._look())
        return running

    def ends(self, message: QueueMessage) -> None:
        """It is not any more."""
        self._held.pop(message, None)

    def close(self) -> None:
        """Nothing is kept any more, until something begins."""
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
            self.ends(message)  # the commit will say so
        except Error:
            return  # there are further looks before the lease has passed
        else:
            self._consumer.extended(message, lease)

    def _left(self, message: QueueMessage) -> float:
        until = message.leased_until or 0
        return ((until - self._sender.reading()) >> LOGICAL_BITS) / 1000


__all__ = ["Keeper"]
