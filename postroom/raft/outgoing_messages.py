"""The frames that leave for other nodes, with a limit of bytes in one turn.

A leader encodes a large entry for each follower, and hands it to the network, which takes as long
as copying it a few times. Frames beyond ``SENT_BYTES_A_TURN`` therefore wait for the next turn, and
later frames to the same node wait behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from postroom.raft.messages import Envelope, frames_of
from postroom.raft.state_machine import NodeId

SENT_BYTES_A_TURN: Final = 8 * 1024 * 1024
"""The bytes after which no other frame leaves in a turn."""


class OutgoingMessages:
    """The frames that wait to leave, by node; see the module.

    Args:
        send: encodes and sends a frame; answers its length.
    """

    def __init__(self, send: Callable[[NodeId, Sequence[Envelope]], int]) -> None:
        self._send = send
        self._sent_bytes = 0
        self._waiting: dict[NodeId, deque[Sequence[Envelope]]] = {}

    @property
    def waits(self) -> bool:
        """Return whether another turn is wanted."""
        return bool(self._waiting)

    def begin_turn(self) -> None:
        """Begin a turn: send the frames that wait, as far as there is room."""
        self._sent_bytes = 0
        for to, frames in list(self._waiting.items()):
            while frames and self._has_room():
                self._sent_bytes += self._send(to, frames.popleft())
            # The node that comes first in this turn comes last in the next one.
            del self._waiting[to]
            if frames:
                self._waiting[to] = frames

    def send(self, to: NodeId, envelopes: Sequence[Envelope]) -> None:
        """Send ``envelopes`` to a node, in order."""
        for frame in frames_of(envelopes):
            if to not in self._waiting and self._has_room():
                self._sent_bytes += self._send(to, frame)
            else:
                self._waiting.setdefault(to, deque()).append(frame)

    def clear(self) -> None:
        """Forget all frames that wait."""
        self._waiting.clear()

    def _has_room(self) -> bool:
        return self._sent_bytes < SENT_BYTES_A_TURN
