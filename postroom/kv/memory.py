"""The engine in memory, for simulation and for ``open(":memory:")``, and its sorted map.

:class:`MemoryDisk` has the content that survives; :class:`MemoryEngine` is one opening of it. Maps
are immutable (:class:`SortedMap`). The disk therefore keeps its content after each write
set that was not synced yet, and a loss of power merely chooses how far back to fall::

    durable ── write ── write ── write          crash: any of these four states
       ▲                          ▲
    last sync                   newest          sync: the newest becomes the durable one

Faults, all decided by the test that owns the disk:

* ``at_write`` is called before each write with its number (1 for the disk's first): the test may
  crash the disk in there, or raise.
* ``write_faults`` says which writes fail, and whether they take place nevertheless.
* ``capacity_bytes`` is the room there is; a write set that needs more fails.
* :meth:`MemoryDisk.crash` ends whichever engine has the disk open, with or without loss.

A failed write is not visible to the engine that made it, even if it took place. LevelDB does so,
too. Left out: damage, and the time that a device takes.

The state is an immutable sorted map of bytes to bytes, from which another one is derived cheaply.

Keys are kept in chunks of up to ``CHUNK_KEYS``, each a pair of parallel sorted lists, and
``_bounds`` says where each chunk begins::

    _bounds   b""            b"m"            b"t"
    _chunks   [a c f k]      [m n q]         [t x]         chunk i: bounds[i] <= key < bounds[i+1]

:meth:`SortedMap.updated` copies the chunks that a write set touches, and the list of chunks; all
others are shared between the old map and the new one. A snapshot is therefore just a reference,
readers need no lock, and the past states of a map cost what has changed between them. One write to
a million keys copies about a thousand keys and two thousand chunk references: microseconds.

Invariants: no chunk is empty but the only one; ``_bounds[0]`` is the empty key; nothing is changed
after construction. Left out: merging of small neighbours, as an empty chunk goes away anyway.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from postroom.errors import StoreLocked
from postroom.kv.engine import EngineFailed, EngineFull, TableFiles, WriteSet, in_slices
from postroom.kv.log_device import MemoryDevice, WriteFault

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - only its type

CHUNK_KEYS: Final = 1024


class _Chunk(NamedTuple):
    keys: list[bytes]
    values: list[bytes]
    bytes_stored: int


class SortedMap:
    """A sorted map. ``bytes_stored`` is the length of all keys and values together."""

    __slots__ = ("_bounds", "_chunks", "bytes_stored")

    def __init__(self) -> None:
        """Make an empty one."""
        self._bounds: list[bytes] = [b""]
        self._chunks: list[_Chunk] = [_Chunk([], [], 0)]
        self.bytes_stored = 0

    def __len__(self) -> int:
        """Return how many keys there are."""
        return sum(len(chunk.keys) for chunk in self._chunks)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, or ``None``."""
        keys, values, _ = self._chunks[bisect_right(self._bounds, key) - 1]
        at = bisect_left(keys, key)
        return values[at] if at < len(keys) and keys[at] == key else None

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs with ``lower <= key < upper`` in key order, or backwards."""
        order = reversed if reverse else iter
        for index in order(self._overlapping(lower, upper)):
            keys, values, _ = self._chunks[index]
            for at in order(range(bisect_left(keys, lower), bisect_left(keys, upper))):
                yield keys[at], values[at]

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return about the length of keys and values in the span.

        It is exact but for the chunks at the ends.
        """
        return sum(
            chunk.bytes_stored
            * (bisect_left(chunk.keys, upper) - bisect_left(chunk.keys, lower))
            // max(1, len(chunk.keys))
            for chunk in map(self._chunks.__getitem__, self._overlapping(lower, upper))
        )

    def updated(self, writes: WriteSet) -> SortedMap:
        """Return the map after ``writes``."""
        result = SortedMap()
        result._bounds, result._chunks = self._bounds.copy(), self._chunks.copy()
        result.bytes_stored = self.bytes_stored
        keys = sorted(writes)
        stop = len(keys)
        while stop:  # from the right, so that the chunks still to come keep their places
            index = bisect_right(self._bounds, keys[stop - 1]) - 1
            start = bisect_left(keys, self._bounds[index], 0, stop)
            result._replace(index, _changed(self._chunks[index], writes, keys[start:stop]))
            stop = start
        return result

    def _overlapping(self, lower: bytes, upper: bytes) -> range:
        if lower >= upper:
            return range(0)
        return range(bisect_right(self._bounds, lower) - 1, bisect_left(self._bounds, upper))

    def _replace(self, index: int, chunk: _Chunk) -> None:
        """Put ``chunk`` in the place of the one at ``index``: in pieces, or not at all."""
        self.bytes_stored += chunk.bytes_stored - self._chunks[index].bytes_stored
        pieces = _pieces(chunk)
        if not pieces and len(self._chunks) == 1:
            pieces = [chunk]
        self._chunks[index : index + 1] = pieces
        bounds = [self._bounds[index], *(piece.keys[0] for piece in pieces[1:])]
        self._bounds[index : index + 1] = bounds[: len(pieces)]
        self._bounds[0] = b""


