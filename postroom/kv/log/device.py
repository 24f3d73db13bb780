"""The device of the log: a few files of fixed size in a folder of their own, and a mark.

The port is what the log asks of a device; :class:`FolderDevice` is the one on a file system,
:mod:`.memory` the one that a simulation breaks.

A segment is filled with zeros when it is made, and synced. Writing it then changes no metadata of
the file system, so a synced write (``O_DSYNC``) costs one write to the device. Reserving the room
alone does not do that: the first write of a reserved block marks it as written.

The *mark* tells how far the log was acknowledged. It is written without a sync, once the record
that it speaks of is durable, so it is never ahead of the log, and it costs a microsecond. It
outlives the process; after a loss of power it may be an older one. An
unreadable mark says nothing.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final, Protocol

from postroom.kv.folder import sync_folder

MARK_FILE: Final = "mark"
_MARK: Final = struct.Struct("<QI")
_ZEROS: Final = bytes(1024 * 1024)


class SegmentFile(Protocol):
    """One segment. ``size`` never changes."""

    size: int

    def write(self, offset: int, data: bytes, *, sync: bool) -> None:
        """Write whole blocks; with ``sync``, these are durable on return.

        Raises:
            OSError: the device refuses.
        """

    def sync(self) -> None:
        """Make all that was written durable."""

    def read(self, offset: int, size: int) -> bytes:
        """Return as much as there is of the span."""

    def close(self) -> None:
        """Let go of it."""


class Device(Protocol):
    """A folder of segments."""

    def names(self) -> list[str]:
        """Return the names of the files, the mark aside."""

    def create(self, name: str, size: int) -> None:
        """Make a file of zeros, durably. If that fails nothing is left of it."""

    def open(self, name: str) -> SegmentFile:
        """Return a file that is there."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, durably."""

    def remove(self, name: str) -> None:
        """Remove a file, durably or soon."""

    def mark(self, sequence: int) -> None:
        """Store that all records up to ``sequence`` are durable and acknowledged."""

    def marked(self) -> int:
        """Return the newest mark that can be read; 0: none."""

    def close(self) -> None:
        """Let go of everything but open files."""


class FolderFile:
    """A :class:`SegmentFile` on a file system, opened twice: for writes with a sync and without."""

    def __init__(self, path: Path) -> None:
        self._synced = os.open(path, os.O_RDWR | os.O_DSYNC)
        try:
            self._unsynced = os.open(path, os.O_RDWR)
            self.size = os.fstat(self._unsynced).st_size
        except BaseException:
            os.close(self._synced)
            raise

    def write(self, offset: int, data: bytes, *, sync: bool) -> None:
        """Write ``writes``; with ``sync``, durably."""
        descriptor = self._synced if sync else self._unsynced
        written = os.pwrite(descriptor, data, offset)
        while written < len(data):
            written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)

    def sync(self) -> None:
        """Make durable what was written."""
        os.fdatasync(self._unsynced)

    def read(self, offset: int, size: int) -> bytes:
        """Return as much as there is of the span."""
        pieces = []
        while size > 0 and (piece := os.pread(self._unsynced, size, offset)):
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close it."""
        os.close(self._synced)
        os.close(self._unsynced)


class FolderDevice:
    """A :class:`Device` in a folder, which is made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
            sync_folder(folder.parent)
        self._mark = os.open(folder / MARK_FILE, os.O_RDWR | os.O_CREAT, 0o600)

    def names(self) -> list[str]:
        """Return the names of the files, the mark aside."""
        return sorted(path.name for path in self._folder.iterdir() if path.name != MARK_FILE)

    def create(self, name: str, size: int) -> None:
        """Make a file of zeros, durably."""
        path = self._folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            left = size
            while left:
                left -= os.write(descriptor, memoryview(_ZEROS)[:left])
            os.fsync(descriptor)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        sync_folder(self._folder)

    def open(self, name: str) -> FolderFile:
        """Open a file."""
        return FolderFile(self._folder / name)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, durably."""
        (self._folder / old).rename(self._folder / new)
        sync_folder(self._folder)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._folder / name).unlink()

    def mark(self, sequence: int) -> None:
        """Store the mark."""
        content = sequence.to_bytes(8, "little")
        os.pwrite(self._mark, content + zlib.crc32(content).to_bytes(4, "little"), 0)

    def marked(self) -> int:
        """Return the newest mark that can be read; 0: none."""
        stored = os.pread(self._mark, _MARK.size, 0)
        if len(stored) < _MARK.size or zlib.crc32(stored[:8]) != _MARK.unpack(stored)[1]:
            return 0
        sequence: int = _MARK.unpack(stored)[0]
        return sequence

    def close(self) -> None:
        """Close it."""
        os.close(self._mark)
