"""The engine port: an ordered map of bytes to bytes that one node's storage stands on.

A *write set* is a plain dictionary from key to value, where ``None`` deletes. It is applied
atomically, and because it is a dictionary, of several writes of one key the last one stands.
A turn of the node gathers everything that it writes into one write set, so that there is one
batch and one sync a turn (group commit).

Three implementations: LevelDB (:mod:`postroom.kv.leveldb`), RocksDB (:mod:`postroom.kv.rocksdb`)
and memory (:mod:`postroom.kv.memory`), which can lose what was not synced, fail and fill up. One
test suite runs on all of them. :mod:`postroom.kv.opening` opens a folder by the engine that wrote
it.

Invariants:

* A write set is visible to ``get``, ``iterate`` and later snapshots once ``write`` has returned.
* After a loss of power the engine contains a *prefix* of the write sets, in order, that includes
  every one written with ``sync=True`` and every one before such a one.
* After a ``write`` that raised, the outcome of that write set is unknown until the engine is opened
  again: it is there whole, or not at all. Until then every further write raises ``EngineFailed``.
* Unreadable data raises ``BlockDamaged``: never is something else returned, or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeAlias

from postroom.errors import StoreCorrupted
from postroom.limits import (
    HEAD_FILTER_BYTES_MAX,
    MEMORY_BYTES,
    MEMORY_BYTES_MIN,
    WRITE_BUFFER_BYTES_MAX,
)

WriteSet: TypeAlias = dict[bytes, bytes | None]
"""A set of writes: key to value; ``None`` deletes the key."""


def join(staged: WriteSet, writes: WriteSet) -> None:
    """Update ``staged`` with ``writes``.

    This is about ten times faster than ``staged.update(writes)`` if ``writes`` is much larger:
    Python copies the table of a dictionary into an empty one as it is.
    """
    if len(writes) < MANY or len(staged) * 8 > len(writes):
        staged.update(writes)
        return
    before = dict(staged)
    staged.clear()
    staged.update(writes)
    for key, value in before.items():
        staged.setdefault(key, value)


MANY: Final = 1024
"""The number of pairs with fewer of which ``update`` is as good."""


class EngineFailed(Exception):
    """A write failed on the device. Nothing more is written until the engine is opened again."""


class EngineFull(EngineFailed):
    """A write found no room on the device. Earlier writes can still be read."""


class BlockDamaged(StoreCorrupted):
    """A part of the data cannot be read, the rest can. To users it is a ``StoreCorrupted``."""


class TableFiles(NamedTuple):
    """The files that an engine has written.

    Attributes:
        engine: ``leveldb``, ``rocksdb`` or ``memory``.
        tables: how many there are.
        open_max: so many stay open; any further ones are opened anew for each look-up.
    """

    engine: str = "memory"
    tables: int = 0
    open_max: int = 0


class ValueReader(Protocol):
    """A reader of single values."""

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of ``key``, or ``None``."""


class Reader(ValueReader, Protocol):
    """A reader of the engine as it is now, or of a snapshot of it."""

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs with ``lower <= key < upper`` in key order, or backwards.

        Lazy, and consistent: the iterator sees the reader as it was when this was called.
        """


class EngineSnapshot(Reader, Protocol):
    """The engine as it was at one moment. Close it: it holds back compaction."""

    def close(self) -> None:
        """Let go of the snapshot. Idempotent."""


class Engine(Reader, Protocol):
    """One node's ordered map. Reads may come from any thread, writes from one at a time."""

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        """Apply ``writes`` atomically; with ``sync``, return only once they are durable.

        Raises:
            EngineFailed: the device refused; see the invariants above.
        """

    def sync(self) -> None:
        """Make everything durable that was written before. May run beside writes.

        Raises:
            EngineFailed: the device refused.
        """

    def snapshot(self) -> EngineSnapshot:
        """Return the engine as it is now."""

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return about how many bytes the keys in ``[lower, upper)`` take on the device."""

    def disk_bytes(self) -> int:
        """Return about how many bytes the engine takes on the device, the last writes included."""

    def table_files(self) -> TableFiles:
        """Return how many files there are, and how many of them may be open."""

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Drop the remains of what was deleted in ``[lower, upper)``. May take long."""

    def free_bytes(self) -> int:
        """Return room left on the device."""

    def working_bytes(self) -> int:
        """Return at most how much room is needed to go on with what has been written so far."""

    def close(self) -> None:
        """Finish, and let go of the files. Idempotent."""


