"""A folder that an engine of this process has open: what all engines on disk share.

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
from typing import Final

from postroom.kv.engine import EngineFailed
from postroom.kv.engine_file import EngineName, claim
from postroom.kv.folder import FolderLock, explain, prepare, reason

WRITE_BUFFER_BYTES: Final = 16 * 1024 * 1024
"""Memtable, and so log, at most: what opening after a crash reads again. Two may be in memory."""

CACHE_BYTES: Final = 16 * 1024 * 1024
"""Blocks of table files, unpacked."""

BLOOM_BITS_PER_KEY: Final = 10

ENTRY_OVERHEAD_BYTES: Final = 48
"""What a memtable entry takes beside key and value, generously: node, lengths, sequence number."""


class HeldFolder:
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
        self._failure: str | None = None
        prepare(self.path, create=create)
        self._lock = FolderLock(self.path)
        with self.opening():
            claim(self.path, engine)

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
        """Whether a write has failed."""
        return self._failure is not None

    def check_writable(self) -> None:
        """Raises ``EngineFailed`` if a write has failed before."""
        if self._failure is not None:
            raise EngineFailed(self._failure)

    def failure(self, error: Exception) -> EngineFailed:
        """The error to raise for ``error``, which a write met: the last thing that was written."""
        self._failure = (
            f"The store in {self.path} cannot be written any more: {reason(error)}. "
            "Whether the last write took place is unknown until it is closed and opened again."
        )
        return EngineFailed(self._failure)

    def free_bytes(self) -> int:
        """Room that the device has for this process."""
        device = os.statvfs(self.path)
        return device.f_bavail * device.f_frsize

    def release(self) -> None:
        """Let others open it. To be called once."""
        self._lock.release()


def closed() -> RuntimeError:
    """The error for calls after ``close``."""
    return RuntimeError("The engine is closed.")
