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
    RangePartition,
    ReadPartitions,
    ScanAccounting,
    ScanColumns,
)
from postroom.ranges.requests import CommittedChanges, Protect, ScanChanges, Unprotect

PART_BYTES: Final = 64 * 1024 * 1024
_MESSAGES_PER_PAGE: Final = 8192
_PAGE_BYTES: Final = 1024 * 1024


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


class Bulk:
    """Whole tables, page by page. All methods need a timestamp that is protected."""

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
        """Return the messages that were in the inboxes of the keys in ``[start, end)``.

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
        """Return the messages that left the inboxes of the keys in ``[start, end)``.

        They were consumed, postponed or buried. They come in the order of keys.

        Args:
            start, end: a span.
            at: the last timestamp.
            after: only messages that left them after this timestamp.

        Raises:
            SnapshotTooOld: ``after`` is collected, and the messages that left right after it.
        """
        start, end = arguments.span(start, end)
        first = ScanReaped(start, end, int(at), int(after), b"", _PAGE_BYTES)

        def following(page: ReapedPage) -> ScanReaped | None:
            if page.resume is None:
                return None
            return msgspec.structs.replace(first, resume=page.resume)

        return self._ahead(first, following)

    def outbox(self, *, at: int) -> AsyncGenerator[OutboxPage, None]:
        """Return the messages and updates that waited to be delivered or carried out.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return self._ahead(
            ScanOutbox(int(at), b"", _PAGE_BYTES),
            lambda page: page.resume and ScanOutbox(int(at), page.resume, _PAGE_BYTES),
        )

    def dead_letters(self, *, at: int) -> AsyncGenerator[LettersPage, None]:
        """Return the messages and updates that could not be delivered or carried out.

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
        """Return the sums of all prefixes in ``[start, end)``.

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
        """Return the messages of a queue.

        Args:
            name: the name of the queue.
            state: ``done``, ``archived`` or ``dead``; empty: all that lived.
            at: the timestamp to read at.
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
        """Return the counters of the store: those of each range, and of each queue in it.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return self._ahead(
            ScanCounters(int(at)), lambda page: page.resume and ScanCounters(int(at), page.resume)
        )

    def inbox_index(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> AsyncGenerator[InboxIndexPage, None]:
        """Return the index of inboxes of the keys in ``[start, end)``.

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
        """Return where messages were, without their contents.

        Args:
            queue: its name; empty: messages in outboxes, and dead letters.
            at: the timestamp to read at.

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
        """Return the records beside the keys in ``[start, end)``: messages without contents, sums.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        start, end = arguments.span(start, end)
        first = ScanBeside(start, end, int(at), b"", _PAGE_BYTES)
        return self._ahead(
            first, lambda page: page.resume and msgspec.structs.replace(first, after=page.resume)
        )

    async def recent_changes(self, start: bytes, end: bytes | None, after: int) -> CommittedChanges:
        """Return the first changes after a timestamp, and until when they are complete.

        They come in the order of commits. There may be more. :meth:`watch` consists of these
        requests.

        Raises:
            SnapshotTooOld: they are collected.
        """
        changes: CommittedChanges = await self._sender.send(
            ScanChanges(start, end, int(after), wait=False)
        )
        return changes

    async def _ahead(
        self, first: Any, following: Callable[[Any], Any]
    ) -> AsyncGenerator[Any, None]:
        """Return the answers to ``first`` and the later requests, each sent one page ahead."""
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
    """The calls of a database for programs that read all of it, in the asyncio form."""

    _sender: Sender

    @property
    def bulk(self) -> Bulk:
        """Return the calls that read whole tables, page by page.

        For layers on top.
        """
        return Bulk(self._sender)

    async def partitions(
        self, start: bytes = b"", end: bytes | None = None, *, part_bytes: int = PART_BYTES
    ) -> list[Partition]:
        """Return the span in parts, each within one range, in order and without gaps.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            part_bytes: about how much a part takes on the device; 1,024 parts at most.
        """
        start, end = arguments.span(start, end)
        request = ReadPartitions(start, end, arguments.count(part_bytes, "part_bytes", 1))
        found: list[RangePartition] = await self._sender.send(request)
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
        """Keep a timestamp readable, also for other processes: ``async with db.hold() as at``.

        The protection ends with the block, or 5 seconds after the store has last heard of this
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
