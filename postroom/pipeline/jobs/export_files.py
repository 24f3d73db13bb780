"""The folder of an export: Parquet files, and a manifest that says which of them count.

::

    FOLDER/started.json                     there is an export in the making, and which
    FOLDER/data/part-00003-00-5f2c....parquet
    FOLDER/inbox/...                        a folder for each table (messaging/image_entries.py)
    FOLDER/manifest.json                    written last, at once: now it is an export

Files that the manifest does not name do not count: tasks may run twice, or be killed. The manifest
has the number of rows and the SHA-256 of each file, and of each table. Thus damage is found before
anything of a file is restored.

The rows are entries of an image. The table ``data`` has columns for people and programs. The others
have entries as the store has them: ``key`` (null where there is none), ``name`` and ``stored``.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from postroom.errors import Invalid
from postroom.kv import keys, versions
from postroom.kv.clock import LOGICAL_BITS
from postroom.kv.folder import sync_path
from postroom.messaging import image_entries as entries

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
STARTED: Final = "started.json"
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
_HASHED_AT_ONCE: Final = 1024 * 1024


class File(msgspec.Struct, frozen=True):
    """A file of an export.

    Attributes:
        table: the table of its rows.
        path: its path within the folder.
        rows: the number of its rows.
        bytes: the number of its bytes.
        sha256: the hash of its bytes, in hexadecimal.
    """

    table: str
    path: str
    rows: int
    bytes: int
    sha256: str


class Table(msgspec.Struct, frozen=True):
    """A table of an export; ``sha256`` is the hash of the hashes of its files, in their order."""

    rows: int
    bytes: int
    files: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of an export.

    Attributes:
        format: the version of this format.
        export: the id of the export: 32 hexadecimal digits, made up.
        timestamp: the timestamp of everything in it; ``time``: as people write it.
        ranges: the ids of the ranges that it comes from.
        tables: the tables by name.
        files: the files that count.
    """

    format: int
    export: str
    timestamp: int
    time: str
    ranges: list[int]
    tables: dict[str, Table]
    files: list[File]

    @property
    def rows(self) -> int:
        """Return the number of rows of all tables."""
        return sum(table.rows for table in self.tables.values())


class _Started(msgspec.Struct, frozen=True):
    export: str


def _new(path: str) -> str:
    """Return the name of a file until it is complete."""
    return f"{path}.new"


def manifest_of(export: str, timestamp: int, ranges: list[int], files: list[File]) -> Manifest:
    """Return the manifest of an export that consists of these files."""
    tables = {name: [file for file in files if file.table == name] for name in entries.TABLES}
    return Manifest(
        FORMAT, export, timestamp,
        datetime.fromtimestamp((timestamp >> LOGICAL_BITS) / 1000, UTC).isoformat(),
        ranges, {name: _table(each) for name, each in tables.items()},
        [file for each in tables.values() for file in each],
    )  # fmt: skip


def _table(files: list[File]) -> Table:
    together = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
    return Table(
        sum(file.rows for file in files), sum(file.bytes for file in files), len(files), together
    )


# --- the folder -----------------------------------------------------------------------------------


