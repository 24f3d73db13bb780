"""The synchronous forms of the parts of a database: see :mod:`postroom.client.sync`."""

from __future__ import annotations

from typing import Self

from postroom.client import access, administration, images, pages, staging
from postroom.client import bulk as bulk_calls
from postroom.client.blocking import SyncForm, blocking, entering, iterating, owning
from postroom.client.queues.sync_queue import Queue
from postroom.client.sender import BlockingSender
from postroom.kv.clock import Timestamp


class Administration:
    """An open store, as its operator sees it."""

    _blocking: BlockingSender
    _core: administration.Administration

    # --- queues

    create_queue = owning(administration.Administration.create_queue, Queue)

    def queue(self, name: str) -> Queue:
        """Return the queue of that name.

        The store is not asked: if there is no such queue, the first call raises ``Invalid``.

        Args:
            name: its name.
        """
        return Queue(self._blocking, self._core.queue(name))

    queues = blocking(administration.Administration.queues)

    # --- waiting messages and updates

    inboxes = blocking(administration.Administration.inboxes)
    dead_letters = blocking(administration.Administration.dead_letters)
    replay = blocking(administration.Administration.replay)
    discard = blocking(administration.Administration.discard)
    scheduled = blocking(administration.Administration.scheduled)
    cancel = blocking(administration.Administration.cancel)
    drain = blocking(administration.Administration.drain)
    trace = blocking(administration.Administration.trace)

    # --- readers that come back later

    keep_position = blocking(administration.Administration.keep_position)
    forget_position = blocking(administration.Administration.forget_position)

    # --- the store itself

    @property
    def access(self) -> AccessCalls:
        """Return the calls that grant and revoke rights of clients, and read the audit log.

        For layers on top.
        """
        return AccessCalls(self._blocking, self._core.access)

    ranges = blocking(administration.Administration.ranges)
    move_lease = blocking(administration.Administration.move_lease)
    configure_ranges = blocking(administration.Administration.configure_ranges)
    settings = blocking(administration.Administration.settings)
    change_setting = blocking(administration.Administration.change_setting)
    split = blocking(administration.Administration.split)
    status = blocking(administration.Administration.status)
    close = blocking(administration.Administration.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AccessCalls(SyncForm[access.AccessCalls]):
    """The grants of one store, and its audit log: ``db.access``."""

    grant = blocking(access.AccessCalls.grant)
    revoke = blocking(access.AccessCalls.revoke)
    grants = blocking(access.AccessCalls.grants)
    audit_log = blocking(access.AccessCalls.audit_log)
    note = blocking(access.AccessCalls.note)


class Bulk(SyncForm[bulk_calls.Bulk]):
    """Whole tables, page by page. All methods need a timestamp that is protected."""

    scan = iterating(bulk_calls.Bulk.scan)
    records = iterating(bulk_calls.Bulk.records)
    columns = iterating(bulk_calls.Bulk.columns)
    queue = iterating(bulk_calls.Bulk.queue)
    waiting_updates = iterating(bulk_calls.Bulk.waiting_updates)
    recent_changes = blocking(bulk_calls.Bulk.recent_changes)


class Restore(SyncForm[images.Restore]):
    """One run of a restore."""

    send = blocking(images.Restore.send)
    flush = blocking(images.Restore.flush)
    end_part = blocking(images.Restore.end_part)
    end = blocking(images.Restore.end)


def _own_restore(sender: BlockingSender, core: images.Restore | None) -> Restore | None:
    return None if core is None else Restore(sender, core)


class ImageCalls(SyncForm[images.ImageCalls]):
    """The restores and counts of one store: ``db.images``."""

    begin = owning(images.ImageCalls.begin, _own_restore)

    def of_run(self, run: bytes) -> Restore:
        """Return an object for the same run, for another task."""
        return Restore(self._blocking, self._core.of_run(run))

    abandon = blocking(images.ImageCalls.abandon)
    read = blocking(images.ImageCalls.read)
    check = blocking(images.ImageCalls.check)


class Snapshot(SyncForm[pages.Snapshot]):
    """Reads at one timestamp, protected from garbage collection while the snapshot is open.

    All its methods may raise ``WrongType``: the codec cannot unpack a stored value. They may raise
    ``SnapshotTooOld``: the leaseholder's memory was lost for so long that the versions were
    collected.
    """

    @property
    def timestamp(self) -> Timestamp:
        """Return the timestamp at which it reads."""
        return self._core.timestamp

    get = blocking(pages.Snapshot.get)
    get_many = blocking(pages.Snapshot.get_many)
    scan = iterating(pages.Snapshot.scan)
    peek = blocking(pages.Snapshot.peek)


class ChunkStream(SyncForm[staging.ChunkStream]):
    """A stream of requests that are sent one after the other, several under way at a time."""

    @property
    def is_late(self) -> bool:
        """Return whether the batch that a chunk was staged for is published already."""
        return self._core.is_late

    send = blocking(staging.ChunkStream.send)
    flush = blocking(staging.ChunkStream.flush)


class StagingCalls(SyncForm[staging.StagingCalls]):
    """The staging and bulk loads of one store: ``db.staging``."""

    def stream(self) -> ChunkStream:
        """Return a stream for many chunks."""
        return ChunkStream(self._blocking, self._core.stream())

    publish = blocking(staging.StagingCalls.publish)
    finish = blocking(staging.StagingCalls.finish)
    abort = blocking(staging.StagingCalls.abort)
    sweep = blocking(staging.StagingCalls.sweep)
    sweep_some = blocking(staging.StagingCalls.sweep_some)
    forget = blocking(staging.StagingCalls.forget)
    read = blocking(staging.StagingCalls.read)
    last = blocking(staging.StagingCalls.last)
    prepare_load = blocking(staging.StagingCalls.prepare_load)
    begin_load = blocking(staging.StagingCalls.begin_load)
    end_load = blocking(staging.StagingCalls.end_load)


class BulkOfDatabase:
    """The calls of a database for programs that read, write or copy all of it."""

    _blocking: BlockingSender
    _core: bulk_calls.BulkOfDatabase

    @property
    def bulk(self) -> Bulk:
        """Return the calls that read whole tables, page by page.

        For layers on top.
        """
        return Bulk(self._blocking, self._core.bulk)

    @property
    def staging(self) -> StagingCalls:
        """Return the calls for staged batches and bulk loads.

        For layers on top.
        """
        return StagingCalls(self._blocking, self._core.staging)

    @property
    def images(self) -> ImageCalls:
        """Return the calls that restore and count images.

        For layers on top.
        """
        return ImageCalls(self._blocking, self._core.images)

    partitions = blocking(bulk_calls.BulkOfDatabase.partitions)

    hold = entering(bulk_calls.BulkOfDatabase.hold)
