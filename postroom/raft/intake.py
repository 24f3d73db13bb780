"""The limit of the frames that one turn takes in from peers, and of the items of each.

::

    transport ──▶ next frame ──▶ decoded ──▶ groups
                      └ long: its shape first (.frame_shape), in parts

A turn takes in frames worth about ``RECEIVED_STEPS_MAX`` steps. The rest stays with the transport,
which serves peers by turns, until the next turn; clients are served in between. Mostly one turn
takes in all that has arrived.

In memory an entry of five bytes takes a hundred. A frame is therefore decoded only when it is
certain that it has few items. A short frame has few in any case::

    PEER_FRAME_ITEMS_MAX bytes ──▶ decoded at once: no item is shorter than a byte
    more ──▶ Shape: gone over, header by header, some thousand in each turn ──▶ decoded, or refused

A value is passed over by its length, however long it is. An honest frame of 32 MiB, which is one
large entry, has a few headers, and costs microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from postroom import limits
from postroom.raft.messages import Append, Frame, decode_frame
from postroom.raft.state_machine import NodeId
from postroom.raft.transport import Transport

_BYTES, _ITEMS, _PAIRS, _INVALID = range(4)
"""The things that a length in a header counts."""


def _layouts() -> list[tuple[int, int, int, int]]:
    """Return what each first byte of a header means.

    For each byte: the thing that the length counts, how many bytes the length has, and the length
    itself if it has none. The fourth number is how many bytes the item has apart from what the
    length counts.
    """
    made = [(_BYTES, 0, 0, 1)] * 256
    for first in range(16):
        made[0x80 + first] = (_PAIRS, 0, first, 1)
        made[0x90 + first] = (_ITEMS, 0, first, 1)
    for first in range(32):
        made[0xA0 + first] = (_BYTES, 0, first, 1)
    made[0xC1] = (_INVALID, 0, 0, 1)
    for first, size in {
        0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
        0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
    }.items():  # fmt: skip
        made[first] = (_BYTES, 0, size, 1)
    for power in range(3):
        size = 1 << power
        made[0xC4 + power] = (_BYTES, size, 0, 1 + size)
        made[0xC7 + power] = (_BYTES, size, 0, 2 + size)
        made[0xD9 + power] = (_BYTES, size, 0, 1 + size)
    for power in (1, 2):
        size = 1 << power
        made[0xDC + power - 1] = (_ITEMS, size, 0, 1 + size)
        made[0xDE + power - 1] = (_PAIRS, size, 0, 1 + size)
    return made


_LAYOUTS: Final = _layouts()


class FrameShape:
    """A walk over the items of one frame, without decoding it.

    Args:
        frame: the bytes that have come in.

    Attributes:
        items: how many items there are in the part gone over, with all that its headers announce.
        fault: why the frame is not to be decoded; empty while no fault is found.
    """

    __slots__ = ("_at", "_frame", "_open", "fault", "items")

    def __init__(self, frame: bytes) -> None:
        self.items = 1
        self.fault = ""
        self._frame = frame
        self._at = 0
        self._open = [1]

    def go_on(self, count: int) -> int:  # noqa: C901 - one loop, which is hot
        """Go over at most ``count`` more items.

        Returns:
            How many of them were not needed. If it is not 0, the walk has ended: the whole frame
            has been gone over, or ``fault`` is set.
        """
        frame, at, left_open, layouts = self._frame, self._at, self._open, _LAYOUTS
        end, left = len(frame), left_open.pop()
        while count:
            while not left and left_open:
                left = left_open.pop()
            if not left:
                if at != end:
                    self.fault = "something follows it" if at < end else "it ends early"
                return count
            if at >= end:
                return self._refuse("it ends early", count)
            count -= 1
            left -= 1
            counts, size, length, head = layouts[frame[at]]
            if size:
                length = int.from_bytes(frame[at + 1 : at + 1 + size], "big")
            at += head
            if counts == _BYTES:
                at += length
                continue
            if counts == _INVALID:
                return self._refuse("it is no MessagePack", count)
            length *= counts
            self.items += length
            if self.items > limits.PEER_FRAME_ITEMS_MAX:
                return self._refuse(f"more than {limits.PEER_FRAME_ITEMS_MAX} items", count)
            left_open.append(left)
            left = length
            if len(left_open) > limits.PEER_FRAME_DEPTH_MAX:
                return self._refuse("it is nested too deeply", count)
        left_open.append(left)
        self._at = at
        return 0

    def _refuse(self, fault: str, count: int) -> int:
        self.fault = fault
        return max(count, 1)


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