def _changed(chunk: _Chunk, writes: WriteSet, keys_written: list[bytes]) -> _Chunk:
    """Return a copy of ``chunk``, of any length, with those of ``writes`` that belong to it."""
    keys, values, size = chunk.keys.copy(), chunk.values.copy(), chunk.bytes_stored
    for key in keys_written:
        value = writes[key]
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            size -= len(key) + len(values[at])
            del keys[at], values[at]
        if value is not None:
            size += len(key) + len(value)
            keys.insert(at, key)
            values.insert(at, value)
    return _Chunk(keys, values, size)


def _pieces(chunk: _Chunk) -> list[_Chunk]:
    """Return ``chunk``, in pieces of half the permitted length if it is too long."""
    if len(chunk.keys) <= CHUNK_KEYS:
        return [chunk] if chunk.keys else []
    step = CHUNK_KEYS // 2
    return [
        _Chunk(keys, values, sum(map(len, keys)) + sum(map(len, values)))
        for start in range(0, len(chunk.keys), step)
        for keys, values in [(chunk.keys[start : start + step], chunk.values[start : start + step])]
    ]


UNSYNCED_WRITES_KEPT: Final = 256
"""The writes that may be lost: older ones become durable, as an operating system does in time."""

UNLIMITED_FREE_BYTES: Final = 1 << 40


