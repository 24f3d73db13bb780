"""The frames of other nodes that have come in, and wait until consensus takes them in a turn.

Each peer has a queue of its own, and they take turns. One that sends much is not read from any
more: it neither keeps the others from being heard nor takes more memory than its share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from postroom.limits import PEER_UNREAD_BYTES_MAX

FRAME_BYTES: Final = 16 * 1024
"""The bytes that a frame counts besides its own: there are some thousand frames at most."""


class UnreadFrames:
    """The unread frames of one node; see the module.

    Attributes:
        bytes: the counted bytes of the frames of each peer.
    """

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}
        self._frames: dict[int, deque[bytes]] = {}
        self._held_up: dict[int, list[Callable[[], None]]] = {}

    def add(self, sender: int, frame: bytes) -> None:
        """Keep a frame."""
        self._frames.setdefault(sender, deque()).append(frame)
        self.bytes[sender] = self.bytes.get(sender, 0) + FRAME_BYTES + len(frame)

    def has_room(self, sender: int, read_on: Callable[[], None]) -> bool:
        """Return whether more may be read from a peer; else ``read_on`` is called when it may."""
        if self.bytes.get(sender, 0) <= PEER_UNREAD_BYTES_MAX:
            return True
        self._held_up.setdefault(sender, []).append(read_on)
        return False

    def take(self) -> Iterator[tuple[int, bytes]]:
        """Yield the frames, one of each peer after the other. Frames that are not taken stay."""
        waiting = self._frames
        while waiting:
            sender = next(iter(waiting))
            frames = waiting.pop(sender)
            frame = frames.popleft()
            if frames:
                waiting[sender] = frames
                self.bytes[sender] -= FRAME_BYTES + len(frame)
            else:
                del self.bytes[sender]
            if self._held_up and self.bytes.get(sender, 0) <= PEER_UNREAD_BYTES_MAX:
                for read_on in self._held_up.pop(sender, ()):
                    read_on()
            yield sender, frame
