"""Nodes behind gRPC on loopback, for clients in the same process.

A :class:`Server` is a node in memory, its sessions and a gRPC server, on an event loop in another
thread. It can be stopped and started again on the same port, with what it had stored.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from random import Random  # noqa: TID251 (seeded)
from typing import Any, TypeVar

import grpc
import grpc.aio

from postroom.errors import Unavailable
from postroom.kv.clock import SystemClock
from postroom.kv.engine import Engine
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.raft.transport import NoPeers
from postroom.server.cluster.admission import Limits
from postroom.server.cluster.sessions import Sessions
from postroom.server.cluster.store_service import SERVER_OPTIONS, Authorize, StoreService
from postroom.server.drivers import AsyncioDriver
from postroom.server.node import Node, NodeOptions

T = TypeVar("T")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all servers, which is never closed: gRPC would complain."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class Server:
    """See the module.

    Args:
        authorize: who may come in.
        credentials: for TLS; ``None``: without.
        limits: what the node takes on.
    """

    def __init__(
        self,
        authorize: Authorize | None = None,
        credentials: grpc.ServerCredentials | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._authorize = authorize
        self._credentials = credentials
        self._limits = limits
        self._disk = MemoryDisk()
        self._port = 0
        self._loop = _loop()
        self.sessions: Sessions

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

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
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers(
            (StoreService(self.sessions, self._authorize).handler(),)
        )
        address = f"127.0.0.1:{self._port}"
        if self._credentials is None:
            self._port = self._server.add_insecure_port(address)
        else:
            self._port = self._server.add_secure_port(address, self._credentials)
        await self._server.start()

    async def _stop(self) -> None:
        self.sessions.end_all(Unavailable("the node stops"))
        await self._server.stop(1.0)
        await self._driver.close()
