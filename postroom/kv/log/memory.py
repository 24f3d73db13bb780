"""The log's device in memory, for simulation: it loses what was not synced, sector by sector.

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
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 (its type only)

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
    """A :class:`postroom.kv.log.device.SegmentFile` in memory.

    Attributes:
        size: in bytes.
        durable: what it holds after a loss of power that takes everything unsynced.
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
    """A :class:`postroom.kv.log.device.Device` in memory.

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
        """Only for :class:`MemoryFile`: number a write, and let it fail if it is to."""
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
