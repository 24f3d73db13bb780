"""Waiting until something is said, or for a time: on an event loop, or in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Protocol

from postroom.client.sender import Sender


class Signal(Protocol):
    """Something that is said again and again."""

    def say(self) -> None:
        """Now. Who waits goes on; if nobody does, the next one to wait goes on at once."""

    async def wait(self, seconds: float) -> None:
        """Until it is said, or for a time."""


class _LoopSignal:
    """Said and awaited on one event loop."""

    def __init__(self) -> None:
        self._said = asyncio.Event()

    def say(self) -> None:
        self._said.set()

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._said.wait()
        except TimeoutError:
            return
        finally:
            self._said.clear()


class _ThreadWait:
    """What a blocking sender runs into: a thing with ``wait``."""

    def __init__(self, said: threading.Event, seconds: float) -> None:
        self._said = said
        self._seconds = seconds

    def wait(self) -> None:
        self._said.wait(self._seconds)

    def __await__(self) -> Generator[_ThreadWait, None, None]:
        yield self


class _ThreadSignal:
    """Said by any thread, awaited by one."""

    def __init__(self) -> None:
        self._said = threading.Event()

    def say(self) -> None:
        self._said.set()

    async def wait(self, seconds: float) -> None:
        await _ThreadWait(self._said, seconds)
        self._said.clear()


def signal_for(sender: Sender) -> Signal:
    """One for clients of ``sender``: a sender that runs coroutines blocks threads."""
    return _ThreadSignal() if hasattr(sender, "run") else _LoopSignal()
