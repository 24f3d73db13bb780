"""The state with its newest writes in memory: several turns become one batch of the engine.

::

    turn ── add ─▶ gathered ── enough of them ─▶ under way ─▶ engine
                      │                          (a thread)      │
    get ──────────────┴── or ────────────────────────┴── or ─────┘

The log has the writes of a turn by then, so the state need not have them at once: after a crash
they come from the log (:mod:`.storage`). A batch costs the engine about as much as ten keys do,
whatever it has. Records that each turn writes anew (the applied index, counters, the index of a
busy inbox) are written once a batch. Small turns therefore gather, and large ones go to the engine
as they come.

A large turn does not wait for the engine either: a batch is handed over, and the next turns gather
while it is written (:mod:`.background`). The next batch waits for the one before, so no more than
two are held in memory. A batch of many small turns is written at once: a thread would cost more
than it gains. A batch of more than ``LARGE`` keys is filled beside the turns, too.

Invariants:

* A reader finds what was added. A few keys of a span are laid over what the engine has of it, both
  at one moment. If there are more, they are written first.
* The engine has whole turns, in order: what is gathered is written as one batch, and batches one
  after the other.
* Nothing of a batch that failed is forgotten; nothing more is written, and the next turn is told.
* If a batch finds no room on the device, all stays in memory until there is room again. Turns go
  on meanwhile; who adds them sees to it that they do not become too many.
* A batch is under way until it is written. One that an interrupt has left there, at whatever line,
  goes along with the next one.

Left out: a limit of time. If no more turns come, the gathered writes stay where they are, since the
log has them; closing writes them.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from postroom.kv.background import Compaction, StateWriter, Tombstones, Work
from postroom.kv.engine import (
    DEFAULT_BUDGET,
    Engine,
    EngineFailed,
    EngineFull,
    EngineOver,
    EngineSnapshot,
    StateEngine,
    WriteSet,
    in_slices,
)
from postroom.kv.head_filter import HeadFilter, has_data
from postroom.kv.marker import MARKER_KEY
from postroom.kv.span_size import MemtableSample
from postroom.limits import GATHERED_BYTES_MAX

LARGE: Final = 8192
"""A turn with more keys is a batch of its own; it is sorted in parts of that many."""
SMALL_TURNS: Final = 32
"""A batch of so many turns is not handed over, unless it has many bytes.

