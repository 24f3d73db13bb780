"""The one address with two doors: native streams, and gRPC for clients that speak nothing else.

::

    accept ─▶ place? ─▶ look at the first bytes, without taking them ─┬─ "postroom/" ──▶ native
              (.connections)      with TLS: at its ClientHello        └─ all else ─────▶ gRPC
                                                                          (.grpc_server)

Connections are accepted a few in a turn of the event loop, lest thousands of new ones keep the node
from those that it serves. A connection that has not identified itself in time, at either door, is
dropped.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from postroom.client.remote.native import host_and_port, notice_silence, why_not_connected
from postroom.errors import Invalid
from postroom.limits import HELLO_SECONDS
from postroom.log_once import LogOnce
from postroom.protocol.streams import (
    DENIED,
    NATIVE_DOOR,
    PEEK_BYTES,
    Refusal,
    door_of,
    is_tls,
    reply_bytes,
)
from postroom.server.cluster.connections import Connection, Connections
from postroom.server.cluster.tls_protocol import SharedBuffer, accept_tls

ACCEPTED_AT_ONCE: Final = 32
BACKLOG: Final = 1024
FULL_PAUSE_SECONDS: Final = 0.05
LOOK_SECONDS_MIN: Final = 0.005
"""The time until the first bytes are looked at again, if they are too few; then twice as long."""
SILENCE_SECONDS: Final = 5
UNTAKEN_SECONDS: Final = 30
"""The time after which a client that does not read its pending answers has to connect again."""

_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class GrpcDoor(Protocol):
    """The door to which connections for gRPC go."""

    def take(self, connected: socket.socket, connection: Connection) -> None:
        """Take a connection of which nothing was read."""


class Listener:
    """The listener of one node; see the module.

    Args:
        address: the address to listen at, ``host:port``.
        context: for TLS; ``None``: without.
        connections: gives places to connections.
        native: makes the protocol of a native stream.
        grpc: the door of gRPC; ``None``: it is not spoken.
    """

    def __init__(
        self,
        address: str,
        context: ssl.SSLContext | None,
        connections: Connections,
        native: Callable[[Connection], asyncio.Protocol],
        grpc: GrpcDoor | None,
    ) -> None:
        self.address = address
        self._context = context
        self._buffer = SharedBuffer()
        self._connections = connections
        self._native = native
        self._grpc = grpc
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._said = LogOnce()
        self._is_closed = False

    async def open(self) -> None:
        """Begin to listen.

        Raises:
            Invalid: it cannot listen there.
        """
        host, port = host_and_port(self.address)
        try:
            found = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, where in dict.fromkeys(found):
                self._sockets.append(_listening(family, kind, protocol, where))
        except OSError as error:
            self._close_sockets()
            raise Invalid(
                f"cannot listen at {self.address} ({error.strerror or error}): is the address one "
                "of this machine's, and is no other program there?"
            ) from error
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    @property
    def port(self) -> int:
        """Return the port at which it listens, perhaps chosen by the system."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def stop(self) -> None:
        """Accept no connections any more."""
        self._is_closed = True
        self._close_sockets()

    async def close(self) -> None:
        """Stop, and drop all connections."""
        self.stop()
        self._connections.drop_all()
        if self._sweep is not None:
            self._sweep.cancel()
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    # --- new connections

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, where = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    _log.warning("cannot accept a connection: %s", error)
                self._pause(listening, str(error))
                return
            self._take_in(connected, str(where[0]), int(where[1]))

    def _pause(self, listening: socket.socket, reason: str) -> None:
        """Stop accepting for a moment, or else the loop would ask again all the time."""
        self._said.log(_log, "full", self._loop.time(), "no connections are accepted: %s", reason)
        self._loop.remove_reader(listening)
        self._loop.call_later(FULL_PAUSE_SECONDS, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _take_in(self, connected: socket.socket, host: str, port: int) -> None:
        dropped = self._connections.dropped
        connection = self._connections.accept(host, port)
        if self._connections.dropped != dropped:
            self._said.log(
                _log, "dropped", self._loop.time(),
                "too many connections: those that do not say who they are are dropped; %s came "
                "last (%d connections, %d of them nobody's)",
                host, len(self._connections), self._connections.pending,
            )  # fmt: skip
        if connection is None:
            connected.close()
            return
        connected.setblocking(False)
        if self._sweep is None:
            self._sweep = self._loop.call_at(connection.deadline, self._drop_late)
        looking = _Looking(self, connected, connection)
        connection.drop = looking.drop
        looking.look()

    def _drop_late(self) -> None:
        deadline = self._connections.drop_late()
        self._sweep = None
        if deadline is not None:
            self._sweep = self._loop.call_at(deadline, self._drop_late)

    # --- the choice of a door

    def go(self, first: bytes, door: str, connected: socket.socket, connection: Connection) -> None:
        """Hand ``connected``, which begins with ``first``, to ``door``."""
        if door == NATIVE_DOOR and is_tls(first) == (self._context is not None):
            notice_silence(connected, SILENCE_SECONDS, UNTAKEN_SECONDS)
            task = self._loop.create_task(self._begin(connected, connection))

            def drop() -> None:
                task.cancel()

            connection.drop = drop
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
        elif door == NATIVE_DOOR or self._grpc is None or not self._connections.relay(connection):
            self._turn_away(door, connected, connection)
        else:
            self._grpc.take(connected, connection)

    def _turn_away(self, door: str, connected: socket.socket, connection: Connection) -> None:
        if door == NATIVE_DOOR:
            asks = "this node asks for TLS; nothing was done"
            if self._context is None:
                asks = "this node speaks no TLS"
            try:  # unencrypted: OpenSSL thereby knows that there is no TLS
                connected.recv(PEEK_BYTES)
                connected.send(reply_bytes(Refusal(DENIED, asks)))
            except OSError:
                pass  # it is gone already
        elif self._grpc is None:
            self._said.log(
                _log, ("grpc", connection.host), self._loop.time(),
                "%s speaks gRPC, which is not installed here", connection.where,
            )  # fmt: skip
        connected.close()
        connection.closed()

    async def _begin(self, connected: socket.socket, connection: Connection) -> None:
        native, context = self._native, self._context
        try:
            if context is None:
                await self._loop.connect_accepted_socket(lambda: native(connection), connected)
            else:
                protocol = native(connection)
                await accept_tls(connected, protocol, context, self._buffer, HELLO_SECONDS)
        except (OSError, asyncio.CancelledError) as error:
            if isinstance(error, ssl.SSLError):
                self._said.log(
                    _log, ("tls", connection.host, error.reason), self._loop.time(),
                    "no TLS connection with %s: %s", connection.where, why_not_connected(error),
                )  # fmt: skip
            connected.close()
            connection.closed()


class _Looking:
    """A look at the first bytes of a connection, until they tell which door it wants."""

    def __init__(
        self, listener: Listener, connected: socket.socket, connection: Connection
    ) -> None:
        self._listener = listener
        self._socket = connected
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._pause = LOOK_SECONDS_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._is_reader = False

    def look(self) -> None:
        """Look now, and whenever there are more bytes."""
        self._timer = None
        try:
            first = self._socket.recv(PEEK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            self._wait_for_bytes()
            return
        except OSError:
            first = b""
        if not first:
            self._end()
            self._socket.close()
            self._connection.closed()
            return
        door = door_of(first)
        if door is None:
            self._wait_for_more()
            return
        self._end()
        self._connection.spoke()
        self._listener.go(first, door, self._socket, self._connection)

    def drop(self) -> None:
        """Close the connection: its time is over, or another one needs its place."""
        self._end()
        self._socket.close()

    def _wait_for_bytes(self) -> None:
        if not self._is_reader:
            self._is_reader = True
            self._loop.add_reader(self._socket, self.look)

    def _wait_for_more(self) -> None:
        """Look again after a pause: the bytes stay, and a reader would be called in each turn."""
        self._end()
        self._timer = self._loop.call_later(self._pause, self.look)
        self._pause *= 2

    def _end(self) -> None:
        if self._is_reader:
            self._is_reader = False
            self._loop.remove_reader(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _listening(family: int, kind: int, protocol: int, where: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # gRPC and most servers do the same: at [::] it is reached by IPv4 as well.
            is_any = where[0] == "::"
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not is_any))
        listening.setblocking(False)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
