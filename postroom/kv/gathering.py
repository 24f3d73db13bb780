"""The state with its newest writes in memory: several turns become one batch of the engine.

::

    turn ── add ─▶ gathered ── enough of them ─▶ under way ─▶ engine
                      │                          (a thread)      │
    get ──────────────┴── or ────────────────────────┴── or ─────┘

What a turn writes into the state is in the log by then, so the state need not have it at once:
after a crash it is had again from the log (:mod:`.storage`). A batch costs the engine about as much
as ten keys do, whatever it holds; records that each turn writes anew (the applied index, counters,
the index of a busy inbox) are written once a batch. So small turns gather, and large ones go to the
engine as they come. Nor has a large turn to wait for the engine: a batch is handed over, and the
next turns gather while it is written (:mod:`.beside`). With the next batch the one before has to be
done, so no more than two are held in memory. A batch of many small turns is written at once: there
a thread would cost more than it does.

Invariants:

* Whoever reads finds what was added. A span that holds any of it is written before it is gone
  through; only if the engine refuses that is it put together in memory.
* The engine holds whole turns, in order: what is gathered is written as one batch, and batches one
  after the other.
* Of a batch that failed nothing is forgotten; nothing more is written, and the next turn is told.
* Where a batch finds no room on the device, all stays in memory until there is room again. Turns go
  on meanwhile; who adds them sees to it that they do not become too many.
* A batch is under way until it is written. One that an interrupt has left there, at whatever line,
  goes along with the next one.

Left out: a limit of time. What is gathered when nothing happens any more stays where it is, since
the log has it; closing writes it.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from postroom.kv.beside import Beside, Work
from postroom.kv.compaction import Compaction, Tombstones
from postroom.kv.engine import (
    Engine,
    EngineFailed,
    EngineFull,
    EngineSnapshot,
    StateEngine,
    TableFiles,
    WriteSet,
)
from postroom.kv.marker import MARKER_KEY
from postroom.kv.unflushed import Unflushed
from postroom.limits import GATHERED_BYTES_MAX

LARGE: Final = 8192
"""A turn with more keys is a batch of its own; it is sorted in parts of that many."""
SMALL_TURNS: Final = 32
"""A batch of so many turns is not handed over, unless it has many bytes. Each of them gives the
interpreter away for moments (a poll, a write of the log), and wakes a thread that waits for it each
time, which comes too late.
"""
_UNKNOWN: Final[Any] = object()


class Gathering:
    """See the module. An :class:`postroom.kv.engine.Engine`; turns are added, not written.

    Args:
        engine: where it is written.
        keys_max: with more keys than that, it is time to write; 0: always.
        mark: told of each batch before it is written; puts into it what has to go along.
        beside: who writes a batch that is handed over.

    Attributes:
        tombstones: a sample of what was deleted.
        full: why batches stay in memory: the device has no room. ``None``: they are written.
    """

    def __init__(
        self,
        engine: StateEngine,
        keys_max: int,
        mark: Callable[[WriteSet], None],
        beside: Beside,
    ) -> None:
        self._engine = engine
        self._keys_max = keys_max
        self._mark = mark
        self._beside = beside
        self.tombstones = Tombstones()
        self._unflushed = Unflushed()
        self._writing = threading.Lock()
        """Held by who begins a batch: whoever only looks must not wait for that."""
        self._changing = threading.Lock()
        self._gathered: WriteSet = {}
        self._under_way: WriteSet = {}
        self._bytes = 0
        self._turns = 0
        self._index = _Index()
        self._index_under_way = _Index()
        self._failure: EngineFailed | None = None
        self.full = EngineFull(engine.full) if engine.full else None
        self._written: bytes | None = None
        """The marker of the last batch that was written."""

    # --- writing

    def __len__(self) -> int:
        """How many keys are gathered."""
        return len(self._gathered)

    @property
    def is_full(self) -> bool:
        """Whether it is time to write."""
        return len(self._gathered) > self._keys_max or self._bytes > GATHERED_BYTES_MAX

    def add(self, writes: WriteSet) -> None:
        """What a turn writes; ``writes`` is used up. To be called by one thread at a time.

        Raises:
            EngineFailed: somebody who read has found that the engine takes nothing any more.
        """
        index = None
        if len(writes) > LARGE and self.full is None:
            # A batch of its own: adding it to another one, or sorting it as a whole, would keep
            # everybody from the interpreter for as long.
            with contextlib.suppress(EngineFull):
                self.flush()
            index = _Index()
            index.add(writes)
            index.sort()
        with self._changing:
            if self._failure is not None:
                raise self._failure
            if len(writes) <= self._keys_max:  # else it is time to write anyway
                self._bytes += sum(map(len, filter(None, writes.values())))
                self._turns += 1
            else:
                self._turns = 0
            if self._gathered:
                self._gathered.update(writes)
            else:
                self._gathered = writes
            if index is None or self.full is not None:
                self._index.add(writes)
            else:
                self._index = index

    def hand_over(self) -> None:
        """Have what is gathered written: beside what the caller does next, or at once.

        Raises:
            EngineFailed: the engine refused this batch, or the one before; nothing of it is
                forgotten. If it has found no room, nothing is raised: see ``full``.
        """
        with self._writing, contextlib.suppress(EngineFull):
            self._finish_before()
            is_of_small_turns = self._turns >= SMALL_TURNS and self._bytes <= GATHERED_BYTES_MAX
            write = self._prepare()
            if is_of_small_turns:
                self._carry_out(write)
            else:
                self._beside.start(partial(self._carry_out, write))

    def flush(self) -> None:
        """Write what is gathered. Any thread may call it.

        Raises:
            EngineFailed: the engine refused; nothing of it is forgotten.
        """
        with self._writing:
            self._finish_before()
            if self._gathered or self._under_way:
                self._carry_out(self._prepare())

    def _finish(self) -> None:
        with self._writing:
            self._finish_before()
            if self._under_way:
                self._carry_out(self._prepare())

    def _finish_before(self) -> None:
        """Wait for the batch that is under way. Raise ``EngineFull`` where there is no room."""
        self._beside.finish()
        if self.full is not None:
            raise EngineFull(str(self.full))

    def settle(self) -> None:
        """Wait for the batch that is under way, whatever becomes of it."""
        with self._writing, contextlib.suppress(EngineFull):
            self._beside.finish()

    def go_on(self) -> None:
        """The engine was opened again: write what stayed in memory with the next batch.

        Raises:
            EngineFailed: the engine has lost a batch that it had taken.
        """
        with self._writing:
            stored = self._engine.get(MARKER_KEY)
            if self._written is not None and stored not in {
                self._written, self._under_way.get(MARKER_KEY)
            }:  # fmt: skip
                raise EngineFailed(
                    "The state of the store has lost writes while its device was full. Nothing is "
                    "lost for good: close the store and open it again."
                )
            self.full = None

    def kept(self) -> tuple[int, int]:
        """Return how many keys are in memory, and how many bytes they and their values take."""
        with self._changing:
            pairs = [*self._under_way.items(), *self._gathered.items()]
        return len(pairs), sum(len(key) + len(value or b"") for key, value in pairs)

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        """Write what is gathered, and ``writes``, in one batch; with ``sync``, durably.

        Raises:
            EngineFailed: the engine refused.
        """
        with self._writing:
            self._finish_before()
            with self._changing:
                self._gathered = {**self._gathered, **writes}
                self._index.add(writes)
            batch = self._begin()
            self._carry_out(lambda: self._engine.write(batch, sync=sync))

    def _prepare(self) -> Work:
        batch = self._begin()
        with self._failing():
            return self._engine.prepare(batch)

    def _begin(self) -> WriteSet:
        # Who reads beside us looks at what is gathered first: it must find a key here or there.
        with self._changing:
            if self._under_way:  # it was refused, or somebody was interrupted: it goes along
                self._gathered = {**self._under_way, **self._gathered}
                self._index = _Index()
                self._index.add(self._gathered)
            self._mark(self._gathered)
            self._under_way = writes = self._gathered
            self._gathered, self._bytes, self._turns = {}, 0, 0
            self._index, self._index_under_way = _Index(), self._index
        self.tombstones.wrote(writes)
        self._unflushed.wrote(writes)
        return writes

    def _carry_out(self, write: Work) -> None:
        with self._failing():
            write()
        with self._changing:
            self._written = self._under_way.get(MARKER_KEY)
            self._under_way, self._index_under_way = {}, _Index()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What the engine refuses, or an interrupt ends, stays under way."""
        try:
            yield
        except EngineFull as error:
            self.full = error
            raise
        except EngineFailed as error:
            self._failure = error
            raise

    # --- reading

    def get(self, key: bytes, /) -> bytes | None:
        """The value of ``key``."""
        value = self._gathered.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._under_way.get(key, _UNKNOWN)
        return self._engine.get(key) if value is _UNKNOWN else value

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """The pairs in a span."""
        is_gathered, is_under_way = self._where(lower, upper)
        if is_gathered or is_under_way:
            try:
                self.flush() if is_gathered else self._finish()
            except EngineFailed:  # the next turn is told
                return Overlaid(self._engine, self._unwritten()).iterate(
                    lower, upper, reverse=reverse
                )
        return self._engine.iterate(lower, upper, reverse=reverse)

    def _where(self, lower: bytes, upper: bytes) -> tuple[bool, bool]:
        """Whether any of a span is gathered, and whether any of it is under way."""
        if not self._gathered and not self._under_way:
            return False, False
        with self._changing:
            return (
                self._index.holds_any(lower, upper),
                self._index_under_way.holds_any(lower, upper),
            )

    def snapshot(self) -> EngineSnapshot:
        """The state as it is now."""
        try:
            self.flush()
        except EngineFailed:  # the next turn is told
            return Overlaid(self._engine.snapshot(), self._unwritten())
        return self._engine.snapshot()

    def _unwritten(self) -> WriteSet:
        with self._changing:
            return {**self._under_way, **self._gathered}

    def sync(self) -> None:
        """Make everything durable that was added before."""
        self.flush()
        self._engine.sync()

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """As the engine says of its tables, and about how much of the span it has in no table."""
        of_tables = self._engine.approximate_bytes(lower, upper)
        return of_tables + self._unflushed.bytes_in(lower, upper, self._engine.unflushed_bytes())

    def disk_bytes(self) -> int:
        """As the engine says."""
        with contextlib.suppress(EngineFailed):  # the next turn is told
            self.flush()
        return self._engine.disk_bytes()

    def table_files(self) -> TableFiles:
        """As the engine says."""
        return self._engine.table_files()

    def compact(self, lower: bytes, upper: bytes) -> None:
        """As the engine does."""
        self.flush()
        self._engine.compact(lower, upper)

    def compaction(self, monotonic: Callable[[], float]) -> Compaction:
        """Return what compacts this in the background where much was deleted."""
        return Compaction(self, self.tombstones, self._beside, monotonic)

    def free_bytes(self) -> int:
        """As the engine says."""
        return self._engine.free_bytes()

    def working_bytes(self) -> int:
        """As the engine says."""
        return self._engine.working_bytes()

    def close(self) -> None:
        """Nothing: who opened the engine closes it."""


