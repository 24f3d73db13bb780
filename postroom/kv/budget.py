"""One budget of memory, shared out to what keeps parts of the store in memory.

::

    memory_bytes ─┬─ 1/2  memtables: two, of a quarter each (64 MiB at most)
                  ├─ 1/8  values that were read or written last, in front of the engine (.cache)
                  ├─ 1/8  filter of heads (32 MiB at most; .head_filter)
                  └─ rest blocks of table files, unpacked

The budget does not cover the indexes and filters of open table files, about two bytes a key. The
system maps them, or the engine holds them (:mod:`.table_files`). It does not cover the log, clients
or messages either, which have limits of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postroom.limits import (
    HEAD_FILTER_BYTES_MAX,
    MEMORY_BYTES,
    MEMORY_BYTES_MIN,
    WRITE_BUFFER_BYTES_MAX,
)

_MEMTABLES: Final = 2
"""One is filled while the one before is written."""


@dataclass(frozen=True, slots=True)
class Budget:
    """See the module.

    Args:
        memory_bytes: the whole of it, ``MEMORY_BYTES_MIN`` at least.

    Attributes:
        write_buffer_bytes: of one memtable, and so of the engine's log: opening after a crash reads
            that much again.
        values_bytes: of the values in front of the engine.
        heads_bytes: of the filter of heads.
        blocks_bytes: of the engine's cache of blocks.
    """

    memory_bytes: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        if self.memory_bytes < MEMORY_BYTES_MIN:
            raise ValueError(
                f"memory_bytes is at least {MEMORY_BYTES_MIN} ({MEMORY_BYTES_MIN >> 20} MiB), not "
                f"{self.memory_bytes}"
            )

    @property
    def write_buffer_bytes(self) -> int:  # noqa: D102 - see above
        return min(self.memory_bytes // (2 * _MEMTABLES), WRITE_BUFFER_BYTES_MAX)

    @property
    def values_bytes(self) -> int:  # noqa: D102 - see above
        return self.memory_bytes // 8

    @property
    def heads_bytes(self) -> int:  # noqa: D102 - see above
        return min(self.memory_bytes // 8, HEAD_FILTER_BYTES_MAX)

    @property
    def blocks_bytes(self) -> int:  # noqa: D102 - see above
        taken = _MEMTABLES * self.write_buffer_bytes + self.values_bytes + self.heads_bytes
        return self.memory_bytes - taken


DEFAULT: Final = Budget()
