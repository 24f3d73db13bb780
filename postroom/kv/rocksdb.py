"""The engine on RocksDB: for Pythons that LevelDB's package has no wheels for, or by choice.

A write set becomes one RocksDB batch: it is appended to the log, then put into the memtable, then
the log is synced, if asked for. A full memtable becomes a table file, and the log starts anew::

    write ─▶ log, memtable ─▶ (flush_wal: sync) ─▶ … ─▶ full: sync, then flush ─▶ table file
                                                             └─ the next write begins a new log

RocksDB 9.8 and rocksdict 0.3 were tried. By themselves they do not keep all promises of the port:

* **Damage.** ``tolerate_corrupted_tail_records`` is what LevelDB does with ``paranoid_checks``: a
  log may end in the middle of a record, and anything else that is wrong in it refuses to open. The
  default, ``point_in_time``, silently drops everything behind damage, synced or not, and
  ``absolute_consistency`` does not open after most crashes. The format of the log is LevelDB's too,
  so :mod:`.leveldb_files` tells a torn end from damage here as well. Checksums of blocks are
  verified as they are read.
* **A new log is started without syncing the old one**, as in LevelDB, and the mode above does not
  look for the hole. RocksDB is therefore never left to start one. Its memtable may grow to four
  times what we fill it with, and we sync the log and flush the memtable ourselves. While a
  compaction runs, which may start a log too, each write is synced.
* **``write`` keeps the interpreter's lock**, with ``sync`` for as long as the device takes.
  ``flush_wal`` releases it, and syncs just as much, so that is how we sync.
* **Snapshots** of rocksdict read as of their time by key, but iterate over the present (0.3.29). An
  iterator sees the moment in which it was made, so here one iterator is the snapshot.
* **Bounds** of iterators: the lower one is taken for the upper one (0.3.29), and the upper one is
  a pointer to memory that may have been freed. We compare keys ourselves.
* **Open iterators keep the database open**, and the folder locked, after ``close``. All of them are
  therefore closed first.
* **Options** that a former opening stored take precedence over those given, unless these are also
  given for the column family ``default``.
* **Errors** are plain ``Exception``, with RocksDB's message. Nothing else raises just that.
* **Blocks** of a mapped file that are not compressed are read where they are, without a copy or a
  place in the cache, as in LevelDB. A read at a random key takes two thirds of the time.
* **Sizes**: rocksdict does not hand on RocksDB's estimate. It is made of the table files' spans.

Left out: repair. Errors of ``compact``: rocksdict does not report them; the next write does.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import rocksdict

from postroom.errors import Invalid
from postroom.kv.engine import DEFAULT_BUDGET, Budget, TableFiles, WriteSet, in_slices
from postroom.kv.engine_folder import (
    BLOOM_BITS_PER_KEY,
    ENTRY_OVERHEAD_BYTES,
    FolderEngine,
    OpenFolder,
    closed,
    closed_if_it_fails,
    descriptors_for_tables,
    fitting_write_buffer,
    table_bytes,
)
from postroom.kv.folder import explain, newest_log, reason, sync_path, unreadable
from postroom.kv.leveldb_files import cut_torn_end
from postroom.kv.rocksdb_cursor import Cursor, is_rocksdb
from postroom.kv.span_size import covered

GROWTH_A_LEVEL: Final = 2
"""Table files of each level are so many times as large as those of the level above."""

BLOCK_BYTES: Final = 2048
"""A read verifies the checksum of a block: half the usual size makes it a tenth faster."""

SMALL_DEVICE_BYTES: Final = 4 * 1024 * 1024 * 1024
SMALL_LEVEL_BYTES: Final = 16 * 1024 * 1024
"""The size of a level on a device of less than ``SMALL_DEVICE_BYTES``, as in LevelDB.

A compaction writes as much as it reads before it gives room back. By default that may be all of a
store of 256 MiB.
"""

SPARE_FACTOR: Final = 4
"""RocksDB's memtable may contain so much more than we put in: it must never be full by itself."""

