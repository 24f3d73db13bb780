"""The received frames of clients: those that are not whole, are being decoded, or wait for a turn.

::

    frames ─▶ head ─▶ [withdrawn, looks up] ─▶ requests, a few at a time ─▶ Session
               └────── in stretches, each a share of a turn ──────┘

Each :meth:`StreamIntake.go_on` does a small part, and returns its share of the turn. Only the
requests of one run are decoded ahead of their turn, and only one large request.

A client whose frame is beyond the limit is told to come back. The decoded requests count elsewhere
(:mod:`.admission`).

A frame may have 32 MiB and a node a thousand clients. Each of them could send a frame without
its last byte, and wait: that memory would never be freed. For this reason all of them together
have a budget. Beyond it, the stream whose frame was begun first is ended: an honest frame comes
within seconds, also over a slow network, and is never the oldest for long.
The client connects again and repeats its unanswered requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Final, Protocol

from postroom import limits
from postroom.errors import Unavailable
from postroom.limits import FRAMES_DECODED_BYTES_MAX, UNFINISHED_BYTES_MAX
from postroom.protocol.decoding import DecodingBudget
from postroom.protocol.failures import Failure
from postroom.protocol.frames import Ask, Numbered, Permitted
from postroom.protocol.incremental_decoder import ask_in_stretches, is_large


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


class LargeFrames:
    """The large frames of one node; see the module.

    Attributes:
        bytes: the bytes of all frames.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def __bool__(self) -> bool:
        return self.bytes > 0

    def add(self, frame: bytes) -> int:
        """Count one more frame, and return its bytes.

        Raises:
            Unavailable: there are too many of them.
        """
        size = len(frame)
        if self.bytes and self.bytes + size > FRAMES_DECODED_BYTES_MAX:
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


SIGN_OF_LIFE_SECONDS: Final = 0.25
"""The time after which a waiting client gets a sign: it asks after half a second."""


class Receiver(Protocol):
    """The session."""

    def open_frame(self, frame: bytes) -> None:
        """Begin a frame, which has its turn."""

    def on_head(self, ask: Ask[Any]) -> None:
        """Take the fields of a frame other than its requests."""

    def take_on(self, number: int, request: Any, size: int) -> None:
        """Take a request of the current frame, which has its turn."""

    def withdraw(self, numbers: Sequence[int]) -> None:
        """Withdraw requests, which are not wanted any more."""

    def reserve(self, size: int) -> Failure | None:
        """Reserve memory for decoding a request; return why it is refused, or ``None``."""

    def release(self, size: int) -> None:
        """Release reserved memory, which counts as the request itself from now on."""

    def welcome(self) -> None:
        """Give a sign of life."""


class StreamIntake:
    """The intake of one stream; see the module.

    Args:
        receiver: takes the frames and requests.
        permitted: the requests that its client may ask for.
        large_frames: the node's.

    Attributes:
        frames: the frames that have not been begun.
    """

    def __init__(self, receiver: Receiver, permitted: Permitted, large_frames: LargeFrames) -> None:
        self.frames: deque[bytes] = deque()
        self._receiver = receiver
        self._permitted = permitted
        self._large_frames = large_frames
        self._requests: deque[Numbered] = deque()
        self._going_on: Generator[list[Numbered], None, None] | None = None
        self._withdrawn: frozenset[int] = frozenset()
        self._room = DecodingBudget(receiver.reserve)
        self._held = 0
        self._told_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._requests or self._going_on is not None or self.frames)

    def begin(self, frame: bytes, now: float, done: Ask[Any] | None = None, first: int = 0) -> None:
        """Begin a frame, which is gone over a part at a time.

        Args:
            frame: the frame.
            now: on the monotonic clock.
            done: its head, if that has been done.
            first: how many of its requests have been done.

        Raises:
            Unavailable: the node has too many large frames.
        """
        if is_large(frame):
            self._held = self._large_frames.add(frame)
        self._told_at = now
        self._withdrawn = frozenset() if done is None else frozenset(done.withdrawn)
        on_head = self._on_head if done is None else _pass_over
        self._going_on = ask_in_stretches(frame, self._permitted, self._room, on_head, first)

    def _on_head(self, ask: Ask[Any]) -> None:
        self._withdrawn = frozenset(ask.withdrawn)
        self._receiver.on_head(ask)

    def go_on(self, now: float) -> int:
        """Do the next part, and return how many steps of the turn it takes.

        Raises:
            WireError: the next part is malformed.
            Unavailable: the node has too many large frames.
        """
        if self._requests:
            self._take_on(*self._requests.popleft())
            return limits.REQUEST_STEPS
        if self._going_on is None:
            self._receiver.open_frame(self.frames.popleft())
            return 0
        before = self._room.taken
        found = next(self._going_on, None)
        if found is None:
            self._end_frame()
            return 0
        steps = max(self._room.taken - before, 0) // limits.DECODED_BYTES_PER_STEP
        self._requests.extend(found)
        if found:
            return steps + len(found)
        if self._held and now >= self._told_at + SIGN_OF_LIFE_SECONDS:
            self._told_at = now
            self._receiver.welcome()
        return steps + limits.FRAME_STRETCH_BYTES // limits.FRAME_BYTES_PER_STEP

    def _take_on(self, number: int, request: Any, size: int) -> None:
        self._release()
        self._receiver.take_on(number, request, size)
        if number in self._withdrawn:
            self._receiver.withdraw((number,))

    def _release(self) -> None:
        """Release the reserved memory, which counts as the request itself, or is not needed."""
        if self._room.taken:
            self._receiver.release(self._room.taken)
            self._room.taken = 0

    def _end_frame(self) -> None:
        self._going_on = None
        if self._held:
            self._receiver.welcome()
            self._large_frames.remove(self._held)
            self._held = 0

    def close(self) -> None:
        """Drop everything, because the stream is over."""
        self._release()
        self._large_frames.remove(self._held)
        self._held = 0
        self.frames.clear()
        self._requests.clear()
        self._going_on = None


def _pass_over(_: Ask[Any]) -> None:
    """Ignore the head, which was taken before."""
