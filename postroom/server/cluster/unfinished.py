"""What has been received of frames that are not whole yet, over all streams of clients.

A frame may have 32 MiB and a node a thousand clients. Each of them could send a frame but for its
last byte, and wait: that is memory which nobody takes back. So there is a budget for all of
them together. Who exceeds it ends the stream whose frame was begun first: a frame that is meant to
come to its end comes within seconds, also over a slow network, and so is never the oldest for long.
That client connects again and repeats what was not answered.
"""

from __future__ import annotations

from typing import Protocol

from postroom.limits import UNFINISHED_BYTES_MAX


class Receiving(Protocol):
    """A stream that receives frames."""

    def end_unfinished(self) -> None:
        """Its frame takes too long, and others need the room."""


class Unfinished:
    """See the module.

    Args:
        bytes_max: of all streams together.

    Attributes:
        bytes: how many there are.
    """

    def __init__(self, bytes_max: int = UNFINISHED_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._held: dict[Receiving, int] = {}  # in the order in which their frames were begun

    def holds(self, stream: Receiving, received: int, *, began: bool) -> None:
        """So many bytes of an unfinished frame of ``stream`` are here; 0: there is none.

        Args:
            stream: that it comes over.
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
        """It is over."""
        self.bytes -= self._held.pop(stream, 0)
