"""The job ``export``: everything that a store contains at one timestamp, as Parquet files.

::

    hold(whole) ── parts of the keys, and what belongs to no key ─┬─ task: entries ─┬─▶ files
                                                                  ├─ task ...       └─▶ recount
                       manifest: done ◀── equal? ── files, counters, indexes, recounts ◀──┘

Entries of several ranges become those of one (:mod:`postroom.backup.reading`), so that a restore
puts them into one range. One task joins what belongs to no key.

Records without versions (outboxes, sums, queues) are read in the snapshots that leaders keep of
their engines. A snapshot is gone with the lease, and cannot be made up. Then, and after a kill, the
export begins anew, at a later timestamp. It first removes the files of the export before.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from postroom.backup.reading import StoreReader
from postroom.backup.recount import Recount
from postroom.client.blocking import iterate
from postroom.client.bulk import PART_BYTES, Partition
from postroom.client.sync import CoreDatabase
from postroom.errors import SnapshotTooOld
from postroom.kv.clock import Timestamp
from postroom.messaging import image_entries as entries
from postroom.messaging.ingest.requests import Counted
from postroom.pipeline import connections
from postroom.pipeline.jobs.export_files import (
    Entry,
    File,
    Folder,
    Manifest,
    TableWriter,
    manifest_of,
)
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database, reached, spread
from postroom.pipeline.options import StoreAddress
from postroom.ranges.listing import RangeInfo

FILE_BYTES: Final = 64 * 1024 * 1024
BATCH_BYTES: Final = 8 * 1024 * 1024
BATCH_ROWS: Final = 65_536
BEGUN_AT_MOST: Final = 3


@dataclass(frozen=True)
class ExportResult:
    """The result of an export.

    Attributes:
        folder: the folder with the files.
        export: the id of the export.
        timestamp: the timestamp of everything in it.
        rows: the number of rows of each table.
        files: the number of files.
        bytes: the bytes of all files.
        done_before: whether it was there already, and nothing was done.
    """

    folder: str
    export: str
    timestamp: Timestamp
    rows: dict[str, int]
    files: int
    bytes: int
    done_before: bool = False


@dataclass(frozen=True)
class ExportedPartition:
    """The part that one task exports.

    Attributes:
        store: as tasks reach it.
        folder: the folder of the export.
        at: the timestamp.
        number: the number of the part.
        spans: the spans of keys, in order.
        ranges: the ranges whose entries that belong to no key are exported, too.
    """

    store: StoreAddress
    folder: str
    at: int
    number: int
    spans: tuple[tuple[bytes, bytes | None], ...] = ()
    ranges: tuple[RangeInfo, ...] = ()


class ExportedPart(msgspec.Struct, frozen=True):
    """The answer of a task that has exported a part: its files, and the recount of its entries."""

    files: list[File]
    counted: Counted


def export(
    spark: SparkSession,
    store: Mapping[str, str],
    folder: str,
    *,
    part_bytes: int = PART_BYTES,
    progress: JobProgress = SILENT,
) -> ExportResult:
    """Export a store as it is now.

    The export has values, inboxes, outboxes, dead letters, sums, queues, counters and staged rows.
    It does not have older versions.

    Args:
        spark: a session on which ``register`` was called.
        store: options of the source that say which store.
        folder: a path or a URI that this program and all tasks see. It is empty, or has files of an
            export that was killed.
        part_bytes: about how much of the store a task reads, of one range or several.
        progress: a function that is told how far it is.

    Returns:
        The export that is there now. If the folder has an export already, that one.

    Raises:
        JobFailed: the entries are not what the store's counters tell, or leaders change too often.
        Invalid: the folder has something else in it.
        Unavailable: ranges are split again and again.
    """
    target = Folder(folder)
    manifest = target.manifest()
    if manifest is not None:
        return _result(folder, manifest, done_before=True)
    for _ in range(BEGUN_AT_MOST):
        try:
            manifest = _export(spark, store, target, part_bytes, progress)
        except SnapshotTooOld:
            continue  # another node leads: its snapshot is another one
        return _result(folder, manifest, done_before=False)
    raise JobFailed(
        f"{BEGUN_AT_MOST} times the leader changed while the store was exported; there is no "
        "export: look after the nodes, and run it again"
    )


def _result(folder: str, manifest: Manifest, *, done_before: bool) -> ExportResult:
    rows = {name: table.rows for name, table in manifest.tables.items()}
    size = sum(table.bytes for table in manifest.tables.values())
    return ExportResult(
        folder, manifest.export, Timestamp(manifest.timestamp), rows, len(manifest.files), size,
        done_before,
    )  # fmt: skip


def _export(
    spark: SparkSession,
    store: Mapping[str, str],
    target: Folder,
    part_bytes: int,
    progress: JobProgress,
) -> Manifest:
    name = uuid.uuid4().hex
    target.begin(name)
    with database(spark, store) as db, db.hold(whole=True) as at:
        ranges = db.ranges()
        partitions = planned(db, reached(spark, store), target.path, int(at), part_bytes, ranges)
        said = spread(spark, export_partition, partitions, "exporting parts", progress)
    parts = [msgspec.json.decode(each, type=ExportedPart) for each in said]
    files = [file for part in parts for file in part.files]
    manifest = manifest_of(name, int(at), sorted(each.id for each in ranges), files)
    check_counts(together([part.counted for part in parts]), manifest)
    target.commit(manifest)
    return manifest


def planned(
    db: CoreDatabase,
    store: StoreAddress,
    folder: str,
    at: int,
    part_bytes: int,
    ranges: list[RangeInfo],
) -> list[ExportedPartition]:
    """Return the parts for the tasks: the entries of no key, and parts of the keys."""
    groups = _grouped(db.partitions(part_bytes=part_bytes), part_bytes)
    of_keys = [
        ExportedPartition(
            store, folder, at, number, tuple((each.start, each.end) for each in group)
        )
        for number, group in enumerate(groups, 1)
    ]
    return [ExportedPartition(store, folder, at, 0, ranges=tuple(ranges)), *of_keys]


def _grouped(parts: list[Partition], part_bytes: int) -> Iterator[list[Partition]]:
    """Return parts of keys, small neighbours together."""
    group: list[Partition] = []
    size = 0
    for each in parts:
        if group and size + each.size_bytes > part_bytes:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.size_bytes
    yield group


def together(every: list[Counted]) -> Counted:
    """Return the recounts of all parts as one."""
    tables: Counter[str] = Counter()
    for each in every:
        tables.update(each.tables)
    return Counted(dict(tables), [wrong for each in every for wrong in each.wrong])


def check_counts(counted: Counted, manifest: Manifest) -> None:
    """Check that the files have the entries that were counted, and that the store's counts are so.

    Args:
        counted: the recount of the entries.
        manifest: the manifest of the files.

    Raises:
        JobFailed: the files or the counts are wrong.
    """
    wrong = list(counted.wrong)
    for name, table in manifest.tables.items():
        there = counted.tables.get(name, 0)
        if table.rows != there:
            wrong.append(f"{name}: {table.rows} entries are in the files, {there} in the store")
    if wrong:
        raise JobFailed(
            "the store and the files differ: " + "; ".join(wrong[:5])
            + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        )  # fmt: skip


def export_partition(partition: ExportedPartition) -> bytes:
    """Write the entries of a part, as the work of a task; return its files, and the recount."""
    db, folder = connections.database(partition.store), Folder(partition.folder)
    task_attempt = uuid.uuid4().hex[:16]
    writers = {
        table: TableWriter(folder, table, partition.number, task_attempt, FILE_BYTES)
        for table in entries.TABLES
    }
    recount = Recount()
    for pages in _spans(db, partition):
        for table, rows in _gathered(_counted(pages, recount)):
            writers[table].add(rows)
        recount.end_part()
    for writer in writers.values():
        writer.close()
    files = [file for writer in writers.values() for file in writer.files]
    return msgspec.json.encode(ExportedPart(files, recount.end()))


def _spans(db: CoreDatabase, partition: ExportedPartition) -> Iterator[Iterator[Any]]:
    """Return the pages of the entries of a part, one span after the other."""
    reader = StoreReader(db.core, partition.at, partition.ranges)
    if partition.ranges:
        yield iterate(db.sender, reader.of_no_key())
    for span in partition.spans:
        yield iterate(db.sender, reader.of_keys(*span))


def _counted(pages: Iterator[Any], recount: Recount) -> Iterator[list[Entry]]:
    """Return the entries of pages, which are counted by the way."""
    for page in pages:
        names, stored = page.entries
        if names:
            recount.add(names, stored)
            yield list(zip(names, stored, strict=True))


def _gathered(pages: Iterator[list[Entry]]) -> Iterator[tuple[str, list[Entry]]]:
    """Return the entries of pages of an image by table, some at a time."""
    found: dict[str, list[Entry]] = {table: [] for table in entries.TABLES}
    size = rows = 0
    for page in pages:
        for name, stored in page:
            table = entries.table_of(name)
            assert table is not None, "a page has entries of images only"
            found[table].append((name, stored))
            size += len(name) + len(stored)
        rows += len(page)
        if size >= BATCH_BYTES or rows >= BATCH_ROWS:
            yield from ((table, each) for table, each in found.items() if each)
            found = {table: [] for table in entries.TABLES}
            size = rows = 0
    yield from ((table, each) for table, each in found.items() if each)