Each of them gives the interpreter away for moments (a poll, a write of the log), and wakes a thread
that waits for it each time, which comes too late.
"""
FEW: Final = 512
"""The most gathered keys of a span that are laid over it, which costs less than a write."""
INSERTED_SHARE: Final = 64
"""Fewer new keys than this part of those in order are inserted, rather than sorted with them."""
_UNKNOWN: Final[Any] = object()


class Gathering(EngineOver):
    """An :class:`postroom.kv.engine.Engine` in memory over another; turns are added, not written.

    Args:
        engine: where it is written.
        keys_max: with more keys than that, it is time to write; 0: always.
        add_marker: told of each batch before it is written; puts into it what has to go along.
        writer: who writes a batch that is handed over.
        heads_bytes: the size of the filter of heads, which an engine without data gets.

    Attributes:
        tombstones: a sample of what was deleted.
        full: why batches stay in memory: the device has no room. ``None``: they are written.
    """

    _engine: StateEngine

    def __init__(
        self,
        engine: StateEngine,
        keys_max: int,
        add_marker: Callable[[WriteSet], None],
        writer: StateWriter,
        heads_bytes: int = DEFAULT_BUDGET.heads_bytes,
    ) -> None:
        self._engine = engine
        self._keys_max = keys_max
        self._add_marker = add_marker
        self._writer = writer
        self.tombstones = Tombstones()
        self._unflushed = MemtableSample()
        self._heads = None if has_data(engine) else HeadFilter(heads_bytes)
        self._writing = threading.Lock()
        """The lock of whoever begins a batch: a mere look must not wait for that."""
        self._changing = threading.Lock()
        self._gathered: WriteSet = {}
        self._under_way: WriteSet = {}
        self._bytes = 0
        self._turns = 0
        self._index = _KeyIndex()
        self._index_under_way = _KeyIndex()
        self._failure: EngineFailed | None = None
        self.full = EngineFull(engine.full) if engine.full else None
        self._written: bytes | None = None
        """The marker of the last batch that was written."""

    # --- writing

    def __len__(self) -> int:
        """Return how many keys are gathered."""
        return len(self._gathered)

    @property
    def is_full(self) -> bool:
        """Return whether it is time to write."""
        return len(self._gathered) > self._keys_max or self._bytes > GATHERED_BYTES_MAX

    def add(self, writes: WriteSet) -> None:
        """Add the writes of a turn; ``writes`` is used up. One thread at a time may call it.

        Raises:
            EngineFailed: somebody who read has found that the engine takes nothing any more.
        """
        index = None
        if len(writes) > LARGE and self.full is None:
            # A batch of its own: adding it to another one, or sorting it as a whole, would keep
            # everybody from the interpreter for as long.
            with contextlib.suppress(EngineFull):
                self.flush()
            index = _KeyIndex()
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
            if index is None or self.full is not None:
                self._index.add(writes)  # first: an interrupt may leave too much in it, never less
            else:
                self._index = index
            if self._gathered:
                self._gathered.update(writes)
            else:
                self._gathered = writes

    def hand_over(self) -> None:
        """Have what is gathered written: beside what the caller does next, or at once.

        Raises:
            EngineFailed: the engine refused this batch, or the one before; nothing of it is
                forgotten. If it has found no room, nothing is raised: see ``full``.
        """
        with self._writing, contextlib.suppress(EngineFull):
            self._finish_before()
            is_of_small_turns = self._turns >= SMALL_TURNS and self._bytes <= GATHERED_BYTES_MAX
            if len(self._gathered) > LARGE:
                self._writer.start(partial(self._write_in_slices, self._begin()))
                return
            write = self._prepare()
            if is_of_small_turns:
                self._carry_out(write)
            else:
                self._writer.start(partial(self._carry_out, write))

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
        self._writer.finish()
        if self.full is not None:
            raise EngineFull(str(self.full))

    def settle(self) -> None:
        """Wait for the batch that is under way, whatever becomes of it."""
        with self._writing, contextlib.suppress(EngineFull):
            self._writer.finish()

    def go_on(self) -> None:
        """Go on writing after the engine was opened again.

        The next batch writes what stayed in memory.

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
            self._note(batch)
            self._carry_out(lambda: self._engine.write(batch, sync=sync))

    def _prepare(self) -> Work:
        batch = self._begin()
        self._note(batch)
        with self._failing():
            return self._engine.prepare(batch)

    def _write_in_slices(self, batch: WriteSet) -> None:
        """Write a large batch, with pauses in which others have the interpreter."""
        for part in in_slices(batch, self._writer.pause):
            self._note(part)
        with self._failing():
            write = self._engine.prepare(batch, self._writer.pause)
        self._carry_out(write)

    def _begin(self) -> WriteSet:
        # A concurrent reader looks at what is gathered first: it must find a key here or there.
        with self._changing:
            if self._under_way:  # it was refused, or somebody was interrupted: it goes along
                self._gathered = {**self._under_way, **self._gathered}
                self._index = _KeyIndex()
                self._index.add(self._gathered)
            self._add_marker(self._gathered)
            self._under_way = writes = self._gathered
            self._gathered, self._bytes, self._turns = {}, 0, 0
            self._index, self._index_under_way = _KeyIndex(), self._index
        return writes

    def _note(self, writes: WriteSet) -> None:
        """Note what is known of the engine without asking it; readers find the keys under way."""
        self.tombstones.wrote(writes)
        self._unflushed.wrote(writes)
        if self._heads is not None and not self._heads.add(writes):
            self._heads = None

    def _carry_out(self, write: Work) -> None:
        with self._failing():
            write()
        with self._changing:
            self._written = self._under_way.get(MARKER_KEY)
            self._under_way, self._index_under_way = {}, _KeyIndex()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Note a refusal of the engine. The batch stays under way, also after an interrupt."""
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
        """Return the value of ``key``."""
        value = self._gathered.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._under_way.get(key, _UNKNOWN)
        return self._engine.get(key) if value is _UNKNOWN else value

    def look_up(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, which may well be a new one: faster for a new head."""
        value = self._gathered.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._under_way.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value  # type: ignore[no-any-return]  # a sentinel stands for "not known"
        heads = self._heads
        return None if heads is not None and heads.lacks(key) else self._engine.get(key)

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span."""
        if not self._gathered and not self._under_way:
            return self._engine.iterate(lower, upper, reverse=reverse)
        # A batch that ends meanwhile must not be missing in both: no batch ends here.
        with self._changing:
            gathered = self._index.keys_in(lower, upper, FEW + 1)
            under_way = self._index_under_way.keys_in(lower, upper, FEW + 1)
            if len(gathered) <= FEW and len(under_way) <= FEW:
                keys = gathered + under_way
                stored = self._engine.iterate(lower, upper, reverse=reverse)
                unwritten = {**_part(self._under_way, keys), **_part(self._gathered, keys)}
                return _laid_over(stored, unwritten, reverse=reverse) if unwritten else stored
        try:
            self.flush() if gathered else self._finish()
        except EngineFailed:  # the next turn is told
            return OverlaidReader(self._engine, self._unwritten()).iterate(
                lower, upper, reverse=reverse
            )
        return self._engine.iterate(lower, upper, reverse=reverse)

    def snapshot(self) -> EngineSnapshot:
        """Return the state as it is now."""
        try:
            self.flush()
        except EngineFailed:  # the next turn is told
            return OverlaidReader(self._engine.snapshot(), self._unwritten())
        return self._engine.snapshot()

    def _unwritten(self) -> WriteSet:
        with self._changing:
            return {**self._under_way, **self._gathered}

    def sync(self) -> None:
        """Make everything durable that was added before."""
        self.flush()
        self._engine.sync()

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        """Return about how many bytes a span takes, in tables and in memory."""
        of_tables = self._engine.approximate_bytes(lower, upper)
        return of_tables + self._unflushed.bytes_in(lower, upper, self._engine.unflushed_bytes())

    def disk_bytes(self) -> int:
        """Return how many bytes the files take."""
        with contextlib.suppress(EngineFailed):  # the next turn is told
            self.flush()
        return self._engine.disk_bytes()

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Compact a span."""
        self.flush()
        self._engine.compact(lower, upper)

    def compaction(self, monotonic: Callable[[], float]) -> Compaction:
        """Return what compacts this in the background where much was deleted."""
        return Compaction(self, self.tombstones, self._writer, monotonic)

    def close(self) -> None:
        """Do nothing: the engine is closed by its opener."""


