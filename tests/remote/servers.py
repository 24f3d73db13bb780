"""Nodes on loopback, for clients in the same process.

A :class:`Server` is a node in memory, with its sessions and its server of streams, on an event loop
in another thread. It can be stopped and started again on the same port, with what it had stored.
"""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from collections.abc import Coroutine
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final, TypeVar

import postroom
from postroom.errors import Error, Unavailable
from postroom.kv.clock import SystemClock
from postroom.kv.engine import Engine
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.cluster.admission import NodeLimits
from postroom.server.cluster.formation import SelfDescription
from postroom.server.cluster.native_server import NativeServer
from postroom.server.cluster.nodes_service import NodesService
from postroom.server.cluster.security import Security
from postroom.server.cluster.sessions import Sessions
from postroom.server.node import Node
from tests.cluster.places import SHARED_HOST, own_host

T = TypeVar("T")

LOOK_SECONDS: Final = 1.0


def why_not(words: str, address: str, **options: Any) -> Error:
    """Return the error with which connecting fails: one of those ``words``.

    A machine that is held up may not know the reason in time, and is given longer.
    """
    told = Error("connected")
    for seconds in (2.0, 8.0, 32.0):
        try:
            postroom.connect(address, timeout=seconds, **options).close()
        except Error as error:
            told = error
            if re.search(words, str(error)):
                return error
    raise told


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Start one event loop for all servers, which is never closed."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class Server:
    """A server of native streams in this process.

    Args:
        security: who may come in; ``None``: everybody.
        limits: what the node takes on.
    """

    def __init__(
        self,
        security: Security | None = None,
        limits: NodeLimits | None = None,
    ) -> None:
        self._security = security or Security(None)
        self._limits = limits
        self._disk = MemoryDisk()
        # Certificates of tests name one host.
        self._host = own_host() if security is None else SHARED_HOST
        self._port = 0
        self._loop = _loop()
        self.sessions: Sessions

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def ask(self, request: Any) -> Any:
        """Return the node's answer to a request of its own process."""

        async def answer() -> Any:
            return await self._driver.send(request)

        return self.on_loop(answer())

    def start(self) -> None:
        self.on_loop(self._start())

    def stop(self) -> None:
        self.on_loop(self._stop())

    async def _start(self) -> None:
        engine: Engine = MemoryEngine(self._disk)
        node = Node(engine, SystemClock(), Random(1), NoPeers(), NodeOptions())
        self._driver = AsyncioDriver(node, Random(2))
        self._driver.start()
        self.sessions = Sessions(node, self._limits)
        address = f"{self._host}:{self._port}"
        nodes = NodesService(self._security, lambda: SelfDescription(b"s" * 16, (), None))
        self.native = NativeServer(address, self._security, nodes)
        self.native.sessions = self.sessions
        self.native.open()
        self._port = self.native.port
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Look for clients that take no answers for long, as a node does that serves."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.sessions.look()

    async def look_at_access(self) -> None:
        """Look at access a few times a second, as a node does that serves."""
        if self._security.has_changed():
            self.sessions.look_at_access()

    async def _stop(self) -> None:
        self.sessions.end_all(Unavailable("the node stops"))
        self._looking.cancel()
        await self.native.close()
        await self._driver.close()
