"""What leaves for other nodes: frames, and not too many bytes of them in one turn.

A leader encodes a large entry for each follower, and hands it to the network, which takes as long
as copying it a few times. So what is more than ``SENT_BYTES_A_TURN`` waits for the next turn; what
is said to the same node later waits behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from postroom.raft.messages import Envelope, frames_of
from postroom.raft.state_machine import NodeId

SENT_BYTES_A_TURN: Final = 8 * 1024 * 1024
"""No other frame leaves in a turn in which so much has left."""


class Outgoing:
    """See the module.

    Args:
        send: encodes and sends a frame; answers its length.
    """

    def __init__(self, send: Callable[[NodeId, Sequence[Envelope]], int]) -> None:
        self._send = send
        self._sent_bytes = 0
        self._waiting: dict[NodeId, deque[Sequence[Envelope]]] = {}

    @property
    def waits(self) -> bool:
        """Whether another turn is wanted."""
        return bool(self._waiting)

    def begin_turn(self) -> None:
        """As much may leave again: first what waits."""
        self._sent_bytes = 0
        for to, frames in list(self._waiting.items()):
            while frames and self._has_room():
                self._sent_bytes += self._send(to, frames.popleft())
            # Who comes first in this turn comes last in the next one.
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
        """Nothing is sent any more."""
        self._waiting.clear()

    def _has_room(self) -> bool:
        return self._sent_bytes < SENT_BYTES_A_TURN
