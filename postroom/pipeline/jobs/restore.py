"""The job ``restore``: an export goes back into an empty store.

::

    BeginRestore: the store is closed ─┬─ task: a file, its checksum ─▶ entries ─▶ part is there
         │                             ├─ task ...
         │    what was there already ◀─┴─ after a kill: the files that are not
         └── the store counts: equal to the manifest? ── EndRestore: the store is open

Each file of the export is a part. :mod:`postroom.messaging.ingest.restores` tells what the store
does with entries.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from postroom.client.staging import cut
from postroom.client.sync import CoreDatabase
from postroom.client.sync_parts import Restore
from postroom.errors import Invalid
from postroom.kv.clock import Timestamp
from postroom.limits import RESTORED_CHUNK_ROWS_MAX, RESTORED_PARTS_MAX
from postroom.pipeline import connections
from postroom.pipeline.jobs.export import check_counts
from postroom.pipeline.jobs.export_files import File, Folder, Manifest, entries_of, schema_of
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database, reached, spread
from postroom.pipeline.options import StoreAddress
from postroom.server.loopback import LoopbackServer

CHUNK_BYTES: Final = 1024 * 1024
CHUNK_ROWS: Final = RESTORED_CHUNK_ROWS_MAX // 2


@dataclass(frozen=True)
class RestoreResult:
    """The result of a restore.

    Attributes:
        export: the id of the export.
        timestamp: the timestamp at which the store was as it is now.
        rows: the number of rows of each table.
        files: the number of files.
        files_before: the number of those that an earlier run had restored.
        done_before: whether this export was restored already, and nothing was done.
    """

    export: str
    timestamp: Timestamp
    rows: dict[str, int]
    files: int
    files_before: int
    done_before: bool = False


@dataclass(frozen=True)
class RestoredPart:
    """The part that one task restores: a file, under a number, in a run."""

    store: StoreAddress
    folder: str
    run: bytes
    number: int
    file: File


def restore(
    spark: SparkSession,
    store: Mapping[str, str],
    folder: str,
    *,
    progress: JobProgress = SILENT,
) -> RestoreResult:
    """Restore an export into an empty store, which serves nobody until that is complete.

    Messages that had been delivered are not delivered again, and those that waited are delivered
    once. A restore that was killed goes on where it was.

    Args:
        spark: a session on which ``register`` was called.
        store: options of the source that say which store; where there are roles, as administrator.
            A folder that is not there, or is empty, becomes a store.
        folder: the folder of the export: a path or a URI that this program and all tasks see.
        progress: a function that is told how far it is.

    Raises:
        JobFailed: there is no export in the folder, or the counts of the store in the end are not
            those of the manifest. In the latter case the store stays closed: see
            :func:`abandon_restore`.
        Invalid: the store is not empty, or a file is damaged. The store stays closed if it was.
    """
    manifest = Folder(folder).manifest()
    if manifest is None:
        raise JobFailed(
            f"there is no export in {folder}: its manifest is not there; nothing was restored: "
            "give the folder of a complete export"
        )
    if len(manifest.files) > RESTORED_PARTS_MAX:
        raise JobFailed(
            f"the export has {len(manifest.files)} files, and {RESTORED_PARTS_MAX} can be "
            "restored: export with larger parts"
        )
    _make_folder(store)
    rows = {name: table.rows for name, table in manifest.tables.items()}
    files, at = len(manifest.files), Timestamp(manifest.timestamp)
    with database(spark, store) as db:
        run = uuid.uuid4().bytes
        begun = db.images.begin(run, bytes.fromhex(manifest.export), manifest.timestamp)
        if begun is None:
            return RestoreResult(manifest.export, at, rows, files, files, done_before=True)
        to_tasks = reached(spark, store)
        parts = left(db, manifest, to_tasks, folder, run)
        spread(spark, restore_part, parts, "restoring files", progress)
        progress("counting", 0, 1)
        complete(db, begun, manifest)
        progress("counting", 1, 1)
    return RestoreResult(manifest.export, at, rows, files, files - len(parts))


def _make_folder(store: Mapping[str, str]) -> None:
    """Make a new store, if the options name a folder that has nothing in it."""
    path = Path(store["path"]) if store.get("path") else None
    if path is not None and not (path.is_dir() and any(path.iterdir())):
        LoopbackServer(path, create=True).close()


def abandon_restore(spark: SparkSession, store: Mapping[str, str]) -> None:
    """Abandon a restore that is not complete: the store is empty again, and serves everybody.

    Raises:
        Invalid: nothing is being restored.
    """
    with database(spark, store) as db:
        db.images.abandon()


def left(
    db: CoreDatabase, manifest: Manifest, store: StoreAddress, folder: str, run: bytes
) -> list[RestoredPart]:
    """Return the files that are not there yet."""
    there = db.images.read().parts
    return [
        RestoredPart(store, folder, run, number, file)
        for number, file in enumerate(manifest.files)
        if there.get(number) != file.rows
    ]


def complete(db: CoreDatabase, begun: Restore, manifest: Manifest) -> None:
    """Open the store, if it is what the manifest says.

    Raises:
        JobFailed: it is not.
    """
    try:
        check_counts(db.images.check(), manifest)
    except JobFailed as error:
        raise JobFailed(
            f"{error}; it stays closed: mend the export and run the job again, or abandon the "
            "restore (--abandon)"
        ) from error
    begun.end(len(manifest.files), manifest.rows)


def restore_part(part: RestoredPart) -> bytes:
    """Restore a file, as the work of a task.

    Raises:
        Invalid: it is not the one that was exported.
    """
    sending = connections.database(part.store).images.of_run(part.run)
    file = Folder(part.folder).open(part.file)
    schema = schema_of(part.file.table)
    if not file.schema_arrow.equals(schema) or file.metadata.num_rows != part.file.rows:
        raise Invalid(f"{part.file.path} has not the columns, or the rows, of {part.file.table}")
    for batch in file.iter_batches(CHUNK_ROWS):
        for names, stored in cut(entries_of(part.file.table, batch), CHUNK_BYTES, CHUNK_ROWS):
            sending.send(names, stored)
    sending.end_part(part.number, part.file.rows)
    return b""