SLICE_KEYS: Final = 256
"""The number of keys that a large batch is filled with at once."""


def in_slices(writes: WriteSet, pause: Callable[[], None] | None) -> Iterator[WriteSet]:
    """Iterate over parts of ``writes``, with a pause after each; without one, over the whole."""
    if pause is None:
        yield writes
        return
    left = iter(writes.items())
    while part := dict(islice(left, SLICE_KEYS)):
        yield part
        pause()


class StateEngine(Engine, Protocol):
    """An engine whose writes can be carried out by another thread than made them."""

    def prepare(
        self, writes: WriteSet, pause: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Copy ``writes`` to where the engine takes them from; what is returned writes them.

        Both together are ``write`` without ``sync``. The first one needs the interpreter for
        each key, and the second one hardly at all: in a thread it costs others nothing. To be
        called once, before anything else is prepared or written. With a ``pause``, the copy is
        made in slices, and that is called after each of them.

        Raises:
            EngineFailed: the device refused, at either half.
        """

    def unflushed_bytes(self) -> int:
        """Return about how many bytes are in memory and in the log, and in no table yet."""

    @property
    def full(self) -> str:
        """Return why it takes no writes: its device has no room. Empty: it does, or has failed."""

    def open_again(self) -> bool:
        """Try to write again after ``EngineFull``. Return whether that is possible now.

        To be called by who has the turn. Snapshots and iterators of before may end.
        """


class EngineOver:
    """An engine over another one, to which it leaves what its class does not do itself."""

    _engine: Engine

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span."""
        return self._engine.iterate(lower, upper, reverse=reverse)

    def snapshot(self) -> EngineSnapshot:
        """Return the engine as it is now."""
        return self._engine.snapshot()

    def sync(self) -> None:
        """Make durable what was written."""
        self._engine.sync()

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return about how many bytes a span takes."""
        return self._engine.approximate_bytes(lower, upper)

    def disk_bytes(self) -> int:
        """Return how many bytes the files take."""
        return self._engine.disk_bytes()

    def table_files(self) -> TableFiles:
        """Return the number of table files, and how many may be open."""
        return self._engine.table_files()

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Compact a span."""
        self._engine.compact(lower, upper)

    def free_bytes(self) -> int:
        """Return how many bytes the device has left."""
        return self._engine.free_bytes()

    def working_bytes(self) -> int:
        """Return at most how many bytes a flush and a compaction need."""
        return self._engine.working_bytes()

    def close(self) -> None:
        """Close it."""
        self._engine.close()


# --- memory ---------------------------------------------------------------------------------------


_MEMTABLES: Final = 2
"""One is filled while the one before is written."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget of memory, shared out to what keeps parts of the store in memory.

    ::

        memory_bytes ─┬─ 1/2  memtables: two, of a quarter each (64 MiB at most)
                      ├─ 1/8  values that were read or written last, in front of the engine (.cache)
                      ├─ 1/8  filter of heads (32 MiB at most; .head_filter)
                      └─ rest blocks of table files, unpacked

    The budget does not cover the indexes and filters of open table files, about two bytes a key.
    The system maps them, or the engine contains them (:mod:`.engine_folder`). It does not cover the
    log, clients or messages either, which have limits of their own.

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


DEFAULT_BUDGET: Final = Budget()
