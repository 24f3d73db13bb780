"""The serving of a folder that this process opens to others on this machine.

An embedded store belongs to one process. A program that has helpers in processes of their own, such
as Spark, opens the folder once and serves it here. It is the same node, the same sessions, and
native streams on the loopback device. There is no cluster, and no record of serving. Every process
that can open a connection on this machine can use the store while it is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import random  # noqa: TID251 - here an instance is made, to be passed in
import socket
from pathlib import Path
from typing import Final

from postroom.errors import Unavailable
from postroom.kv.clock import SystemClock
from postroom.limits import DISK_RESERVE_BYTES, GC_TTL_SECONDS
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.cluster.formation import SelfDescription, node_alone
from postroom.server.cluster.native_server import NativeServer
from postroom.server.cluster.nodes_service import NodesService
from postroom.server.cluster.security import Security
from postroom.server.cluster.sessions import Sessions
from postroom.server.local_cluster import HOST, check_no_local_cluster
from postroom.server.loop_thread import LoopThread
from postroom.server.node import Node
from postroom.server.opening import open_storage

LOOK_SECONDS: Final = 1.0
OWN_HOST: Final = "127.80.79.83"
"""An address of the loopback device, on systems that give it its whole network (Linux).

Helpers may outlive the server, and connect to its port, which may be another program's by then.
A program of Spark's own took such a greeting for the length of a text, and had no memory for it.
"""


class LoopbackServer:
    """The server of a folder; see the module.

    It serves from its creation until it is closed.

    Args:
        path: the folder of a store, which no process has open.
        create: whether a store is made if there is none.
        gc_ttl: seconds that overwritten versions, and messages that left inboxes, stay readable.

    Attributes:
        address: the address of the server, ``host:port``.

    Raises:
        StoreLocked: a process has it open.
        Invalid: there is no store, or one of a cluster with other nodes.
        StoreCorrupted, VersionMismatch, AccessDenied, Unavailable: it cannot be opened.
    """

    def __init__(
        self, path: str | Path, *, create: bool = False, gc_ttl: float = GC_TTL_SECONDS
    ) -> None:
        check_no_local_cluster(Path(path))
        self._path = Path(path)
        self._closed = False
        self._thread = LoopThread("postroom-loopback")
        try:
            self.address: str = self._thread.run(self._open(create=create, gc_ttl=gc_ttl))
        except BaseException:
            self._thread.end()
            raise

    def close(self) -> None:
        """End all streams and close the store. Idempotent."""
        if not self._closed:
            self._closed = True
            try:
                self._thread.run(self._close())
            finally:
                self._thread.end()

    async def _open(self, *, create: bool, gc_ttl: float) -> str:
        randomness = random.Random(random.SystemRandom().randbytes(32))
        engine = open_storage(self._path, randomness, create=create)
        try:
            options = NodeOptions(
                node_id=node_alone(engine) or NodeOptions().node_id,
                gc_ttl_seconds=gc_ttl,
                disk_reserve_bytes=DISK_RESERVE_BYTES,
                rests_alone=True,
            )
            node = Node(engine, SystemClock(), randomness, NoPeers(), options)
        except BaseException:
            engine.close()
            raise
        self._driver = AsyncioDriver(node, randomness)
        self._driver.start()
        self._sessions = Sessions(node)
        security = Security(None)
        nodes = NodesService(security, lambda: SelfDescription(b"", (), None))
        host = _host()
        self._server = NativeServer(f"{host}:0", security, nodes)
        self._server.sessions = self._sessions
        self._server.open()
        self._looking = asyncio.create_task(self._look())
        return f"{host}:{self._server.port}"

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._sessions.look()

    async def _close(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        self._sessions.end_all(Unavailable("the store was closed; nothing was changed"))
        await asyncio.sleep(0)
        await self._server.close()
        await self._driver.close()


def _host() -> str:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((OWN_HOST, 0))
        return OWN_HOST
    return HOST
