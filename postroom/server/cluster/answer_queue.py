"""The answers that a client has not taken yet: gathered into frames, weighed, and bounded.

::

    say ──▶ batch ── one a turn, or when it has grown ──▶ frames ──▶ pop
      put (a frame of its own: Welcome, Goodbye) ───────────┘

Answers here count as unread, with those of all clients (:class:`.admission.Admission`), until the
stream has ended.

The bytes of an answer are estimated before it is encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from postroom.errors import Invalid
from postroom.limits import FRAME_BYTES_MAX
from postroom.messaging.bulk_requests import RecordsPage
from postroom.messaging.ingest.requests import Counted, Restoration, Staging
from postroom.messaging.requests import Peeked, ReapedMessages
from postroom.protocol import frames
from postroom.protocol.failures import failure_from
from postroom.ranges.requests import Committed, CommittedChanges, Pairs, Value, Values
from postroom.server.cluster.admission import Admission
from postroom.server.cluster.session_parts import SessionNode

_LEAST_BYTES: Final = 32


def _values(result: Values) -> int:
    return sum(8 + len(value) for value in result.values if value is not None)


def _pairs(result: Pairs) -> int:
    return sum(8 + len(key) + len(value) for key, value in result.pairs)


def _changes(result: CommittedChanges) -> int:
    return sum(24 + len(each.key) + len(each.value or b"") for each in result.changes)


def _messages(result: ReapedMessages | Peeked) -> int:
    return sum(32 + len(stored) for _, stored in result.messages)


def _records(result: RecordsPage) -> int:
    return sum(16 + len(each.data) + len(each.ends) for each in result.columns.values())


def _encoded(result: Any) -> int:
    return len(msgspec.msgpack.encode(result))


_BYTES: Final[dict[type, Callable[[Any], int]]] = {
    Values: _values,
    Pairs: _pairs,
    CommittedChanges: _changes,
    ReapedMessages: _messages,
    Peeked: _messages,
    RecordsPage: _records,
    Restoration: _encoded,
    Counted: _encoded,
    Staging: _encoded,
    Committed: lambda result: 16 * len(result.answers),
    list: _encoded,
    dict: _encoded,
}


def answer_bytes(result: Any) -> int:
    """Estimate the bytes of ``result`` in a frame, and in memory until then."""
    if type(result) is Value:
        return _LEAST_BYTES + len(result.value or b"")
    weigh = _BYTES.get(type(result))
    return _LEAST_BYTES if weigh is None else _LEAST_BYTES + weigh(result)


def failure_bytes(extra: Any) -> int:
    """Estimate the bytes of a failure that carries ``extra``."""
    return 256 + (len(extra) if isinstance(extra, bytes) else 0)


ANSWERS_PER_FRAME: Final = 256
ANSWERS_BYTES_PER_FRAME: Final = 1024 * 1024
"""The bytes after which no more answers join a frame."""


class AnswerQueue:
    """The queue of answers of one stream; see the module.

    Args:
        node: the node, whose clock and lease go along.
        admission: counts unread bytes.
        on_output: called when there is something to pop. It is not called again before ``emptied``,
            unless the stream has ended.
        on_grown: called when a batch has become a frame because it was large.

    Attributes:
        taken_at: when the client last took a frame, or when an answer last came to the empty queue.
        unread_bytes: about how many bytes of answers the client has not taken.
    """

    def __init__(
        self,
        node: SessionNode,
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
        """Return whether there is a frame to pop."""
        return bool(self._frames)

    def say(self, answer: tuple[Any, ...], size: int) -> None:
        """Add an answer, of about ``size`` bytes, to the others of this turn."""
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
        """Add a frame of its own."""
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
        """Have the sender look at the stream again, though there may be nothing to pop."""
        if not self._is_told:
            self._tell()

    def pack(self) -> None:
        """Make a frame of the batch."""
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
        """Return the next frame, which is being sent."""
        frame = self._frames.popleft()
        self.unread_bytes -= len(frame)
        if not self._is_closed:
            self._admission.unread_bytes -= len(frame)
        self.taken_at = self._node.monotonic()
        return frame

    def emptied(self) -> None:
        """Note that all frames were popped: the next one is announced."""
        self._is_told = False

    def say_last(self) -> None:
        """Announce the end of the stream, even if output was announced before.

        The rest of the output counts no more.
        """
        self._on_output()

    def forget(self) -> None:
        """Drop all answers and frames: none is to be sent any more."""
        self._admission.unread_bytes -= self.unread_bytes
        self._batch.clear()
        self._frames.clear()
        self._batch_bytes = self.unread_bytes = 0

    def close(self) -> None:
        """Drop the batch, since the stream has ended. Frames are still sent, and count no more."""
        self._is_closed = True
        self._admission.unread_bytes -= self.unread_bytes
        self._batch.clear()
        self.unread_bytes -= self._batch_bytes
        self._batch_bytes = 0
