"""The parts of an update whose keys lie in several ranges.

::

                                  ┌─▶ range 1: delete [c, k)      the first part
    delete [c, r), one entry ─────┼─▶ range 2: delete [k, p)      a further part
                                  └─▶ range 3: delete [p, r)      a further part

A ``DeleteRange`` or an ``Accounting`` may concern keys of several ranges. Its entry in the outbox
stays whole. Each of the ranges is handed the part for its keys, which is an update of its own
there: it is carried out, or dies, without the others. The entry leaves the outbox when all ranges
have taken their parts. The marks of the receivers tell which of them have.

An entry is handed over once, and received once: with its first part, which has its first key. A
further part has no sender. It counts as enqueued where it is taken, and gets an id there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from postroom.messaging.handover import marks
from postroom.messaging.handover.marks import Marks
from postroom.ranges.accounting import summed_prefixes
from postroom.ranges.requests import Accounting, DeleteRange

Span: TypeAlias = tuple[bytes, bytes | None]


def is_simple(update: Any) -> bool:
    """Return whether an update is of one key, so that it has no parts."""
    return type(update) not in {DeleteRange, Accounting}


def has_keys(update: Any) -> bool:
    """Return whether an update concerns any key; an empty span has none."""
    return is_simple(update) or part_within(update, b"", None) is not None


def spans_of(update: Any) -> list[Span]:
    """Return the spans of the keys of an update, in order."""
    if type(update) is DeleteRange:
        return [(update.start, update.end)]
    if type(update) is Accounting:
        return [(prefix, prefix + b"\x00") for prefix in summed_prefixes(update)]
    return [(update.key, update.key + b"\x00")]


def first_key(update: Any) -> bytes:
    """Return the first key of an update."""
    return spans_of(update)[0][0]


def part_within(update: Any, start: bytes, end: bytes | None) -> Any:
    """Return the part of an update for the keys in ``[start, end)``; ``None``: there is none."""
    if type(update) is DeleteRange:
        first, last = _clipped((update.start, update.end), start, end)
        if last is not None and last <= first:
            return None
        return msgspec.structs.replace(update, start=first, end=last)
    if type(update) is Accounting:
        span = _clipped(update.within or (b"", None), start, end)
        part = msgspec.structs.replace(update, within=span)
        return part if summed_prefixes(part) else None
    return update if start <= update.key and (end is None or update.key < end) else None


def is_within(update: Any, start: bytes, end: bytes | None) -> bool:
    """Return whether all keys of an update lie in ``[start, end)``."""
    return all(
        start <= first and (end is None or (last is not None and last <= end))
        for first, last in spans_of(update)
    )


def new_parts(update: Any, known: Marks, position: bytes) -> Iterator[Any]:
    """Iterate over the parts of an update at a position whose keys have lower marks."""
    if is_simple(update):  # mostly
        if marks.mark_of(known, update.key) < position:
            yield update
        return
    for span in marks.below(known, position):
        part = part_within(update, *span)
        if part is not None:
            yield part


def _clipped(span: Span, start: bytes, end: bytes | None) -> Span:
    """Return the part of a span that lies in ``[start, end)``."""
    first, last = span
    if end is not None and (last is None or end < last):
        last = end
    return max(first, start), last
