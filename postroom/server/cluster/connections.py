"""The limit of a node's connections, and the choice of those that it drops beyond it.

::

    accepted ─▶ pending ── identifies ─────▶ established ─▶ closed
                  │ HELLO_SECONDS are over                    ▲
                  └ or a newer one needs its slot  ───────────┘

A connection costs a file descriptor, and there must always be some left: storage opens files at
any time, and a node that cannot ends. Connections that have not identified themselves are dropped
first: the oldest that has sent nothing, since a true client speaks at once. A flood of connections
thereby takes places from itself, and a client among it has all the time that a flood needs to fill
the slots again.

This is plain synchronous code; :mod:`.listener` closes connections.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable

from postroom.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PENDING_MAX,
    CONNECTIONS_PENDING_PER_HOST_MAX,
    DESCRIPTORS_RESERVED,
    HELLO_SECONDS,
)

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
    """The connections of one node; see the module.

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
