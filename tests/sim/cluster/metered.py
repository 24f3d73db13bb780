"""An engine that tells how long all that was read from it and written to it would take.

Evaluating costs a node time, and most of it goes with the number of pairs that it looks at. The
figures are of the order of those of the product. It matters that a large request takes longer than
a small one, and that others wait for it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine

PAIR_SECONDS: Final = 1e-5
BYTE_SECONDS: Final = 2e-9


class MeteredEngine(MemoryEngine):
    """An engine that tells how long its reads and writes would take."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self._seconds = 0.0

    def spent(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def get(self, key: bytes, /) -> bytes | None:
        value = super().get(key)
        self._seconds += PAIR_SECONDS + BYTE_SECONDS * len(value or b"")
        return value

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._counted(super().iterate(lower, upper, reverse=reverse))

    def _counted(self, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for pair in pairs:
            self._seconds += PAIR_SECONDS + BYTE_SECONDS * len(pair[1])
            yield pair

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        super().write(writes, sync=sync)
        size = sum(len(value or b"") for value in writes.values())
        self._seconds += PAIR_SECONDS * len(writes) + BYTE_SECONDS * size
