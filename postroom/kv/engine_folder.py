"""The folder of a store: its engine, its table files, and the process that has it open.

*The engine* stands in the file ``engine``, one line with its name. It is durable before the engine
makes its first file, and never changes. LevelDB would read the files of RocksDB, its descendant, as
far as it understands them, and RocksDB those of LevelDB. Each deletes the files that it does not
know. A folder is therefore opened by the engine that wrote it, or not at all.

A database without this file is not opened. If the other files contradict it, the folder is damaged:
RocksDB writes ``OPTIONS-*`` and ``IDENTITY``, LevelDB neither.

*Table files.* Opening one means reading its index and its filter: as long as a thousand look-ups
take. The tables are large enough that all of them stay open as long as the system has descriptors.
They are small enough that merging one of them is no long work. LevelDB maps the first thousand into
memory, which takes no descriptor.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from postroom.errors import Error, VersionMismatch, how_to_install
from postroom.kv.engine import EngineFailed, EngineFull
from postroom.kv.folder import FolderLock, damaged, explain, is_full, prepare, reason, sync_path

BLOOM_BITS_PER_KEY: Final = 10

ENTRY_OVERHEAD_BYTES: Final = 48
"""The bytes of a memtable entry beside key and value: node, lengths, sequence number."""


COMPACTED_TABLES: Final = 25
"""LevelDB's ``ExpandedCompactionByteSizeLimit``, and RocksDB's ``max_compaction_bytes``."""

LEVEL_0_TABLES: Final = 12
"""The most tables on level 0 with which writes do not wait; a compaction takes all of them."""


class OpenFolder:
    """A folder that an engine of this process has open. All engines on disk share this.

    ::

        prepare ─▶ lock (owner) ─▶ claim (engine) ─▶ the engine opens its files ─▶ … ─▶ release
                                                       │ fails: explained, and released

    It also remembers that a write has failed. A failed write may leave half a record in the log,
    behind which nothing must be written, so the folder has to be opened again before anything is.

    Args:
        path: the folder.
        engine: which engine opens it.
        create: whether it is made if there is none.

    Attributes:
        path: absolute.
        failed: whether a write has failed.

    Raises:
        StoreLocked: it is open already, in the process that the message names.
        StoreCorrupted: it is damaged, or contains no store and ``create`` is false.
        VersionMismatch: another engine wrote it.
        AccessDenied: it cannot be written, or is no folder.
        Unavailable: the device is full.
    """

    def __init__(self, path: Path, engine: EngineName, *, create: bool) -> None:
        self.path = Path(path).absolute()
        self._failure: EngineFailed | None = None
        prepare(self.path, create=create)
        self._lock = FolderLock(self.path)
        with self.opening():
            claim(self.path, engine)
            self._table_bytes = table_bytes(self.path)

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Open the engine's files in this context, which releases the folder on any error."""
        try:
            yield
        except OSError as error:
            self.release()
            raise explain(error, self.path) from error
        except BaseException:
            self.release()
            raise

    @property
    def failed(self) -> bool:
        """Return whether a write has failed."""
        return self._failure is not None

    @property
    def full(self) -> str:
        """Return why nothing is written: no room on the device. Empty: it is, or something else."""
        return str(self._failure) if isinstance(self._failure, EngineFull) else ""

    def check_writable(self) -> None:
        """Raise ``EngineFailed`` if a write has failed before."""
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    def failure(self, error: Exception) -> EngineFailed:
        """Return the error to raise for ``error``, which a write met: it was the last one.

        An error of the operating system's own comes of a sync: what was written before it may be
        lost. It is never taken for a mere lack of room.
        """
        full = is_full(error) and getattr(error, "errno", None) is None
        self._failure = (EngineFull if full else EngineFailed)(
            f"The store in {self.path} cannot be written any more: {reason(error)}. "
            "The outcome of the last write is unknown until the store is closed and opened again."
        )
        return self._failure

    def only_read(self) -> None:
        """Refuse all writes: the folder was opened to read, as its device has no room."""
        self._failure = EngineFull(
            f"The store in {self.path} is open for reading only: its device has no room."
        )

    def working_bytes(self, write_buffer_bytes: int) -> int:
        """Return at most how much a flush and a compaction need, in bytes.

        A flush writes what is in the logs to tables. One compaction runs at a time. It writes its
        inputs anew before it deletes them: a part of the tables, as both engines limit it.

        Args:
            write_buffer_bytes: of a memtable, and so of a table on level 0.
        """
        inputs_max = max(
            COMPACTED_TABLES * self._table_bytes, (LEVEL_0_TABLES + 2) * write_buffer_bytes
        )
        most = inputs_max + 2 * write_buffer_bytes
        if self.free_bytes() > 4 * most:
            return most  # more than enough: so nobody has to look at all the tables
        logs = tables = 0
        with contextlib.suppress(OSError), os.scandir(self.path) as files:
            for file in files:
                if file.name.endswith(".log"):
                    logs += _size(file)
                elif file.name.endswith((".ldb", ".sst")):
                    tables += _size(file)
        return logs + min(logs + tables, inputs_max)

    def free_bytes(self) -> int:
        """Return room that the device has for this process."""
        device = os.statvfs(self.path)
        return device.f_bavail * device.f_frsize

    def device_bytes(self) -> int:
        """Return the size of the device."""
        device = os.statvfs(self.path)
        return device.f_blocks * device.f_frsize

    def release(self) -> None:
        """Let others open it. To be called once."""
        self._lock.release()