PREALLOCATED_BYTES: Final = 1024 * 1024
"""The space that a file takes ahead of its writes, if RocksDB was built for that.

Its wheels for Linux were not. A log would take 70 MB at once.
"""

INFO_LOG_BYTES: Final = 1024 * 1024
INFO_LOGS_KEPT: Final = 2


class RocksDBSnapshot:
    """A snapshot of a :class:`RocksDBEngine`."""

    def __init__(self, cursor: Cursor) -> None:
        """Take a cursor; only :meth:`RocksDBEngine.snapshot` calls this."""
        self._cursor = cursor

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of ``key``, or ``None``."""
        found = self._cursor.page(key, key + b"\x00", 1, reverse=False)
        return found[0][1] if found else None

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span."""
        return self._cursor.pairs(lower, upper, reverse=reverse)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._cursor.close()


class RocksDBEngine(FolderEngine):
    """One open folder. Make it with :meth:`open`.

    After ``close`` everything but ``close`` raises ``RuntimeError``. Iterators and snapshots may be
    open then (they end with the same error), but no other thread may be inside a read.
    """

    def __init__(
        self, db: rocksdict.Rdict, folder: OpenFolder, write_buffer_bytes: int, tables_open_max: int
    ) -> None:
        """Take an open database; only :meth:`open` calls this."""
        super().__init__(folder, write_buffer_bytes, tables_open_max)
        self._db = db
        self._memtable_bytes = 0
        self._compactions = 0
        self._compaction = threading.Lock()  # taken before the next one, if both are
        self._cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._is_open = True

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        create: bool = True,
        budget: Budget = DEFAULT_BUDGET,
        write_buffer_bytes: int | None = None,
        replays: bool = False,
    ) -> RocksDBEngine:
        """Open the folder ``path``; with ``create``, make it if there is none.

        Args:
            path: the folder.
            create: whether it may be missing.
            budget: of memory.
            write_buffer_bytes: of the memtable; ``None``: as the budget says.
            replays: there is another log, from which whoever opens this brings it up to date, and
                which tells how far it must have come: the newest log is cut off where it cannot be
                read any more.

        Raises:
            StoreLocked: it is open already, in the process that the message names.
            StoreCorrupted: it is damaged, or contains no store and ``create`` is false.
            VersionMismatch: another engine wrote it.
            AccessDenied: it cannot be written, or is no folder.
            Unavailable: the device is full.
            Invalid: the path is not UTF-8.
        """
        _check_text(path)
        tables_open_max = descriptors_for_tables()
        folder = OpenFolder(path, "rocksdb", create=create)
        with folder.opening():
            write_buffer_bytes = write_buffer_bytes or fitting_write_buffer(
                budget.write_buffer_bytes, folder.device_bytes()
            )
            options = _options(write_buffer_bytes, budget.blocks_bytes, tables_open_max)
            options.set_target_file_size_base(table_bytes(folder.path))
            if folder.device_bytes() < SMALL_DEVICE_BYTES:
                _compact_in_small_steps(options)
            db = _open_database(folder.path, options, replays=replays)
            with closed_if_it_fails(db):
                sync_path(folder.path)
        return cls(db, folder, write_buffer_bytes, tables_open_max)

    @classmethod
    def open_to_read(cls, path: Path, *, budget: Budget = DEFAULT_BUDGET) -> RocksDBEngine:
        """Open the folder ``path``, whose device is full: every write raises ``EngineFull``.

        Raises:
            StoreLocked, StoreCorrupted, VersionMismatch, AccessDenied, Unavailable: as ``open``.
        """
        tables_open_max = descriptors_for_tables()
        folder = OpenFolder(path, "rocksdb", create=False)
        with folder.opening():
            options = _options(budget.write_buffer_bytes, budget.blocks_bytes, tables_open_max)
            options.create_if_missing(False)
            access = rocksdict.AccessType.read_only(False)
            db = _open_database(folder.path, options, replays=False, access=access)
        folder.only_read()
        return cls(db, folder, budget.write_buffer_bytes, tables_open_max)

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of ``key``, or ``None``."""
        try:
            value: bytes | None = self._db.get(key)
        except rocksdict.DbClosedError as error:
            raise closed() from error
        except Exception as error:
            if not is_rocksdb(error):
                raise
            raise unreadable(self._open_folder.path, reason(error)) from error
        return value

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span."""
        return self._cursor("engine").pairs(lower, upper, reverse=reverse)

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        """Write ``writes``; while a compaction runs it is synced without being asked."""
        self._write_batch(*_batch(writes), sync=sync)

    def prepare(
        self, writes: WriteSet, pause: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Prepare a write, and return the function that carries it out."""
        self._open_folder.check_writable()
        return partial(self._write_batch, *_batch(writes, pause), sync=False)

    def _write_batch(self, batch: rocksdict.WriteBatch, size: int, *, sync: bool) -> None:
        with self._one_at_a_time:
            self._require_open()
            self._open_folder.check_writable()
            with self._failing():
                self._make_room(size)
                self._memtable_bytes += size
                self._db.write(batch)
                if sync or self._compactions:
                    self._db.flush_wal(sync=True)

    def sync(self) -> None:
        """Make durable what was written; older logs were synced before the newest was begun."""
        self._open_folder.check_writable()
        with self._failing():
            self._db.flush_wal(sync=True)

    def snapshot(self) -> RocksDBSnapshot:
        """Return the engine as it is now."""
        return RocksDBSnapshot(self._cursor("snapshot"))

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return about how many bytes a span takes in tables; the memtable does not count."""
        self._require_open()
        if lower >= upper:
            return 0
        span = (lower, upper)
        size = 0.0
        for file in self._db.live_files():
            size += file["size"] * covered(span, file["start_key"], file["end_key"])
        return round(size)

    def unflushed_bytes(self) -> int:
        """Return how many bytes are in no table yet."""
        return self._memtable_bytes

    def disk_bytes(self) -> int:
        """Return how many bytes the tables take, and about how many are in the memtable."""
        self._require_open()
        tables: int = sum(file["size"] for file in self._db.live_files())
        return tables + self._memtable_bytes

    def table_files(self) -> TableFiles:
        """Return the number of table files, and how many may be open."""
        self._require_open()
        return TableFiles("rocksdb", len(self._db.live_files()), self._tables_open_max)

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Compact a span. May run in a thread of its own, beside reads and writes."""
        self._require_open()
        if lower >= upper:
            return
        how = rocksdict.CompactOptions()
        how.set_exclusive_manual_compaction(False)
        how.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force_optimized())
        with self._compaction, self._compacting():
            self._db.compact_range(lower, upper, how)

    def close(self) -> None:
        """Write the memtable to a table file, so that opening has no log to read; let go.

        A compaction that is under way is waited for.
        """
        with self._compaction, self._one_at_a_time:
            if not self._is_open:
                return
            self._is_open = False
            with contextlib.ExitStack() as last:  # each of them, whatever becomes of the others
                last.callback(self._open_folder.release)
                last.callback(self._let_go)
                if self._memtable_bytes and not self._open_folder.failed:
                    with self._failing():
                        self._flush(wait=True)

    def _cursor(self, what: str) -> Cursor:
        try:
            cursor = Cursor(self._db.iter(), self._open_folder.path, what)
        except rocksdict.DbClosedError as error:
            raise closed() from error
        self._cursors.add(cursor)
        return cursor

    def _require_open(self) -> None:
        if not self._is_open:
            raise closed()

    def _make_room(self, size: int) -> None:
        """Begin a new memtable, and with it a new log, if a write of ``size`` is too much."""
        if self._memtable_bytes and self._memtable_bytes + size > self._write_buffer_bytes:
            self._flush(wait=False)

    def _flush(self, *, wait: bool) -> None:
        """Sync the log, then have a table file made of the memtable, and begin a new log.

        It waits if the memtable before this one has not been written yet.
        """
        self._db.flush_wal(sync=True)
        self._db.flush(wait)
        self._memtable_bytes = 0

    @contextlib.contextmanager
    def _compacting(self) -> Iterator[None]:
        """Sync all writes before a compaction, and each write beside it: it may begin a new log."""
        with self._one_at_a_time:
            self._require_open()
            self._open_folder.check_writable()
            with self._failing():
                self._flush(wait=False)  # the compaction waits for it, and keeps nobody waiting
            self._compactions += 1
        try:
            yield
        finally:
            with self._one_at_a_time:
                self._compactions -= 1

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Note that the device has refused something: nothing is written after that."""
        try:
            yield
        except Exception as error:
            if not (is_rocksdb(error) or isinstance(error, OSError)):
                raise
            raise self._open_folder.failure(error) from error

    def _let_go(self) -> None:
        """Close the database; rocksdict flushes once more, which is in vain after a failure."""
        for cursor in list(self._cursors):
            cursor.close()
        try:
            self._db.close()
        except Exception as error:
            if not is_rocksdb(error):
                raise
            if not self._open_folder.failed:
                raise self._open_folder.failure(error) from error


def _batch(
    writes: WriteSet, pause: Callable[[], None] | None = None
) -> tuple[rocksdict.WriteBatch, int]:
    """Return the batch that makes ``writes``, and what it takes in a memtable, in bytes."""
    batch = rocksdict.WriteBatch(raw_mode=True)
    put, delete = batch.put, batch.delete
    try:
        for part in in_slices(writes, pause):
            for key, value in part.items():
                if value is None:
                    delete(key)
                else:
                    put(key, value)
    except (KeyError, ValueError) as error:  # rocksdict raises these if it is given no bytes
        raise TypeError(f"keys and values are bytes: {error}") from error
    return batch, batch.size_in_bytes() + len(writes) * ENTRY_OVERHEAD_BYTES


# --- opening --------------------------------------------------------------------------------------


def _options(write_buffer_bytes: int, blocks_bytes: int, tables_open_max: int) -> rocksdict.Options:
    tables = rocksdict.BlockBasedOptions()
    tables.set_block_cache(rocksdict.Cache(blocks_bytes))
    tables.set_block_size(BLOCK_BYTES)
    tables.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_size(SPARE_FACTOR * write_buffer_bytes)
    options.set_target_file_size_multiplier(GROWTH_A_LEVEL)
    options.set_max_open_files(tables_open_max)
    options.set_allow_mmap_reads(True)
    options.set_advise_random_on_open(False)  # or each page of a mapped file is a fault
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_log_file_size(INFO_LOG_BYTES)
    options.set_keep_log_file_num(INFO_LOGS_KEPT)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_max_total_wal_size(
        PREALLOCATED_BYTES
    )  # the log takes this much ahead, and it is alone here
    options.set_manifest_preallocation_size(PREALLOCATED_BYTES)
    return options


def _compact_in_small_steps(options: rocksdict.Options) -> None:
    options.set_max_bytes_for_level_base(SMALL_LEVEL_BYTES)
    options.set_max_compaction_bytes(2 * SMALL_LEVEL_BYTES)


def _check_text(path: Path) -> None:
    """Return the path as text, which is what rocksdict takes. Nothing has been made yet."""
    try:
        os.fsencode(path.absolute()).decode()
    except UnicodeDecodeError as error:
        raise Invalid(
            f"The path {path!a} is not UTF-8, which the engine rocksdb needs; nothing was changed: "
            "give another folder, or the engine leveldb"
        ) from error


def _open_database(
    folder: Path,
    options: rocksdict.Options,
    *,
    replays: bool,
    access: rocksdict.AccessType | None = None,
) -> rocksdict.Rdict:
    try:
        # They are the column family's, too: else those of the former opening would be taken.
        if access is not None:
            return rocksdict.Rdict(os.fspath(folder), options, {"default": options}, access)
        return rocksdict.Rdict(os.fspath(folder), options, {"default": options})
    except Exception as error:
        if not is_rocksdb(error):
            raise
        log = newest_log(folder)
        if not str(error).startswith("Corruption") or log is None or access is not None:
            raise explain(error, folder) from error
        if not cut_torn_end(log, at_any_damage=replays):
            raise explain(error, folder) from error
    return _open_database(folder, options, replays=replays)
