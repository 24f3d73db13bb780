"""The requests about *images*: everything that a store holds at one timestamp, entry by entry.

An image is read in pages (``ScanImage``), and put back in chunks into a store that is empty
(``BeginRestore`` to ``EndRestore``). What an entry is, and how it is called, is told in
:mod:`postroom.messaging.image_entries`; how a store is restored in
:mod:`postroom.messaging.restoring`. All of them may be repeated.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from postroom.limits import (
    IMAGE_NAME_BYTES_MAX,
    RESTORED_CHUNK_ROWS_MAX,
    RESTORED_PARTS_MAX,
    TRANSACTION_BYTES_MAX,
)
from postroom.ranges.requests import Bound, Count, Moment, Request

RUN_BYTES = 16

Run: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=RUN_BYTES, max_length=RUN_BYTES)]
ImageId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
Name: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=IMAGE_NAME_BYTES_MAX)]
Stored: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=TRANSACTION_BYTES_MAX)]
Part: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=RESTORED_PARTS_MAX)]
Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class ScanImage(Request, frozen=True, array_like=True, tag="scan_image", gc=False):
    """A page of the entries of the keys in ``[start, end)``, or of what belongs to no key, as of a
    timestamp that is protected as a whole (``Protect``); 0: now.

    Attributes:
        of_range: what belongs to no key: outboxes, dead letters, queues, counters, what is staged.
        after: the last entry of the page before; empty: from the first.
    """

    start: Bound
    end: Bound | None
    timestamp: Moment
    of_range: bool = False
    after: Annotated[bytes, msgspec.Meta(max_length=IMAGE_NAME_BYTES_MAX)] = b""
    bytes_max: Count = 0


class BeginRestore(Request, frozen=True, array_like=True, tag="begin_restore", gc=False):
    """The store is to become what an image says; it is closed to everybody else until then.

    Answers one of ``OPENING``, ``RESTORING``, ``DONE`` (:mod:`postroom.messaging.restoring`). Of
    ``OPENING``, ask again.

    Attributes:
        run: this try; those before it add nothing any more.
        image: which image.
        timestamp: of the image.
    """

    run: Run
    image: ImageId
    timestamp: Moment


class RestoreEntries(Request, frozen=True, array_like=True, tag="restore_entries"):
    """A chunk of the image: entries, their names rising.

    One that is there with the same value is left alone; one with another value fails all.
    """

    run: Run
    names: Annotated[list[Name], msgspec.Meta(max_length=RESTORED_CHUNK_ROWS_MAX)]
    stored: Annotated[list[Stored], msgspec.Meta(max_length=RESTORED_CHUNK_ROWS_MAX)]


class EndPart(Request, frozen=True, array_like=True, tag="end_restored_part", gc=False):
    """A part of the image is there as a whole; so many entries were in it."""

    run: Run
    part: Part
    rows: Rows


class EndRestore(Request, frozen=True, array_like=True, tag="end_restore", gc=False):
    """All is there: the store serves everybody from now on.

    Attributes:
        parts, rows: how many there must be.
    """

    run: Run
    parts: Count
    rows: Rows


class AbandonRestore(Request, frozen=True, array_like=True, tag="abandon_restore", gc=False):
    """The store is to be empty again; answers whether there is more to be removed: ask again."""


class ReadRestore(Request, frozen=True, array_like=True, tag="read_restore", gc=False):
    """Whether the store is being restored, or was; answers ``Restoration``."""


class CheckImage(Request, frozen=True, array_like=True, tag="check_image", gc=False):
    """Counts the entries as of a timestamp that is protected as a whole (0: now), and whether what
    the counters and indexes say is so.
    """

    timestamp: Moment = 0


# --- answers --------------------------------------------------------------------------------------


class ImagePage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanImage``: a page may be empty and yet not the last.

    Attributes:
        rows: how many.
        after: the ``after`` of the next page; ``None``: this was the last one.
        names, name_ends: all names in one piece, and where each ends: 4 bytes, the least
            significant first.
        stored, stored_ends: likewise.
    """

    rows: int
    after: bytes | None
    names: bytes
    name_ends: bytes
    stored: bytes
    stored_ends: bytes


class Restoration(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ReadRestore``.

    Attributes:
        state: empty (never restored), ``opening``, ``restoring``, ``abandoning``, ``done``.
        image, timestamp: what is, or was, restored.
        parts: of what is being restored: those that are there, and how many entries each has.
    """

    state: str = ""
    image: bytes = b""
    timestamp: int = 0
    parts: dict[int, int] = {}


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``CheckImage``.

    Attributes:
        tables: how many entries each table has.
        wrong: what is not as it must be, in words; the first of it.
    """

    tables: dict[str, int]
    wrong: list[str]
