"""The request for the parts of a span, for programs that read everything."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from postroom.ranges.contract import ConcernsSpan, Read
from postroom.ranges.requests import Bound, Count

# --- answers --------------------------------------------------------------------------------------


class RangePartition(msgspec.Struct, frozen=True, array_like=True):
    """A part of a span, within one range.

    Attributes:
        start, end: the bounds of its keys; ``end=None`` is unbounded.
        range_id: the id of the range.
        generation: the generation of the range, which rises with each split and merge. The later
            owner of a key has the higher one.
        size_bytes: the number of bytes on the device, as far as it is known.
        readable_from: the timestamp up to which changes, and overwritten versions, are collected.
    """

    start: bytes
    end: bytes | None
    range_id: int
    generation: int
    size_bytes: int
    readable_from: int


# --- requests -------------------------------------------------------------------------------------


class ReadPartitions(ConcernsSpan, Read, frozen=True, tag="read_partitions"):
    """A request to divide ``[start, end)`` into parts of about ``part_bytes``.

    Each part lies within one range.
    """

    answer: ClassVar = list[RangePartition]
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    part_bytes: Count
