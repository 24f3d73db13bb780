"""One client of a soak: what it does again and again, and how often it has got it done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom.errors import CommitUnknown, Retryable, SnapshotTooOld, TransactionExpired

EXPECTED: Final = (
    Retryable, CommitUnknown, SnapshotTooOld, TransactionExpired, TimeoutError, ConnectionError,
)  # fmt: skip


class Died(Exception):
    """A client has ended in the middle of what it did."""


class Worker:
    """One client.

    Attributes:
        done: how often it has got something done.
        last: when it did so last, in monotonic seconds.
        last_error: the last expected error; ``None``: there was none.
    """

    def __init__(
        self, name: str, loop: Callable[[Worker], Awaitable[None]], random: Random
    ) -> None:
        self.name = name
        self.random = random
        self.done = 0
        self.last = time.monotonic()
        self.last_error: Exception | None = None
        self._loop = loop

    def did(self, times: int = 1) -> None:
        """Note that something is done."""
        self.done += times
        self.last = time.monotonic()

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Repeat the loop, again and again."""
        while goes_on():
            try:
                await self._loop(self)
            except EXPECTED as error:
                self.last_error = error.with_traceback(None)
                await asyncio.sleep(0.05 * self.random.random())
            except Died:
                pass