class FolderEngine:
    """An engine in an open folder, as far as both engines are alike.

    Args:
        folder: the folder.
        write_buffer_bytes: of the memtable.
        tables_open_max: the number of table files that may be open.
    """

    def __init__(self, folder: OpenFolder, write_buffer_bytes: int, tables_open_max: int) -> None:
        self._open_folder = folder
        self._write_buffer_bytes = write_buffer_bytes
        self._tables_open_max = tables_open_max
        self._one_at_a_time = threading.Lock()

    def free_bytes(self) -> int:
        """Return room that the device has for this process."""
        return self._open_folder.free_bytes()

    def working_bytes(self) -> int:
        """Return at most how many bytes a flush and a compaction need."""
        return self._open_folder.working_bytes(self._write_buffer_bytes)

    @property
    def full(self) -> str:
        """Return why nothing is written; empty: writes are taken."""
        return self._open_folder.full

    def open_again(self) -> bool:
        """Return false: the opener opens the folder again (:mod:`postroom.kv.full_device`)."""
        return not self._open_folder.failed


@contextlib.contextmanager
def closed_if_it_fails(database: Any) -> Iterator[None]:
    """Close ``database`` if what follows on opening it fails: the error would keep it open."""
    try:
        yield
    except BaseException:
        database.close()
        raise


def closed() -> RuntimeError:
    """Return the error for calls after ``close``."""
    return RuntimeError("The engine is closed.")


