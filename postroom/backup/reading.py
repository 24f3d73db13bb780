"""The reading of a store with any number of ranges, as one: entries in the order of names.

::

    range 1: entries of no key ──┐ without what         ┌─ merged by name (:mod:`.joining`)
    range 2: entries of no key ──┴ others have taken ───┴──▶ part 0
    keys [c, p): of range 1 up to m, of range 2 from m on ──▶ part n

All of it is read at a timestamp that is protected as a whole. If a range splits meanwhile, its part
goes on with both halves, which have the same snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Final, NamedTuple

from postroom.backup.blocks import Block, Entries
from postroom.backup.joining import RangeEntries, joined
from postroom.backup.merging import EntryStream
from postroom.client.bulk import Bulk
from postroom.client.database import CoreDatabase
from postroom.errors import Invalid, Unavailable
from postroom.limits import BACKUP_PAGE_BYTES_MIN, BACKUP_PARTS_MAX, SPLITS_DURING_CALL_MAX
from postroom.messaging.bulk_requests import BYTES, RecordsPage, unpack
from postroom.messaging.handover.transit import StoreMarks, Transit
from postroom.ranges.listing import RangeInfo

_PAGE_BYTES: Final = 1024 * 1024


class ReadEntries(NamedTuple):
    """Entries of the store, in order.

    Attributes:
        entries: the entries.
        block: the same as they came, if they came so.
        size: the bytes that were read for them.
    """

    entries: Entries
    block: Block | None
    size: int


class RangePiece(NamedTuple):
    """A part of the entries, in one range."""

    table: str
    start: bytes
    end: bytes | None


class StoreReader:
    """The entries of a store at a timestamp that is protected as a whole.

    Args:
        db: the store.
        at: the timestamp.
        ranges: the ranges whose entries of no key are read.
    """

    def __init__(self, db: CoreDatabase, at: int, ranges: Sequence[RangeInfo]) -> None:
        self._db = db
        self._at = at
        self._ranges = ranges
        self._bulk = Bulk(db.sender, max(_PAGE_BYTES // max(len(ranges), 1), BACKUP_PAGE_BYTES_MIN))

    async def spans(self, part_bytes: int) -> list[tuple[bytes, bytes | None]]:
        """Return spans of keys such that each has as much to read, about; not too many."""
        found = await self._db.partitions(part_bytes=part_bytes)
        starts = [each.start for each in found][:: len(found) // (BACKUP_PARTS_MAX // 2) + 1]
        return [*zip(starts, [*starts[1:], None], strict=True)]

    async def of_no_key(self) -> AsyncGenerator[ReadEntries]:
        """Iterate over the entries that belong to no key, of all ranges."""
        images = [self._read(RangePiece("range_image", each.start, None)) for each in self._ranges]
        if len(images) > 1:
            taken = await self._taken()
            images = [
                _of_store(_without_taken(image, Transit(each.id, taken)), RangeEntries())
                for image, each in zip(images, self._ranges, strict=True)
            ]
        async with aclosing(_joined(images)) as pages:
            async for page in pages:
                yield page

    async def of_keys(self, start: bytes, end: bytes | None) -> AsyncGenerator[ReadEntries]:
        """Iterate over the entries of the keys of a span."""
        last = b""
        for _ in range(SPLITS_DURING_CALL_MAX):
            pieces = await self._pieces(start, end)
            try:
                async with aclosing(_joined([self._read(piece) for piece in pieces])) as pages:
                    async for page in pages:
                        left = _after(page, last)
                        if left.entries[0]:
                            last = left.entries[0][-1]
                            yield left
                return
            except Invalid:
                if await self._pieces(start, end) == pieces:
                    raise
        raise Unavailable("ranges are split again and again; nothing was copied: try again later")

    def trail_of_no_key(self) -> AsyncGenerator[ReadEntries]:
        """Iterate over the trail of the entries that belong to no key, of the only range."""
        return self._read(RangePiece("range_trail", b"", None))

    def trail_of_keys(self, start: bytes, end: bytes | None) -> AsyncGenerator[ReadEntries]:
        """Iterate over the trail of the entries of the keys of a span."""
        return self._read(RangePiece("trail", start, end))

    async def _pieces(self, start: bytes, end: bytes | None) -> list[RangePiece]:
        """Return the parts of a span in the ranges of now."""
        return [
            RangePiece("image", max(start, each.start), _lower(end, each.end))
            for each in await self._db.ranges(start, end)
        ]

    async def _read(self, piece: RangePiece) -> AsyncGenerator[ReadEntries]:
        pages = self._bulk.scan(*piece, at=self._at)
        async with aclosing(pages):
            async for page in pages:
                yield _page(page)

    async def _taken(self) -> StoreMarks:
        found = StoreMarks()
        for each in self._ranges:
            async for page in self._read(RangePiece("marks", each.start, None)):
                found.add(zip(*page.entries, strict=True))  # type: ignore[arg-type]  # all have values
        return found


def _page(page: RecordsPage) -> ReadEntries:
    block = Block(page.columns["name"], page.columns["stored"])
    entries = unpack(BYTES, block.names), unpack(BYTES, block.stored)
    return ReadEntries(entries, block, sum(len(column.data) for column in page.columns.values()))


async def _without_taken(
    pages: AsyncGenerator[ReadEntries], transit: Transit
) -> AsyncGenerator[ReadEntries]:
    async with aclosing(pages):
        async for page in pages:
            if page.entries[0]:
                yield ReadEntries(transit.of(page.entries), None, page.size)


async def _of_store(
    pages: AsyncGenerator[ReadEntries], of_range: RangeEntries
) -> AsyncGenerator[ReadEntries]:
    async with aclosing(pages):
        async for page in pages:
            yield ReadEntries(of_range.of(page.entries), None, page.size)
    yield ReadEntries(of_range.rest(), None, 0)


def _after(page: ReadEntries, last: bytes) -> ReadEntries:
    """Return the entries of a page whose names are after ``last``."""
    names, stored = page.entries
    if not names or names[0] > last:
        return page
    first = bisect_right(names, last)
    return ReadEntries((names[first:], stored[first:]), None, page.size)


def _joined(streams: Sequence[AsyncGenerator[ReadEntries]]) -> AsyncGenerator[ReadEntries]:
    """Return the entries of ranges in the order of names; those of one range as they come."""
    return streams[0] if len(streams) == 1 else _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[ReadEntries]]) -> AsyncGenerator[ReadEntries]:
    live = {stream: EntryStream(iter(())) for stream in streams}
    async with AsyncExitStack() as stack:
        for stream in streams:
            await stack.enter_async_context(aclosing(stream))
        while live:
            size = sum([await _fill(stream, live) for stream in list(live)])
            if live:
                yield ReadEntries(_taken([*live.values()]), None, size)


async def _fill(
    stream: AsyncGenerator[ReadEntries], live: dict[AsyncGenerator[ReadEntries], EntryStream]
) -> int:
    """Read pages until something waits, or the stream has ended; return the bytes read."""
    size, waiting = 0, live[stream]
    while not waiting.fill():
        page = await anext(stream, None)
        if page is None:
            del live[stream]
            break
        size += page.size
        waiting.put(page.entries)
    return size


def _taken(streams: list[EntryStream]) -> Entries:
    """Take the entries up to a name that all streams have reached."""
    until = min(stream.last for stream in streams)
    taken = [stream.take(until) for stream in streams]
    found: dict[bytes, bytes | None] = {}
    for each in reversed(taken):  # the first range has the records that a store has once
        found |= each
    if len(found) < sum(map(len, taken)):
        found = {name: _joined_entry(name, taken) for name in found}
    names = sorted(found)
    return names, [found[name] for name in names]


def _joined_entry(name: bytes, taken: list[dict[bytes, bytes | None]]) -> bytes:
    return joined(name, [stored for each in taken if (stored := each.get(name)) is not None])


def _lower(one: bytes | None, other: bytes | None) -> bytes | None:
    """Return the lower of two ends of spans; ``None`` is above all."""
    ends = [end for end in (one, other) if end is not None]
    return min(ends, default=None)