class _KeyIndex:
    """The keys that were added, in order once somebody asks: most turns are asked nothing."""

    def __init__(self) -> None:
        self._parts: list[list[bytes]] = []
        self._added: list[bytes] = []

    def add(self, added: Iterable[bytes]) -> None:
        """Note keys, which may be there."""
        self._added.extend(added)

    def sort(self) -> None:
        """Bring what was added in order, in parts: other threads run between them."""
        added = self._added
        if self._parts and len(added) * INSERTED_SHARE < len(self._parts[-1]) < LARGE:
            for key in added:
                _insert(self._parts[-1], key)
        elif self._parts and len(self._parts[-1]) + len(added) <= LARGE:
            self._parts[-1] += added
            self._parts[-1].sort()  # fast: most of it is in order
        else:
            left = iter(added)
            while part := sorted(islice(left, LARGE)):
                self._parts.append(part)
        self._added = []  # last: whom an interrupt keeps from that notes them twice

    def keys_in(self, lower: bytes, upper: bytes, keys_max: int) -> list[bytes]:
        """Return keys in ``[lower, upper)`` that were added, ``keys_max`` of each part at most.

        A key that was added twice may come twice.
        """
        if self._added:
            self.sort()
        found: list[bytes] = []
        for part in self._parts:
            first = bisect_left(part, lower)
            if first < len(part) and part[first] < upper:
                found += part[
                    first : bisect_left(part, upper, first, min(len(part), first + keys_max))
                ]
        return found


def _insert(keys: list[bytes], key: bytes) -> None:
    """Insert a key into others, which are in order, unless it is there."""
    at = bisect_left(keys, key)
    if at == len(keys) or keys[at] != key:
        keys.insert(at, key)


def _part(writes: WriteSet, keys: list[bytes]) -> WriteSet:
    return {key: writes[key] for key in keys if key in writes}


def _laid_over(
    stored: Iterator[tuple[bytes, bytes]], unwritten: WriteSet, *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the pairs of an engine with writes of the same span laid over them."""
    left = sorted(unwritten, reverse=not reverse)  # the next one is the last
    for pair in stored:
        while left and (pair[0] < left[-1] if reverse else left[-1] < pair[0]):
            if (value := unwritten[key := left.pop()]) is not None:
                yield key, value
        if pair[0] not in unwritten:
            yield pair
            if not left:
                yield from stored
    while left:
        if (value := unwritten[key := left.pop()]) is not None:
            yield key, value


class OverlaidReader:
    """The content of an engine, or of a snapshot, with the writes that it could not take."""

    def __init__(self, stored: Engine | EngineSnapshot, gathered: WriteSet) -> None:
        self._stored = stored
        self._gathered = gathered

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of ``key``."""
        value = self._gathered.get(key, _UNKNOWN)
        return self._stored.get(key) if value is _UNKNOWN else value

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span."""
        unwritten = {k: v for k, v in self._gathered.items() if lower <= k < upper}
        stored = self._stored.iterate(lower, upper, reverse=reverse)
        return _laid_over(stored, unwritten, reverse=reverse)

    def close(self) -> None:
        """Let go of the snapshot."""
        self._stored.close()
