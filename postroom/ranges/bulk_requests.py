"""The requests of those who read everything: how a span falls into parts, and columns of it.

All of them are reads at one timestamp, which the reader protects meanwhile (``Protect``). Pages end
where an answer is full, or a turn used up: one may be empty and yet not the last.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from postroom.ranges.contract import ConcernsSpan, Read
from postroom.ranges.requests import Bound, Count, Moment

# --- answers --------------------------------------------------------------------------------------


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """A part of a range.

    Attributes:
        start, end: its keys; ``end=None`` is unbounded.
        range_id: of the range.
        generation: of the range: it rises with each split and merge. So who owned a key later has
            the higher one.
        size_bytes: about how much it takes on the device, as far as that is known.
        readable_from: changes up to this timestamp are collected, and so are versions that were
            overwritten before it.
    """

    start: bytes
    end: bytes | None
    range_id: int
    generation: int
    size_bytes: int
    readable_from: int


class Columns(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanColumns``. Integers that tell where a value ends have 4 bytes, the least
    significant first.

    Attributes:
        rows: how many.
        resume: the ``start``, and ``resume_after``: the ``first_after`` of the next page;
            ``resume=None``: this was the last one.
        keys, key_ends: all keys in one piece, and where each ends.
        values, value_ends: likewise; empty if they were not wanted. That of a deletion is empty.
        timestamps: 8 bytes each, the most significant first.
        kinds: a byte each: 1 a value, 2 a deletion, 4 an integer that ``Increment`` wrote.
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
    """Answers ``ScanAccounting``: prefixes and their sums, and where to go on, if anywhere."""

    sums: list[tuple[bytes, dict[str, int]]]
    resume: bytes | None


# --- requests -------------------------------------------------------------------------------------


class ReadPartitions(ConcernsSpan, Read, frozen=True, tag="read_partitions"):
    """How ``[start, end)`` falls into parts of about ``part_bytes``, each within one range."""

    answer: ClassVar = list[Partition]
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    part_bytes: Count


class ScanColumns(ConcernsSpan, Read, frozen=True, tag="scan_columns"):
    """A page of the versions of the keys in ``[start, end)``, as columns.

    Attributes:
        timestamp: as of when; of changes, the last that count.
        after: versions of this time and before do not count.
        changes: every version counts, deletions too; else the one of each key that was the newest
            at ``timestamp``.
        first_after: of changes of the key ``start``: those of this time and before are known.
        values: whether values are wanted.
        bytes_max: of a page, about.
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
    """A page of the sums of all prefixes in ``[start, end)``, as of a timestamp that is protected
    as a whole (``Protect``); 0: now.
    """

    answer: ClassVar = AccountingPage
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    timestamp: Moment
    bytes_max: Count = 0
