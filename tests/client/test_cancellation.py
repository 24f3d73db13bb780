"""Every kind of call, cancelled at each of its suspensions, leaves nothing held and a whole store.

The lease has lapsed before each run, so that also reads are waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom.aio
from postroom.client.codec import resolve
from postroom.kv.clock import SystemClock
from postroom.kv.memory import MemoryEngine
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.node import Node
from tests.client.test_asyncio import on_a_loop, reap, send

Database = postroom.aio.Database
SUSPENSIONS_MAX = 50
HELD = ("protections", "holders", "parked", "blocked")


class _CancelledAt:
    """An awaitable coroutine whose task is cancelled at the ``at``-th suspension.

    Attributes:
        suspensions: how many there were.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int) -> None:
        self._coroutine = coroutine
        self._at = at
        self.suspensions = 0

    def __await__(self) -> Generator[Any, None, Any]:
        error: BaseException | None = None
        while True:
            try:
                future = (
                    self._coroutine.send(None) if error is None else self._coroutine.throw(error)
                )
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            if self.suspensions == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            error = None
            try:
                yield future
            except BaseException as raised:
                error = raised


async def _first(items: AsyncGenerator[Any, None]) -> None:
    async with aclosing(items):
        await anext(items)


async def _hold(db: Database, *, whole: bool = False) -> None:
    async with db.hold(whole=whole) as at:
        for part in await db.partitions():
            pages = db.bulk.columns(part.start, part.end, at=at)
            async with aclosing(pages):
                await anext(pages)
        if whole:
            await _first(db.bulk.scan("image", at=at))
            await db.images.check(at)


async def _snapshot(db: Database) -> None:
    async with db.snapshot() as snapshot:
        await snapshot.get(b"k")
        await _first(snapshot.scan())
        await snapshot.peek(b"inbox")


async def _transaction(db: Database) -> None:
    async with db.begin() as tx:
        await tx.get_for_update(b"lock")
        await tx.try_lock(b"other lock", 1)
        await tx.reap_queue(b"inbox")
        await tx.rollback()


async def _run(db: Database) -> None:
    conflicts = [postroom.TransactionConflict("once more")]

    async def read(tx: postroom.aio.Transaction) -> None:
        await tx.get_for_update(b"lock")
        if conflicts:
            raise conflicts.pop()
        tx.put(b"written", b"v")

    await db.run(read)


async def _claim(db: Database) -> None:
    for message in await db.queue("q").claim(1):
        await message.reject(delay=0)


async def _staging(db: Database) -> None:
    await db.staging.sweep()
    await db.staging.sweep_some()
    await db.staging.begin_load(b"load", b"r" * 16, b"load/", b"load0")
    await db.staging.end_load(b"load", b"r" * 16, b"", None, done=False, keep=False)


async def _administration(db: Database) -> None:
    await db.scheduled()
    await db.dead_letters()
    await db.inboxes()
    await db.replay([])
    await db.drain()


CALLS: dict[str, Callable[[Database], Coroutine[Any, Any, Any]]] = {
    "get_many": lambda db: db.get_many([b"%d" % number for number in range(5000)]),
    "scan": lambda db: _first(db.scan()),
    "watch": lambda db: _first(db.watch(b"k", after=1)),
    "snapshot": _snapshot,
    "hold": _hold,
    "hold, whole": lambda db: _hold(db, whole=True),
    "transaction": _transaction,
    "run": _run,
    "claim": _claim,
    "staging": _staging,
    "administration": _administration,
}


def opened() -> tuple[Database, Node]:
    node = Node(MemoryEngine(), SystemClock(), Random(1), NoPeers(), NodeOptions())
    driver = AsyncioDriver(node, Random(2))
    driver.start()

    async def no_status() -> Any:
        raise NotImplementedError

    return Database(driver, resolve(None), no_status, driver.close), node


@pytest.mark.parametrize("name", CALLS)
@on_a_loop
async def test_a_call_cancelled_anywhere_leaves_nothing_held(name: str) -> None:
    db, node = opened()
    await db.create_queue("q")
    async with db.begin() as tx:
        tx.put(b"k", b"v")
        tx.enqueue("q", b"message")
    await send(db, b"inbox", b"message")
    for at in range(1, SUSPENSIONS_MAX):
        node.root.replica.lease_holder._until = 0.0
        call = _CancelledAt(CALLS[name](db), at)

        async def wait(awaitable: _CancelledAt) -> None:
            await awaitable

        task = asyncio.create_task(wait(call))
        await asyncio.wait([task])
        assert task.cancelled() == (call.suspensions >= at) or call.suspensions > at
        await db.put(b"another", b"turn")
        sizes = node.sizes()
        assert {held: sizes[held] for held in HELD} == dict.fromkeys(HELD, 0), at
        (message,) = await db.queue("q").claim(1, wait=50)
        await message.reject(delay=0)
        async with db.begin(timeout=50) as tx:
            await tx.get_for_update(b"lock")
        if call.suspensions < at:
            break
    assert at > 1, "it was never suspended"
    assert await reap(db, b"inbox") == [b"message"]
    await db.close()
