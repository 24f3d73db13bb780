"""How many connections a node bears, and whom it drops when there are more.

::

    accepted ─▶ pending ── says who it is ─▶ established ─▶ closed
                  │ HELLO_SECONDS are over                    ▲
                  └ or a newer one needs its place ───────────┘

A connection costs a file descriptor, or three if it is relayed to gRPC, and there must always be
some left: storage opens files at any time, and a node that cannot ends. Those who have not proved
to be anybody are dropped first: the oldest that has sent nothing, for whoever means it speaks at
once. So a flood of connections takes places from itself, and a client among it has all the time
that a flood needs to fill the places again.

Plain synchronous code; who closes connections is :mod:`.listener`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PENDING_MAX,
    CONNECTIONS_PENDING_PER_HOST_MAX,
    HELLO_SECONDS,
)

NATIVE_COST: Final = 1
RELAYED_COST: Final = 3
"""File descriptors: the connection, and both ends of that to gRPC's server."""


class Connection:
    """One of them. Made by :meth:`Connections.accept`.

    Attributes:
        host, port: from where.
        drop: closes it at once.
        deadline: by the monotonic clock, while it is pending.
    """

    __slots__ = ("_connections", "cost", "deadline", "drop", "host", "port")

    def __init__(self, connections: Connections, host: str, port: int, deadline: float) -> None:
        self.host = host
        self.port = port
        self.drop: Callable[[], None] = lambda: None
        self.cost = NATIVE_COST
        self.deadline = deadline
        self._connections = connections

    @property
    def where(self) -> str:
        """From where, as text."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def spoke(self) -> None:
        """Something has come in."""
        self._connections.spoke(self)

    def said_hello(self) -> None:
        """It is somebody."""
        self._connections.said_hello(self)

    def closed(self) -> None:
        """It has ended."""
        self._connections.closed(self)


class _Host:
    """The pending connections from one address, oldest first."""

    __slots__ = ("silent", "speaking")

    def __init__(self) -> None:
        self.silent: dict[Connection, None] = {}
        self.speaking: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self.silent) + len(self.speaking)

    def first(self, but: Connection | None) -> Connection | None:
        """Who is dropped first."""
        for group in (self.silent, self.speaking):
            for each in group:
                if each is not but:
                    return each
        return None

    def remove(self, connection: Connection) -> None:
        """It is pending no more."""
        self.silent.pop(connection, None)
        self.speaking.pop(connection, None)


class Connections:
    """See the module.

    Args:
        monotonic: seconds that never go back.
        descriptors_max: what all connections may cost.
        pending_max, pending_per_host_max: how many may be nobody yet.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        descriptors_max: int = CONNECTIONS_MAX,
        pending_max: int = CONNECTIONS_PENDING_MAX,
        pending_per_host_max: int = CONNECTIONS_PENDING_PER_HOST_MAX,
    ) -> None:
        self._monotonic = monotonic
        self._descriptors_max = descriptors_max
        self._pending_max = max(1, min(pending_max, descriptors_max // 2))
        self._pending_per_host_max = pending_per_host_max
        self._pending: dict[Connection, None] = {}
        self._hosts: dict[str, _Host] = {}
        self._open: set[Connection] = set()
        self.descriptors = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def pending(self) -> int:
        """How many have not said who they are."""
        return len(self._pending)

    def accept(self, host: str, port: int) -> Connection | None:
        """Somebody connects from ``host``; ``None``: there is no place, not even by dropping."""
        while len(self._hosts.get(host, ())) >= self._pending_per_host_max:
            self._drop_one(host)
        while len(self._pending) >= self._pending_max:
            self._drop_one(None)
        if not self._make_place(NATIVE_COST):
            self.dropped += 1
            return None
        connection = Connection(self, host, port, self._monotonic() + HELLO_SECONDS)
        self._open.add(connection)
        self._pending[connection] = None
        self._hosts.setdefault(host, _Host()).silent[connection] = None
        self.descriptors += NATIVE_COST
        return connection

    def relay(self, connection: Connection) -> bool:
        """Whether ``connection`` may cost what a relayed one does; from now on it does."""
        if not self._make_place(RELAYED_COST - NATIVE_COST, connection):
            return False
        connection.cost = RELAYED_COST
        self.descriptors += RELAYED_COST - NATIVE_COST
        return True

    def spoke(self, connection: Connection) -> None:
        """It is not one of those that are dropped first."""
        of_host = self._hosts.get(connection.host)
        if of_host is not None and connection in of_host.silent:
            del of_host.silent[connection]
            of_host.speaking[connection] = None

    def said_hello(self, connection: Connection) -> None:
        """It is somebody, and is dropped no more."""
        if connection in self._pending:
            del self._pending[connection]
            of_host = self._hosts[connection.host]
            of_host.remove(connection)
            if not len(of_host):
                del self._hosts[connection.host]

    def closed(self, connection: Connection) -> None:
        """It has ended."""
        if connection in self._open:
            self._open.discard(connection)
            self.descriptors -= connection.cost
            self.said_hello(connection)

    def drop_late(self) -> float | None:
        """Drop who has not said in time who it is; when to look again, ``None``: nobody waits."""
        now = self._monotonic()
        while self._pending:
            first = next(iter(self._pending))
            if first.deadline > now:
                return first.deadline
            self._drop(first)
        return None

    def drop_all(self) -> None:
        """The node ends."""
        for connection in list(self._open):
            self._drop(connection)

    # ---

    def _make_place(self, cost: int, but: Connection | None = None) -> bool:
        while self.descriptors + cost > self._descriptors_max:
            if not any(each is not but for each in self._pending):
                return False
            self._drop_one(None, but)
        return True

    def _drop_one(self, host: str | None, but: Connection | None = None) -> None:
        """The first of ``host``, or of the host that has most."""
        of_host = max(self._hosts.values(), key=len) if host is None else self._hosts[host]
        victim = of_host.first(but) or next(each for each in self._pending if each is not but)
        self._drop(victim)

    def _drop(self, connection: Connection) -> None:
        self.dropped += 1
        self.closed(connection)
        connection.drop()
