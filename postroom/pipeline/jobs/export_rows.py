"""The rows of an export: entries of an image as columns of Parquet, and back; and their writer.

The table ``data`` has columns for people and programs. The others have entries as the store has
them: ``key`` (null where there is none), ``name`` and ``stored``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from postroom.kv import keys, versions
from postroom.kv.clock import LOGICAL_BITS
from postroom.messaging import image_entries as entries
from postroom.pipeline.jobs.export_files import File, Folder, Written

DATA_SCHEMA: Final = pa.schema([
    pa.field("key", pa.binary(), nullable=False),
    pa.field("value", pa.binary(), nullable=False),
    pa.field("timestamp", pa.int64(), nullable=False),
    pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("integer", pa.bool_(), nullable=False),
])  # fmt: skip
ENTRY_SCHEMA: Final = pa.schema([
    pa.field("key", pa.binary()),
    pa.field("name", pa.binary(), nullable=False),
    pa.field("stored", pa.binary(), nullable=False),
])  # fmt: skip

Entry = tuple[bytes, bytes]
"""The name of an entry, and its value."""


def schema_of(table: str) -> pa.Schema:
    """Return the columns of a table."""
    return DATA_SCHEMA if table == entries.DATA else ENTRY_SCHEMA


def batch_of(table: str, rows: list[Entry]) -> pa.RecordBatch:
    """Return entries of a table as its rows."""
    make = _data if table == entries.DATA else _entries
    return pa.RecordBatch.from_arrays(make(rows), schema=schema_of(table))


def _data(rows: list[Entry]) -> list[pa.Array]:
    stamps = [int.from_bytes(stored[1:9], "big") for _, stored in rows]
    times = [stamp >> LOGICAL_BITS for stamp in stamps]
    return [
        pa.array([keys.user_key(name) for name, _ in rows], pa.binary()),
        pa.array([stored[versions.PAYLOAD :] for _, stored in rows], pa.binary()),
        pa.array(stamps, pa.int64()),
        pa.array(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
        pa.array([stored[0] == versions.INTEGER for _, stored in rows], pa.bool_()),
    ]


def _entries(rows: list[Entry]) -> list[pa.Array]:
    of_key = [None if name[:1] == keys.RANGE else keys.user_key(name) for name, _ in rows]
    return [
        pa.array(of_key, pa.binary()),
        pa.array([name for name, _ in rows], pa.binary()),
        pa.array([stored for _, stored in rows], pa.binary()),
    ]


def entries_of(table: str, batch: pa.RecordBatch) -> Iterator[Entry]:
    """Return the entries in rows of a table."""
    if table != entries.DATA:
        columns = (batch.column("name").to_pylist(), batch.column("stored").to_pylist())
        yield from zip(*columns, strict=True)
        return
    names = ("key", "value", "timestamp", "integer")
    for key, value, stamp, integer in zip(
        *(batch.column(name).to_pylist() for name in names), strict=True
    ):
        kind = versions.INTEGER_KIND if integer else versions.VALUE_KIND
        yield keys.head_key(key), kind + keys.u64(stamp) + value


class TableWriter:
    """The writer of one task for the rows of a table, into files of bounded size.

    Args:
        folder: the folder of the export.
        table: the table.
        part: the number of the task's part.
        task_attempt: a name by which files of a task that is run twice differ.
        file_bytes: about how much a file holds, before it is compressed.
    """

    def __init__(
        self, folder: Folder, table: str, part: int, task_attempt: str, file_bytes: int
    ) -> None:
        self.files: list[File] = []
        self._folder = folder
        self._table = table
        self._name: Callable[[int], str] = lambda number: (
            f"{table}/part-{part:05d}-{number:03d}-{task_attempt}.parquet"
        )
        self._file_bytes = file_bytes
        self._open: tuple[str, Written, pq.ParquetWriter] | None = None
        self._rows = self._bytes = 0

    def add(self, rows: list[Entry]) -> None:
        """Add rows."""
        if self._open is None:
            path = self._name(len(self.files))
            written = self._folder.write(path)
            writer = pq.ParquetWriter(written, schema_of(self._table), compression="zstd")
            self._open = path, written, writer
        self._open[2].write_batch(batch_of(self._table, rows))
        self._rows += len(rows)
        self._bytes += sum(len(name) + len(stored) for name, stored in rows)
        if self._bytes >= self._file_bytes:
            self.close()

    def close(self) -> None:
        """Close the file that is open, if there is one."""
        if self._open is None:
            return
        path, written, writer = self._open
        writer.close()
        written.close()
        self._folder.sync(path)
        self.files.append(File(self._table, path, self._rows, written.bytes, written.sha256))
        self._open, self._rows, self._bytes = None, 0, 0
