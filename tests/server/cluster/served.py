"""A node that is served in this process, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import postroom
import postroom.aio
from postroom.kv.clock import SystemClock
from postroom.kv.engine_folder import EngineName
from postroom.limits import MEMORY_BYTES
from postroom.server.cluster.security import Security
from postroom.server.cluster.serving import NodeSettings, ServedNode

READY_SECONDS = 40.0


class Serving:
    """A node in this process, and the task that runs it."""

    def __init__(
        self,
        folder: Path,
        address: str,
        *first: str,
        listen: str = "",
        lease_seconds: float = 9.0,
        engine: EngineName | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.address = address
        settings = NodeSettings(
            folder, listen or address, address, first or (address,), Security(None),
            lease_seconds, disk_reserve_bytes=0, engine=engine, memory_bytes=memory_bytes,
        )  # fmt: skip
        self.served = ServedNode(settings, SystemClock(), Random(folder.name + address))
        self.ready = asyncio.Event()
        self.task = asyncio.create_task(self.served.run(self.ready.set))

    async def wait_ready(self) -> None:
        waiting = asyncio.create_task(self.ready.wait())
        async with asyncio.timeout(READY_SECONDS):
            await asyncio.wait((waiting, self.task), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        self.served.stop()
        await self.task


@asynccontextmanager
async def serving(folder: Path, address: str, *first: str, **other: Any) -> AsyncIterator[Serving]:
    """Yield a node that is ready, and stop it at the end."""
    node = Serving(folder, address, *first, **other)
    try:
        await node.wait_ready()
        yield node
    finally:
        if not node.task.done():
            await node.stop()


async def connect(*addresses: str) -> postroom.aio.Database:
    return await postroom.aio.connect(addresses, insecure=True)


async def put(address: str, key: bytes) -> None:
    async with await connect(address) as db:
        await db.put(key, b"value")


async def get(address: str, key: bytes) -> bytes | None:
    async with await connect(address) as db:
        value: bytes | None = await db.get(key)
        return value
