"""The flow control: the load that a node accepts from all its clients, and the refusal of more.

A request that is refused early costs a few microseconds, and delays no other one. Requests accepted
without bound would wait longer than their clients do.

*Fair shares*: while there is room, every client is served. When there is none left, a client that
has less under way than its share is served all the same, and one that has more is refused. The
share is the limit, divided by the number of principals (:mod:`.access`), and by that of the
principal's clients. No client is locked out by the requests of others, however many they are, and
no more than twice the limit is ever under way.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from postroom.errors import Unavailable
from postroom.limits import DECODED_BYTES_ALL


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

    Attributes:
        requests: the number of requests.
        bytes: the bytes of memory of these, and of requests that are being decoded.
        unread_bytes: the bytes of answers that were not taken.
        clients: the number of clients of each principal, which share the limits.
    """

    __slots__ = ("bytes", "clients", "limits", "requests", "unread_bytes")

    def __init__(self, limits: NodeLimits) -> None:
        self.limits = limits
        self.requests = 0
        self.bytes = 0
        self.unread_bytes = 0
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
        """Return the error for clients that are refused."""
        return Unavailable(
            f"this node has {self.requests} requests of {self.bytes} bytes under way and takes no "
            "more of this client; nothing was changed: try again after a moment",
            retry_after=self.limits.retry_after_seconds,
        )
