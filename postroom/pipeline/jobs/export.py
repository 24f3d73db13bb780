"""The job ``export``: everything that a store holds at one timestamp, into a folder of Parquet.

::

    hold(whole) ── parts of the keys, and what belongs to no key ─┬─ task: entries ─▶ files
         │                                                        ├─ task ...
         │           counts and checksums ◀───────────────────────┘
         └── the store counts by itself, at the same timestamp ─▶ equal? ── manifest: done

What has no versions (outboxes, sums, queues) is read in the snapshot that the leader keeps of its
engine. It is gone with the lease, and cannot be made up: then, and after a kill, an export is begun
anew, at a later timestamp. What the export before had written is removed first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from postroom.client.bulk import PART_BYTES
from postroom.client.sync import Database
from postroom.errors import SnapshotTooOld
from postroom.kv.clock import Timestamp
from postroom.messaging import image_entries as entries
from postroom.messaging.image_requests import ImagePage
from postroom.pipeline import connections
from postroom.pipeline.jobs.export_files import File, Folder, Manifest, manifest_of
from postroom.pipeline.jobs.export_rows import Entry, TableWriter
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database
from postroom.pipeline.jobs.spreading import reached, spread
from postroom.pipeline.options import StoreAddress

FILE_BYTES: Final = 64 * 1024 * 1024
BATCH_BYTES: Final = 8 * 1024 * 1024
BATCH_ROWS: Final = 65_536
BEGUN_AT_MOST: Final = 3


@dataclass(frozen=True)
class ExportResult:
    """What an export has come to.

    Attributes:
        folder: where it is.
        export: which export it is.
        timestamp: as of which everything is in it.
        rows: of each table.
        files: how many.
        bytes: of all files.
        done_before: it was there already, and nothing was done.
    """

    folder: str
    export: str
    timestamp: Timestamp
    rows: dict[str, int]
    files: int
    bytes: int
    done_before: bool = False


@dataclass(frozen=True)
class ExportedPart:
    """What one task exports.

    Attributes:
        store: as tasks reach it.
        folder: of the export.
        at: the timestamp.
        number: of the part.
        start, end: the keys; ``of_range``: what belongs to no key.
        file_bytes: about how much a file holds.
    """

    store: StoreAddress
    folder: str
    at: int
    number: int
    start: bytes
    end: bytes | None
    of_range: bool
    file_bytes: int


def export(
    spark: SparkSession,
    store: Mapping[str, str],
    folder: str,
    *,
    part_bytes: int = PART_BYTES,
    progress: JobProgress = SILENT,
) -> ExportResult:
    """Exports a store: values, inboxes, outboxes, dead letters, sums, queues, counters, what is
    staged; as it is now. Older versions are not exported.

    Args:
        spark: a session on which ``register`` was called.
        store: options of the source that say which store.
        folder: empty, or with what an export has left that was killed; a path or a URI that this
            program and all tasks see.
        part_bytes: about how much of the store a task reads.
        progress: told how far it is.

    Returns:
        What is there now. If there is an export in the folder already, that one.

    Raises:
        JobFailed: what is in the files is not what the store counts, or leaders change too often.
        Invalid: the folder has something else in it.
    """
    place = Folder(folder)
    manifest = place.manifest()
    if manifest is not None:
        return _result(folder, manifest, done_before=True)
    for _ in range(BEGUN_AT_MOST):
        try:
            manifest = _export(spark, store, place, part_bytes, progress)
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
    place: Folder,
    part_bytes: int,
    progress: JobProgress,
) -> Manifest:
    name = uuid.uuid4().hex
    place.begin(name)
    with database(spark, store) as db, db.hold(whole=True) as at:
        to_tasks = reached(spark, store)
        parts = planned(db, to_tasks, place.place, int(at), part_bytes)
        said = spread(spark, export_part, parts, "exporting parts", progress)
        files = [file for each in said for file in msgspec.json.decode(each, type=list[File])]
        ranges = sorted({part.range_id for part in db.partitions(part_bytes=1 << 60)})
        manifest = manifest_of(name, int(at), ranges, files)
        progress("counting", 0, 1)
        check_counts(db, manifest, at=int(at))
        progress("counting", 1, 1)
    place.commit(manifest)
    return manifest


def planned(
    db: Database, store: StoreAddress, folder: str, at: int, part_bytes: int
) -> list[ExportedPart]:
    """What the tasks export: what belongs to no key, and parts of the keys."""
    spans = [(each.start, each.end) for each in db.partitions(part_bytes=part_bytes)]
    return [
        ExportedPart(store, folder, at, number, start, end, of_range, FILE_BYTES)
        for number, (start, end, of_range) in enumerate([
            (b"", None, True), *((start, end, False) for start, end in spans),
        ])
    ]  # fmt: skip


def check_counts(db: Database, manifest: Manifest, *, at: int) -> None:
    """Whether the files have what the store counts, and that is sound.

    Args:
        db: the store.
        manifest: of the files.
        at: as of when it is counted; 0: now.

    Raises:
        JobFailed: they have not, or it is not.
    """
    counted = db.images.check(at)
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


def export_part(part: ExportedPart) -> bytes:
    """What a task does; answers its files."""
    db = connections.database(part.store)
    return msgspec.json.encode(write_part(db, Folder(part.folder), part))


def write_part(db: Database, folder: Folder, part: ExportedPart) -> list[File]:
    """Writes the entries of a part."""
    attempt = uuid.uuid4().hex[:16]
    writers = {
        table: TableWriter(folder, table, part.number, attempt, part.file_bytes)
        for table in entries.TABLES
    }
    pages = db.images.scan(part.start, part.end, at=part.at, of_range=part.of_range)
    for table, rows in _gathered(pages):
        writers[table].add(rows)
    for writer in writers.values():
        writer.close()
    return [file for writer in writers.values() for file in writer.files]


def _gathered(pages: Iterator[ImagePage]) -> Iterator[tuple[str, list[Entry]]]:
    """The entries of pages, by table, some at a time."""
    found: dict[str, list[Entry]] = {table: [] for table in entries.TABLES}
    size = rows = 0
    for page in pages:
        for name, stored in unpacked(page):
            table = entries.table_of(name)
            assert table is not None, "a page has entries of images only"
            found[table].append((name, stored))
        size += len(page.names) + len(page.stored)
        rows += page.rows
        if size >= BATCH_BYTES or rows >= BATCH_ROWS:
            yield from ((table, each) for table, each in found.items() if each)
            found = {table: [] for table in entries.TABLES}
            size = rows = 0
    yield from ((table, each) for table, each in found.items() if each)


def unpacked(page: ImagePage) -> Iterator[Entry]:
    """The entries of a page."""
    return zip(_cut(page.names, page.name_ends), _cut(page.stored, page.stored_ends), strict=True)


def _cut(packed: bytes, ends: bytes) -> Iterator[bytes]:
    start = 0
    for at in range(0, len(ends), 4):
        end = int.from_bytes(ends[at : at + 4], "little")
        yield packed[start:end]
        start = end
