"""The gRPC server in this process, and the relay by which connections come to it.

::

    client ── TCP ──▶ listener ── relay ──▶ unix socket ──▶ gRPC, which ends TLS itself
                                   bytes as they are

A node has one address, and gRPC cannot be given a connection that it has not accepted itself. Its
server therefore listens at a unix socket in a folder that only this user may enter, and the bytes
of a connection are carried there and back, unread. TLS, certificates and tokens work as without a
relay: gRPC sees the client's handshake. It does not see the client's address; each connection
therefore gets a name on the unix side, by which gRPC's ``peer`` is found here again.

This module is imported only if gRPC is installed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from postroom.limits import HELLO_SECONDS, PEER_MESSAGE_BYTES_MAX
from postroom.server.cluster.connections import Connection
from postroom.server.cluster.grpc_services import (
    STORE_SERVICE,
    Doorkeeper,
    GrpcNodes,
    GrpcStore,
    HealthService,
    server_credentials,
)
from postroom.server.cluster.nodes_service import NodesService
from postroom.server.cluster.security import Security
from postroom.server.cluster.sessions import Sessions

LONGEST_IDLE_MILLISECONDS: Final = 300_000
"""The time without a call after which a connection is ended."""
STOP_SECONDS: Final = 0.2
LINGER_SECONDS: Final = 1.0
"""The time for which pending bytes may still be carried when one end has hung up."""
STALLED_SECONDS: Final = 20.0
"""The time after which an end that takes nothing is gone.

By then gRPC has hung up, too, because its pings were not answered. This is not noticed here, since
nothing is read meanwhile.
"""
FOLDER_PREFIX: Final = "postroom-grpc-"
SOCKET: Final = "grpc"
FRESH_SECONDS: Final = 60.0
"""The age up to which a folder may be that of a node which is just starting."""
RELAY_BUFFER_BYTES: Final = 64 * 1024

SERVER_OPTIONS: Final = [
    ("grpc.max_send_message_length", PEER_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", PEER_MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.server_handshake_timeout_ms", int(1000 * HELLO_SECONDS)),
    ("grpc.max_connection_idle_ms", LONGEST_IDLE_MILLISECONDS),
]

_log = logging.getLogger(__name__)


class GrpcServer(Doorkeeper):
    """The gRPC server of one node; see the module.

    Args:
        security: decides which connections may come in, by TLS.
        nodes: serves nodes of the first release.
    """

    def __init__(self, security: Security, nodes: NodesService) -> None:
        self._security = security
        self._nodes = GrpcNodes(nodes, self)
        self._store = GrpcStore(security, self)
        self._health = HealthService(self)
        self._server = aio.server(options=SERVER_OPTIONS)
        self._folder: Path | None = None
        self._callers: dict[str, Connection] = {}
        self._relays: set[asyncio.Task[None]] = set()
        self._number = 0

    async def start(self) -> None:
        """Listen at the unix socket."""
        _remove_left_behind()
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))  # for this user alone
        self._server.add_generic_rpc_handlers((self._nodes.handler(), self._store))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        credentials = server_credentials(self._security)
        address = f"unix:{self._socket}"
        if credentials is None:
            self._server.add_insecure_port(address)
        else:
            self._server.add_secure_port(address, credentials)
        await self._server.start()

    @property
    def _socket(self) -> Path:
        assert self._folder is not None
        return self._folder / SOCKET

    def serve_clients(self, sessions: Sessions) -> None:
        """Serve clients by ``sessions``, since there is a node."""
        self._store.sessions = sessions

    async def set_health(self, *, serving: bool) -> None:
        """Set the status of the health service."""
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if serving else kinds.NOT_SERVING
        for service in ("", STORE_SERVICE):
            await self._health.set(service, status)

    async def close(self) -> None:
        """End everything."""
        await self._nodes.close()
        await self._server.stop(STOP_SECONDS)
        for relay in list(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- connections

    def take(self, connected: socket.socket, connection: Connection) -> None:
        """Take a connection for gRPC, of which nothing has been read."""
        task = asyncio.get_running_loop().create_task(self._relay(connected, connection))

        def drop() -> None:
            task.cancel()

        connection.drop = drop
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)

    async def _relay(self, connected: socket.socket, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        assert self._folder is not None
        self._number += 1
        name = self._folder / f"{self._number}"
        inner = socket.socket(socket.AF_UNIX)
        outer_end = inner_end = None
        try:
            inner.setblocking(False)
            inner.bind(str(name))
            self._callers[f"unix:{name}"] = connection
            await loop.sock_connect(inner, str(self._socket))
            name.unlink()
            outer_end, inner_end = _End(), _End()
            outer_end.other, inner_end.other = inner_end, outer_end
            await loop.connect_accepted_socket(lambda: inner_end, inner)
            await loop.connect_accepted_socket(lambda: outer_end, connected)
            hung_up = outer_end.hung_up, inner_end.hung_up
            await asyncio.wait(hung_up, return_when=asyncio.FIRST_COMPLETED)
            # The other one ends after its pending writes, which may never be taken.
            await asyncio.wait((outer_end.gone, inner_end.gone), timeout=LINGER_SECONDS)
        except OSError as error:
            _log.debug("cannot relay %s: %s", connection.where, error)
        finally:
            for end, its_socket in ((inner_end, inner), (outer_end, connected)):
                if end is None or end.transport is None:
                    its_socket.close()
                else:
                    end.abort()
            self._callers.pop(f"unix:{name}", None)
            name.unlink(missing_ok=True)
            connection.closed()

    # --- a doorkeeper

    def where(self, peer: str) -> str:
        """Return the address of gRPC's ``peer``."""
        connection = self._callers.get(peer)
        return peer if connection is None else connection.where

    def said_hello(self, peer: str) -> None:
        """Note that ``peer`` has made a call."""
        connection = self._callers.get(peer)
        if connection is not None:
            connection.said_hello()


