"""The space that a storage has on its device, and its work where there is none.

::

    the device is full ──▶ the state stays in memory ──▶ there is room: opened again, written
                            the log has room that was made beforehand

A storage on a full device is read as before. Writes that free room are still taken, as
long as the log and the memory have room for them.
"""

from __future__ import annotations

import contextlib
from typing import Final

from postroom.kv.engine import BlockDamaged, EngineFailed, EngineFull, StateEngine
from postroom.kv.gathering import Gathering
from postroom.kv.log.writer import Log
from postroom.kv.state_writer import StateWriter
from postroom.limits import FULL_DEVICE_BYTES_MAX, FULL_DEVICE_KEYS_MAX

ALL: Final = b"\xff" * 9

SPARE_SHARE: Final = 4
DELETIONS_SHARE: Final = 4
"""Deletions are taken up to this part of that; leases and the clock need what is left."""


class DeviceSpace:
    """See the module.

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
        """Why the state stays in memory: its device has no room. Empty: it does not."""
        return "" if self._applied.full is None else str(self._applied.full)

    def keep_in_memory(self, free_bytes: int) -> None:
        """Keep the state in memory: there is no room for it, as is known without trying."""
        if self._applied.full is None:
            self._applied.full = EngineFull(f"Only {free_bytes} bytes are free on the device.")

    def make_spare(self, free_bytes: int) -> None:
        """Give the log a segment for the time without room, while there is still some."""
        log = self._log
        if log.has_spare or self._applied.full is not None:
            return  # a short one does not hold many deletions
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
