"""The cost of a store with many of something at rest: opening, memory, idling.

::

    a process    fills the store ── kill -9
    another one  opens it (measured), closes it
    another one  opens it (measured), is left alone: its memory, its processor time

Each process is new: its memory holds no traces of filling the store.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import postroom.aio
from benchmarks.growing import Database, Growing
from postroom.kv.engine_folder import EngineName
from postroom.server.describe import process_memory

T = TypeVar("T")
Fill: TypeAlias = Callable[[Database, int], Awaitable[None]]
Use: TypeAlias = Callable[[Database, int], Awaitable[list[asyncio.Future[Any]]]]

SETTLING_TIMES: Final = 0.5
"""The time after opening in which the store settles, as a share of the measured time."""


class Phase(NamedTuple):
    """The order to a process; its functions must be those of a module.

    Attributes:
        store: where it is.
        engine: what it is written by.
        size: how many of the subject there are.
        fill: adds them.
        use: begins to use them, and goes on in tasks; ``None``: nobody does.
        seconds: how long the store is left alone.
    """

    store: Path
    engine: EngineName | None
    size: int
    fill: Fill
    use: Use | None
    seconds: float


def at_rest(growing: Growing, fill: Fill, use: Use | None = None) -> None:
    """Fill the store of ``growing``, and measure it at rest.

    The measures are the time of opening, after ``kill -9`` and after a clean close; the process's
    own memory for each of the subject; and how busy it is.
    """
    phase = Phase(growing.store, growing.engine, growing.size, fill, use, growing.seconds)
    try:
        _apart(_fill_and_die, phase)
    except BrokenProcessPool:  # the process has killed itself
        pass
    else:
        raise AssertionError("a process that was killed has ended")
    growing.rates["open after kill -9 [s]"] = _apart(_open_and_close, phase)
    opened, each, idle = _apart(_rest, phase)
    growing.rates["open [s]"] = opened
    growing.rates["memory of each [bytes]"] = each
    growing.rates["idle [% of a core]"] = idle


def _apart(function: Callable[[Phase], T], phase: Phase) -> T:
    """Call a function in a process of its own, and return what it returns."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.growth"])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, phase).result()


def _fill_and_die(phase: Phase) -> None:
    async def filled() -> None:
        db = await postroom.aio.open(phase.store, engine=phase.engine)
        await phase.fill(db, phase.size)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(filled())


def _open_and_close(phase: Phase) -> float:
    async def opened() -> float:
        db, seconds = await _opened(phase.store, phase.engine)
        await db.close()
        return seconds

    return asyncio.run(opened())


def _rest(phase: Phase) -> tuple[float, float, float]:
    """Return the seconds that opening took, the bytes of each, and the share of a core [%]."""

    async def rested() -> tuple[float, float, float]:
        empty, _ = await _opened(phase.store.with_name("empty"), phase.engine)
        before = process_memory().own_bytes
        await empty.close()
        db, opened = await _opened(phase.store, phase.engine)
        users = await phase.use(db, phase.size) if phase.use else []
        await asyncio.sleep(SETTLING_TIMES * phase.seconds)
        each = max(process_memory().own_bytes - before, 0) / phase.size
        begun, busy = time.perf_counter(), time.process_time()
        await asyncio.sleep(phase.seconds)
        idle = 100 * (time.process_time() - busy) / (time.perf_counter() - begun)
        await ended(users)
        await db.close()
        return opened, each, idle

    return asyncio.run(rested())


async def _opened(store: Path, engine: EngineName | None) -> tuple[Database, float]:
    """Open a store, and read once; return it and the seconds that took."""
    begun = time.perf_counter()
    db = await postroom.aio.open(store, engine=engine)
    await db.get(b"key")
    return db, time.perf_counter() - begun


async def ended(users: list[asyncio.Future[Any]]) -> None:
    """End the users of a store."""
    for each in users:
        each.cancel()
    for result in await asyncio.gather(*users, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
