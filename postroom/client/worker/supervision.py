"""Loops that go on: one that fails begins again, after a pause that grows while it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from postroom.client.sender import Sender, has_stopped
from postroom.errors import DatabaseClosed
from postroom.log_once import LogOnce

PAUSE_SECONDS_FIRST: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 30.0
SOUND_SECONDS: Final = 60.0
"""The time that a loop must run for its next pause to be short again, in seconds."""

log: Final = logging.getLogger("postroom.worker")


class Supervisor:
    """A runner of loops, until they are told to stop.

    Args:
        sender: tells the time.
        stopping: set when they are to stop.
    """

    def __init__(self, sender: Sender, stopping: asyncio.Event) -> None:
        self._sender = sender
        self._stopping = stopping
        self._said = LogOnce()

    async def run(self, name: str, begin: Callable[[], Awaitable[None]]) -> None:
        """Run one loop, again and again, until it ends or is to stop.

        Args:
            name: for the log.
            begin: the loop.

        Raises:
            DatabaseClosed, Unavailable: the store is closed, or has stopped: the loop would fail
                for ever.
        """
        pause = PAUSE_SECONDS_FIRST
        while not self._stopping.is_set():
            began = self._sender.monotonic()
            try:
                await begin()
            except Exception as error:
                if isinstance(error, DatabaseClosed) or has_stopped(self._sender, error):
                    raise
                if self._sender.monotonic() - began >= SOUND_SECONDS:
                    pause = PAUSE_SECONDS_FIRST
                self.say(
                    f"{name} {type(error).__name__}", "%s has failed, and begins again: %s: %s",
                    name, type(error).__name__, str(error),
                )  # fmt: skip
                jittered = pause * self._sender.random.uniform(0.5, 1.0)
                await waited([asyncio.ensure_future(self._stopping.wait())], jittered)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def say(self, what: str, message: str, *arguments: object) -> None:
        """Log a warning when a spell of ``what`` begins."""
        self._said.log(log, what, self._sender.monotonic(), message, *arguments)


async def waited(tasks: Iterable[asyncio.Future[bool]], seconds: float | None) -> None:
    """Wait until one of them is done, or for a time; then cancel them."""
    own = list(tasks)
    try:
        await asyncio.wait(own, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in own:
            each.cancel()
