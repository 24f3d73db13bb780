"""The bytes of large frames on a node: those that are being decoded, over several turns.

A client whose frame is beyond the limit is told to come back. The decoded requests count elsewhere
(:mod:`.admission`).
"""

from __future__ import annotations

from postroom.errors import Unavailable
from postroom.limits import FRAMES_DECODED_BYTES_MAX


class LargeFrames:
    """The large frames of one node; see the module.

    Args:
        bytes_max: the limit of all frames together.

    Attributes:
        bytes: the bytes of all frames.
    """

    def __init__(self, bytes_max: int = FRAMES_DECODED_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    def __bool__(self) -> bool:
        return self.bytes > 0

    def add(self, frame: bytes) -> int:
        """Count one more frame, and return its bytes.

        Raises:
            Unavailable: there are too many of them.
        """
        size = len(frame)
        if self.bytes and self.bytes + size > self._bytes_max:
            raise Unavailable(
                f"this node is decoding {self.bytes} bytes of large requests and takes no more; "
                "nothing was changed: try again after a moment",
                retry_after=1.0,
            )
        self.bytes += size
        return size

    def remove(self, size: int) -> None:
        """Stop counting a frame that has been decoded, or whose stream has ended."""
        self.bytes -= size
