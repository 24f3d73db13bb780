"""The synchronous form of :mod:`postroom.client.bulk`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from postroom.client import bulk as asynchronous
from postroom.client.bulk import PART_BYTES, Partition
from postroom.client.sender import BlockingSender
from postroom.client.sync_iteration import iterate
from postroom.kv.clock import Timestamp
from postroom.messaging.bulk_requests import InboxesPage, LettersPage, OutboxPage, ReapedPage
from postroom.messaging.queues.queries import QueuePage
from postroom.messaging.recount_requests import (
    BesidePage,
    CountersPage,
    InboxIndexPage,
    PlacesPage,
)
from postroom.ranges.bulk_requests import AccountingPage, Columns
from postroom.ranges.requests import Changes


class Bulk:
    """Whole tables, page by page. All methods want a timestamp that is protected."""

    def __init__(self, sender: BlockingSender) -> None:
        self._sender = sender
        self._core = asynchronous.Bulk(sender)

    def columns(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        at: int,
        after: int = 0,
        changes: bool = False,
        values: bool = True,
    ) -> Iterator[Columns]:
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
        found = self._core.columns(start, end, at=at, after=after, changes=changes, values=values)
        return iterate(self._sender, found)

    def inboxes(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> Iterator[InboxesPage]:
        """The messages that were in the inboxes of the keys in ``[start, end)``.

        Raises:
            SnapshotTooOld: ``at`` is collected.
        """
        return iterate(self._sender, self._core.inboxes(start, end, at=at))

    def reaped(
        self, start: bytes = b"", end: bytes | None = None, *, at: int, after: int
    ) -> Iterator[ReapedPage]:
        """The messages that left the inboxes of the keys in ``[start, end)``, in order of keys:
        those that were consumed, postponed or buried.

        Args:
            start, end: a span.
            at: up to when.
            after: only what left them after this timestamp.

        Raises:
            SnapshotTooOld: ``after`` is collected, and what left the inboxes right after it.
        """
        return iterate(self._sender, self._core.reaped(start, end, at=at, after=after))

    def outbox(self, *, at: int) -> Iterator[OutboxPage]:
        """The messages and updates that waited to be delivered or carried out.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return iterate(self._sender, self._core.outbox(at=at))

    def dead_letters(self, *, at: int) -> Iterator[LettersPage]:
        """The messages and updates that could not be delivered or carried out.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return iterate(self._sender, self._core.dead_letters(at=at))

    def accounting(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> Iterator[AccountingPage]:
        """The sums of all prefixes in ``[start, end)``.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return iterate(self._sender, self._core.accounting(start, end, at=at))

    def queue(
        self, name: str, state: str = "", *, at: int, start: int = 0, end: int = 0
    ) -> Iterator[QueuePage]:
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
        return iterate(self._sender, self._core.queue(name, state, at=at, start=start, end=end))

    def counters(self, *, at: int) -> Iterator[CountersPage]:
        """What the store has counted: of each range, and of each queue in it.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return iterate(self._sender, self._core.counters(at=at))

    def inbox_index(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> Iterator[InboxIndexPage]:
        """The index of inboxes of the keys in ``[start, end)``.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return iterate(self._sender, self._core.inbox_index(start, end, at=at))

    def places(self, queue: str = "", *, at: int) -> Iterator[PlacesPage]:
        """Where messages were, without what they say.

        Args:
            queue: its name; empty: what was in outboxes, and dead letters.
            at: as of when.

        Raises:
            Invalid: there was no queue of this name.
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return iterate(self._sender, self._core.places(queue, at=at))

    def beside(
        self, start: bytes = b"", end: bytes | None = None, *, at: int
    ) -> Iterator[BesidePage]:
        """What lay beside the keys in ``[start, end)``: messages, without what they say, and sums.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return iterate(self._sender, self._core.beside(start, end, at=at))

    def recent_changes(self, start: bytes, end: bytes | None, after: int) -> Changes:
        """The first changes after a timestamp, in the order of commits, and up to when they are
        complete. There may be more.

        Raises:
            SnapshotTooOld: they are collected.
        """
        return self._sender.run(self._core.recent_changes(start, end, after))


class BulkOfDatabase:
    """What a database offers to those who read all of it."""

    def __init__(self, sender: BlockingSender, core: asynchronous.BulkOfDatabase) -> None:
        self._bulk_sender = sender
        self._bulk_core = core

    @property
    def bulk(self) -> Bulk:
        """Whole tables, page by page."""
        return Bulk(self._bulk_sender)

    def partitions(
        self, start: bytes = b"", end: bytes | None = None, *, part_bytes: int = PART_BYTES
    ) -> list[Partition]:
        """How the span falls into ranges, and large ranges into parts, in order and without gaps.

        Args:
            start: first key.
            end: first key beyond the span; ``None``: no bound.
            part_bytes: about how much a part takes on the device; 1,024 parts at most.
        """
        return self._bulk_sender.run(self._bulk_core.partitions(start, end, part_bytes=part_bytes))

    @contextmanager
    def hold(self, at: int | None = None, *, whole: bool = False) -> Iterator[Timestamp]:
        """Keeps a timestamp readable, also for other processes: ``with db.hold() as at``.

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
        manager = self._bulk_core.hold(at, whole=whole)
        moment = self._bulk_sender.run(manager.__aenter__())
        try:
            yield moment
        finally:
            self._bulk_sender.run(manager.__aexit__(None, None, None))


__all__ = ["Bulk", "BulkOfDatabase"]
