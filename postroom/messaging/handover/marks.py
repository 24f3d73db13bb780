"""The marks of a channel at a receiver: up to which positions it has taken what is for its keys.

::

    keys     a         f         m         end
    mark     │   40    │    25   │   25    │     pieces: [a, f) 40, [f, end) 25

A receiver takes a batch if all of its entries lie above the marks of their keys. Then the marks of
the whole span of the batch rise to its last position, and a batch that comes again lies below. This
is right because a batch is a *prefix* of all that the channel has for the span: nothing below its
last position is missing.

The marks belong to keys. A half of a range that splits gets the pieces of its keys
(:func:`within`), and a range that takes over the keys of its neighbour gets its pieces
(:func:`joined`). A piece keeps its mark then: the greatest of two marks would lose messages, and
the least of them would deliver messages twice.

Everything here is a pure function over pieces, which are in order and do not overlap. Keys without
a piece have the mark ``b""``, which lies below every position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.messaging.handover.channels import Channel


class MarkedSpan(NamedTuple):
    """A piece: the keys in ``[start, end)``, and their mark; ``end=None`` is unbounded."""

    start: bytes
    end: bytes | None
    mark: bytes


Marks: TypeAlias = list[MarkedSpan]
_start_of: Final = itemgetter(0)

encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Marks).decode


def decode(stored: bytes | None) -> Marks:
    """Return the marks in a record; no record: none."""
    return [] if stored is None else _decode(stored)


def record_key(range_id: int, channel: Channel) -> bytes:
    """Return the engine key of the marks of a channel in the range ``range_id``."""
    kind = keys.EXECUTABLE if channel.has_updates else keys.DELIVERABLE
    return keys.marks_key(range_id, channel.sender, kind, channel.lane)


def mark_of(marks: Marks, key: bytes) -> bytes:
    """Return the mark of a key."""
    number = bisect_right(marks, key, key=_start_of) - 1
    if number < 0:
        return b""
    _, end, mark = marks[number]
    return mark if end is None or key < end else b""


def within(marks: Marks, start: bytes, end: bytes | None) -> Marks:
    """Return the marks of the keys in ``[start, end)``, such as those for a half of a range."""
    clipped = (_clipped(piece, start, end) for piece in marks)
    return [piece for piece in clipped if piece is not None]


def raised(marks: Marks, start: bytes, end: bytes | None, position: bytes) -> Marks:
    """Return the marks after a batch for ``[start, end)`` whose last position is ``position``."""
    before = within(marks, b"", start) if start else []
    after = within(marks, end, None) if end is not None else []
    inside = (
        piece._replace(mark=max(piece.mark, position))
        for piece in _without_gaps(within(marks, start, end), start, end)
    )
    return _merged([*before, *inside, *after])


def below(marks: Marks, position: bytes) -> list[tuple[bytes, bytes | None]]:
    """Return the spans of the keys whose marks lie below a position, as few as possible."""
    found: list[tuple[bytes, bytes | None]] = []
    for piece in _without_gaps(marks, b"", None):
        if piece.mark >= position:
            continue
        if found and found[-1][1] == piece.start:
            found[-1] = (found[-1][0], piece.end)
        else:
            found.append((piece.start, piece.end))
    return found


def joined(left: Marks, right: Marks) -> Marks:
    """Return the marks of a range that takes over the keys of its right neighbour."""
    return _merged([*left, *right])


def extend(marks: Marks, more: Iterable[MarkedSpan]) -> None:
    """Add pieces behind the last one; neighbours that have the same mark become one."""
    for piece in more:
        if marks and (marks[-1].end, marks[-1].mark) == (piece.start, piece.mark):
            marks[-1] = marks[-1]._replace(end=piece.end)
        else:
            marks.append(piece)


def _clipped(piece: MarkedSpan, start: bytes, end: bytes | None) -> MarkedSpan | None:
    first = max(piece.start, start)
    last = piece.end if end is None or (piece.end is not None and piece.end < end) else end
    return None if last is not None and last <= first else MarkedSpan(first, last, piece.mark)


def _without_gaps(marks: Marks, start: bytes, end: bytes | None) -> Iterator[MarkedSpan]:
    """Iterate over pieces of ``[start, end)``, and the gaps between them, with an empty mark."""
    at: bytes | None = start
    for piece in marks:
        assert at is not None
        if at < piece.start:
            yield MarkedSpan(at, piece.start, b"")
        yield piece
        at = piece.end
    if at is not None and (end is None or at < end):
        yield MarkedSpan(at, end, b"")


def _merged(marks: Iterable[MarkedSpan]) -> Marks:
    """Return the pieces, with neighbours that have the same mark in one."""
    merged: Marks = []
    extend(merged, marks)
    return merged
