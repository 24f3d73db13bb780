"""The device of the log: a few files of fixed size in a folder of their own, and a mark.

The port is what the log asks of a device; :class:`FolderDevice` is the one on a file system,
:class:`MemoryDevice` the one that a simulation breaks.

A segment is filled with zeros when it is made, and synced. Writing it then changes no metadata of
the file system, so a synced write (``O_DSYNC``) costs one write to the device. Reserving the room
alone does not do that: the first write of a reserved block marks it as written.

The *mark* tells how far the log was acknowledged. It is written without a sync, once the record
that it speaks of is durable, so it is never ahead of the log, and it costs a microsecond. It
outlives the process; after a loss of power it may be an older one. An
unreadable mark says nothing.

The device in memory is for simulation. It loses what was not synced, sector by sector.

::

    write ── unsynced ──▶ sectors in the cache ── sync, or a synced write of these ──▶ durable
                                │ loss of power: any of them may have become durable, in any order

A write that is cut short, by the power or by a fault, has reached the device in part. Its sectors
stand in the cache when the hook ``at_write`` of the disk is called, so a loss of power there leaves
any of them. The cache outlives the process: the writes of one that was killed may still be lost
with the power, unless the next one syncs them.
"""

from __future__ import annotations

import enum
import errno
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from postroom.kv.folder import sync_path

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 (its type only)


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
            sync_path(folder.parent)
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
        sync_path(self._folder)

    def open(self, name: str) -> FolderFile:
        """Open a file."""
        return FolderFile(self._folder / name)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, durably."""
        (self._folder / old).rename(self._folder / new)
        sync_path(self._folder)

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


# --- in memory ------------------------------------------------------------------------------------


SECTOR_BYTES: Final = 512


class WriteFault(enum.Enum):
    """The effect of a write that fails."""

    NOT_AT_ALL = enum.auto()
    THERE_WHOLE = enum.auto()
    TORN = enum.auto()
    """A part of the sectors is there; nothing of a write to the state, which is atomic."""


class WriteFaults(Protocol):
    """The source of faults: :class:`postroom.kv.memory.MemoryDisk`."""

    def begin_write(self) -> WriteFault | None:
        """Begin a numbered write; return how it is to fail, or raise."""


class MemoryFile:
    """A :class:`postroom.kv.log_device.SegmentFile` in memory.

    Attributes:
        size: in bytes.
        durable: what it contains after a loss of power that takes everything unsynced.
        settled: how many sectors have become durable so far.
    """

    def __init__(self, device: MemoryDevice, size: int) -> None:
        self.size = size
        self.durable = bytearray(size)
        self.settled = 0
        self._device = device
        self._cache: dict[int, bytes] = {}

    def write(self, offset: int, data: bytes, *, sync: bool) -> None:
        """Write whole blocks, but for the faults that the disk was given."""
        self._device.begin_write(self, offset, data)
        self._put(offset, data)
        if sync:
            for at in range(offset // SECTOR_BYTES, (offset + len(data)) // SECTOR_BYTES):
                self._settle(at)
        self._device.version += 1

    def cut_short(self, offset: int, data: bytes, *, whole: bool) -> None:
        """Let a write reach the device, or every other sector of it; the caller is not told."""
        for number, begin in enumerate(range(0, len(data), SECTOR_BYTES)):
            if whole or number % 2:
                self._put(offset + begin, data[begin : begin + SECTOR_BYTES])
        self._device.version += 1

    def sync(self) -> None:
        """Make durable what was written."""
        self._device.begin_write(self, 0, b"")
        for at in list(self._cache):
            self._settle(at)
        self._device.version += 1

    def read(self, offset: int, size: int) -> bytes:
        """Return as much as there is of the span."""
        content = bytearray(self.durable[offset : offset + size])
        for at, sector in self._cache.items():
            begin = at * SECTOR_BYTES - offset
            if 0 <= begin < size:
                content[begin : begin + SECTOR_BYTES] = sector
        return bytes(content[:size])

    def close(self) -> None:
        """Close it."""

    def crash(self, lose_unsynced: Random | None) -> None:
        """Empty the cache after a loss of power; any of it may have become durable."""
        if lose_unsynced is not None:
            for at in list(self._cache):
                if lose_unsynced.random() < 0.5:
                    self._settle(at)
            self._cache.clear()

    def _put(self, offset: int, data: bytes) -> None:
        for begin in range(0, len(data), SECTOR_BYTES):
            self._cache[(offset + begin) // SECTOR_BYTES] = data[begin : begin + SECTOR_BYTES]

    def _settle(self, at: int) -> None:
        sector = self._cache.pop(at, None)
        if sector is not None:
            self.settled += 1
            self.durable[at * SECTOR_BYTES : at * SECTOR_BYTES + len(sector)] = sector


class MemoryDevice:
    """A :class:`postroom.kv.log_device.Device` in memory.

    Attributes:
        files: by name.
        version: another one after each change.
        room_bytes: for all files together; ``None`` is without limit.
    """

    def __init__(self, faults: WriteFaults) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.version = 0
        self.room_bytes: int | None = None
        self._faults = faults
        self._mark = self._durable_mark = 0

    def names(self) -> list[str]:
        """Return the names of the files, the mark aside."""
        return sorted(self.files)

    def create(self, name: str, size: int) -> None:
        """Make a file of zeros, durably."""
        self.begin_write(None, 0, b"")
        used = sum(file.size for file in self.files.values())
        if self.room_bytes is not None and used + size > self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.files[name] = MemoryFile(self, size)
        self.version += 1

    def open(self, name: str) -> MemoryFile:
        """Open a file."""
        return self.files[name]

    def rename(self, old: str, new: str) -> None:
        """Rename a file, durably."""
        self.begin_write(None, 0, b"")
        self.files[new] = self.files.pop(old)
        self.version += 1

    def remove(self, name: str) -> None:
        """Remove a file."""
        del self.files[name]
        self.version += 1

    def mark(self, sequence: int) -> None:
        """Store the mark."""
        self._mark = sequence

    def marked(self) -> int:
        """Return the newest mark that can be read; 0: none."""
        return self._mark

    def close(self) -> None:
        """Close it."""

    def begin_write(self, file: MemoryFile | None, offset: int, data: bytes) -> None:
        """Count a write, and let it fail if it is to; only :class:`MemoryFile` calls this."""
        try:
            fault = self._faults.begin_write()
        except BaseException:
            if file is not None:  # the power fails in the middle of it
                file.cut_short(offset, data, whole=True)
            raise
        if fault is None:
            return
        if file is not None and fault is not WriteFault.NOT_AT_ALL:
            file.cut_short(offset, data, whole=fault is WriteFault.THERE_WHOLE)
        raise OSError(errno.EIO, "a fault that the test asked for")

    def crash(self, lose_unsynced: Random | None) -> None:
        """Lose in part what was not synced; the mark is the newest one, or an older one."""
        for file in self.files.values():
            file.crash(lose_unsynced)
        if lose_unsynced is not None:
            self._mark = lose_unsynced.choice([self._mark, self._durable_mark, 0])
        self._durable_mark = self._mark
        self.version += 1