def _remove_left_behind() -> None:
    """Remove the folders of nodes that were killed: no server listens there any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        try:
            is_fresh = time.time() - folder.stat().st_mtime < FRESH_SECONDS  # noqa: TID251 - a file's
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(0)
                if not is_fresh:
                    asking.connect(str(folder / SOCKET))
        except (ConnectionRefusedError, FileNotFoundError):
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # another user's folder


def _happened(event: asyncio.Future[None]) -> None:
    if not event.done():
        event.set_result(None)


class _End(asyncio.Protocol):
    """An end of a relay. Bytes that come in go out at the other end, at its speed."""

    other: _End

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.hung_up: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read once both ends are there."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=RELAY_BUFFER_BYTES)
        if self.other.transport is None:
            transport.pause_reading()
        else:
            self.other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on."""
        other = self.other.transport
        if other is not None and not other.is_closing():
            other.write(data)

    def eof_received(self) -> bool:
        """Pass on the end of one half. The other half ends soon: gRPC half-closes no stream."""
        _happened(self.hung_up)
        other = self.other.transport
        if other is not None and not other.is_closing():
            with suppress(OSError):  # it has gone, which no read has told yet
                other.write_eof()
        return True

    def pause_writing(self) -> None:
        """Stop reading at the other end."""
        if self.other.transport is not None:
            self.other.transport.pause_reading()
        self._await_progress()

    def _await_progress(self) -> None:
        assert self.transport is not None
        left = self.transport.get_write_buffer_size()
        self._stalled = asyncio.get_running_loop().call_later(STALLED_SECONDS, self._look, left)

    def _look(self, left: int) -> None:
        """Abort if ``left`` bytes, left a while ago, are all still there."""
        if self.transport is None or self.transport.get_write_buffer_size() == left:
            self.abort()
        else:
            self._await_progress()

    def resume_writing(self) -> None:
        """Read on at the other end."""
        self._stop_looking()
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def _stop_looking(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other end, too, after its pending writes."""
        del exc
        self._stop_looking()
        _happened(self.hung_up)
        _happened(self.gone)
        if self.other.transport is not None:
            self.other.transport.close()

    def abort(self) -> None:
        """Close this end at once."""
        if self.transport is not None:
            self.transport.abort()
