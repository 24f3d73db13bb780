"""The load that a node accepts: the requests of all its clients, and its connections."""

from __future__ import annotations

import logging
import resource
from collections import Counter
from collections.abc import Callable

import msgspec

from postroom.errors import Unavailable
from postroom.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PENDING_MAX,
    CONNECTIONS_PENDING_PER_HOST_MAX,
    DECODED_BYTES_ALL,
    DESCRIPTORS_RESERVED,
    HELLO_SECONDS,
)

# --- requests -------------------------------------------------------------------------------------


class NodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a node.

    Attributes:
        requests_max: requests of all clients, under way at once, waiting ones included.
        bytes_max: bytes of memory that those take.
        streams_max: streams of clients.
        stream_requests_max, stream_waits_max: requests of one client: those that are answered soon,
            and those that wait for an event.
        stream_protections_max: timestamps that one client has protected at once.
        unread_bytes_max: bytes of answers that a client has not taken. Beyond that, nothing more is
            read from it, or done for it.
        unread_bytes_end: bytes that answers to its earlier requests may reach; then its stream
            ends.
        unread_bytes_all: bytes of all clients; beyond that, the stream with the most of them ends.
        unread_seconds_max: time after which a client that takes none of its answers is gone.
        silent_seconds: time after which a silent client, which wants nothing, makes room for
            another one.
        retry_after_seconds: time after which a refused client is told to retry.
    """

    requests_max: int = 20_000
    bytes_max: int = DECODED_BYTES_ALL
    streams_max: int = 1_000
    stream_requests_max: int = 2_000
    stream_waits_max: int = 10_000
    stream_protections_max: int = 1_000
    unread_bytes_max: int = 4 * 1024 * 1024
    unread_bytes_end: int = 40 * 1024 * 1024
    unread_bytes_all: int = 256 * 1024 * 1024
    unread_seconds_max: float = 10.0
    silent_seconds: float = 5.0
    retry_after_seconds: float = 0.1


class Admission:
    """The load under way on a node, over all sessions.

    A request that is refused early costs a few microseconds, and delays no other one. Requests
    accepted without bound would wait longer than their clients do.

    *Fair shares*: while there is room, every client is served. When there is none left, a client
    that has less under way than its share is served all the same, and one that has more is refused.
    The share is the limit, divided by the number of principals (:mod:`.access`), and by that of the
    principal's clients. No client is locked out by the requests of others, however many they are,
    and no more than twice the limit is ever under way.

    Attributes:
        requests: the number of requests.
        bytes: the bytes of memory of these, and of requests that are being decoded.
        unread_bytes: the bytes of answers that were not taken.
        clients: the number of clients of each principal, which share the limits.
        refused: the number of requests that were refused because of the load.
        denied: the number of those that a client's role does not allow.
    """

    __slots__ = ("bytes", "clients", "denied", "limits", "refused", "requests", "unread_bytes")

    def __init__(self, limits: NodeLimits) -> None:
        self.limits = limits
        self.requests = 0
        self.bytes = 0
        self.unread_bytes = 0
        self.refused = self.denied = 0
        self.clients: Counter[str] = Counter()

    def opened(self, principal: str) -> None:
        """Count one more client of a principal."""
        self.clients[principal] += 1

    def closed(self, principal: str) -> None:
        """Count one client of a principal less."""
        self.clients[principal] -= 1
        if not self.clients[principal]:
            del self.clients[principal]

    def entered(self, size: int) -> None:
        """Count one more request under way."""
        self.requests += 1
        self.bytes += size

    def left(self, size: int) -> None:
        """Count one request under way less."""
        self.requests -= 1
        self.bytes -= size

    def admits(self, principal: str, own_requests: int, own_bytes: int, size: int) -> bool:
        """Return whether a client with so much under way may have one more, of ``size`` bytes."""
        limits = self.limits
        clients = max(len(self.clients), 1) * max(self.clients[principal], 1)
        if self.requests >= limits.requests_max and own_requests >= limits.requests_max // clients:
            return False
        if self.bytes + size <= limits.bytes_max:
            return True
        return own_bytes + size <= limits.bytes_max // clients

    def refusal(self) -> Unavailable:
        """Return the error for a request that is refused, and count it."""
        self.refused += 1
        return Unavailable(
            f"this node has {self.requests} requests of {self.bytes} bytes under way and takes no "
            "more of this client; nothing was changed: try again after a moment",
            retry_after=self.limits.retry_after_seconds,
        )


# --- connections ----------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


class Connection:
    """A connection. :meth:`Connections.accept` makes it.

    Attributes:
        host, port: the address of the other side.
        drop: closes it at once.
        deadline: the time, on the monotonic clock, until which it may be pending.
    """

    __slots__ = ("_connections", "deadline", "drop", "host", "port")

    def __init__(self, connections: Connections, host: str, port: int, deadline: float) -> None:
        self.host = host
        self.port = port
        self.drop: Callable[[], None] = lambda: None
        self.deadline = deadline
        self._connections = connections

    @property
    def where(self) -> str:
        """Return the address of the other side, as text."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def spoke(self) -> None:
        """Note that bytes have come in."""
        self._connections.spoke(self)

    def said_hello(self) -> None:
        """Note that the other side has identified itself."""
        self._connections.said_hello(self)

    def closed(self) -> None:
        """Note that it has ended."""
        self._connections.closed(self)


