"""The outboxes of a store with any number of ranges, at one timestamp: all that waits there.

::

    outbox of range 1: entries that wait, and those on their way to others ─┐ without those
    marks of all ranges: the entries that they have taken from others ──────┴─ that were taken ─▶

A range drops an entry some time after another one has taken it. Without the marks it would be found
twice, or after it was delivered or carried out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom.kv import keys
from postroom.messaging.bulk_requests import TABLES, RecordsPage, pack
from postroom.messaging.handover.transit import StoreMarks, Transit
from postroom.messaging.requests import Deliverable, Executable
from postroom.ranges.listing import RangeInfo

if TYPE_CHECKING:
    from postroom.client.bulk import Bulk

_UPDATES: Final = keys.RANGE + keys.EXECUTABLE
_BEHIND_UPDATES: Final = keys.after_prefix(_UPDATES)
_message: Final = msgspec.msgpack.Decoder(Deliverable).decode
_update: Final = msgspec.msgpack.Decoder(Executable).decode


class StoreOutboxes:
    """The outboxes of all ranges.

    Args:
        bulk: the tables of the store.
        ranges: all ranges.
        at: a timestamp that is protected as a whole.

    Attributes:
        taken: the number of entries that others have taken, of the ranges that were read.
    """

    def __init__(self, bulk: Bulk, ranges: Sequence[RangeInfo], at: int) -> None:
        self.taken = 0
        self._bulk = bulk
        self._ranges = ranges
        self._at = at

    async def waiting_updates(self) -> AsyncGenerator[Any, None]:
        """Yield the requests of the updates that wait, those of a range in order."""
        async with aclosing(self.waiting()) as entries:
            async for each in entries:
                if isinstance(each, Executable):
                    yield each.request

    async def waiting(self) -> AsyncGenerator[Deliverable | Executable, None]:
        """Yield the messages and updates that wait, those of a range in order."""
        async with aclosing(self._waiting()) as pages:
            async for _, entries in pages:
                for name, value in entries:
                    yield _update(value) if name.startswith(_UPDATES) else _message(value)

    async def pages(self, columns: Collection[str]) -> AsyncGenerator[RecordsPage, None]:
        """Yield pages of the table ``outbox``, with some columns of it; none: all."""
        kinds = TABLES["outbox"]
        async with aclosing(self._waiting()) as pages:
            async for range_id, entries in pages:
                every = [_row(range_id, *entry) for entry in entries]
                packed = {
                    name: pack(kinds[name], column)
                    for name, column in zip(kinds, zip(*every, strict=True), strict=True)
                    if name in (columns or kinds)
                }
                yield RecordsPage(range_id, len(every), packed, None)

    async def _waiting(self) -> AsyncGenerator[tuple[int, list[tuple[bytes, bytes]]], None]:
        """Yield the id of a range, and the names and values of entries that wait in its outbox."""
        known = StoreMarks()
        for each in self._ranges:
            async for page in self._bulk.records("marks", each.start, at=self._at):
                known.add(page)
        for each in self._ranges:
            transit = Transit(each.id, known, with_slots=True)
            pages = self._bulk.records("range_image", each.start, at=self._at)
            async with aclosing(pages):
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
            self.taken += transit.taken


def _row(range_id: int, name: bytes, stored: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the row of an entry: its id, its message and its update, one of them empty."""
    kind, left = name[1:2], name[3:]
    entry = (b"", stored) if kind == keys.EXECUTABLE else (stored, b"")
    return keys.u64(range_id) + left + kind, *entry