class _Index:
    """Which keys were added, in order once somebody asks: most turns are asked nothing."""

    def __init__(self) -> None:
        self._parts: list[list[bytes]] = []
        self._added: list[bytes] = []

    def add(self, added: Iterable[bytes]) -> None:
        """Note keys, which may be there."""
        self._added.extend(added)

    def sort(self) -> None:
        """Bring what was added in order, in parts: other threads run between them."""
        added = self._added
        if self._parts and len(self._parts[-1]) + len(added) <= LARGE:
            self._parts[-1] += added
            self._parts[-1].sort()  # fast: most of it is in order
        else:
            left = iter(added)
            while part := sorted(islice(left, LARGE)):
                self._parts.append(part)
        self._added = []  # last: whom an interrupt keeps from that notes them twice

    def holds_any(self, lower: bytes, upper: bytes) -> bool:
        """Whether a key in ``[lower, upper)`` was added."""
        if self._added:
            self.sort()
        return any(_any_in(part, lower, upper) for part in self._parts)


def _any_in(sorted_keys: list[bytes], lower: bytes, upper: bytes) -> bool:
    first = bisect_left(sorted_keys, lower)
    return first < len(sorted_keys) and sorted_keys[first] < upper


class Overlaid:
    """What an engine holds, or a snapshot of it, with what it could not take."""

    def __init__(self, stored: Engine | EngineSnapshot, gathered: WriteSet) -> None:
        self._stored = stored
        self._gathered = gathered

    def get(self, key: bytes, /) -> bytes | None:
        """The value of ``key``."""
        value = self._gathered.get(key, _UNKNOWN)
        return self._stored.get(key) if value is _UNKNOWN else value

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """The pairs in a span."""
        gathered = self._gathered
        here = [(k, v) for k, v in gathered.items() if lower <= k < upper and v is not None]
        here.sort(key=itemgetter(0), reverse=reverse)
        stored = self._stored.iterate(lower, upper, reverse=reverse)
        there = (pair for pair in stored if pair[0] not in gathered)
        return heapq.merge(there, here, key=itemgetter(0), reverse=reverse)

    def close(self) -> None:
        """Let go of the snapshot."""
        self._stored.close()
