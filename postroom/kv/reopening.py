"""An engine that survives a full device: it goes on reading, and writes again when there is room.

::

    writable ── a write finds no room ──▶ full ── open_again ──▶ writable
        ▲                                  ▲ reads what was written; refuses writes
        └── open ── the device is full ────┘ (opened to read only)

A write that has found no room may have left half a record in the engine's log, and an engine whose
compaction has failed takes no more writes. Both can be read as before. To be written again the
folder is closed and opened: :meth:`ReopeningEngine.open_again`.

Invariant: nobody reads while the folder is closed. Most reads come from who has the turn, who also
opens again. Single keys are read by other threads, too; they take a lock once a write has failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from postroom.errors import Error
from postroom.kv.engine import EngineFull, EngineSnapshot, StateEngine, TableFiles, WriteSet
from postroom.kv.folder import DeviceFull


class ReopeningEngine:
    """See the module. A :class:`postroom.kv.engine.StateEngine`.

    Args:
        open_to_write: opens the folder.
        open_to_read: opens it without writing; its writes raise ``EngineFull``.

    Attributes:
        get: the value of a key, or ``None``.

    Raises:
        Error: the folder cannot be opened, not even to read.
    """

    get: Callable[[bytes], bytes | None]

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

    # --- what the engine does

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span."""
        return self._engine.iterate(lower, upper, reverse=reverse)

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        """Write ``writes``; with ``sync``, durably."""
        try:
            self._engine.write(writes, sync=sync)
        except EngineFull:
            self.get = self._get_locked
            raise

    def prepare(self, writes: WriteSet) -> Callable[[], None]:
        """Prepare a write, and return the function that carries it out."""
        write = self._engine.prepare(writes)

        def carry_out() -> None:
            try:
                write()
            except EngineFull:
                self.get = self._get_locked
                raise

        return carry_out

    def sync(self) -> None:
        """Make durable what was written."""
        self._engine.sync()

    def snapshot(self) -> EngineSnapshot:
        """Return a snapshot."""
        return self._engine.snapshot()

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return about how many bytes a span takes. Other threads may ask."""
        with self._closing:
            return self._engine.approximate_bytes(lower, upper)

    def unflushed_bytes(self) -> int:
        """Return how many bytes are in no table yet."""
        return self._engine.unflushed_bytes()

    def disk_bytes(self) -> int:
        """Return how many bytes the files take."""
        return self._engine.disk_bytes()

    def table_files(self) -> TableFiles:
        """Return the number of table files, and how many may be open."""
        return self._engine.table_files()

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

    def free_bytes(self) -> int:
        """Return how many bytes the device has left."""
        return self._engine.free_bytes()

    def working_bytes(self) -> int:
        """Return at most how many bytes a flush and a compaction need."""
        return self._engine.working_bytes()

    def close(self) -> None:
        """Close it."""
        self._engine.close()
