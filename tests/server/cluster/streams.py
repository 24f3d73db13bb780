"""Nodes that only have a transport: peers and a server, on loopback, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random  # noqa: TID251 (seeded)
from typing import Any

from postroom.raft.interface import NodeId
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.server.cluster.dialing import PROTOCOL_VERSION, Dialer, Introduction
from postroom.server.cluster.formation import SelfDescription
from postroom.server.cluster.native_server import NativeServer
from postroom.server.cluster.nodes_service import NodesService
from postroom.server.cluster.peers import Peers
from postroom.server.cluster.security import Security
from tests.cluster.places import SHARED_HOST, own_host

CLUSTER = b"c" * 16
WAIT_SECONDS = 20.0


def store(node_id: int) -> bytes:
    return b"%d" % node_id * 16


class Talker:
    """A node of which there is only what talks to the others."""

    def __init__(self, node_id: int, security: Security | None = None, port: int = 0) -> None:
        self.node_id = node_id
        self.security = security or Security(None)
        self.host = SHARED_HOST
        self.port = port
        self.frames: list[tuple[object, bytes]] = []
        self.reads = True

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def descriptor(self) -> NodeDescriptor:
        return NodeDescriptor(self.node_id, self.address, store(self.node_id))

    async def listen(self) -> None:
        if self.security.insecure and not self.port:
            # Others do not take its port there while it is closed; certificates name one host.
            self.host = own_host()
        self.service = NodesService(
            self.security, lambda: SelfDescription(store(self.node_id), (), None)
        )
        self.server = NativeServer(self.address, self.security, self.service)
        self.server.open()
        self.port = self.server.port

    def introduction(self) -> Introduction:
        return Introduction(
            PROTOCOL_VERSION, CLUSTER, self.node_id, store(self.node_id), self.address
        )

    def talk(self, nodes: Nodes, introduction: Introduction | None = None) -> None:
        monotonic = asyncio.get_running_loop().time
        self.peers = Peers(
            introduction or self.introduction(),
            Dialer(self.security),
            Random(self.node_id),
            monotonic,
        )
        self.peers.on_frame = self._take
        self.service.peers = self.peers
        self.peers.follow(nodes)

    def _take(self, sender: NodeId = 0, frame: bytes = b"") -> None:
        if self.reads:
            self.frames += self.peers.receive()

    async def close(self) -> None:
        if hasattr(self, "peers"):
            self.peers.close()
        await self.server.close()


def cluster(*talkers: Talker) -> Nodes:
    return Nodes(CLUSTER, 100, tuple(each.descriptor for each in talkers))


@asynccontextmanager
async def talkers(*node_ids: int) -> AsyncIterator[list[Talker]]:
    """Start nodes that are all connected."""
    nodes = [Talker(node_id) for node_id in node_ids]
    for each in nodes:
        await each.listen()
    try:
        for each in nodes:
            each.talk(cluster(*nodes))
        for each in nodes:
            for other in nodes:
                if other is not each:
                    await until(lambda each=each, other=other: each.peers.connected(other.node_id))  # type: ignore[misc]
        yield nodes
    finally:
        for each in nodes:
            await each.close()


async def until(holds: Callable[[], object]) -> None:
    """Wait until ``holds`` does; ask again every few milliseconds."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():
            await asyncio.sleep(0.005)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))
