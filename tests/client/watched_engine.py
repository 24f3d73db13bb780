"""An engine in memory that is watched: what is done to it is counted, and may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from postroom.kv import keys
from postroom.kv.engine import Engine, EngineFailed, EngineSnapshot, TableFiles, WriteSet
from postroom.kv.log_device import WriteFault

CEILING_KEY: Final = keys.store_key("clock ceiling")


class WatchedEngine:
    """An engine that counts, and whose next write can be made to fail.

    Attributes:
        writes: batches that were written, empty ones not counted.
        keys_written: keys in them.
        steps: pairs that iterators have stepped over.
        fault: what becomes of the next write, but for one of the clock's ceiling alone; afterwards
            the engine has failed.
        before_write: called before each write.
        overlaps: writes that began while another one was under way, which the port forbids.
    """

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.writes = self.keys_written = self.syncs = self.gets = self.steps = 0
        self.fault: WriteFault | None = None
        self.before_write: Callable[[WriteSet], None] = lambda _: None
        self.overlaps = 0
        self._under_way = 0
        self._failed = False

    def get(self, key: bytes, /) -> bytes | None:
        self.gets += 1
        return self.inner.get(key)

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._counted(self.inner.iterate(lower, upper, reverse=reverse))

    def _counted(self, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for pair in pairs:
            self.steps += 1
            yield pair

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        self.overlaps += self._under_way > 0
        self._under_way += 1
        try:
            self._write(writes, sync=sync)
        finally:
            self._under_way -= 1

    def _write(self, writes: WriteSet, *, sync: bool) -> None:
        self.before_write(writes)
        if self._failed:
            raise EngineFailed("it has failed before")
        self._failed = self.fault is not None and writes.keys() != {CEILING_KEY}
        if not self._failed or self.fault is WriteFault.THERE_WHOLE:
            self.inner.write(writes, sync=sync)
            self.writes += bool(writes)
            self.syncs += sync
            self.keys_written += len(writes)
        if self._failed:
            raise EngineFailed("a fault that the test asked for")

    def snapshot(self) -> EngineSnapshot:
        return self.inner.snapshot()

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        return self.inner.approximate_bytes(lower, upper)

    def disk_bytes(self) -> int:
        return self.inner.disk_bytes()

    def table_files(self) -> TableFiles:
        return self.inner.table_files()

    def compact(self, lower: bytes, upper: bytes) -> None:
        self.inner.compact(lower, upper)

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def working_bytes(self) -> int:
        return self.inner.working_bytes()

    def close(self) -> None:
        self.inner.close()


def dump(engine: Engine) -> dict[bytes, bytes]:
    """Return everything that an engine holds."""
    return dict(engine.iterate(b"", b"\xff" * 9))
