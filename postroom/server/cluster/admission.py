"""Flow control: how much a node takes on for all its clients, and what it tells those beyond that.

Turned away early, a request costs a few microseconds and nobody else anything; taken on without
bound it would wait longer than its client does.
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
        unread_bytes_max: of answers that a client has not taken; it is not read from beyond that.
        retry_after_seconds: what those are told that are turned away.
    """

    requests_max: int = 20_000
    bytes_max: int = 128 * 1024 * 1024
    streams_max: int = 1_000
    stream_requests_max: int = 2_000
    stream_waits_max: int = 10_000
    unread_bytes_max: int = 4 * 1024 * 1024
    retry_after_seconds: float = 0.1


class Admission:
    """How much is under way on a node, over all sessions.

    Attributes:
        requests: how many.
        bytes: of the frames they came in.
    """

    __slots__ = ("bytes", "limits", "requests")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.bytes = 0

    def entered(self, size: int) -> None:
        """One more is under way."""
        self.requests += 1
        self.bytes += size

    def left(self, size: int) -> None:
        """It is not any more."""
        self.requests -= 1
        self.bytes -= size

    def refusal(self) -> Unavailable:
        """What those are told that are turned away."""
        return Unavailable(
            f"this node has {self.requests} requests of {self.bytes} bytes under way and takes no "
            "more; nothing was changed: try again after a moment",
            retry_after=self.limits.retry_after_seconds,
        )
