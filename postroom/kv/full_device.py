"""The space that a storage has on its device, and its work where there is none.

::

    the device is full ──▶ the state stays in memory ──▶ there is room: opened again, written
                            the log has room that was made beforehand

A storage on a full device is read as before. Writes that free room are still taken, as
long as the log and the memory have room for them. The engine is a :class:`ReopeningEngine`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from postroom.errors import Error
from postroom.kv.background import StateWriter
from postroom.kv.engine import (
    BlockDamaged,
    EngineFailed,
    EngineFull,
    EngineOver,
    StateEngine,
    WriteSet,
)
from postroom.kv.folder import DeviceFull
from postroom.kv.gathering import Gathering
from postroom.kv.log_writer import Log
from postroom.limits import FULL_DEVICE_BYTES_MAX, FULL_DEVICE_KEYS_MAX

ALL: Final = b"\xff" * 9

SPARE_SHARE: Final = 4
DELETIONS_SHARE: Final = 4
"""Deletions are taken up to this part of that; leases and the clock need what is left."""


class DeviceSpace:
    """The room on the device of a store.

    Args:
        state: the engine.
        applied: the same with what has yet to be written into it.
        log: of the storage.
        writer: who compacts.
    """

    def __init__(
        self, state: StateEngine, applied: Gathering, log: Log, writer: StateWriter
    ) -> None:
        self._state = state
        self._applied = applied
        self._log = log
        self._writer = writer
        self._is_compacting = False

    @property
    def full(self) -> str:
        """Return why the state stays in memory: its device has no room. Empty: it does not."""
        return "" if self._applied.full is None else str(self._applied.full)

    def keep_in_memory(self, free_bytes: int) -> None:
        """Keep the state in memory: there is no room for it, as is known without trying."""
        if self._applied.full is None:
            self._applied.full = EngineFull(f"Only {free_bytes} bytes are free on the device.")

    def make_spare(self, free_bytes: int) -> None:
        """Give the log a segment for the time without room, while there is still some."""
        log = self._log
        if log.has_spare or self._applied.full is not None:
            return  # a short one does not contain many deletions
        size = max(log.short_bytes, min(log.segment_bytes, free_bytes // SPARE_SHARE))

        def make() -> None:
            with contextlib.suppress(OSError):  # there is none any more
                log.make_spare(size)

        self._writer.later(make)

    def takes_deletions(self) -> bool:
        """Return whether a full device leaves room, in memory and in the log, for deletions."""
        keys_kept, bytes_kept = self._applied.kept()
        return (
            keys_kept < FULL_DEVICE_KEYS_MAX // DELETIONS_SHARE
            and bytes_kept < FULL_DEVICE_BYTES_MAX // DELETIONS_SHARE
            and self._log.left_bytes > self._log.short_bytes // DELETIONS_SHARE
        )

    def kept_bytes(self) -> int:
        """Return how much has to be written once there is room."""
        return self._applied.kept()[1]

    def check_kept(self) -> None:
        """Make sure that memory does not fill up as well.

        Raises:
            EngineFull: there is too much in it.
        """
        if self._applied.full is None:
            return
        keys_kept, bytes_kept = self._applied.kept()
        if keys_kept > FULL_DEVICE_KEYS_MAX or bytes_kept > FULL_DEVICE_BYTES_MAX:
            raise EngineFull(self.full)

    def open_again(self) -> bool:
        """Write the state again if there is room now. Return whether it is written.

        Raises:
            EngineFailed: the engine has lost what it had taken.
            Error: it cannot even be opened to read.
        """
        if self._applied.full is None:
            return True
        self._applied.settle()
        if not self._state.open_again():
            return False
        self._applied.go_on()
        return True

    def compact(self) -> None:
        """Give back, in the background, the room of what was deleted."""
        if not self._is_compacting and self._applied.full is None:
            self._is_compacting = True
            self._writer.later(self._compact)

    def _compact(self) -> None:
        try:
            with contextlib.suppress(EngineFailed, BlockDamaged):  # the next caller is told
                self._applied.compact(b"", ALL)
        finally:
            self._is_compacting = False


class ReopeningEngine(EngineOver):
    """An engine that goes on reading on a full device, and writes again when there is room.

    ::

        writable ── a write finds no room ──▶ full ── open_again ──▶ writable
            ▲                                  ▲ reads what was written; refuses writes
            └── open ── the device is full ────┘ (opened to read only)

    A write that has found no room may have left half a record in the engine's log, and an engine
    whose compaction has failed takes no more writes. Both can be read as before. To be written
    again the folder is closed and opened: :meth:`ReopeningEngine.open_again`.

    Invariant: nobody reads while the folder is closed. Most reads come from who has the turn, who
    also opens again. Single keys are read by other threads, too; they take a lock once a write has
    failed.

    A :class:`postroom.kv.engine.StateEngine`.

    Args:
        open_to_write: opens the folder.
        open_to_read: opens it without writing; its writes raise ``EngineFull``.

    Attributes:
        get: the value of a key, or ``None``.

    Raises:
        Error: the folder cannot be opened, not even to read.
    """

    get: Callable[[bytes], bytes | None]
    _engine: StateEngine

    def __init__(
        self, open_to_write: Callable[[], StateEngine], open_to_read: Callable[[], StateEngine]
    ) -> None:
        self._open_to_write, self._open_to_read = open_to_write, open_to_read
        self._closing = threading.Lock()
        self._compactions = 0
        self._engine = self._opened()

    @property
    def full(self) -> str:
        """Return why nothing is written; empty: writes are taken."""
        return self._engine.full

    def _opened(self) -> StateEngine:
        try:
            engine = self._open_to_write()
        except DeviceFull as error:
            try:
                engine = self._open_to_read()
            except Error:
                raise error from None
        self.get = self._get_locked if engine.full else engine.get
        return engine

    def _get_locked(self, key: bytes, /) -> bytes | None:
        with self._closing:
            return self._engine.get(key)

    def open_again(self) -> bool:
        """Open the folder again if the device has room; return whether it is open for writing."""
        if not self.full:
            return True
        with self._closing:
            if self._compactions:
                return False
            self._engine.close()
            self._engine = self._opened()
        return not self.full

    # --- the work of the engine

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        """Write ``writes``; with ``sync``, durably."""
        try:
            self._engine.write(writes, sync=sync)
        except EngineFull:
            self.get = self._get_locked
            raise

    def prepare(
        self, writes: WriteSet, pause: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Prepare a write, and return the function that carries it out."""
        write = self._engine.prepare(writes, pause)

        def carry_out() -> None:
            try:
                write()
            except EngineFull:
                self.get = self._get_locked
                raise

        return carry_out

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return about how many bytes a span takes. Other threads may ask."""
        with self._closing:
            return self._engine.approximate_bytes(lower, upper)

    def unflushed_bytes(self) -> int:
        """Return how many bytes are in no table yet."""
        return self._engine.unflushed_bytes()

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Compact a span. The folder is not opened again meanwhile."""
        with self._closing:
            engine = self._engine
            self._compactions += 1
        try:
            engine.compact(lower, upper)
        except EngineFull:
            self.get = self._get_locked
            raise
        finally:
            with self._closing:
                self._compactions -= 1
