"""The engine on LevelDB: one folder, one process, one write-ahead log.

A write set becomes one LevelDB batch: it is appended to the log (and the log is synced, if asked
for), then put into the memtable. A full memtable becomes a table file, and the log starts anew.

LevelDB 1.22 and plyvel 1.5 were tried. By themselves they do not keep all promises of the port:

* **Damage.** Without ``paranoid_checks`` a flipped bit in the log silently drops up to 32 KiB of
  write sets from its middle. With it, opening fails, and so it is on. A log that ends in the middle
  of a record (a crash) opens either way and loses that record only. If it ends in pages that were
  never written (a loss of power), :mod:`postroom.kv.leveldb_files` tells. Blocks of table files are
  verified as they are read: a read of a damaged one raises. The ``Iterator`` of plyvel ends
  early, without an error, where a damaged block is the last one. Backwards it omits a lone key that
  equals the lower bound. ``RawIterator`` does neither, so it is used.
* **A new log is started without syncing the old one**, and LevelDB's sync is one of the newest log
  only. After a loss of power the end of the old log may be gone while the new one survives. Our
  syncs are therefore of all logs and the folder, and opening looks for this hole
  (:mod:`postroom.kv.leveldb_files`).
* **A manifest or a log that is cut** at the end of a record, or within the last one, opens as if
  nothing were missing. :mod:`postroom.kv.leveldb_files` checks that the logs fit together.
* **The lock** of LevelDB is lost when the same process tries to open the folder a second time
  (``close`` of any descriptor drops a POSIX lock). A second lock, on the file ``owner``, is
  therefore taken first, and also says who has it.
* **Compaction** leaves tombstones in a file that went from the memtable straight to level 2.
  ``compact`` writes both ends of the span anew, so that there is something to merge it with.
* **A failed write** may leave half a record in the log, behind which nothing must be written.
* **Blocks** of a mapped file that are not compressed are read where they are, without a copy or a
  place in the cache. Measured with a million pairs, that makes a read at a random key an eighth
  faster, and filling by a third. Tables are therefore not compressed.

Left out: repair.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import plyvel

from postroom.kv.engine import DEFAULT_BUDGET, Budget, TableFiles, WriteSet, in_slices
from postroom.kv.engine_folder import (
    BLOOM_BITS_PER_KEY,
    FolderEngine,
    OpenFolder,
    closed_if_it_fails,
    descriptors_for_tables,
    fitting_write_buffer,
    table_bytes,
)
from postroom.kv.folder import explain, newest_log, reason, sync_logs, sync_path, unreadable
from postroom.kv.leveldb_files import Shadow, check_logs, cut_damage, cut_hole, cut_torn_end

MAPPED_TABLES: Final = 1000
"""The number of table files that LevelDB maps into memory; they take no descriptor."""

OTHER_FILES: Final = 10
"""LevelDB takes these off the files that it may have open, for itself."""

BLOCK_BYTES: Final = 2048
"""A read verifies the checksum of a block: half the usual size makes it a sixth faster."""

LEVELS: Final = 7

_NOTHING: Final = b""
"""Both bounds of a span that no other key is in: compacting it only empties the memtable."""

_BEYOND_ALL: Final = b"\xff" * 9


class _LevelDBReader:
    """Reads of the database as it is now, or of a snapshot: plyvel gives both the same methods."""

    def __init__(self, source: Any, folder: Path) -> None:
        self._source = source
        self._folder = folder

    def get(self, key: bytes, /) -> bytes | None:
        try:
            value: bytes | None = self._source.get(key, verify_checksums=True)
        except plyvel.Error as error:
            raise unreadable(self._folder, reason(error)) from error
        return value

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if lower >= upper:
            return iter(())
        # Here rather than in the generator: what it sees is fixed when the iterator is made.
        source = self._source.raw_iterator(verify_checksums=True)
        pairs = _backward if reverse else _forward
        return pairs(source, lower, upper, self._folder)


class LevelDBSnapshot(_LevelDBReader):
    """A snapshot of a :class:`LevelDBEngine`."""

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._source.close()


class LevelDBEngine(FolderEngine, _LevelDBReader):
    """One open folder. Make it with :meth:`open`.

    After ``close`` everything but ``close`` raises ``RuntimeError``. Iterators and snapshots may be
    open then (they end with the same error), but no other thread may be inside a read.
    """

    def __init__(
        self, db: Any, open_folder: OpenFolder, write_buffer_bytes: int, tables_open_max: int
    ) -> None:
        """Take an open database; only :meth:`open` calls this."""
        FolderEngine.__init__(self, open_folder, write_buffer_bytes, tables_open_max)
        _LevelDBReader.__init__(self, db, open_folder.path)
        self._db = db
        self._unflushed = False
        self._shadow: Shadow | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        create: bool = True,
        budget: Budget = DEFAULT_BUDGET,
        write_buffer_bytes: int | None = None,
        replays: bool = False,
    ) -> LevelDBEngine:
        """Open the folder ``path``; with ``create``, make it if there is none.

        Args:
            path: the folder.
            create: whether it may be missing.
            budget: of memory.
            write_buffer_bytes: of the memtable; ``None``: as the budget says.
            replays: there is another log, from which whoever opens this brings it up to date, and
                which tells how far it must have come: the logs are cut off where they cannot be
                read any more. Without it, what a loss of power leaves may be refused.

        Raises:
            StoreLocked: it is open already, in the process that the message names.
            StoreCorrupted: it is damaged, or contains no store and ``create`` is false.
            VersionMismatch: another engine wrote it.
            AccessDenied: it cannot be written, or is no folder.
            Unavailable: the device is full.
        """
        tables_open_max = MAPPED_TABLES + descriptors_for_tables()
        open_folder = OpenFolder(path, "leveldb", create=create)
        with open_folder.opening():
            write_buffer_bytes = write_buffer_bytes or fitting_write_buffer(
                budget.write_buffer_bytes, open_folder.device_bytes()
            )
            db = _open_database(
                open_folder.path,
                replays,
                write_buffer_size=write_buffer_bytes,
                lru_cache_size=budget.blocks_bytes,
                max_open_files=tables_open_max + OTHER_FILES,
                max_file_size=table_bytes(open_folder.path),
            )
            with closed_if_it_fails(db):
                sync_path(open_folder.path)
        return cls(db, open_folder, write_buffer_bytes, tables_open_max)

    @classmethod
    def open_to_read(cls, path: Path, *, budget: Budget = DEFAULT_BUDGET) -> LevelDBEngine:
        """Open the folder ``path``, whose device is full: every write raises ``EngineFull``.

        LevelDB writes when it opens a folder. The engine opens a shadow of it
        (:class:`.Shadow`).

        Raises:
            StoreLocked, StoreCorrupted, VersionMismatch, AccessDenied: as :meth:`open`.
            Unavailable: there is no room for a shadow, either.
        """
        tables_open_max = MAPPED_TABLES + descriptors_for_tables()
        open_folder = OpenFolder(path, "leveldb", create=False)
        with open_folder.opening(), contextlib.ExitStack() as failing:
            shadow = Shadow(open_folder.path)
            failing.callback(shadow.remove)
            db = _open_database(
                shadow.path, replays=True,
                write_buffer_size=budget.write_buffer_bytes, lru_cache_size=budget.blocks_bytes,
                max_open_files=tables_open_max + OTHER_FILES,
            )  # fmt: skip
            failing.pop_all()
        open_folder.only_read()
        engine = cls(db, open_folder, budget.write_buffer_bytes, tables_open_max)
        engine._shadow = shadow
        return engine

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        """Write ``writes``; with ``sync``, durably, with all that was written before."""
        with self._one_at_a_time:
            self._write(writes, sync=sync)

    def prepare(
        self, writes: WriteSet, pause: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Prepare a write, and return the function that carries it out."""
        return partial(self._write_prepared, self._prepare(writes, pause))

    def _write_prepared(self, batch: Any) -> None:
        with self._one_at_a_time:
            self._write_batch(batch)

    def sync(self) -> None:
        """Make durable what was written."""
        self._open_folder.check_writable()
        with self._failing():
            sync_logs(self._open_folder.path)

    def snapshot(self) -> LevelDBSnapshot:
        """Return the engine as it is now."""
        return LevelDBSnapshot(self._db.snapshot(), self._folder)

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return about how many bytes a span takes in tables; the memtable does not count."""
        size: int = self._db.approximate_size(lower, upper) if lower < upper else 0
        return size

    def unflushed_bytes(self) -> int:
        """Return how many bytes are in the newest log."""
        log = newest_log(self._open_folder.path)
        with contextlib.suppress(FileNotFoundError):  # it has just become a table file
            return 0 if log is None else log.stat().st_size
        return 0

    def disk_bytes(self) -> int:
        """Return how many bytes tables and log take; the log has what is in the memtable."""
        return self.approximate_bytes(_NOTHING, _BEYOND_ALL) + self.unflushed_bytes()

    def table_files(self) -> TableFiles:
        """Return the number of table files, and how many may be open."""
        files = [b"leveldb.num-files-at-level%d" % level for level in range(LEVELS)]
        count = sum(int(self._db.get_property(name) or 0) for name in files)
        return TableFiles("leveldb", count, self._tables_open_max)

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Compact a span. May run in a thread of its own, beside reads and writes."""
        if lower >= upper:
            return
        with self._one_at_a_time:
            self._write({}, sync=False)  # a log that others follow is not empty: see ``cut_hole``
        self._db.compact_range(start=_NOTHING, stop=_NOTHING)
        with self._one_at_a_time:
            self._write({key: self.get(key) for key in (lower, upper)}, sync=False)
        self._db.compact_range(start=lower, stop=upper)

    def close(self) -> None:
        """Write the memtable to a table file, so that opening has no log to read; let go."""
        with self._one_at_a_time:
            if self._db.closed:
                return
            with contextlib.ExitStack() as last:
                if self._shadow is not None:
                    last.callback(self._shadow.remove)
                last.callback(self._open_folder.release)
                last.callback(self._db.close)
                if self._unflushed and not self._open_folder.failed:
                    self._flush()

    def _write(self, writes: WriteSet, *, sync: bool) -> None:
        self._write_batch(self._prepare(writes))
        if sync:
            self.sync()

    def _prepare(self, writes: WriteSet, pause: Callable[[], None] | None = None) -> Any:
        """Return a batch."""
        self._open_folder.check_writable()
        batch = self._db.write_batch()
        put, delete = batch.put, batch.delete
        for part in in_slices(writes, pause):
            for key, value in part.items():
                if value is None:
                    delete(key)
                else:
                    put(key, value)
        return batch

    def _write_batch(self, batch: Any) -> None:
        self._open_folder.check_writable()
        self._unflushed = True
        with self._failing():
            batch.write()

    def _flush(self) -> None:
        """Sync the logs, and make a table file of the memtable, at which LevelDB drops them."""
        self._write({}, sync=True)
        with self._failing():
            self._db.compact_range(start=_NOTHING, stop=_NOTHING)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Note that the device has refused something: nothing is written after that."""
        try:
            yield
        except (plyvel.Error, OSError) as error:
            raise self._open_folder.failure(error) from error


def _open_database(folder: Path, replays: bool, **options: int) -> Any:
    if replays:
        cut_hole(folder)
    else:
        check_logs(folder)
    try:
        return _try_to_open(folder, **options)
    except plyvel.CorruptionError as error:
        log = newest_log(folder)
        if not (cut_damage(folder) if replays else log is not None and cut_torn_end(log)):
            raise explain(error, folder) from error
    except plyvel.Error as error:
        raise explain(error, folder) from error
    return _open_database(folder, replays, **options)


def _try_to_open(folder: Path, **options: int) -> Any:
    return plyvel.DB(
        os.fsencode(folder),
        create_if_missing=True,
        paranoid_checks=True,
        bloom_filter_bits=BLOOM_BITS_PER_KEY,
        compression=None,
        block_size=BLOCK_BYTES,
        **options,
    )


# One generator each, not one around the other: what takes a hundred messages takes them from here.
# LevelDB's errors become ours, and the iterator is closed with the generator.


def _forward(
    source: Any, lower: bytes, upper: bytes, folder: Path
) -> Iterator[tuple[bytes, bytes]]:
    item, advance = source.item, source.next
    try:
        source.seek(lower)
        while True:
            pair = item()
            if pair[0] >= upper:
                return
            yield pair
            advance()
    except plyvel.IteratorInvalidError:  # ``item`` raises it at the end, and nowhere else
        return
    except plyvel.Error as error:
        raise unreadable(folder, reason(error)) from error
    finally:
        source.close()


def _backward(
    source: Any, lower: bytes, upper: bytes, folder: Path
) -> Iterator[tuple[bytes, bytes]]:
    item, back, valid = source.item, source.prev, source.valid
    try:
        source.seek(upper)
        if valid():
            back()
        else:
            source.seek_to_last()
        while valid():
            pair = item()
            if pair[0] < lower:
                return
            yield pair
            back()
    except plyvel.Error as error:
        raise unreadable(folder, reason(error)) from error
    finally:
        source.close()
