"""Large frames of clients, which are decoded in stretches: one stretch a turn, of all clients.

::

    Session ── a large frame ──▶ LargeFrames ── one stretch a turn, streams by turns ──▶ Session

Its client is not read from meanwhile, so that what it says keeps its order; it is given a sign of
life, since it may be asking for one behind its frame. What such frames take in memory is bounded:
who sends one more is told to come back.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, Protocol

from postroom.errors import Unavailable
from postroom.limits import FRAMES_DECODED_BYTES_MAX
from postroom.protocol.failures import WireError
from postroom.protocol.frames import Ask
from postroom.protocol.stretches import ask_in_stretches
from postroom.server.cluster.session_node import Node

SIGN_OF_LIFE_SECONDS: Final = 0.25
"""A client that waits asks for one after half a second, and gives up a second later."""


class Receiver(Protocol):
    """The stream that a frame has come over."""

    heard_at: float

    def decoded(self, ask: Ask, frame_bytes: int) -> None:
        """The frame is this."""

    def malformed(self, error: WireError) -> None:
        """It is none."""

    def welcome(self) -> None:
        """Give a sign of life."""


class _Decoding:
    """One frame."""

    __slots__ = ("size", "stretches", "told_at")

    def __init__(self, frame: bytes, now: float) -> None:
        self.size = len(frame)
        self.stretches: Generator[None, None, Ask] = ask_in_stretches(frame)
        self.told_at = now


class LargeFrames:
    """See the module.

    Args:
        node: whose turns.
        bytes_max: of all frames together.

    Attributes:
        bytes: how many there are.
    """

    def __init__(self, node: Node, bytes_max: int = FRAMES_DECODED_BYTES_MAX) -> None:
        self.bytes = 0
        self._node = node
        self._bytes_max = bytes_max
        self._decoding: dict[Receiver, _Decoding] = {}

    def __contains__(self, receiver: Receiver) -> bool:
        return receiver in self._decoding

    def __len__(self) -> int:
        return len(self._decoding)

    def begin(self, receiver: Receiver, frame: bytes) -> None:
        """A large frame has come in; nothing else does until it is decoded.

        Raises:
            Unavailable: there are too many of them.
        """
        if self._decoding and self.bytes + len(frame) > self._bytes_max:
            raise Unavailable(
                f"this node is decoding {self.bytes} bytes of large requests and takes no more; "
                "nothing was changed: try again after a moment",
                retry_after=1.0,
            )
        self.bytes += len(frame)
        self._decoding[receiver] = _Decoding(frame, self._node.monotonic())
        self._node.wake(urgent=True)

    def go_on(self) -> None:
        """One stretch of the frame whose turn it is."""
        if not self._decoding:
            return
        receiver = next(iter(self._decoding))
        decoding = self._decoding.pop(receiver)
        try:
            next(decoding.stretches)
        except StopIteration as stop:
            self.bytes -= decoding.size
            receiver.decoded(stop.value, decoding.size)
        except WireError as error:
            self.bytes -= decoding.size
            receiver.malformed(error)
        else:
            self._decoding[receiver] = decoding
            self._give_sign_of_life(receiver, decoding)
        if self._decoding:
            self._node.wake(urgent=True)

    def _give_sign_of_life(self, receiver: Receiver, decoding: _Decoding) -> None:
        now = self._node.monotonic()
        receiver.heard_at = now  # it is not read from until the frame is decoded
        if now >= decoding.told_at + SIGN_OF_LIFE_SECONDS:
            decoding.told_at = now
            receiver.welcome()

    def forget(self, receiver: Receiver) -> None:
        """Its stream has ended."""
        decoding = self._decoding.pop(receiver, None)
        if decoding is not None:
            self.bytes -= decoding.size