class _PendingOfHost:
    """The pending connections from one address, oldest first."""

    __slots__ = ("silent", "speaking")

    def __init__(self) -> None:
        self.silent: dict[Connection, None] = {}
        self.speaking: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self.silent) + len(self.speaking)

    def first(self) -> Connection:
        """Return the connection that is dropped first."""
        return next(iter(self.silent or self.speaking))

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is pending no more."""
        self.silent.pop(connection, None)
        self.speaking.pop(connection, None)


class Connections:
    """The connections of one node.

    ::

        accepted ─▶ pending ── identifies ─────▶ established ─▶ closed
                      │ HELLO_SECONDS are over                    ▲
                      └ or a newer one needs its slot  ───────────┘

    A connection costs a file descriptor, and there must always be some left: storage opens files at
    any time, and a node that cannot ends. Connections that have not identified themselves are
    dropped first: the oldest that has sent nothing, since a true client speaks at once. A flood of
    connections thereby takes places from itself, and a client among it has all the time that a
    flood needs to fill the slots again.

    This is plain synchronous code; :mod:`.listener` closes connections.

    Args:
        monotonic: seconds that never go back.
        connections_max: how many connections may be open.
        pending_max, pending_per_host_max: how many of them may be pending.

    Attributes:
        dropped: how many were dropped so far, or not accepted.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        connections_max: int = CONNECTIONS_MAX,
        pending_max: int = CONNECTIONS_PENDING_MAX,
        pending_per_host_max: int = CONNECTIONS_PENDING_PER_HOST_MAX,
    ) -> None:
        self._monotonic = monotonic
        self._connections_max = connections_max
        self._pending_max = max(1, min(pending_max, connections_max // 2))
        self._pending_per_host_max = pending_per_host_max
        self._pending: dict[Connection, None] = {}
        self._hosts: dict[str, _PendingOfHost] = {}
        self._open: set[Connection] = set()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def pending(self) -> int:
        """Return how many have not identified themselves."""
        return len(self._pending)

    def accept(self, host: str, port: int) -> Connection | None:
        """Accept a connection from ``host``, or return ``None`` if there is no slot for it."""
        while len(self._hosts.get(host, ())) >= self._pending_per_host_max:
            self._drop_one(host)
        while len(self._pending) >= self._pending_max:
            self._drop_one(None)
        if len(self._open) >= self._connections_max:
            if not self._pending:
                self.dropped += 1
                return None
            self._drop_one(None)
        connection = Connection(self, host, port, self._monotonic() + HELLO_SECONDS)
        self._open.add(connection)
        self._pending[connection] = None
        self._hosts.setdefault(host, _PendingOfHost()).silent[connection] = None
        return connection

    def spoke(self, connection: Connection) -> None:
        """Note that a connection has spoken, and is not dropped first any more."""
        of_host = self._hosts.get(connection.host)
        if of_host is not None and connection in of_host.silent:
            del of_host.silent[connection]
            of_host.speaking[connection] = None

    def said_hello(self, connection: Connection) -> None:
        """Note that a connection has identified itself, and is dropped no more."""
        if connection in self._pending:
            del self._pending[connection]
            of_host = self._hosts[connection.host]
            of_host.remove(connection)
            if not len(of_host):
                del self._hosts[connection.host]

    def closed(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        if connection in self._open:
            self._open.discard(connection)
            self.said_hello(connection)

    def drop_late(self) -> float | None:
        """Drop the connections that have not identified themselves in time.

        Returns:
            When to look again; ``None``: no connection is pending.
        """
        now = self._monotonic()
        while self._pending:
            first = next(iter(self._pending))
            if first.deadline > now:
                return first.deadline
            self._drop(first)
        return None

    def drop_all(self) -> None:
        """Drop all connections, because the node ends."""
        for connection in list(self._open):
            self._drop(connection)

    # ---

    def _drop_one(self, host: str | None) -> None:
        """Drop the first connection of ``host``, or of the host that has most."""
        of_host = max(self._hosts.values(), key=len) if host is None else self._hosts[host]
        self._drop(of_host.first())

    def _drop(self, connection: Connection) -> None:
        self.dropped += 1
        self.closed(connection)
        connection.drop()


# --- file descriptors ----------------------------------------------------------------------------


def raise_descriptor_limit() -> int:
    """Raise this process's limit of files as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # a system may promise more than it gives
            _log.info("the limit of open files stays at %d: %s", soft, error)
    return CONNECTIONS_MAX + DESCRIPTORS_RESERVED if soft == resource.RLIM_INFINITY else soft


def connections_max(descriptors: int) -> int:
    """Return how many of a process's descriptors connections may take.

    The storage library keeps a fifth of them for its tables and opens others for a moment. The
    reserve on top is for its logs, this node's own calls, the event loop and standard streams.
    """
    left = descriptors - descriptors // 5 - DESCRIPTORS_RESERVED
    return max(descriptors // 4, min(CONNECTIONS_MAX, left))