class MemoryDisk:
    """The content that survives closing and crashing. One engine at a time has it open.

    Attributes:
        capacity_bytes: room for keys and values; ``None`` is without limit.
        write_faults: number of the write to what becomes of it.
        at_write: called with the number of each write before it is made.
        writes: how many were begun so far.
        log: the files of the log, whose writes count, and may fail, as those of the engine do.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        """Make an empty one."""
        self.capacity_bytes = capacity_bytes
        self.write_faults: dict[int, WriteFault] = {}
        self.at_write: Callable[[int], object] | None = None
        self.writes = 0
        self.log = MemoryDevice(self)
        self._durable = SortedMap()
        self._unsynced: deque[SortedMap] = deque()
        self._engine: MemoryEngine | None = None

    @property
    def content(self) -> SortedMap:
        """Return what an engine finds that is opened now."""
        return self._unsynced[-1] if self._unsynced else self._durable

    @property
    def durable(self) -> SortedMap:
        """Return the content that is left if the power fails now and all unsynced is lost."""
        return self._durable

    def crash(self, lose_unsynced: Random | None = None) -> None:
        """End the open engine, if any, in the middle of things.

        Args:
            lose_unsynced: ``None`` if only the process died. With a loss of power this chooses how
                many of the write sets survive that came after the last synced one.
        """
        if self._engine is not None:
            self._engine.is_open = False
            self._engine = None
        if lose_unsynced is not None:
            for _ in range(lose_unsynced.randint(0, len(self._unsynced))):
                self._unsynced.pop()
        self._sync()
        self.log.crash(lose_unsynced)

    def attach(self, engine: MemoryEngine) -> None:
        """Note the engine that has the disk open; only :class:`MemoryEngine` calls this."""
        if self._engine is not None:
            raise StoreLocked("The store in memory is open already; close it or share it.")
        self._engine = engine
        self._sync()  # like LevelDB, whose recovery syncs what it finds

    def detach(self, *, sync: bool) -> None:
        """Note that no engine has it open; only :class:`MemoryEngine` calls this."""
        self._engine = None
        if sync:
            self._sync()

    def begin_write(self) -> WriteFault | None:
        """Count a write, and say how it is to fail; only :class:`MemoryEngine` calls this."""
        self.writes += 1
        number = self.writes
        if self.at_write is not None:
            self.at_write(number)
        return self.write_faults.get(number)

    def append(self, content: SortedMap, *, sync: bool) -> None:
        """Add a write set by its outcome; only :class:`MemoryEngine` calls this."""
        self._unsynced.append(content)
        if sync:
            self._sync()
        elif len(self._unsynced) > UNSYNCED_WRITES_KEPT:
            self._durable = self._unsynced.popleft()

    def _sync(self) -> None:
        self._durable = self.content
        self._unsynced.clear()


class _MemoryReader:
    """Reads of a map for as long as the engine is open."""

    def __init__(self, content: SortedMap, engine: MemoryEngine) -> None:
        self._content = content
        self._opened = engine

    def get(self, key: bytes, /) -> bytes | None:
        self._require_open()
        return self._content.get(key)

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._require_open()
        return self._while_open(self._content.iterate(lower, upper, reverse=reverse))

    def _while_open(self, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        engine = self._opened
        self._require_open()
        for pair in pairs:
            yield pair
            if not engine.is_open:
                self._require_open()

    def _require_open(self) -> None:
        if not self._opened.is_open:
            raise RuntimeError("The engine is closed.")


class MemorySnapshot(_MemoryReader):
    """A snapshot of a :class:`MemoryEngine`."""

    _is_closed = False

    def close(self) -> None:
        """Let go of the past content. Idempotent."""
        self._is_closed = True
        self._content = SortedMap()

    def _require_open(self) -> None:
        super()._require_open()
        if self._is_closed:
            raise RuntimeError("The snapshot is closed.")


class MemoryEngine(_MemoryReader):
    """One opening of ``disk``, or of a new one.

    After ``close``, or a crash of the disk, everything but ``close`` raises ``RuntimeError``.

    Raises:
        StoreLocked: another engine has the disk open.
    """

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        """Open ``disk`` with what it contains."""
        self.disk = MemoryDisk() if disk is None else disk
        self.is_open = True
        self._failure: str | None = None
        self._is_full = False
        self.disk.attach(self)
        super().__init__(self.disk.content, self)

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        """Write ``writes``, but for the faults that the disk was given."""
        self._require_writable()
        fault = self.disk.begin_write()
        self._require_writable()
        content = self._content.updated(writes)
        if self._is_over_capacity(content):
            self._fail("no space left", EngineFull)
        if fault is None or fault is WriteFault.THERE_WHOLE:
            self.disk.append(content, sync=sync and fault is None)
        if fault is not None:
            self._fail("a fault that the test asked for")
        self._content = content

    def prepare(
        self, writes: WriteSet, pause: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Prepare a write, and return the function that carries it out."""
        self._require_writable()
        copied: WriteSet = {}
        for part in in_slices(writes, pause):
            copied.update(part)
        return partial(self.write, copied, sync=False)

    def sync(self) -> None:
        """Make durable what was written."""
        self._require_writable()
        fault = self.disk.begin_write()
        self._require_writable()
        if fault is not None:
            self._fail("a fault that the test asked for")
        self.disk.append(self._content, sync=True)

    def snapshot(self) -> MemorySnapshot:
        """Return the engine as it is now; it costs a reference."""
        self._require_open()
        return MemorySnapshot(self._content, self)

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return the length of the keys and values in the span, estimated at its ends."""
        self._require_open()
        return self._content.approximate_bytes(lower, upper)

    def unflushed_bytes(self) -> int:
        """Return 0: nothing waits to be written to a table."""
        return 0

    def disk_bytes(self) -> int:
        """Return the length of all keys and values."""
        self._require_open()
        return self._content.bytes_stored

    def table_files(self) -> TableFiles:
        """Return no tables."""
        return TableFiles()

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Do nothing: nothing remains of what was deleted."""
        self._require_open()

    def free_bytes(self) -> int:
        """Return how much of ``capacity_bytes`` of the disk is left."""
        if self.disk.capacity_bytes is None:
            return UNLIMITED_FREE_BYTES
        return max(0, self.disk.capacity_bytes - self._content.bytes_stored)

    def working_bytes(self) -> int:
        """Return 0: nothing is written but what was asked for."""
        return 0

    @property
    def full(self) -> str:
        """Return why nothing is written; empty: writes are taken."""
        return self._failure or "" if self._is_full else ""

    def open_again(self) -> bool:
        """Open the folder again if the device has room; return whether it is open for writing."""
        self._require_open()
        if self._is_full:
            self._failure, self._is_full = None, False
        return self._failure is None

    def close(self) -> None:
        """Sync everything, unless a write failed, and give the disk back. Idempotent."""
        if self.is_open:
            self.is_open = False
            self.disk.detach(sync=self._failure is None)

    def _is_over_capacity(self, content: SortedMap) -> bool:
        """Return whether it has grown past the limit; what makes room is always possible."""
        limit = self.disk.capacity_bytes
        return limit is not None and content.bytes_stored > max(limit, self._content.bytes_stored)

    def _require_writable(self) -> None:
        self._require_open()
        if self._failure:
            raise EngineFull(self._failure) if self._is_full else EngineFailed(self._failure)

    def _fail(self, reason: str, kind: type[EngineFailed] = EngineFailed) -> None:
        self._failure = (
            f"The store in memory cannot be written any more: {reason}. The outcome of the "
            "last write is unknown until it is closed and opened again."
        )
        self._is_full = kind is EngineFull
        raise kind(self._failure)
