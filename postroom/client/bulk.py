"""Reading everything: parts of a span, protected timestamps, and whole tables page by page.

For programs that read all of a store, as exports and analysis do; in its asyncio form. Pages are as
the store answers them: columns of bytes, no object for each row. While a page is looked at, the
next one is on its way.

Everything is read at one timestamp, which must stay protected meanwhile (:meth:`.hold`): by whoever
reads, or by another process for it. ::

    async with db.hold() as at:
        for part in await db.partitions():
            async for page in db.bulk.columns(part.start, part.end, at=at):
                ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec

from postroom.client import arguments
from postroom.client.sender import Sender, post
from postroom.kv.clock import Timestamp
from postroom.messaging.bulk_requests import (
    InboxesPage,
    LettersPage,
    OutboxPage,
    ReapedPage,
    ScanDeadLetters,
    ScanInboxes,
    ScanOutbox,
    ScanReaped,
)
from postroom.messaging.queues.queries import ListQueueMessages, QueuePage
from postroom.messaging.recount_requests import (
    BesidePage,
    CountersPage,
    InboxIndexPage,
    PlacesPage,
    ScanBeside,
    ScanCounters,
    ScanInboxIndex,
    ScanPlaces,
)
from postroom.ranges.bulk_requests import (
    AccountingPage,
    Columns,
    ReadPartitions,
    ScanAccounting,
    ScanColumns,
)
from postroom.ranges.bulk_requests import Partition as StoredPartition
from postroom.ranges.requests import Changes, Protect, ScanChanges, Unprotect

PART_BYTES: Final = 64 * 1024 * 1024
_MESSAGES_PER_PAGE: Final = 8192
_PAGE_BYTES: Final = 1024 * 1024


class Partition(NamedTuple):
    """A part of a span, within one range.

    Attributes:
        start, end: its keys; ``end=None`` is unbounded.
        range_id: the range that holds it.
        generation: of that range; a later owner of a key has a higher one.
        size_bytes: about how much it takes on the device. What was written last may not count yet.
        readable_from: changes up to this timestamp cannot be read any more.
    """

    start: bytes
    end: bytes | None
    range_id: int
    generation: int
    size_bytes: int
    readable_from: Timestamp


class Bulk:
    """Whole tables, page by page. All methods want a timestamp that is protected."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

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
        """The values of the keys in ``[start, end)``, or all of their changes, in order of keys.

        Args:
            start, end: a span.
            at: as of when; of changes, up to when.
            after: only what was written after this timestamp.
            changes: every version and deletion, of each key the oldest first; else the newest
                version of each key that had a value.
            values: whether values are wanted, and not only keys and timestamps.

        Raises:
            SnapshotTooOld: ``at``, or of changes ``after``, is collected.
        """
        start, end = arguments.span(start, end)
        first = ScanColumns(start, end, int(at), int(after), changes, 0, values, _PAGE_BYTES)

        def following(page: Columns) -> ScanColumns | None:
            if page.resume is None:
                return None
            return msgspec.structs.replace(first, start=page.resume, first_after=page.resume_after)

        return self._ahead(first, following)

    def inboxes(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> AsyncGenerator[InboxesPage, None]:
        """The messages that were in the inboxes of the keys in ``[start, end)``.

        Raises:
            SnapshotTooOld: ``at`` is collected.
        """
        start, end = arguments.span(start, end)
        first = ScanInboxes(start, end, int(at), None, _PAGE_BYTES)

        def following(page: InboxesPage) -> ScanInboxes | None:
            if page.resume is None:
                return None
            return msgspec.structs.replace(first, start=page.resume, after=page.resume_after)

        return self._ahead(first, following)

    def reaped(
        self, start: bytes = b"", end: bytes | None = None, *, at: int, after: int
    ) -> AsyncGenerator[ReapedPage, None]:
        """The messages that left the inboxes of the keys in ``[start, end)``, in order of keys:
        those that were consumed, postponed or buried.

        Args:
            start, end: a span.
            at: up to when.
            after: only what left them after this timestamp.

        Raises:
            SnapshotTooOld: ``after`` is collected, and what left the inboxes right after it.
        """
        start, end = arguments.span(start, end)
        first = ScanReaped(start, end, int(at), int(after), b"", _PAGE_BYTES)

        def following(page: ReapedPage) -> ScanReaped | None:
            if page.resume is None:
                return None
            return msgspec.structs.replace(first, resume=page.resume)

        return self._ahead(first, following)

    def outbox(self, *, at: int) -> AsyncGenerator[OutboxPage, None]:
        """The messages and updates that waited to be delivered or carried out.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return self._ahead(
            ScanOutbox(int(at), b"", _PAGE_BYTES),
            lambda page: page.resume and ScanOutbox(int(at), page.resume, _PAGE_BYTES),
        )

    def dead_letters(self, *, at: int) -> AsyncGenerator[LettersPage, None]:
        """The messages and updates that could not be delivered or carried out.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return self._ahead(
            ScanDeadLetters(int(at), b"", _PAGE_BYTES),
            lambda page: page.resume and ScanDeadLetters(int(at), page.resume, _PAGE_BYTES),
        )

    def accounting(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> AsyncGenerator[AccountingPage, None]:
        """The sums of all prefixes in ``[start, end)``.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        start, end = arguments.span(start, end)

        def following(page: AccountingPage) -> ScanAccounting | None:
            if page.resume is None:
                return None
            return ScanAccounting(page.resume, end, int(at), _PAGE_BYTES)

        return self._ahead(ScanAccounting(start, end, int(at), _PAGE_BYTES), following)

    def queue(
        self, name: str, state: str = "", *, at: int, start: int = 0, end: int = 0
    ) -> AsyncGenerator[QueuePage, None]:
        """The messages of a queue.

        Args:
            name: of the queue.
            state: ``done``, ``archived`` or ``dead``; empty: all that lived.
            at: as of when.
            start, end: timestamps between which they ended, or were due if they lived; 0: no bound.

        Raises:
            Invalid: there is no queue of this name.
            SnapshotTooOld: ``at`` is collected.
        """
        first = ListQueueMessages(
            name, state, b"", int(start), int(end), _MESSAGES_PER_PAGE, _PAGE_BYTES, int(at)
        )
        return self._ahead(
            first, lambda page: page.next and msgspec.structs.replace(first, after=page.next)
        )

    def counters(self, *, at: int) -> AsyncGenerator[CountersPage, None]:
        """What the store has counted: of each range, and of each queue in it.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return self._ahead(
            ScanCounters(int(at)), lambda page: page.resume and ScanCounters(int(at), page.resume)
        )

    def inbox_index(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> AsyncGenerator[InboxIndexPage, None]:
        """The index of inboxes of the keys in ``[start, end)``.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        start, end = arguments.span(start, end)

        def following(page: InboxIndexPage) -> ScanInboxIndex | None:
            if page.resume is None:
                return None
            return ScanInboxIndex(page.resume, end, int(at), _PAGE_BYTES)

        return self._ahead(ScanInboxIndex(start, end, int(at), _PAGE_BYTES), following)

    def places(self, queue: str = "", *, at: int) -> AsyncGenerator[PlacesPage, None]:
        """Where messages were, without what they say.

        Args:
            queue: its name; empty: what was in outboxes, and dead letters.
            at: as of when.

        Raises:
            Invalid: there was no queue of this name.
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        first = ScanPlaces(queue, int(at), b"", _PAGE_BYTES)
        return self._ahead(
            first, lambda page: page.resume and msgspec.structs.replace(first, after=page.resume)
        )

    def beside(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> AsyncGenerator[BesidePage, None]:
        """What lay beside the keys in ``[start, end)``: messages, without what they say, and sums.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        start, end = arguments.span(start, end)
        first = ScanBeside(start, end, int(at), b"", _PAGE_BYTES)
        return self._ahead(
            first, lambda page: page.resume and msgspec.structs.replace(first, after=page.resume)
        )

    async def recent_changes(self, start: bytes, end: bytes | None, after: int) -> Changes:
        """The first changes after a timestamp, in the order of commits, and up to when they are
        complete: what :meth:`watch` is made of. There may be more.

        Raises:
            SnapshotTooOld: they are collected.
        """
        changes: Changes = await self._sender.send(ScanChanges(start, end, int(after), wait=False))
        return changes

    async def _ahead(
        self, first: Any, following: Callable[[Any], Any]
    ) -> AsyncGenerator[Any, None]:
        """The answers to ``first`` and to what follows each; the next is asked for at once."""
        answer = self._sender.send(first)
        while True:
            page = await answer
            request = following(page)
            if request:
                answer = self._sender.send(request)
            yield page
            if not request:
                return


class BulkOfDatabase:
    """What a database offers to those who read all of it, in the asyncio form."""

    _sender: Sender

    @property
    def bulk(self) -> Bulk:
        """Whole tables, page by page."""
        return Bulk(self._sender)

    async def partitions(
        self, start: bytes = b"", end: bytes | None = None, *, part_bytes: int = PART_BYTES
    ) -> list[Partition]:
        """How the span falls into ranges, and large ranges into parts, in order and without gaps.

        Args:
            start: first key.
            end: first key beyond the span; ``None``: no bound.
            part_bytes: about how much a part takes on the device; 1,024 parts at most.
        """
        start, end = arguments.span(start, end)
        request = ReadPartitions(start, end, arguments.count(part_bytes, "part_bytes", 1))
        found: list[StoredPartition] = await self._sender.send(request)
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
        """Keeps a timestamp readable, also for other processes: ``async with db.hold() as at``.

        It ends with the block, or 5 seconds after the store has last heard of this process.

        Args:
            at: the timestamp; ``None``: now.
            whole: outboxes, dead letters and accounting sums, too, which have no versions. This
                holds back the compaction of the store, is possible only for now, and ends when
                another node becomes the leader.

        Raises:
            SnapshotTooOld: ``at`` is collected already.
            Unavailable: too many timestamps are protected as a whole.
            Invalid: this client has as many of these as are left for others.
        """
        request = Protect(0 if at is None else arguments.timestamp(at), whole)
        moment: int = await self._sender.send(request)
        try:
            yield Timestamp(moment)
        finally:
            post(self._sender, Unprotect(moment))


__all__ = ["Bulk", "BulkOfDatabase", "Partition"]
