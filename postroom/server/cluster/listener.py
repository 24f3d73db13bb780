"""The listener of a node: it accepts connections, with or without TLS, and begins streams on them.

::

    accept ─▶ slot?  (.admission) ─▶ first byte ─▶ TLS (.tls_protocol) ─▶ ServedStream

Connections are accepted a few in a turn of the event loop, lest thousands of new ones keep the node
from those that it serves. A connection costs nothing but its descriptor until its first byte is
there. A connection that has not identified itself in time is dropped.

asyncio gives each TLS connection 256 KiB to read into, for as long as it lasts. The bytes read into
it are taken out before anything else happens: all connections of an event loop can share one.

A caller without TLS is told in plain bytes that the node asks for it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any, Final

from postroom.client.remote.native import host_and_port, notice_silence, why_not_connected
from postroom.errors import Invalid
from postroom.limits import HELLO_SECONDS
from postroom.log_once import LogOnce
from postroom.protocol.addresses import LOCAL, is_unix
from postroom.protocol.streams import DENIED, StreamRefusal, reply_bytes
from postroom.server.cluster.admission import Connection, Connections
from postroom.server.cluster.unix_socket import UnixSocket

READ_BYTES: Final = 256 * 1024
_HANDSHAKE_RECORD: Final = 22
"""The first byte of each connection with TLS (RFC 8446, 5.1)."""
_ASKS_FOR_TLS: Final = reply_bytes(
    StreamRefusal(DENIED, "this node asks for TLS; nothing was done")
)


class SharedBuffer:
    """The buffer that the connections of one event loop are read into, one after the other."""

    def __init__(self) -> None:
        self.bytes = bytearray(READ_BYTES)
        self.view = memoryview(self.bytes)


class _TlsProtocol(SSLProtocol):
    """A protocol of asyncio with a shared buffer.

    Its base allocates a buffer of ``max_size``.
    """

    max_size = 1024

    def __init__(self, shared: SharedBuffer, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ssl_buffer, self._ssl_buffer_view = shared.bytes, shared.view
        self.max_size = READ_BYTES  # type: ignore[misc]  # asyncio's is a constant of the class
        # An attribute of the instance: later reads do not pass through one more method.
        setattr(self, "buffer_updated", self._check_first_bytes)  # noqa: B010 - a method elsewhere

    def _check_first_bytes(self, count: int) -> None:
        del self.buffer_updated
        assert isinstance(self._transport, asyncio.Transport)
        if self._ssl_buffer[0] == _HANDSHAKE_RECORD:
            self.buffer_updated(count)
            return
        self._transport.write(_ASKS_FOR_TLS)
        self._on_handshake_complete(ssl.SSLError(1, "the caller speaks no TLS"))


async def accept_tls(
    connected: socket.socket,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext,
    shared: SharedBuffer,
    handshake_seconds: float,
) -> None:
    """Have ``protocol`` speak through TLS with the other side of a connection.

    Raises:
        OSError: there is no TLS with it.
    """
    loop = asyncio.get_running_loop()
    agreed = loop.create_future()
    transport, _ = await loop.connect_accepted_socket(
        lambda: _TlsProtocol(
            shared, loop, protocol, context, agreed,
            server_side=True, ssl_handshake_timeout=handshake_seconds,
        ),
        connected,
    )  # fmt: skip
    try:
        await agreed
    except BaseException:
        transport.abort()
        raise


ACCEPTED_AT_ONCE: Final = 32
BACKLOG: Final = 1024
FULL_PAUSE_SECONDS: Final = 0.05
SILENCE_SECONDS: Final = 5
UNTAKEN_SECONDS: Final = 30
"""The time after which a client that does not read its pending answers has to connect again."""

_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class Listener:
    """The listener of one node; see the module.

    Args:
        address: the address to listen at, ``host:port`` or ``unix:PATH``.
        context: for TLS; ``None``: without.
        connections: gives slots to connections.
        create: makes the protocol of a stream.
    """

    def __init__(
        self,
        address: str,
        context: ssl.SSLContext | None,
        connections: Connections,
        create: Callable[[Connection], asyncio.Protocol],
    ) -> None:
        self.address = address
        self._context = context
        self._buffer = SharedBuffer()
        self._connections = connections
        self._create = create
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._unix: UnixSocket | None = None
        self._openings: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._said = LogOnce()
        self._is_closed = False

    def bind(self) -> None:
        """Take the address. Callers are refused until :meth:`open`.

        Raises:
            Invalid: it cannot listen there.
        """
        if is_unix(self.address):
            self._unix = UnixSocket(self.address)
            self._sockets = [self._unix.socket]
        else:
            self._sockets = bound(self.address)

    def open(self) -> None:
        """Begin to listen.

        Raises:
            Invalid: it cannot listen there.
        """
        if not self._sockets:
            self.bind()
        for listening in self._sockets:
            try:
                listening.listen(BACKLOG)
            except OSError as error:
                raise _cannot_listen(self.address, error) from error
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
        for task in self._openings:
            task.cancel()
        await asyncio.gather(*self._openings, return_exceptions=True)

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        if self._unix is not None:
            self._unix.unlink()

    def let_go(self) -> None:
        """Close the sockets in the child of a fork, whose parent goes on to listen."""
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()
        self._is_closed = True

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
            host, port = where[:2] if listening.family != socket.AF_UNIX else (LOCAL, 0)
            self._take_in(connected, str(host), int(port))

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
        self._await_first_byte(connected, connection)

    def _drop_late(self) -> None:
        deadline = self._connections.drop_late()
        self._sweep = None
        if deadline is not None:
            self._sweep = self._loop.call_at(deadline, self._drop_late)

    # --- the beginning of a stream

    def _await_first_byte(self, connected: socket.socket, connection: Connection) -> None:
        def drop() -> None:
            self._loop.remove_reader(connected)
            connected.close()

        connection.drop = drop
        self._loop.add_reader(connected, self._begin, connected, connection)

    def _begin(self, connected: socket.socket, connection: Connection) -> None:
        self._loop.remove_reader(connected)
        connection.spoke()
        notice_silence(connected, SILENCE_SECONDS, UNTAKEN_SECONDS)
        task = self._loop.create_task(self._open_stream(connected, connection))

        def drop() -> None:
            task.cancel()

        def opened(task: asyncio.Task[None]) -> None:
            self._openings.discard(task)
            if task.cancelled():  # before it has begun
                connected.close()
                connection.closed()

        connection.drop = drop
        self._openings.add(task)
        task.add_done_callback(opened)

    async def _open_stream(self, connected: socket.socket, connection: Connection) -> None:
        create, context = self._create, self._context
        try:
            if context is None:
                await self._loop.connect_accepted_socket(lambda: create(connection), connected)
            else:
                protocol = create(connection)
                await accept_tls(connected, protocol, context, self._buffer, HELLO_SECONDS)
        except (OSError, asyncio.CancelledError) as error:
            if isinstance(error, ssl.SSLError):
                self._said.log(
                    _log, ("tls", connection.host, error.reason), self._loop.time(),
                    "no TLS connection with %s: %s", connection.where, why_not_connected(error),
                )  # fmt: skip
            connected.close()
            connection.closed()


def bound(address: str) -> list[socket.socket]:
    """Return sockets that have the address ``host:port``, and do not listen yet.

    Raises:
        Invalid: it is none of this machine's, or another program has it.
    """
    host, port = host_and_port(address)
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in dict.fromkeys(found):
            sockets.append(socket.socket(family, kind, protocol))
            _bind(sockets[-1], where)
    except OSError as error:
        for each in sockets:
            each.close()
        raise _cannot_listen(address, error) from error
    return sockets


def _bind(listening: socket.socket, where: tuple[object, ...]) -> None:
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listening.family == socket.AF_INET6:
        # A node at [::] can be reached by IPv4 as well, as with most servers.
        is_any = where[0] == "::"
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not is_any))
    listening.setblocking(False)
    listening.bind(where)


def _cannot_listen(address: str, error: OSError) -> Invalid:
    return Invalid(
        f"cannot listen at {address} ({error.strerror or error}): is the address one of this "
        "machine's, and is no other program there?"
    )
