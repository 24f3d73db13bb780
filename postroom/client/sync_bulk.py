"""The synchronous form of :mod:`postroom.client.bulk`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from postroom.client import bulk as asynchronous
from postroom.client.blocking import blocking, iterating
from postroom.client.sender import BlockingSender
from postroom.kv.clock import Timestamp


class Bulk:
    """Whole tables, page by page. All methods need a timestamp that is protected."""

    def __init__(self, sender: BlockingSender) -> None:
        self._blocking = sender
        self._core = asynchronous.Bulk(sender)

    scan = iterating(asynchronous.Bulk.scan)
    records = iterating(asynchronous.Bulk.records)
    columns = iterating(asynchronous.Bulk.columns)
    queue = iterating(asynchronous.Bulk.queue)
    recent_changes = blocking(asynchronous.Bulk.recent_changes)


class BulkOfDatabase:
    """The calls of a database for programs that read all of it."""

    _blocking: BlockingSender
    _core: asynchronous.BulkOfDatabase

    @property
    def bulk(self) -> Bulk:
        """Return the calls that read whole tables, page by page.

        For layers on top.
        """
        return Bulk(self._blocking)

    partitions = blocking(asynchronous.BulkOfDatabase.partitions)

    @contextmanager
    def hold(self, at: int | None = None, *, whole: bool = False) -> Iterator[Timestamp]:
        """Keep a timestamp readable, also for other processes: ``with db.hold() as at``.

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
        manager = self._core.hold(at, whole=whole)
        moment = self._blocking.run(manager.__aenter__())
        try:
            yield moment
        finally:
            self._blocking.run(manager.__aexit__(None, None, None))


__all__ = ["Bulk", "BulkOfDatabase"]
