"""Flow control: how much a node takes on for all its clients, and what it tells those beyond that.

Turned away early, a request costs a few microseconds and nobody else anything; taken on without
bound it would wait longer than its client does.

*Fair shares*: while there is room, whoever comes is served. When there is none left, a client that
has less under way than its share (the limit, divided by the number of clients) is served all the
same, and who has more is turned away. So nobody is locked out by what others have sent, and no
more than twice the limit is ever under way.
"""

from __future__ import annotations

import msgspec

from postroom.errors import Unavailable


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a node takes on.

    Attributes:
        requests_max: of all clients, under way at once, waiting ones included.
        bytes_max: of the frames that those came in.
        streams_max: of how many clients.
        stream_requests_max, stream_waits_max: of one client: those that are answered soon, and
            those that wait for something to happen.
        stream_protections_max: timestamps that one client has protected at once.
        unread_bytes_max: of answers that a client has not taken; nothing more is read from it, or
            done for it, beyond that.
        unread_bytes_end: what it had asked for before may come to this much; then its stream ends.
        unread_bytes_all: of all clients; beyond that, the stream with the most of them ends.
        unread_seconds_max: a client that takes nothing for so long, of what there is, is gone.
        silent_seconds: a client that wants nothing, and has said nothing for so long, makes room
            for another one.
        retry_after_seconds: what those are told that are turned away.
    """

    requests_max: int = 20_000
    bytes_max: int = 128 * 1024 * 1024
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
    """How much is under way on a node, over all sessions.

    Attributes:
        requests: how many.
        bytes: of the frames they came in.
        unread_bytes: of answers that were not taken.
        clients: among how many all of this is shared.
    """

    __slots__ = ("bytes", "clients", "limits", "requests", "unread_bytes")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.bytes = 0
        self.unread_bytes = 0
        self.clients = 0

    def entered(self, size: int) -> None:
        """One more is under way."""
        self.requests += 1
        self.bytes += size

    def left(self, size: int) -> None:
        """It is not any more."""
        self.requests -= 1
        self.bytes -= size

    def admits(self, own_requests: int, own_bytes: int, size: int) -> bool:
        """Whether a client with so much under way may have one more, of ``size`` bytes."""
        limits, clients = self.limits, self.clients or 1
        if self.requests >= limits.requests_max and own_requests >= limits.requests_max // clients:
            return False
        return self.bytes < limits.bytes_max or own_bytes + size <= limits.bytes_max // clients

    def refusal(self) -> Unavailable:
        """What those are told that are turned away."""
        return Unavailable(
            f"this node has {self.requests} requests of {self.bytes} bytes under way and takes no "
            "more of this client; nothing was changed: try again after a moment",
            retry_after=self.limits.retry_after_seconds,
        )
