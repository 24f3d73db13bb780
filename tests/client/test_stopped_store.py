"""An embedded store that has stopped is not asked again and again: it has to be opened anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom.aio
from postroom.client.codec import resolve
from postroom.client.sender import LONGEST_REFUSED_SECONDS
from postroom.errors import CommitUnknown, Unavailable
from postroom.kv.clock import SystemClock
from postroom.kv.engine import EngineFailed, WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.node import Node

Stop = Callable[[], Awaitable[None]]

PATIENCE_SECONDS = 30
"""The time after which calls that hang count as lost."""


class BadEngine(MemoryEngine):
    """An engine that fails when it is told to."""

    fails = False

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        if self.fails:
            raise EngineFailed("the device is gone")
        super().write(writes, sync=sync)


class NeverAgain(AsyncioDriver):
    """A caller that waits as long as a stopped store says would ask it again."""

    stops = False

    def sleep(self, seconds: float) -> Any:
        assert not (self.stops and seconds > LONGEST_REFUSED_SECONDS), "it is tried again"
        return super().sleep(seconds)


async def no_status() -> Any:
    raise NotImplementedError


async def run(db: postroom.aio.Database, stop: Stop) -> None:
    await stop()
    await db.run(lambda tx: tx.put(b"k", b"v"))


async def receive(db: postroom.aio.Database, stop: Stop) -> None:
    await stop()
    async for _ in db.queue("q").receive():
        pass


async def publish(db: postroom.aio.Database, stop: Stop) -> None:
    await stop()
    await db.staging.publish(b"query", 1, b"j" * 24, [])


async def work(db: postroom.aio.Database, stop: Stop) -> None:
    worker, works = postroom.aio.Worker(db), asyncio.Event()

    @worker.task("q")
    async def task(message: Any, tx: Any) -> None:
        pass

    @worker.inbox(b"inbox")
    async def inbox(message: Any, tx: Any) -> None:
        pass

    working = asyncio.create_task(worker.run(signals=False, ready=works.set))
    await works.wait()
    await stop()
    await working


@pytest.mark.parametrize("call", [run, receive, publish, work])
def test_a_call_that_is_repeated_ends(
    call: Callable[[postroom.aio.Database, Stop], Awaitable[None]],
) -> None:
    asyncio.run(ends(call))


async def ends(call: Callable[[postroom.aio.Database, Stop], Awaitable[None]]) -> None:
    engine = BadEngine()
    node = Node(engine, SystemClock(), Random(1), NoPeers(), NodeOptions())
    driver = NeverAgain(node, Random(2))
    driver.start()
    db = postroom.aio.Database(driver, resolve(None), no_status, driver.close)
    await db.create_queue("q")

    async def stop() -> None:
        engine.fails = driver.stops = True
        with pytest.raises(
            CommitUnknown, match=r"may have happened; the store has stopped .*device"
        ):
            await db.run(lambda tx: tx.put(b"key", b"value"))

    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(Unavailable, match=r"the store has stopped .* open it again"):
            await call(db, stop)
    await db.close()
