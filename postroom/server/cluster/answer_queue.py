"""The answers that a client has not taken yet: gathered into frames, weighed, and bounded.

::

    say ──▶ batch ── one a turn, or when it has grown ──▶ frames ──▶ pop
      put (a frame of its own: Welcome, Goodbye) ───────────┘

What is here counts among what all clients have left unread (:class:`.admission.Admission`), until
the stream has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from postroom.errors import Invalid
from postroom.limits import FRAME_BYTES_MAX
from postroom.protocol import frames
from postroom.protocol.failures import failure_from
from postroom.server.cluster.admission import Admission
from postroom.server.cluster.session_node import Node

ANSWERS_PER_FRAME: Final = 256
ANSWERS_BYTES_PER_FRAME: Final = 1024 * 1024
"""No more answers join a frame that has grown past this."""


class AnswerQueue:
    """See the module.

    Args:
        node: whose clock and lease go along.
        admission: counts what is unread.
        on_output: called when there is something to pop; not again before ``emptied``, but when the
            stream has ended.
        on_grown: called when a batch has become a frame because it was large.

    Attributes:
        taken_at: when the client last took anything of what there was.
        unread_bytes: about how much of answers the client has not taken.
    """

    def __init__(
        self,
        node: Node,
        admission: Admission,
        on_output: Callable[[], None],
        on_grown: Callable[[], None],
    ) -> None:
        self.taken_at = node.monotonic()
        self._node = node
        self._admission = admission
        self._on_output = on_output
        self._on_grown = on_grown
        self._batch: list[tuple[Any, ...]] = []
        self._batch_bytes = 0
        self._frames: deque[bytes] = deque()
        self.unread_bytes = 0
        self._is_told = False
        self._is_closed = False

    @property
    def has_frames(self) -> bool:
        """Whether there is one to pop."""
        return bool(self._frames)

    def say(self, answer: tuple[Any, ...], size: int) -> None:
        """One more answer, of about ``size`` bytes, with the others of this turn."""
        batch = self._batch
        if not (batch or self._frames):
            self.taken_at = self._node.monotonic()
        batch.append(answer)
        self._batch_bytes += size
        self.unread_bytes += size
        self._admission.unread_bytes += size
        if len(batch) >= ANSWERS_PER_FRAME or self._batch_bytes >= ANSWERS_BYTES_PER_FRAME:
            self.pack()
            self._on_grown()
        if not self._is_told:
            self._tell()

    def put(self, frame: bytes) -> None:
        """A frame of its own."""
        if not self._frames:
            self.taken_at = self._node.monotonic()
        self._frames.append(frame)
        self.unread_bytes += len(frame)
        self._admission.unread_bytes += len(frame)
        if not self._is_told:
            self._tell()

    def _tell(self) -> None:
        self._is_told = True
        self._on_output()

    def nudge(self) -> None:
        """There may be nothing to pop, but who takes has to look at the stream again."""
        if not self._is_told:
            self._tell()

    def pack(self) -> None:
        """The batch becomes a frame."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._admission.unread_bytes -= self._batch_bytes
            self.unread_bytes -= self._batch_bytes
            self._batch_bytes = 0
            self._pack(batch)

    def _pack(self, batch: list[tuple[Any, ...]]) -> None:
        node = self._node
        frame = frames.encode((1, node.clock.reading(), node.replicas.lease_sequence, batch))
        if len(frame) <= FRAME_BYTES_MAX:
            self.put(frame)
        elif len(batch) > 1:
            half = len(batch) // 2
            self._pack(batch[:half])
            self._pack(batch[half:])
        else:
            too_large = Invalid(
                f"the answer takes {len(frame)} bytes, {FRAME_BYTES_MAX} fit into a frame: "
                "ask for less at a time"
            )
            self._pack([(batch[0][0], None, failure_from(too_large))])

    def pop(self) -> bytes:
        """The next frame, which is being sent."""
        frame = self._frames.popleft()
        self.unread_bytes -= len(frame)
        if not self._is_closed:
            self._admission.unread_bytes -= len(frame)
        self.taken_at = self._node.monotonic()
        return frame

    def emptied(self) -> None:
        """All was popped: tell of the next one."""
        self._is_told = False

    def say_last(self) -> None:
        """The stream has ended: who takes is told so, even if told before, for what is left does
        not count any more.
        """
        self._on_output()

    def forget(self) -> None:
        """Nothing of it is to be sent any more."""
        self._admission.unread_bytes -= self.unread_bytes
        self._batch.clear()
        self._frames.clear()
        self._batch_bytes = self.unread_bytes = 0

    def close(self) -> None:
        """The stream has ended: what is in frames is sent yet, and counts no more."""
        self._is_closed = True
        self._admission.unread_bytes -= self.unread_bytes
        self._batch.clear()
        self.unread_bytes -= self._batch_bytes
        self._batch_bytes = 0