class Folder:
    """The folder of an export, which all who work at it see.

    Args:
        path: a path, or a URI that pyarrow knows (``s3://``, ``hdfs://``).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            if "://" in path:
                self._fs, self._root = fs.FileSystem.from_uri(path)
            else:
                self._fs, self._root = fs.LocalFileSystem(), str(Path(path).absolute())
        except (pa.ArrowException, ValueError) as error:
            raise Invalid(f"{path!r} is no folder that can be used: {error}") from error
        self._is_local = isinstance(self._fs, fs.LocalFileSystem)

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def size_of(self, path: str) -> int | None:
        """Return the size of a file; ``None``: it is not there."""
        (info,) = self._fs.get_file_info([self._at(path)])
        return info.size if info.type == fs.FileType.File else None

    def manifest(self) -> Manifest | None:
        """Return the manifest of the export that is here; ``None``: there is none.

        Raises:
            Invalid: it is damaged, or of an unknown format.
        """
        size = self.size_of(MANIFEST)
        if size is None:
            return None
        if size > MANIFEST_BYTES_MAX:
            raise Invalid(f"{MANIFEST} in {self.path} has {size} bytes: it is no manifest")
        with self._fs.open_input_stream(self._at(MANIFEST)) as file:
            return decoded(file.read(), self.path)

    def begin(self, export: str) -> None:
        """Prepare the folder for an export, and remove the files of one that was not completed.

        Raises:
            Invalid: something else is in it.
        """
        self._fs.create_dir(self._root, recursive=True)
        found = self._fs.get_file_info(fs.FileSelector(self._root))
        names = {info.base_name for info in found}
        ours = {STARTED, _new(STARTED), _new(MANIFEST), *entries.TABLES}
        if names - ours or (names and not names & {STARTED, _new(STARTED)}):
            other = sorted(names - ours or names)[0]
            raise Invalid(
                f"{self.path} is not empty ({other} is in it); nothing was changed: export into a "
                "folder of its own"
            )
        for info in found:
            if info.base_name in entries.TABLES:
                self._fs.delete_dir(info.path)
            elif info.base_name != STARTED:
                self._fs.delete_file(info.path)
        self._replace(STARTED, msgspec.json.encode(_Started(export)))

    def commit(self, manifest: Manifest) -> None:
        """Make these files the export, in one step.

        Raises:
            Invalid: another one was begun here meanwhile, or a file is gone.
        """
        with self._fs.open_input_stream(self._at(STARTED)) as file:
            started = msgspec.json.decode(file.read(), type=_Started)
        gone = [file.path for file in manifest.files if self.size_of(file.path) != file.bytes]
        if started.export != manifest.export or gone:
            raise Invalid(
                f"another export was begun in {self.path} while this one was made; this one does "
                "not count: give each a folder of its own"
            )
        self._remove_others({file.path for file in manifest.files})
        self._replace(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))

    def _remove_others(self, wanted: set[str]) -> None:
        """Remove the files of tasks that were run twice, or killed."""
        for name in entries.TABLES:
            selector = fs.FileSelector(self._at(name), allow_not_found=True)
            for info in self._fs.get_file_info(selector):
                if f"{name}/{info.base_name}" not in wanted:
                    self._fs.delete_file(info.path)

    def _replace(self, path: str, content: bytes) -> None:
        """Write a file that is there as a whole, or not at all."""
        with self._fs.open_output_stream(self._at(_new(path))) as file:
            file.write(content)
        self.sync(_new(path))
        if not self._is_local and self.size_of(path) is not None:
            self._fs.delete_file(self._at(path))  # elsewhere moving may not overwrite
        self._fs.move(self._at(_new(path)), self._at(path))
        self.sync(path)

    def sync(self, path: str) -> None:
        """Sync a file to the disk of this machine; elsewhere a file is safe when it is closed."""
        if self._is_local:
            file = Path(self._at(path))
            sync_path(file)
            sync_path(file.parent)

    def write(self, path: str) -> Written:
        """Open a new file to be written."""
        self._fs.create_dir(self._at(path).rpartition("/")[0], recursive=True)
        return Written(self._fs.open_output_stream(self._at(path)))

    def open(self, file: File) -> pq.ParquetFile:
        """Open a file of an export to be read.

        Raises:
            Invalid: it is not the one that was exported.
        """
        path = self._at(file.path)
        digest = hashlib.sha256()
        try:
            with self._fs.open_input_stream(path) as stream:
                while chunk := stream.read(_HASHED_AT_ONCE):
                    digest.update(chunk)
        except FileNotFoundError:
            digest.update(b"it is gone")
        if digest.hexdigest() != file.sha256:
            raise Invalid(
                f"{file.path} in {self.path} is gone, or not as it was exported: its checksum is "
                "another one; nothing of it was restored: get the export from where it is sound"
            )
        return pq.ParquetFile(self._fs.open_input_file(path))


def decoded(content: bytes, path: str) -> Manifest:
    """Decode a manifest.

    Raises:
        Invalid: it is no manifest, or of an unknown format.
    """
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
        if len(bytes.fromhex(manifest.export)) != 16:
            raise ValueError("no such export")
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"{MANIFEST} in {path} is damaged: {error}; nothing was changed") from error
    if manifest.format != FORMAT:
        raise Invalid(
            f"the export in {path} has format {manifest.format}, and this version of Postroom "
            f"knows {FORMAT}; nothing was changed: use a version that knows it"
        )
    for file in manifest.files:
        folder, _, name = file.path.partition("/")
        if folder != file.table or folder not in entries.TABLES or "/" in name or "\\" in name:
            raise Invalid(f"{MANIFEST} in {path} names a file {file.path!r}; nothing was changed")
    return manifest


class Written(io.RawIOBase):
    """A file in the making, with its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.bytes = 0

    def writable(self) -> bool:
        """Return true."""
        return True

    def write(self, content: Any) -> int:
        """Write more bytes."""
        view = memoryview(content)
        self._digest.update(view)
        self._file.write(view)
        self.bytes += view.nbytes
        return view.nbytes

    def close(self) -> None:
        """Complete the file."""
        if not self.closed:
            self._file.close()
        super().close()

    @property
    def sha256(self) -> str:
        """Return the checksum of what was written."""
        return self._digest.hexdigest()


# --- rows -----------------------------------------------------------------------------------------


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

_OF_KEYS: Final = frozenset({keys.MAIL, keys.DATA})
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
    of_key = [keys.user_key(name) if name[:1] in _OF_KEYS else None for name, _ in rows]
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

    The names of a file rise, as a restore needs it.

    Args:
        folder: the folder of the export.
        table: the table.
        part: the number of the task's part.
        task_attempt: a name by which files of a task that is run twice differ.
        file_bytes: about how much a file contains, before it is compressed.
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
        self._last = b""

    def add(self, rows: list[Entry]) -> None:
        """Add rows, whose names rise."""
        if rows[0][0] <= self._last:
            self.close()
        if self._open is None:
            path = self._name(len(self.files))
            written = self._folder.write(path)
            writer = pq.ParquetWriter(written, schema_of(self._table), compression="zstd")
            self._open = path, written, writer
        self._open[2].write_batch(batch_of(self._table, rows))
        self._rows += len(rows)
        self._last = rows[-1][0]
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
