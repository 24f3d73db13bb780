"""Reads of everything: parts of a span, protected timestamps, and whole tables page by page.

These are for programs that read all of a store, like exports and analysis; in its asyncio form.
Pages have the form of the store's answers: columns of bytes, no object for each row. While the
caller uses a page, the next one is on its way.

Everything is read at one timestamp, which must stay protected meanwhile (:meth:`.hold`): by the
reader, or by another process for it. ::

    async with db.hold() as at:
        for part in await db.partitions():
            async for page in db.bulk.columns(part.start, part.end, at=at):
                ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec

from postroom.client import arguments
from postroom.client.images import ImageCalls
from postroom.client.sender import Sender, post
from postroom.client.staging import StagingCalls
from postroom.client.whole import protect_whole, release_whole
from postroom.kv.clock import Timestamp
from postroom.limits import PARTITIONS_MAX
from postroom.messaging import bulk_requests
from postroom.messaging.bulk_requests import (
    ALL_RECORDS,
    OF_NO_KEY,
    PackedColumn,
    RecordFilter,
    RecordsPage,
    ScanRecords,
)
from postroom.messaging.queues.claim_requests import EVERY_HOME, HomeSpan
from postroom.messaging.queues.queries import ListQueueMessages, QueuePage
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.partitions import RangePartition, ReadPartitions
from postroom.ranges.requests import CommittedChanges, Protect, ScanChanges, Unprotect

PART_BYTES: Final = 64 * 1024 * 1024
_MESSAGES_PER_PAGE: Final = 8192
_PAGE_BYTES: Final = 1024 * 1024
_NO_VALUES: Final = PackedColumn(b"")


class Partition(NamedTuple):
    """A part of a span, within one range.

    Attributes:
        start, end: its keys; ``end=None`` is unbounded.
        range_id: the range that holds it.
        generation: the generation of that range; a later owner of a key has a higher one.
        size_bytes: about how much it takes on the device. The newest writes may not count yet.
        readable_from: changes up to this timestamp cannot be read any more.
    """

    start: bytes
    end: bytes | None
    range_id: int
    generation: int
    size_bytes: int
    readable_from: Timestamp


class Columns(NamedTuple):
    """A page of values or changes.

    Attributes:
        rows: the number of rows.
        keys, key_ends: all keys in one piece, and where each ends: 4 bytes, the least significant
            first.
        values, value_ends: all values, in the same form; empty if they were not wanted. That of a
            deletion is empty.
        timestamps: 8 bytes each, the most significant first.
        kinds: a byte each: 1 a value, 2 a deletion, 4 an integer that ``Increment`` wrote.
    """

    rows: int
    keys: bytes
    key_ends: bytes
    values: bytes
    value_ends: bytes
    timestamps: bytes
    kinds: bytes


class Bulk:
    """Whole tables, page by page. All methods need a timestamp that is protected.

    Args:
        sender: the client's sender.
        page_bytes: about how large pages are; 0: as usual.
    """

    def __init__(self, sender: Sender, page_bytes: int = 0) -> None:
        self._sender = sender
        self._page_bytes = page_bytes or _PAGE_BYTES

    def scan(
        self,
        table: str,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        at: int,
        wanted: RecordFilter = ALL_RECORDS,
        columns: tuple[str, ...] = (),
    ) -> AsyncGenerator[RecordsPage, None]:
        """Return the pages of a table (:data:`postroom.messaging.bulk_requests.TABLES`).

        Args:
            table: the name of the table.
            start, end: the span of keys. The records that belong to no key are those of all ranges
                that it concerns, one range after the other; an outbox has none that others have
                taken.
            at: the timestamp to read at; the last one, for ``changes`` and ``reaped``.
            wanted: the records that are wanted.
            columns: the columns that are wanted; empty: all.

        Raises:
            Invalid: there is no such table, column or queue.
            SnapshotTooOld: ``at`` is collected; or it is not protected as a whole, and the table
                has no versions. For ``changes`` and ``reaped``: ``wanted.after`` is collected.
        """
        request = self._scan(table, (start, end), at, wanted, columns)
        return self._pages(request, _as_it_is)

    def records(
        self,
        table: str,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        at: int,
        wanted: RecordFilter = ALL_RECORDS,
        columns: tuple[str, ...] = (),
    ) -> AsyncGenerator[list[Any], None]:
        """Return the records of a table, a page at a time, as named tuples of its columns.

        The arguments and errors are those of :meth:`scan`.
        """
        request = self._scan(table, (start, end), at, wanted, columns)
        return self._pages(request, lambda page: bulk_requests.records(table, page))

    def columns(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        at: int,
        after: int = 0,
        changes: bool = False,
        values: bool = True,
    ) -> AsyncGenerator[Columns, None]:
        """Return the values of the keys in ``[start, end)``, or all changes, in the order of keys.

        Args:
            start, end: a span.
            at: the timestamp to read at; for changes, the last timestamp.
            after: only writes after this timestamp.
            changes: whether to return every version and deletion, the oldest of each key first;
                else the newest version of each key that had a value.
            values: whether to return values, and not only keys and timestamps.

        Raises:
            SnapshotTooOld: ``at``, or for changes ``after``, is collected.
        """
        named = () if values else ("key", "timestamp", "kind")
        table, wanted = "changes" if changes else "data", RecordFilter(int(after))
        request = self._scan(table, (start, end), at, wanted, named)
        return self._ahead(request, _following, _columns)

    def queue(
        self,
        name: str,
        state: str = "",
        *,
        at: int,
        start: int = 0,
        end: int = 0,
        homes: HomeSpan = EVERY_HOME,
    ) -> AsyncGenerator[QueuePage, None]:
        """Return the messages of a queue.

        Args:
            name: the name of the queue.
            state: ``done``, ``archived`` or ``dead``; empty: all that lived.
            at: the timestamp to read at.
            start, end: timestamps between which they ended, or were due if they lived; 0: no bound.
            homes: only those in a span of homes (:mod:`postroom.messaging.queues.homes`).

        Raises:
            Invalid: there is no queue of this name.
            SnapshotTooOld: ``at`` is collected.
        """
        first = ListQueueMessages(
            name, state, b"", int(start), int(end), _MESSAGES_PER_PAGE, _PAGE_BYTES, int(at),
            homes=homes,
        )  # fmt: skip

        def following(request: ListQueueMessages, page: QueuePage) -> ListQueueMessages | None:
            return msgspec.structs.replace(request, after=page.next) if page.next else None

        return self._ahead(first, following, _as_it_is)

    async def waiting_updates(self, *, at: int) -> AsyncGenerator[Any, None]:
        """Return the requests of the deferred updates that wait in any range to be carried out.

        Those of a range come in the order of their places.

        Args:
            at: a timestamp that is protected as a whole.

        Raises:
            SnapshotTooOld: it is not.
        """
        from postroom.client.outboxes import StoreOutboxes  # noqa: PLC0415 - seldom needed

        ranges: list[RangeInfo] = await self._sender.send(ListRanges(b"", None))
        async with aclosing(StoreOutboxes(self, ranges, at).waiting_updates()) as found:
            async for request in found:
                yield request

    async def recent_changes(
        self, start: bytes, end: bytes | None, after: int, until: int = 0
    ) -> CommittedChanges:
        """Return the first changes after a timestamp, and until when they are complete.

        They come in the order of commits. There may be more. :meth:`watch` consists of these
        requests.

        Args:
            start, end: a span.
            after: a timestamp.
            until: the last timestamp of changes that are wanted; 0: now.

        Raises:
            SnapshotTooOld: they are collected.
        """
        changes: CommittedChanges = await self._sender.send(
            ScanChanges(start, end, int(after), wait=False, until=int(until))
        )
        return changes

    def _scan(
        self,
        table: str,
        span: tuple[bytes, bytes | None],
        at: int,
        wanted: RecordFilter,
        columns: tuple[str, ...],
    ) -> ScanRecords:
        start, end = arguments.span(*span)
        return ScanRecords(table, start, end, int(at), wanted, columns, b"", self._page_bytes)

    async def _pages(
        self, request: ScanRecords, shape: Callable[[RecordsPage], Any]
    ) -> AsyncGenerator[Any, None]:
        """Return the pages of a table, those of no key range by range."""
        ranges: list[RangeInfo] = []
        if request.table in OF_NO_KEY:
            ranges = await self._sender.send(ListRanges(request.start, request.end))
        if request.table == "outbox" and len(ranges) > 1:
            from postroom.client.outboxes import StoreOutboxes  # noqa: PLC0415 - seldom needed

            scans = [StoreOutboxes(self, ranges, request.timestamp).pages(request.columns)]
        else:
            starts = [max(request.start, each.start) for each in ranges] or [request.start]
            parts = [msgspec.structs.replace(request, start=each) for each in starts]
            scans = [self._ahead(each, _following, _as_it_is) for each in parts]
        for scan in scans:
            async with aclosing(scan) as pages:
                async for page in pages:
                    yield shape(page)

    async def _ahead(
        self, request: Any, following: Callable[[Any, Any], Any], shape: Callable[[Any], Any]
    ) -> AsyncGenerator[Any, None]:
        """Return the answers to a request and to those that follow, each sent one page ahead.

        Args:
            request: the first request.
            following: a function that returns the request after one and its answer, or ``None``.
            shape: a function that returns what the caller gets of an answer.
        """
        answer = self._sender.send(request)
        while request is not None:
            page = await answer
            request = following(request, page)
            if request is not None:
                answer = self._sender.send(request)
            yield shape(page)


def _following(request: ScanRecords, page: RecordsPage) -> ScanRecords | None:
    if page.resume is None:
        return None
    return msgspec.structs.replace(request, cursor=page.resume)


def _as_it_is(page: Any) -> Any:
    return page


def _columns(page: RecordsPage) -> Columns:
    key, value = page.columns["key"], page.columns.get("value", _NO_VALUES)
    stamps, kinds = page.columns["timestamp"].data, page.columns["kind"].data
    return Columns(page.rows, key.data, key.ends, value.data, value.ends, stamps, kinds)


class BulkOfDatabase:
    """The calls of a database for programs that read, write or copy all of it; for asyncio."""

    _sender: Sender

    @property
    def bulk(self) -> Bulk:
        """Return the calls that read whole tables, page by page.

        For layers on top.
        """
        return Bulk(self._sender)

    @property
    def staging(self) -> StagingCalls:
        """Return the calls for staged batches and bulk loads.

        For layers on top.
        """
        return StagingCalls(self._sender)

    @property
    def images(self) -> ImageCalls:
        """Return the calls that restore and count images.

        For layers on top.
        """
        return ImageCalls(self._sender)

    async def partitions(
        self, start: bytes = b"", end: bytes | None = None, *, part_bytes: int = PART_BYTES
    ) -> list[Partition]:
        """Return the span in parts, each within one range, in order and without gaps.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            part_bytes: about how much a part takes on the device; 1,024 parts at most, and one more
                for each range.
        """
        start, end = arguments.span(start, end)
        request = ReadPartitions(start, end, arguments.count(part_bytes, "part_bytes", 1))
        found: list[RangePartition] = await self._sender.send(request)
        if len(found) > PARTITIONS_MAX:  # each range is cut for itself
            least = sum(each.size_bytes for each in found) // PARTITIONS_MAX
            request = msgspec.structs.replace(request, part_bytes=max(part_bytes, least))
            found = await self._sender.send(request)
        return [
            Partition(
                each.start, each.end, each.range_id, each.generation, each.size_bytes,
                Timestamp(each.readable_from),
            )
            for each in found
        ]  # fmt: skip

    @asynccontextmanager
    async def hold(
        self, at: int | None = None, *, whole: bool = False
    ) -> AsyncGenerator[Timestamp, None]:
        """Keep a timestamp readable within a block, also for other processes.

        It is ``with db.hold() as at``, and with asyncio ``async with db.hold() as at``. The
        protection ends with the block, or 5 seconds after the store has last heard of this
        process.

        Args:
            at: the timestamp; ``None``: now.
            whole: whether to include outboxes, dead letters and accounting sums, which have no
                versions. This holds back the compaction of the store, is possible only for now, and
                ends when another node becomes the leader.

        Returns:
            A context manager, which gives the timestamp.

        Raises:
            SnapshotTooOld: ``at`` is collected already.
            Unavailable: too many timestamps are protected as a whole, or transactions over several
                ranges were under way whenever it was tried; or it was done so often, with several
                ranges, that the clock is 10 seconds ahead.
            Invalid: this client has as many of these as are left for others.
        """
        if whole and at is None:
            timestamp = await protect_whole(self._sender)
        else:
            request = Protect(0 if at is None else arguments.timestamp(at), whole)
            timestamp = await self._sender.send(request)
        try:
            yield Timestamp(timestamp)
        finally:
            if whole:
                release_whole(self._sender, timestamp)
            else:
                post(self._sender, Unprotect(timestamp))
