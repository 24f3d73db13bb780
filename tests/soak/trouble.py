"""The troubles of an embedded store's machine, now and then: a full device, a wrong clock.

=========== ==================================================================================
full device hardly any room is left, or none: what is stored is read, deletions are taken, and the
            store says why it refuses all else. Then there is room again, and all clients get on
wrong clock the wall clock is set forward or back, and corrected a moment later
=========== ==================================================================================
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from postroom.aio import Database
from postroom.errors import Unavailable
from postroom.server.node import Node
from tests.soak.worker import Worker

FULL_SECONDS: Final = 0.5
MIB: Final = 1024 * 1024
FREE_BYTES: Final = (0, 1 * MIB, 3 * MIB, 10 * MIB, 31 * MIB)
"""The room that is left: always less than the reserve."""
PAUSE_SECONDS: Final = 10.0
WRONG_SECONDS: Final = 1.0
JUMPS_SECONDS: Final = (-20, -3, 3, 20)
KEY: Final = b"soak/trouble"


class Trouble:
    """The troubles of a machine.

    Args:
        node: of the store.
        goes_on: whether the soak does.
    """

    def __init__(self, node: Node, goes_on: Callable[[], bool]) -> None:
        self._node: Any = node
        self._goes_on = goes_on

    async def fill_device(self, worker: Worker, db: Database) -> None:
        """Fill the device for a moment; meanwhile read everything, and delete something."""
        await db.put(KEY, b"there")
        free = worker.random.choice(FREE_BYTES)
        with _replaced(self._node.engine.state, "free_bytes", lambda: free):
            await self._pause(FULL_SECONDS / 2)
            try:
                found = await db.get(KEY)
                await db.delete(KEY)
            except Unavailable as error:
                raise AssertionError(
                    f"a device with {free} bytes free stops reads or deletions: {error}"
                ) from error
            if not self._node.describe().refused:
                raise AssertionError("a store without room does not say so")
            if found != b"there":
                raise AssertionError(f"on a full device {found!r} is read")
            await self._pause(FULL_SECONDS / 2)
        worker.did()
        await self._pause(PAUSE_SECONDS)

    async def set_clock(self, worker: Worker) -> None:
        """Set the wall clock wrong for a moment."""
        clock, jump = self._node.clock, worker.random.choice(JUMPS_SECONDS) * 1000
        wall = clock._wall
        with _replaced(clock, "_wall", lambda: wall() + jump):
            await self._pause(WRONG_SECONDS)
        worker.did()
        await self._pause(PAUSE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._goes_on():
            await asyncio.sleep(0.05)


@contextmanager
def _replaced(where: Any, name: str, function: Callable[[], int]) -> Iterator[None]:
    original = getattr(where, name)
    setattr(where, name, function)
    try:
        yield
    finally:
        setattr(where, name, original)
