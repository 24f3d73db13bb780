"""The received parts of frames that are not whole yet, over all streams of clients.

A frame may have 32 MiB and a node a thousand clients. Each of them could send a frame without
its last byte, and wait: that memory would never be freed. For this reason all of them together
have a budget. Beyond it, the stream whose frame was begun first is ended: an honest frame comes
within seconds, also over a slow network, and is never the oldest for long.
The client connects again and repeats its unanswered requests.
"""

from __future__ import annotations

from typing import Protocol

from postroom.limits import UNFINISHED_BYTES_MAX


class Receiving(Protocol):
    """A stream that receives frames."""

    def end_unfinished(self) -> None:
        """End the stream: its frame takes too long, and others need the room."""


class Unfinished:
    """The unfinished frames of one node; see the module.

    Args:
        bytes_max: the limit of all streams together.

    Attributes:
        bytes: the bytes of all streams.
    """

    def __init__(self, bytes_max: int = UNFINISHED_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._held: dict[Receiving, int] = {}  # in the order in which their frames began

    def holds(self, stream: Receiving, received: int, *, began: bool) -> None:
        """Count ``received`` bytes of an unfinished frame of ``stream``; 0: there is none.

        Args:
            stream: the stream of the frame.
            received: bytes of that frame.
            began: whether it is another frame than when this was last called.
        """
        before = self._held.pop(stream, 0) if began or not received else self._held.get(stream, 0)
        self.bytes += received - before
        if not received:
            return
        self._held[stream] = received
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._held))
            self.forget(oldest)
            oldest.end_unfinished()

    def forget(self, stream: Receiving) -> None:
        """Stop counting a stream, which is over."""
        self.bytes -= self._held.pop(stream, 0)
