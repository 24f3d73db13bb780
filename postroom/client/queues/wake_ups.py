"""A wait until a wake-up is given, or for a time: on an event loop, or in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Protocol

from postroom.client.sender import Sender


class RepeatedWakeUp(Protocol):
    """A wake-up that is given again and again."""

    def say(self) -> None:
        """Wake the waiter. If there is none, the next one does not wait."""

    async def wait(self, seconds: float) -> bool:
        """Wait until it is given, or for a time; return whether it was given."""


class _LoopWakeUp:
    """A wake-up that is given and awaited on one event loop."""

    def __init__(self) -> None:
        self._said = asyncio.Event()

    def say(self) -> None:
        self._said.set()

    async def wait(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._said.wait()
        except TimeoutError:
            return False
        finally:
            self._said.clear()


class _ThreadWait:
    """The awaitable that a blocking sender meets: an object with ``wait``."""

    def __init__(self, said: threading.Event, seconds: float) -> None:
        self._said = said
        self._seconds = seconds

    def wait(self) -> None:
        self._said.wait(self._seconds)

    def end_wait(self, error: BaseException) -> None:
        """End the wait."""
        del error
        self._said.set()

    def __await__(self) -> Generator[_ThreadWait, None, None]:
        yield self


class _ThreadWakeUp:
    """A wake-up that any thread gives, and one awaits."""

    def __init__(self) -> None:
        self._said = threading.Event()

    def say(self) -> None:
        self._said.set()

    async def wait(self, seconds: float) -> bool:
        await _ThreadWait(self._said, seconds)
        was_said = self._said.is_set()
        self._said.clear()
        return was_said


def wake_up_for(sender: Sender) -> RepeatedWakeUp:
    """Return a wake-up for clients of ``sender``: a sender that runs coroutines blocks threads."""
    return _ThreadWakeUp() if hasattr(sender, "run") else _LoopWakeUp()
