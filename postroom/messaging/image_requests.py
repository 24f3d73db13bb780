"""The requests about *images*: everything that a store holds at one timestamp, entry by entry.

An image is read as two tables (:mod:`postroom.messaging.bulk_requests`). It is put back in chunks
into an empty store (``BeginRestore`` to ``EndRestore``). The entries and their names are described
in :mod:`postroom.messaging.image_entries`, the restore in
:mod:`postroom.messaging.ingest.restores`. All of the requests may be repeated.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

import msgspec

from postroom.limits import (
    IMAGE_NAME_BYTES_MAX,
    RESTORED_CHUNK_ROWS_MAX,
    RESTORED_PARTS_MAX,
    TRANSACTION_BYTES_MAX,
)
from postroom.ranges.contract import Command, ConcernsStore, Read, Role
from postroom.ranges.requests import Count, TimestampNumber

RUN_BYTES = 16

Run: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=RUN_BYTES, max_length=RUN_BYTES)]
ImageId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
Name: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=IMAGE_NAME_BYTES_MAX)]
Stored: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=TRANSACTION_BYTES_MAX)]
Part: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=RESTORED_PARTS_MAX)]
Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


# --- answers --------------------------------------------------------------------------------------


class Restoration(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ReadRestore``.

    Attributes:
        state: empty (never restored), ``opening``, ``restoring``, ``abandoning``, ``done``.
        image, timestamp: the image that is, or was, restored.
        parts: the complete parts of the restore under way, with the number of entries of each.
    """

    state: str = ""
    image: bytes = b""
    timestamp: int = 0
    parts: dict[int, int] = {}


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``CheckImage``.

    Attributes:
        tables: the number of entries of each table.
        wrong: the first errors that were found, in words.
    """

    tables: dict[str, int]
    wrong: list[str]


# --- requests -------------------------------------------------------------------------------------


class BeginRestore(ConcernsStore, Command, frozen=True, tag="begin_restore"):
    """A request to restore an image; the store is closed to everybody else until that is done.

    The answer is one of ``OPENING``, ``RESTORING`` and ``DONE``
    (:mod:`postroom.messaging.ingest.restores`). If it is ``OPENING``, send the request again.

    Attributes:
        run: this try; earlier ones add nothing any more.
        image: the id of the image.
        timestamp: the timestamp of the image.
    """

    answer: ClassVar = str
    since: ClassVar = 1
    role: ClassVar = Role.ADMIN

    run: Run
    image: ImageId
    timestamp: TimestampNumber


class RestoreEntries(ConcernsStore, Command, frozen=True, tag="restore_entries"):
    """A request to restore a chunk of the image: entries, in rising order of their names.

    An entry that is there with the same value is left alone; one with another value fails all.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    role: ClassVar = Role.ADMIN

    run: Run
    names: Annotated[list[Name], msgspec.Meta(max_length=RESTORED_CHUNK_ROWS_MAX)]
    stored: Annotated[list[Stored], msgspec.Meta(max_length=RESTORED_CHUNK_ROWS_MAX)]


class EndPart(ConcernsStore, Command, frozen=True, tag="end_restored_part"):
    """A request that marks a part of the image as complete, with its number of entries."""

    answer: ClassVar = None
    since: ClassVar = 1
    role: ClassVar = Role.ADMIN

    run: Run
    part: Part
    rows: Rows


class EndRestore(ConcernsStore, Command, frozen=True, tag="end_restore"):
    """A request that ends the restore: the store serves everybody from now on.

    Attributes:
        parts, rows: how many there must be.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    role: ClassVar = Role.ADMIN

    run: Run
    parts: Count
    rows: Rows


class AbandonRestore(ConcernsStore, Command, frozen=True, tag="abandon_restore"):
    """A request to abandon a restore and empty the store again.

    The answer is whether there is more to be removed: send the request again then.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    role: ClassVar = Role.ADMIN
    frees_room: ClassVar = True


class ReadRestore(ConcernsStore, Read, frozen=True, tag="read_restore"):
    """A request for the state of the restore; the answer is ``Restoration``."""

    answer: ClassVar = Restoration
    since: ClassVar = 1
    is_served_in_restore: ClassVar = True


class CheckImage(ConcernsStore, Read, frozen=True, tag="check_image"):
    """A request to count the entries, and to check the counters and indexes against them.

    It reads as of a timestamp that is protected as a whole; 0: now.
    """

    answer: ClassVar = Counted
    since: ClassVar = 1
    is_served_in_restore: ClassVar = True

    timestamp: TimestampNumber = 0
