"""The limit of the frames that one turn takes in from peers.

::

    transport ──▶ next frame ──▶ decoded ──▶ groups
                      └ long: its shape first (.frame_shape), in parts

A turn takes in frames worth about ``RECEIVED_STEPS_MAX`` steps. The rest stays with the transport,
which serves peers by turns, until the next turn; clients are served in between. Mostly one turn
takes in all that has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from postroom import limits
from postroom.raft.frame_shape import FrameShape
from postroom.raft.messages import Append, Frame, decode_frame
from postroom.raft.state_machine import NodeId
from postroom.raft.transport import Transport

_BYTES_PER_STEP: Final = 512


class FrameIntake:
    """The frames that a node takes in, turn by turn; see the module.

    Args:
        transport: the source of frames.

    Attributes:
        waits: whether another turn is wanted.
    """

    def __init__(self, transport: Transport) -> None:
        self.waits = False
        self._transport = transport
        self._arrived: Iterator[tuple[NodeId, bytes]] = iter(())
        self._current: tuple[NodeId, bytes, FrameShape] | None = None

    def clear(self) -> None:
        """Forget the frames that were begun."""
        self._arrived, self._current, self.waits = iter(()), None, False

    def take(self) -> Iterator[tuple[NodeId, Frame | None, str]]:
        """Yield the frames of this turn: the sender, the frame or ``None``, and the fault."""
        steps = limits.RECEIVED_STEPS_MAX
        if self._current is not None:
            sender, received, shape = self._current
            steps = shape.go_on(steps)
            if not steps:
                return
            self._current = None
            frame, problem = (None, shape.fault) if shape.fault else decode_frame(received)
            steps -= _steps_of(received, frame)
            yield sender, frame, problem
            if steps <= 0:
                return
        if not self.waits:
            self._arrived = iter(self._transport.receive())
        for sender, received in self._arrived:
            problem = ""
            if limits.PEER_FRAME_ITEMS_MAX < len(received) <= limits.PEER_FRAME_BYTES_MAX:
                shape = FrameShape(received)
                steps = shape.go_on(steps)
                if not steps:
                    self._current, self.waits = (sender, received, shape), True
                    return
                problem = shape.fault
            frame, problem = (None, problem) if problem else decode_frame(received)
            steps -= _steps_of(received, frame)
            yield sender, frame, problem
            if steps <= 0:
                self.waits = True
                return
        self.waits = False


def _steps_of(received: bytes, frame: Frame | None) -> int:
    """Return the cost of taking in a frame, in steps, without that of going over its shape."""
    steps = limits.RECEIVED_FRAME_STEPS + len(received) // _BYTES_PER_STEP
    if frame is None:
        return steps
    for _, message in frame.envelopes:
        steps += limits.RECEIVED_MESSAGE_STEPS
        if type(message) is Append:
            steps += len(message.entries)
    return steps