def _size(file: os.DirEntry[str]) -> int:
    """Return the size of a file in bytes; 0: it is gone."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


# --- the engine of a folder -----------------------------------------------------------------------


EngineName: TypeAlias = Literal["leveldb", "rocksdb"]

ENGINE_FILE: Final = "engine"
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
"""All that a folder can be written by. A new one is written by the first that is installed."""

PACKAGES: Final[dict[EngineName, str]] = {"leveldb": "plyvel", "rocksdb": "rocksdict"}

_NEW_ENGINE_FILE: Final = "engine.new"
_LINE_BYTES: Final = 100
_LINE: Final = re.compile(rb"[a-z]+\n")
_HOW_TO_INSTALL: Final[dict[EngineName, str]] = {
    "leveldb": "pip install plyvel (it has no ready wheels for Python 3.13 and later)",
    "rocksdb": how_to_install("rocksdb"),
}


def is_installed(engine: EngineName) -> bool:
    """Return whether the package that ``engine`` needs can be imported."""
    return find_spec(PACKAGES[engine]) is not None


def engine_of(folder: Path) -> EngineName | None:
    """Return the engine that wrote ``folder``; ``None``: there is no store in it.

    Raises:
        VersionMismatch: this version does not know that engine, or nothing tells it.
        StoreCorrupted: the file is damaged, or the others are those of another engine.
        OSError: it cannot be read.
    """
    if not (folder / "CURRENT").exists():
        return None
    name = _read(folder)
    for engine in ENGINES:
        if engine == name:
            return _not_contradicted(folder, engine)
    if name is None:
        raise VersionMismatch(
            f"The folder {folder} has a database without the file {ENGINE_FILE!r}, which tells "
            "its engine: a version of Postroom before 0.2 wrote it, or another program, or the "
            "file was lost. Nothing was changed: open it with the version that wrote it, or give "
            f"another folder. A lost file is one line, {' or '.join(ENGINES)}."
        )
    raise VersionMismatch(
        f"The store in {folder} was written by the engine {name!r}, and this version of Postroom "
        f"knows {' and '.join(ENGINES)}. Nothing was changed: open it with a version that knows it."
    )


def claim(folder: Path, engine: EngineName) -> None:
    """Make sure that ``folder``, which the caller holds, is one of ``engine``, now and later.

    Raises:
        VersionMismatch: another engine wrote it.
        StoreCorrupted: the file is damaged, or the others are those of another engine.
        OSError: it cannot be read or written.
    """
    written = engine_of(folder)
    if written not in {None, engine}:
        assert written is not None
        raise mismatch(folder, written, engine)
    if written is None:
        _write(folder, engine)


def mismatch(folder: Path, written: EngineName, asked: EngineName) -> VersionMismatch:
    """Return the error for a folder of another engine than the one that was asked for."""
    return VersionMismatch(
        f"The store in {folder} was written by the engine {written}, and cannot be opened by "
        f"{asked}. Nothing was changed: ask for the engine {written}, or for none in particular, "
        f"or give another folder.{_needs(written)}"
    )


def not_installed(folder: Path, engine: EngineName, *, written: bool) -> Error:
    """Return the error for an engine whose package is not installed.

    The folder was written by ``engine``, or is to be written by it.
    """
    if written:
        return VersionMismatch(
            f"The store in {folder} was written by the engine {engine}. Nothing was changed."
            f"{_needs(engine)}"
        )
    return Error(f"The store in {folder} cannot be opened by {engine}.{_needs(engine)}")


def _needs(engine: EngineName) -> str:
    if is_installed(engine):
        return ""
    return (
        f" The engine {engine} needs the package {PACKAGES[engine]}, which is not installed: "
        f"{_HOW_TO_INSTALL[engine]}."
    )


def _told_by_files(folder: Path) -> EngineName | None:
    """Tell the engine by its files; ``None``: there are none yet that only one engine makes."""
    if (folder / "IDENTITY").exists() or any(folder.glob("OPTIONS-*")):
        return "rocksdb"
    return "leveldb" if any(folder.glob("*.ldb")) else None


def _not_contradicted(folder: Path, named: EngineName) -> EngineName:
    told = _told_by_files(folder)
    if told in {None, named}:
        return named
    raise damaged(folder, f"its file engine says {named}, and its other files are those of {told}")


def _read(folder: Path) -> str | None:
    try:
        with (folder / ENGINE_FILE).open("rb") as file:
            line = file.read(_LINE_BYTES)
    except FileNotFoundError:
        return None
    if not _LINE.fullmatch(line):
        raise damaged(folder, f"its file engine contains no name of an engine, but {line!r}")
    return line.decode().rstrip()


def _write(folder: Path, engine: EngineName) -> None:
    """Write the file. A loss of power leaves no file, or a whole one."""
    new = folder / _NEW_ENGINE_FILE
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, f"{engine}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(folder / ENGINE_FILE)
    sync_path(folder)


# --- table files ----------------------------------------------------------------------------------


TABLE_BYTES: Final = 4 * 1024 * 1024
"""The size of table files of a store that is not large.

LevelDB syncs a table at once, and merges 25 of them in one step. Both make commits wait for the
device: with 16 MiB the slowest percent of them waited more than twice as long.
"""

SMALLEST_TABLE_BYTES: Final = 2 * 1024 * 1024
LARGEST_TABLE_BYTES: Final = 256 * 1024 * 1024

TABLES_WANTED: Final = 1000
"""A store with more tables than that gets larger ones, from its next opening on."""

DEVICE_SHARE: Final = 128
"""The part of a small device that a table may take at most: merging takes ten times as much."""

WRITE_BUFFER_SHARE: Final = 64
SMALLEST_WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""The fewest bytes of memtables, which are a part of a small device."""

DESCRIPTORS_SHARE: Final = 5
"""This part of the descriptors is for table files."""

_UNLIMITED: Final = 50_000


def table_bytes(folder: Path) -> int:
    """Return how large new table files in ``folder`` are: as the store, and its device, suggest."""
    stored = sum(each.stat().st_size for each in os.scandir(folder) if _is_table(each.name))
    device = os.statvfs(folder)
    wanted = TABLE_BYTES
    while wanted < LARGEST_TABLE_BYTES and wanted * TABLES_WANTED < stored:
        wanted *= 2
    return max(min(wanted, device.f_blocks * device.f_frsize // DEVICE_SHARE), SMALLEST_TABLE_BYTES)


def fitting_write_buffer(wanted_bytes: int, device_bytes: int) -> int:
    """Return how large a memtable is: less than wanted on a small device.

    A memtable has a log of its size, and becomes a table. Up to twelve of those lie side by side
    until they are merged.
    """
    share = max(device_bytes // WRITE_BUFFER_SHARE, SMALLEST_WRITE_BUFFER_BYTES)
    return min(wanted_bytes, share)


def descriptors_for_tables() -> int:
    """Return how many descriptors table files may take, by ``ulimit -n``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    return min(limit // DESCRIPTORS_SHARE, _UNLIMITED)


def _is_table(name: str) -> bool:
    return name.endswith((".ldb", ".sst"))
