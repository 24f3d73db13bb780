"""The doors of a node: one address, at which native streams and gRPC are spoken."""

from __future__ import annotations

import asyncio
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from postroom.errors import how_to_install
from postroom.server.cluster import descriptors
from postroom.server.cluster.connections import Connections
from postroom.server.cluster.listener import Listener
from postroom.server.cluster.native_server import NativeDoor
from postroom.server.cluster.nodes_service import NodesService
from postroom.server.cluster.security import Security
from postroom.server.cluster.sessions import Sessions

if TYPE_CHECKING:
    from postroom.server.cluster.grpc_server import GrpcServer

_log = logging.getLogger(__name__)


class Doors:
    """The doors of one node; see the module.

    Args:
        address: the address to listen at, ``host:port``.
        security: decides which clients and nodes may come in.
        nodes: serves other nodes.

    Attributes:
        connections: all connections that have come in.
    """

    def __init__(self, address: str, security: Security, nodes: NodesService) -> None:
        self._native = NativeDoor(security, nodes)
        self._grpc = _grpc_server(security, nodes)
        limit = descriptors.for_connections(descriptors.raise_limit())
        self.connections = Connections(asyncio.get_running_loop().time, limit)
        self._listener = Listener(
            address, security.server_context, self.connections, self._native.create, self._grpc
        )

    @property
    def port(self) -> int:
        """Return the port at which the node listens."""
        return self._listener.port

    async def open(self) -> None:
        """Begin to listen.

        Raises:
            Invalid: it cannot listen there.
        """
        if self._grpc is not None:
            await self._grpc.start()
        await self._listener.open()

    def serve_clients(self, sessions: Sessions) -> None:
        """Serve clients by ``sessions``, since there is a node."""
        self._native.sessions = sessions
        if self._grpc is not None:
            self._grpc.serve_clients(sessions)

    async def set_health(self, *, serving: bool) -> None:
        """Set the status of gRPC's health service."""
        if self._grpc is not None:
            await self._grpc.set_health(serving=serving)

    async def close(self) -> None:
        """Let no connection in any more, and end the open ones after their pending writes."""
        self._listener.stop()
        self._native.close()
        if self._grpc is not None:
            await self._grpc.close()
        await self._native.closed()
        await self._listener.close()


def _grpc_server(security: Security, nodes: NodesService) -> GrpcServer | None:
    if find_spec("grpc") is None or find_spec("grpc_health") is None:
        _log.info(
            "gRPC is not installed: this node speaks native streams only, and has no health "
            "service; for clients in other languages, and for nodes and clients of the first "
            "release: %s",
            how_to_install("server"),
        )
        return None
    from postroom.server.cluster.grpc_server import GrpcServer  # noqa: PLC0415 - if it is there

    return GrpcServer(security, nodes)
