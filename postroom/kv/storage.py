"""A node's storage: the log has its promises, and the state has their effects.

::

    turn ─▶ one write set ─┬─ 01 store, 02 raft log ─▶ log       one record, synced  (kv/log)
                           └─ the rest ─▶ gathered in memory ─▶ state  one batch of several turns,
                                                                unsynced, with a marker (an engine)

    opening:  state, as far as it is there  +  the entries of the log above it  =  all of it

A turn is durable when its record is. The state may lose its newest batches with the power. With the
process it loses the turns that wait to be written, or are being written (:mod:`.gathering`).
Consensus brings it up to date from the log
(:meth:`postroom.raft.consensus.Consensus.replay`).

A batch is written beside the record of its last turn, and those of later ones. After a crash the
state may therefore have a turn that the log does not. This turn was acknowledged to nobody. It is
there as a whole, index and term of the last entry included, and the log goes on from there
(:meth:`postroom.raft.journal.Journal.open`).

Each tells what the other one must have at least, so neither can be cut, lost or exchanged without
being noticed:

* the *marker* in the state (the record ``store``): the id of the log, and a record of it that was
  durable when the batch was written;
* notes in the log: the marker that the state has durably, and the *base* of each group, an entry up
  to which the state is durable.

When a segment is half full, the state is synced in the background, up to the entries that are
applied by then. Afterwards a record says so, and the segments before it can go. Entries in them
that groups keep for members that lag are written again, if they are few; else the segment stays.

If the device has no room for the state, turns go on. The log has room that was made beforehand, and
the effects stay in memory (:mod:`.full_device`). :meth:`Storage.open_again` writes them once there
is room. Closed before that, it is read from the log at the next opening.

Invariants:

* Nothing of a segment is given up before the state is durable beyond it, and a record says so.
* A snapshot that has arrived (``02 range 's'``) is durable before the log speaks of it. Data of a
  destroyed replica has gone durably before its tombstone (``02 range 't'``) says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from postroom.errors import Error, StoreCorrupted
from postroom.kv import keys
from postroom.kv.background import InlineStateWriter, StateWriter
from postroom.kv.engine import (
    DEFAULT_BUDGET,
    EngineFailed,
    EngineFull,
    EngineOver,
    StateEngine,
    WriteSet,
)
from postroom.kv.full_device import DeviceSpace
from postroom.kv.gathering import Gathering
from postroom.kv.log_device import Device
from postroom.kv.log_reader import CLOSED, NEW_SUFFIX, OLDEST_NOTE, LogContents, damaged, read_log
from postroom.kv.log_writer import (
    FIRST,
    FIRST_NEW,
    Log,
    Reclamation,
    RetainedLog,
    base_notes,
    is_entry,
)
from postroom.kv.marker import (
    MARKER_KEY,
    create,
    decode_marker,
    encode_marker,
    is_logged,
    is_outdated,
    split,
)
from postroom.limits import GATHERED_KEYS_MAX, LOG_SEGMENT_BYTES

STATE_NOTE: Final = b"\x00state"
CARRIED_SHARE: Final = 8
"""The part of a segment that is written again at most to let older ones go."""
CLOSED_SHARE: Final = 2
SPARE_ROOM_SHARE: Final = 2
"""A segment that is made ahead takes no more than this part of what is free."""


class Storage(EngineOver):
    """An :class:`postroom.kv.engine.Engine` with a log, made by :meth:`open`.

    Attributes:
        state: the engine beneath.
        applied: the same with what has yet to be written into it, for readers of the state alone.
        space: what the device has, and what is done where it has none.
        replays: entries are written even if they are applied in the same turn.
    """

    replays = True

    def __init__(  # noqa: PLR0913 - only open calls it
        self, state: StateEngine, log_id: bytes, found: LogContents, device: Device, *,
        segment_bytes: int, writer: StateWriter, gathered_keys_max: int, heads_bytes: int,
    ) -> None:  # fmt: skip
        """Take the opened parts; only :meth:`open` calls this."""
        self.state = state
        self._engine = self.applied = Gathering(
            state, gathered_keys_max, self._add_marker, writer, heads_bytes
        )
        self._log_id = log_id
        self._writer = writer
        self._notes: WriteSet = {}
        self._recovered: WriteSet = {}
        for records in found.records:
            for record in records:
                self._merge(record.writes)
        self._state_marker = _number(self._notes.pop(STATE_NOTE, None))
        self._notes.pop(OLDEST_NOTE, None)
        self._was_closed = found.records[-1][-1].kind == CLOSED
        self._log = Log(device, log_id, segment_bytes, found, self._all_notes)
        self.space = DeviceSpace(state, self.applied, self._log, writer)
        self._retained: Callable[[], Iterable[RetainedLog]] | None = None
        self._reclaiming: Reclamation | None = None
        self._reclaimed_in = 0
        self._last_marker = 0
        self._failure: str | None = None
        self._is_open = True

    @classmethod
    def open(  # noqa: PLR0913 - most have defaults
        cls,
        state: StateEngine,
        device: Device,
        new_id: Callable[[], bytes],
        *,
        segment_bytes: int = LOG_SEGMENT_BYTES,
        writer: StateWriter | None = None,
        gathered_keys_max: int = GATHERED_KEYS_MAX,
        heads_bytes: int = DEFAULT_BUDGET.heads_bytes,
    ) -> Storage:
        """Open the storage on ``state`` and ``device``; a new one gets a log first.

        Args:
            state: an open engine; it is closed along with the storage.
            device: where the log lies.
            new_id: 16 random bytes, for a new log.
            segment_bytes: how long the segments are that are made from now on.
            writer: who carries out writes.
            gathered_keys_max: how many keys of the state wait in memory for company.
            heads_bytes: the size of the filter of heads (:mod:`.head_filter`).

        Raises:
            StoreCorrupted: something that was durable is missing, of the log or of the state.
            VersionMismatch: this version does not read its format.
            EngineFailed, OSError: the device refuses. Whatever it is, no segment stays open; state
                and device are left to the caller.
        """
        stored = state.get(MARKER_KEY)
        if stored is None:
            log_id, marker = create(state, device, new_id, segment_bytes)
        else:
            log_id, marker = decode_marker(stored)
        names = device.names()
        if FIRST_NEW in names and all(name.endswith(NEW_SUFFIX) for name in names):
            device.rename(FIRST_NEW, FIRST)
            device.mark(1)
        elif not names:
            raise damaged("all of it is missing")
        found = read_log(device, log_id, marker)
        with contextlib.ExitStack() as opened:
            for segment in (*found.segments, *found.spares):
                opened.callback(segment.file.close)
            storage = cls(
                state, log_id, found, device,
                segment_bytes=segment_bytes, gathered_keys_max=gathered_keys_max,
                heads_bytes=heads_bytes,
                writer=InlineStateWriter() if writer is None else writer,
            )  # fmt: skip
            storage._last_marker = marker
            storage._check_state(marker, is_outdated=stored is not None and is_outdated(stored))
            opened.pop_all()
        return storage

    def _check_state(self, marker: int, *, is_outdated: bool) -> None:
        """Check that the state has all that was durable, and make durable what is there now."""
        if marker < self._state_marker:
            raise StoreCorrupted(
                f"The state of the store is damaged: it knows of record {marker} of the log, and "
                f"was durable beyond record {self._state_marker}. Nothing was changed. Restore "
                "the whole folder from a backup; a node of a cluster is replaced as if its disk "
                "were lost."
            )
        # The writes of a process that was killed may lie in the system's cache only; so may the
        # record with which it closed the log, if that failed.
        self._log.sync_end()
        if not self._was_closed or is_outdated:
            with contextlib.suppress(EngineFull):  # then the log is read again next time
                self.applied.write({}, sync=True)

    @property
    def log_segments(self) -> tuple[int, int]:
        """Return the number of segments of the log, and their bytes together."""
        return self._log.segments

    def serve(self, retained: Callable[[], Iterable[RetainedLog]]) -> None:
        """Serve the open groups; ``retained`` tells which parts of the log they keep."""
        self._retained = retained
        self._recovered = {}

    # --- reading

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of ``key``, wherever it is."""
        if not is_logged(key):
            return self.applied.get(key)
        value = self._notes.get(key)
        return self._recovered.get(key) if value is None else value

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span, of both."""
        if lower >= keys.RANGE:
            return self.applied.iterate(lower, upper, reverse=reverse)
        logged = {**self._recovered, **self._notes}
        of_state = dict(self.applied.iterate(lower, min(upper, keys.RANGE)))
        of_state.pop(MARKER_KEY, None)
        here = ((key, value) for key, value in logged.items() if lower <= key < upper and value)
        pairs = iter(sorted([*here, *of_state.items()], reverse=reverse))
        rest = self.applied.iterate(keys.RANGE, upper, reverse=reverse)
        return _chain(rest, pairs) if reverse else _chain(pairs, rest)

    def open_again(self) -> bool:
        """Write the state again if there is room (:meth:`.DeviceSpace.open_again`).

        If that fails nothing more is written.
        """
        if self._reclaiming is not None and not self._reclaiming.done:
            return False
        try:
            return self.space.open_again()
        except (EngineFailed, Error) as error:
            raise self._failed(EngineFailed(str(error))) from error

    # --- writing

    def write_turn(self, writes: WriteSet, *, sync: bool) -> None:
        """Write a turn: with ``sync`` its part of the log is durable on return.

        The effects on the state must follow from the entries of the log. To be called by who has
        the turn, since it asks what the groups keep. ``writes`` is used up.

        Raises EngineFailed: the device refused; nothing more is written.
        """
        logged, is_state_first = split(writes)
        if self._failure:
            raise EngineFailed(self._failure)
        try:
            oldest = self._say_what_may_go(logged) if self._reclaiming is not None else 0
            self._write_turn(logged, writes, is_state_first, sync=sync or oldest > 0)
            if oldest:
                self._log.release(oldest)
                self._log.trim()
            if self._retained is not None and self._log.is_half_full:
                self._look_ahead(self._retained)
                self._log.keep_spare()
        except (EngineFailed, OSError) as error:
            raise self._failed(error) from error

    def _write_turn(
        self, logged: WriteSet, state: WriteSet, is_state_first: bool, *, sync: bool
    ) -> None:
        applied = self.applied
        if is_state_first:
            applied.write(state, sync=True)
        elif state:
            applied.add(state)
        if applied.is_full:
            applied.hand_over()
            self.space.check_kept()
        if logged:
            names = self._log.append(logged, sync=sync)
            if names:
                self._merge_notes(logged, names)
        elif sync:
            self._log.sync()

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        """Write ``writes``; with ``sync`` all of it is durable, the state first."""
        state = dict(writes)
        logged, _ = split(state)
        with self._failing():
            if state:
                self.applied.write(state, sync=sync)
            if logged:
                self._merge_notes(logged, self._log.append(logged, sync=sync))
            elif sync:
                self._log.sync()

    def sync(self) -> None:
        """Make durable what was written."""
        with self._failing():
            self.applied.sync()
            self._log.sync()

    def give_up(self, why: str) -> None:
        """Write nothing from now on, not even by closing: a turn was left half-way."""
        self._failure = self._failure or why

    def close(self) -> None:
        """Make everything durable, say in the log what opening needs, and let go. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        with contextlib.ExitStack() as last:
            last.callback(self._log.close)
            last.callback(self.state.close)
            self._writer.close()
            if self._failure is None and self._retained is not None and not self.space.full:
                with self._failing():
                    self._close_log(self._retained)

    def _close_log(self, retained: Callable[[], Iterable[RetainedLog]]) -> None:
        if self._was_closed and self._log.is_new:
            return
        self._log.sync()
        self.applied.write({}, sync=True)
        groups = list(retained())
        kept: WriteSet = {}
        room = self._log.segment_bytes // CLOSED_SHARE
        for group in groups:
            for index, value in group.values(group.base + 1, group.last):
                kept[group.entries + keys.u64(index)] = value
                room -= len(value)
            if room < 0:
                return  # opening reads all of it
        bases = {each.entries: (each.base, each.base_term) for each in groups}
        notes = base_notes(bases)
        self._merge_notes(notes, notes)
        self._state_marker = self._log.durable
        self._log.append({**self._all_notes(), **kept}, sync=True, kind=CLOSED)

    # --- letting segments go

    def _look_ahead(self, retained: Callable[[], Iterable[RetainedLog]]) -> None:
        """Look for a next segment, once a segment, when it is half full."""
        if self._reclaiming or self._reclaimed_in == self._log.current:
            return
        if self._log.older:
            try:
                self.applied.flush()
            except EngineFull:
                return  # later: nothing of the log can go
            bases = {each.entries: (each.base, each.base_term) for each in retained()}
            self._reclaiming = reclaiming = Reclamation(bases, self._last_marker)
            self._writer.later(lambda: self._sync_state(reclaiming))
        self._reclaimed_in = self._log.current
        if self._log.wants_spare:
            self._writer.later(self._make_spare)

    def _sync_state(self, reclaiming: Reclamation) -> None:
        try:
            self.state.sync()
        except Exception as error:  # the next turn raises it
            reclaiming.error = error
        reclaiming.done = True

    def _make_spare(self) -> None:
        with contextlib.suppress(OSError):  # short ones are made meanwhile
            # If there is hardly room for it, it would leave none for other writers for a moment.
            if self.state.free_bytes() // SPARE_ROOM_SHARE >= self._log.segment_bytes:
                self._log.make_spare()

    def _say_what_may_go(self, logged: WriteSet) -> int:
        """Join to ``logged`` what has to be said and carried, once the state is synced.

        Returns:
            The oldest segment that is wanted once that is durable; 0: nothing changes.
        """
        reclaiming = self._reclaiming
        if reclaiming is None or not reclaiming.done or self._retained is None:
            return 0
        self._reclaiming = None
        if isinstance(reclaiming.error, EngineFull):
            self._reclaimed_in = 0  # again later
            return 0
        if reclaiming.error is not None:
            raise reclaiming.error
        groups = {each.entries: each for each in self._retained()}
        oldest, carried = self._log.current, WriteSet()
        room = self._log.segment_bytes // CARRIED_SHARE
        for number in self._log.older:
            wanted = self._wanted(number, groups, reclaiming.bases)
            room -= sum(map(len, filter(None, wanted.values()))) if wanted is not None else room + 1
            if wanted is None or room < 0:
                oldest = number
                break
            carried.update(wanted)
        for key, value in carried.items():
            logged.setdefault(key, value)
        logged.update(base_notes({
            group: base for group, base in reclaiming.bases.items() if group in groups
        }))  # fmt: skip
        self._state_marker = reclaiming.marker
        logged[STATE_NOTE] = keys.u64(reclaiming.marker)
        logged[OLDEST_NOTE] = keys.u64(oldest)
        if oldest == self._log.older[0] and not self._log.has_spare:
            self._writer.later(self._make_spare)
        return oldest

    def _wanted(
        self, number: int, groups: dict[bytes, RetainedLog], bases: dict[bytes, tuple[int, int]]
    ) -> WriteSet | None:
        """Return the entries of a segment that groups keep; ``None``: some cannot be carried."""
        wanted: WriteSet = {}
        for entries, (low, high) in self._log.index_spans(number).items():
            group = groups.get(entries)
            if group is None:
                continue
            first = max(low, bases.get(entries, (0, 0))[0] + 1)
            if first <= min(high, group.base):
                return None  # the group has let go of it, but the state is not durable there
            for index, value in group.values(first, high):
                wanted[entries + keys.u64(index)] = value
        return wanted

    # --- notes

    def _all_notes(self) -> WriteSet:
        return {**self._notes, STATE_NOTE: keys.u64(self._state_marker)}

    def _merge(self, writes: WriteSet) -> None:
        """Merge the content of a record, at opening."""
        for key, value in writes.items():
            where = self._recovered if is_entry(key) else self._notes
            if value is None:
                where.pop(key, None)
            else:
                where[key] = value

    def _merge_notes(self, logged: WriteSet, names: Iterable[bytes]) -> None:
        """Merge the notes of a record that is written; ``names`` are their keys."""
        for key in names:
            if key in (STATE_NOTE, OLDEST_NOTE):
                continue
            value = logged[key]
            if value is None:
                self._notes.pop(key, None)
            else:
                self._notes[key] = value

    def _add_marker(self, writes: WriteSet) -> None:
        writes[MARKER_KEY] = self._marker()

    def _marker(self) -> bytes:
        self._last_marker = self._log.durable
        return encode_marker(self._log_id, self._last_marker)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Note that something was refused: nothing is written after that."""
        if self._failure:
            raise EngineFailed(self._failure)
        try:
            yield
        except (EngineFailed, OSError) as error:
            raise self._failed(error) from error

    def _failed(self, error: EngineFailed | OSError) -> EngineFailed:
        """Return the error to raise for ``error``, now and from now on."""
        if isinstance(error, EngineFailed):
            self._failure = str(error)
        else:
            self._failure = (
                f"The log cannot be written any more: {error.strerror or error}. The outcome "
                "of the last write is unknown until the store is closed and opened again."
            )
        return EngineFailed(self._failure)


# --- writes ---------------------------------------------------------------------------------------


def _number(stored: bytes | None) -> int:
    return int.from_bytes(stored or b"", "big")


def _chain(
    first: Iterator[tuple[bytes, bytes]], then: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    yield from first
    yield from then
