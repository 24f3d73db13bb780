"""A folder that an engine of this process has open. All engines on disk share this.

::

    prepare ─▶ lock (owner) ─▶ claim (engine) ─▶ the engine opens its files ─▶ … ─▶ release
                                                   │ fails: explained, and released

It also remembers that a write has failed. A failed write may leave half a record in the log, behind
which nothing must be written, so the folder has to be opened again before anything is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from postroom.kv.engine import EngineFailed, EngineFull
from postroom.kv.engine_file import EngineName, claim
from postroom.kv.folder import FolderLock, explain, is_full, prepare, reason
from postroom.kv.table_files import table_bytes

BLOOM_BITS_PER_KEY: Final = 10

ENTRY_OVERHEAD_BYTES: Final = 48
"""The bytes of a memtable entry beside key and value: node, lengths, sequence number."""


COMPACTED_TABLES: Final = 25
"""LevelDB's ``ExpandedCompactionByteSizeLimit``, and RocksDB's ``max_compaction_bytes``."""

LEVEL_0_TABLES: Final = 12
"""With more of them on level 0 both engines let writes wait; a compaction takes all of these."""


class OpenFolder:
    """See the module.

    Args:
        path: the folder.
        engine: which engine opens it.
        create: whether it is made if there is none.

    Attributes:
        path: absolute.
        failed: whether a write has failed.

    Raises:
        StoreLocked: it is open already, in the process that the message names.
        StoreCorrupted: it is damaged, or holds no store and ``create`` is false.
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
        """While the engine opens its files: whatever goes wrong releases the folder."""
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
        """Why nothing is written: the device has no room. Empty: it is, or something else."""
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
            "Whether the last write took place is unknown until it is closed and opened again."
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
