"""The requests that read everything: the parts of a span, and columns of its versions.

All of them are reads at one timestamp, which the reader protects meanwhile (``Protect``). A page
ends where an answer is full, or a turn is used up: it may be empty and yet not the last.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from postroom.ranges.contract import ConcernsSpan, Read
from postroom.ranges.requests import Bound, Count, Moment

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


class Columns(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanColumns``.

    Integers that tell where a value ends have 4 bytes, the least significant first.

    Attributes:
        rows: the number of versions.
        resume: the ``start``, and ``resume_after``: the ``first_after`` of the next page;
            ``resume=None``: this was the last one.
        keys, key_ends: all keys in one piece, and where each ends.
        values, value_ends: all values in one piece, and where each ends; empty if they were not
            wanted. The value of a deletion is empty.
        timestamps: 8 bytes for each version, the most significant first.
        kinds: a byte for each version: 1 a value, 2 a deletion, 4 an integer of ``Increment``.
    """

    rows: int
    resume: bytes | None
    resume_after: int
    keys: bytes
    key_ends: bytes
    values: bytes
    value_ends: bytes
    timestamps: bytes
    kinds: bytes


class AccountingPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanAccounting``: prefixes and their sums, and where the next page begins."""

    sums: list[tuple[bytes, dict[str, int]]]
    resume: bytes | None


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


class ScanColumns(ConcernsSpan, Read, frozen=True, tag="scan_columns"):
    """A request for a page of the versions of the keys in ``[start, end)``, as columns.

    Attributes:
        timestamp: the timestamp of the read. Later versions do not count.
        after: the timestamp up to which versions do not count.
        changes: whether all versions count, deletions too; otherwise only the newest of each key
            at ``timestamp``.
        first_after: the timestamp up to which changes of the key ``start`` are known.
        values: whether values are wanted.
        bytes_max: the approximate number of bytes of a page.
    """

    answer: ClassVar = Columns
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    timestamp: Moment
    after: Moment = 0
    changes: bool = False
    first_after: Moment = 0
    values: bool = True
    bytes_max: Count = 0


class ScanAccounting(ConcernsSpan, Read, frozen=True, tag="scan_accounting"):
    """A request for a page of the sums of all prefixes in ``[start, end)``.

    They are as of a timestamp that is protected as a whole (``Protect``); 0: now.
    """

    answer: ClassVar = AccountingPage
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    timestamp: Moment
    bytes_max: Count = 0
