"""Large writes are made beside the event loop: others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from postroom.client.codec import resolve
from postroom.kv.clock import SystemClock
from postroom.kv.engine import EngineFailed, WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import (
    WRITTEN_AT_ONCE_BYTES,
    WRITTEN_AT_ONCE_KEYS,
    AsyncioDriver,
)
from postroom.server.node import Node
from tests.client.test_asyncio import on_a_loop

MANY = WRITTEN_AT_ONCE_KEYS + 1


class SlowEngine(MemoryEngine):
    """A write of many keys, or of a large value, takes until ``goes_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = threading.Event()
        self.goes_on = threading.Event()
        self.error: Exception | None = None

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        large = sum(len(value or b"") for value in writes.values()) > WRITTEN_AT_ONCE_BYTES
        if large or len(writes) > WRITTEN_AT_ONCE_KEYS:
            self.writes.set()
            assert self.goes_on.wait(10)
            if self.error is not None:
                raise self.error
        super().write(writes, sync=sync)


def opened(engine: SlowEngine) -> postroom.aio.Database:
    node = Node(engine, SystemClock(), Random(1), NoPeers(), NodeOptions())
    driver = AsyncioDriver(node, Random(2))
    driver.start()

    async def no_status() -> Any:
        raise NotImplementedError

    return postroom.aio.Database(driver, resolve(None), no_status, driver.close)


async def begin(db: postroom.aio.Database, engine: SlowEngine) -> asyncio.Task[None]:
    """Begin a transaction with many writes, as far as its write."""

    def write(tx: Any) -> None:
        for number in range(MANY):
            tx.put(b"many/%d" % number, b"v")

    task = asyncio.create_task(db.run(write))
    while not engine.writes.is_set():
        await asyncio.sleep(0)
    return task


@on_a_loop
async def test_reads_are_served_while_much_is_written_and_see_the_store_before_it() -> None:
    engine = SlowEngine()
    db = opened(engine)
    await db.put(b"other", b"there")
    task = await begin(db, engine)
    for _ in range(10):
        assert await db.get(b"other") == b"there"
    touching = asyncio.create_task(db.get(b"many/1"))
    writing = asyncio.create_task(db.put(b"other", b"later"))
    await db.get(b"other")
    assert not any(each.done() for each in (task, touching, writing))
    engine.goes_on.set()
    await task
    assert await touching == b"v"
    await writing
    assert await db.get(b"other") == b"later"
    await db.close()


@on_a_loop
async def test_large_values_are_written_beside_the_loop_too() -> None:
    engine = SlowEngine()
    db = opened(engine)
    await db.put(b"other", b"there")

    def write(tx: Any) -> None:
        for number in range(3):
            tx.put(b"large/%d" % number, bytes(1024 * 1024))

    task = asyncio.create_task(db.run(write))
    while not engine.writes.is_set():
        await asyncio.sleep(0)
    assert await db.get(b"other") == b"there"
    engine.goes_on.set()
    await task
    await db.close()


@on_a_loop
async def test_closing_waits_for_what_is_being_written() -> None:
    engine = SlowEngine()
    db = opened(engine)
    task = await begin(db, engine)
    threading.Timer(0.01, engine.goes_on.set).start()
    await db.close()
    assert engine.goes_on.is_set(), "it was told before it was written"
    await task


@on_a_loop
async def test_a_device_that_fails_then_stops_the_store() -> None:
    engine = SlowEngine()
    db = opened(engine)
    task = await begin(db, engine)
    engine.error = EngineFailed("the device is gone")
    engine.goes_on.set()
    node: Node = db._sender.node  # type: ignore[attr-defined]
    while node.failed is None:
        await asyncio.sleep(0)
    assert "the device is gone" in str(node.failed)
    with pytest.raises(postroom.errors.CommitUnknown):
        await task
    await db.close()
