"""The writing of staged turns, with the clock's ceiling and the syncs of the chosen durability.

* *The clock's ceiling*: a timestamp counts only below a stored one. It is mostly
  written with a turn, and by itself when the clock is read above it.
* *Syncs*: with each turn that needs one, or at intervals, as the node was started.

A turn may write without the node's lock while another thread reads the clock: one write at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from postroom.errors import Error
from postroom.histogram import Histogram
from postroom.kv import keys
from postroom.kv.clock import HybridLogicalClock
from postroom.kv.engine import Engine, EngineFailed, WriteSet
from postroom.kv.storage import Storage
from postroom.server.opening import stopped_by

_CEILING_KEY: Final = keys.store_key("clock ceiling")


class TurnWriter:
    """The writer of a node's turns; see the module.

    Args:
        engine: the engine that is written.
        sync: whether writes are synced before they count.
        sync_interval_seconds: without ``sync``, after how long at the latest; ``None``: never.
        monotonic: seconds that never go back.
        on_failing: called when a write beside a turn has failed: the next turn is to report it.

    Attributes:
        failing: the error that the next turn is to report; ``None``: none.
        one_write_at_a_time: the lock of a thread that writes beside a turn.
        storage: the engine, if it has a log of its own; ``None``: it has none.
        syncs: microseconds that the writing of a synced turn took.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        sync: bool,
        sync_interval_seconds: float | None,
        monotonic: Callable[[], float],
        on_failing: Callable[[], None],
    ) -> None:
        self.failing: Error | None = None
        self.storage = engine if isinstance(engine, Storage) else None
        self.syncs = Histogram()
        self._engine = engine
        self._sync = sync
        self._sync_interval_seconds = sync_interval_seconds
        self._monotonic = monotonic
        self._on_failing = on_failing
        self.one_write_at_a_time = threading.Lock()
        self._unsynced_since: float | None = None
        self._storing_ceiling: int | None = None
        self._ceiling_beside = 0

    # --- a turn

    def write(self, staged: WriteSet, *, needs_sync: bool) -> Error | None:
        """Make a turn durable, and return the error if that failed.

        This may run without the node's lock.
        """
        if self.failing is not None:
            return self.failing
        # A ceiling counts only once it is durable: it needs a sync, whatever the durability.
        ceiling = self._storing_ceiling is not None
        sync = (self._sync and needs_sync) or ceiling or self._sync_is_due()
        if not staged and (not sync or self._unsynced_since is None):
            return None
        begun = self._monotonic() if sync else 0.0
        try:
            self._write_turn(staged, sync=sync)
        except EngineFailed as failure:
            return stopped_by(failure)
        if sync:
            self._unsynced_since = None
            self.syncs.count(int((self._monotonic() - begun) * 1_000_000))
        elif self._unsynced_since is None:
            self._unsynced_since = self._monotonic()
        return None

    def _write_turn(self, writes: WriteSet, *, sync: bool) -> None:
        """Write a turn, with the ceiling that another thread has written if that is higher."""
        with self.one_write_at_a_time:
            if self._storing_ceiling is not None and self._storing_ceiling < self._ceiling_beside:
                writes[_CEILING_KEY] = keys.u64(self._ceiling_beside)
            if self.storage is not None:
                self.storage.write_turn(writes, sync=sync)
            else:
                self._engine.write(writes, sync=sync)

    @property
    def is_synced(self) -> bool:
        """Return whether all writes are durable."""
        return self._unsynced_since is None

    def sync_due(self) -> float | None:
        """Return when the writes are to be synced, on the monotonic clock, or ``None``."""
        if self._sync_interval_seconds is None or self._unsynced_since is None:
            return None
        return self._unsynced_since + self._sync_interval_seconds

    def _sync_is_due(self) -> bool:
        due = self.sync_due()
        return due is not None and self._monotonic() >= due

    # --- the clock's ceiling

    def stored_ceiling(self) -> int:
        """Return the ceiling that the engine contains; 0: there is none."""
        return int.from_bytes(self._engine.get(_CEILING_KEY) or b"", "big")

    def stage_ceiling(self, clock: HybridLogicalClock, staged: WriteSet) -> None:
        """Stage a higher ceiling with a turn, if the clock wants one."""
        ceiling = clock.wanted_ceiling()
        if ceiling is not None:
            staged[_CEILING_KEY] = keys.u64(ceiling)
            self._storing_ceiling = ceiling

    def turn_is_durable(self, clock: HybridLogicalClock) -> None:
        """Make the ceiling count that was written with the turn."""
        if self._storing_ceiling is not None:
            clock.ceiling_stored(self._storing_ceiling)
            self._storing_ceiling = None

    def store_ceiling(self, ceiling: int) -> bool:
        """Store a ceiling for the clock. If that fails, the next turn reports it."""
        error = self.write_ceiling(ceiling)
        if error is not None:
            self.fails_with(error)
        return error is None

    def fails_with(self, error: Error) -> None:
        """Have the next turn report that a write beside a turn has failed."""
        if self.failing is None:
            self.failing = error
            self._on_failing()

    def write_ceiling(self, ceiling: int) -> Error | None:
        """Write a ceiling durably, and return the error if that failed."""
        try:
            with self.one_write_at_a_time:
                self._engine.write({_CEILING_KEY: keys.u64(ceiling)}, sync=True)
                self._ceiling_beside = ceiling
        except EngineFailed as failure:
            return stopped_by(failure)
        return None
