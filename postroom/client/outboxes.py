"""The outboxes of a store with any number of ranges, at one timestamp: all that waits there.

::

    outbox of range 1: entries that wait, and those on their way to others ─┐ without those
    marks of all ranges: the entries that they have taken from others ──────┴─ that were taken ─▶

A range drops an entry some time after another one has taken it. Without the marks it would be found
twice, or after it was delivered or carried out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom.kv import keys
from postroom.messaging.bulk_requests import TABLES, RecordsPage, ScanRecords, pack
from postroom.messaging.handover.transit import StoreMarks, Transit
from postroom.messaging.requests import Executable
from postroom.ranges.listing import RangeInfo

if TYPE_CHECKING:
    from postroom.client.bulk import Bulk

_UPDATES: Final = keys.RANGE + keys.EXECUTABLE
_BEHIND_UPDATES: Final = keys.after_prefix(_UPDATES)
_decode: Final = msgspec.msgpack.Decoder(Executable).decode


async def waiting_updates(
    bulk: Bulk, ranges: Sequence[RangeInfo], at: int
) -> AsyncGenerator[Any, None]:
    """Yield the requests of the updates that wait, those of a range in the order of their places.

    Args:
        bulk: the tables of the store.
        ranges: all ranges.
        at: a timestamp that is protected as a whole.
    """
    async with aclosing(_waiting(bulk, ranges, at)) as pages:
        async for _, entries in pages:
            for name, value in entries:
                if name.startswith(_UPDATES):
                    yield _decode(value).request


async def outbox_pages(
    bulk: Bulk, ranges: Sequence[RangeInfo], request: ScanRecords
) -> AsyncGenerator[RecordsPage, None]:
    """Yield pages of the table ``outbox``.

    Args:
        bulk: the tables of the store.
        ranges: all ranges.
        request: the request for the pages.
    """
    kinds = TABLES["outbox"]
    async with aclosing(_waiting(bulk, ranges, request.timestamp)) as pages:
        async for range_id, entries in pages:
            every = [_row(range_id, *entry) for entry in entries]
            columns = {
                name: pack(kinds[name], column)
                for name, column in zip(kinds, zip(*every, strict=True), strict=True)
                if name in (request.columns or kinds)
            }
            yield RecordsPage(range_id, len(every), columns, None)


async def _waiting(
    bulk: Bulk, ranges: Sequence[RangeInfo], at: int
) -> AsyncGenerator[tuple[int, list[tuple[bytes, bytes]]], None]:
    """Yield the id of a range, and the names and values of entries that wait in its outbox."""
    taken = StoreMarks()
    for each in ranges:
        async for page in bulk.records("marks", each.start, at=at):
            taken.add(page)
    for each in ranges:
        transit = Transit(each.id, taken)
        async with aclosing(bulk.records("range_image", each.start, at=at)) as pages:
            async for page in pages:
                if not page:
                    continue
                names, stored = zip(*page, strict=True)
                left = zip(*transit.of((names, stored)), strict=True)
                found = [(name, value or b"") for name, value in left if name < _BEHIND_UPDATES]
                if found:
                    yield each.id, found
                if names[-1] >= _BEHIND_UPDATES:
                    break


def _row(range_id: int, name: bytes, stored: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the row of an entry: its id, its message and its update, one of them empty."""
    kind, left = name[1:2], name[3:]
    entry = (b"", stored) if kind == keys.EXECUTABLE else (stored, b"")
    return keys.u64(range_id) + left + kind, *entry
