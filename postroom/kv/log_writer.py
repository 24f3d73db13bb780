"""The log of a node: its promises, on the device before anybody hears of them.

::

    storage (kv/storage.py) ── one record a turn ──▶ writer ─▶ segment │ segment │ segment   device
                             ◀── what was promised ── reader ◀──── at opening

It knows neither consensus nor the engine: a record is a set of keys and values, as a write set is.
*Entries* (of the logs of all groups together) lie in their records until nobody wants them. *Notes*
(everything else: hard states, records of the store) are few and small, and are written again at the
beginning of each segment. A segment can therefore go once its entries can.

The writer puts records one after the other, from segment to segment.

::

    begun ─▶ current ── full ─▶ wanted ── nobody wants an entry of it ─▶ spare ─▶ begun again

:class:`Log` gives each record its place. Which segments can go is decided by :class:`.Storage`, who
knows what is wanted of the entries; the log knows where they lie.

Invariants:

* One record is under way at a time; in each segment the first one has all notes.
* A segment is begun anew only after a durable record of another one says that it is not wanted.
* A segment is left only when all of it is durable.
* The first record of each opening is durable before there is a second one. No two openings thus
  count as the same epoch, but those that have left nothing or one torn record.

Making a segment of full length takes its time, so nobody waits for it: it is made in the
background. If none is ready a short one is written meanwhile. A new log begins with a short one. A
short one is not kept once a longer one can take its place. It is made before the room of the log is
used up: when it is, the device may be full.

:mod:`.log_reader` has the bytes, :mod:`.log_device` the files.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.kv.log_device import Device, SegmentFile
from postroom.kv.log_reader import (
    CHANGES,
    CLOSED,
    FIRST_RECORD_AT,
    NEW_SUFFIX,
    OLDEST_NOTE,
    POINTER_AT,
    RECORD_HEADER_BYTES,
    WHOLE,
    Header,
    LogContents,
    Segment,
    blocks,
    encode_header,
    encode_payload,
    encode_pointer,
    encode_record,
    seed_of,
)

SPARES_KEPT: Final = 1
SHORT_SHARE: Final = 64
SHORT_BYTES_MIN: Final = 16 * 1024
"""A short segment is that part of a full one, and no shorter than that."""
RUNS_SHORT_SHARE: Final = 2
"""The next segment is made when there is less room than this part of a short one."""
ENTRY_KEY_BYTES: Final = 18
_RAFT_LOG: Final = 2
_ENTRY: Final = 0x6C

IndexSpans = dict[bytes, tuple[int, int]]
"""The lowest and the highest index of each group that may lie somewhere."""


class Log:
    """A log: a chain of segments on a device.

    Args:
        device: where it lies.
        log_id: whose it is.
        segment_bytes: how long a segment is, at least, that is made in the background.
        found: what reading it came to.
        notes: all notes as they are now, for the beginning of a segment.

    Attributes:
        last: the number of the last record that was written.
        durable: of the last one that is durable.
        current: of the segment that is written now.
        segment_bytes: how long segments are.
    """

    def __init__(
        self,
        device: Device,
        log_id: bytes,
        segment_bytes: int,
        found: LogContents,
        notes: Callable[[], WriteSet],
    ) -> None:
        self.device = device
        self._log_id, self._seed = log_id, seed_of(log_id)
        self.segment_bytes = blocks(segment_bytes)
        self._notes = notes
        self.last = self.durable = found.last
        self._end = found.end
        self._epoch = found.epoch + 1
        self._number = found.number
        self._segments, self._spares = found.segments, found.spares
        self.current = self._segments[-1].number
        self._making = threading.Lock()
        self._naming = threading.Lock()
        self._names: set[str] = set()
        """The names of the segments that are being made."""
        self._entry_keys: dict[int, dict[bytes, list[bytes]]] = {}
        """The first and the last key of the entries of each group, by segment."""
        for segment, records in zip(found.segments, found.records, strict=True):
            for record in records:
                self._locate(segment.number, record.writes)
        self._is_new = True
        """A flag: nothing has been written since it was opened."""

    # --- records

    def append(self, writes: WriteSet, *, sync: bool, kind: int = CHANGES) -> list[bytes]:
        """Write a record; with ``sync`` it and all before it are durable on return.

        Returns:
            The keys of the notes in it.

        Raises:
            OSError: the device refuses. Nothing more must be written.
        """
        payload = encode_payload(writes) if kind == CHANGES else self._payload(writes, kind)
        size = blocks(RECORD_HEADER_BYTES + len(payload))
        if self._end + size > self._segments[-1].file.size:
            notes = encode_payload({**self._notes(), OLDEST_NOTE: self._oldest()})
            self._begin_segment(blocks(RECORD_HEADER_BYTES + len(notes)) + size)
            self._write(notes, WHOLE, sync=False)
            payload = self._payload(writes, kind)
        self._write(payload, kind, sync=sync)
        return self._locate(self.current, writes)

    def _payload(self, writes: WriteSet, kind: int) -> bytes:
        if kind == CLOSED:  # nothing before it is wanted
            writes = {**writes, OLDEST_NOTE: self.current.to_bytes(8, "big")}
        return encode_payload(writes)

    def _write(self, payload: bytes, kind: int, *, sync: bool) -> None:
        segment = self._segments[-1]
        record = encode_record(self._seed, self.last + 1, self.durable, self._epoch, kind, payload)
        # The first record of an opening is durable before another one follows it. The next opening
        # must know of this epoch, else it would take for its own what was written in it.
        sync = sync or self._is_new
        # A synced write makes its own pages durable, not those that were written before it.
        at_once = sync and self.durable == self.last
        segment.file.write(self._end, record, sync=at_once)
        begin = self._end
        self._end += len(record)
        self.last += 1
        self._is_new = False
        if at_once:
            self._acknowledge()
        elif sync:
            self.sync()
        if kind == CLOSED:
            assert segment.header is not None
            segment.file.write(POINTER_AT, encode_pointer(segment.header, begin), sync=True)

    def sync(self) -> None:
        """Make all that was written durable."""
        if self.durable < self.last:
            self._segments[-1].file.sync()
            self._acknowledge()

    def sync_end(self) -> None:
        """Make durable what was read at opening, before anything follows it."""
        self._segments[-1].file.sync()

    def _acknowledge(self) -> None:
        self.durable = self.last
        self.device.mark(self.last)

    # --- segments

    @property
    def is_new(self) -> bool:
        """Return whether nothing was written since it was opened."""
        return self._is_new

    @property
    def is_half_full(self) -> bool:
        """Return whether it is time to think of the next segment."""
        return self._end * 2 > self._segments[-1].file.size

    @property
    def left_bytes(self) -> int:
        """Return how much can be written before a file must be made."""
        spares = sum(each.file.size for each in self._spares)
        return self._segments[-1].file.size - self._end + spares

    @property
    def segments(self) -> tuple[int, int]:
        """Return the number of segments, the spare ones included, and their bytes together."""
        sizes = [each.file.size for each in (*self._segments, *self._spares)]
        return len(sizes), sum(sizes)

    @property
    def short_bytes(self) -> int:
        """Return how long a segment is that somebody waits for."""
        return _short(self.segment_bytes)

    @property
    def has_spare(self) -> bool:
        """Return whether there is one of full length."""
        return any(each.file.size >= self.segment_bytes for each in self._spares)

    @property
    def wants_spare(self) -> bool:
        """Return whether one has to be made: none of full length is there, or will be let go."""
        others = (*self._spares, *self._segments[:-1])
        return not any(each.file.size >= self.segment_bytes for each in others)

    @property
    def older(self) -> list[int]:
        """Return the segments before the current one, oldest first."""
        return [each.number for each in self._segments[:-1]]

    def index_spans(self, number: int) -> IndexSpans:
        """Return which entries may lie in a segment."""
        return {
            group: (_index(first), _index(last))
            for group, (first, last) in self._entry_keys.get(number, {}).items()
        }

    def make_spare(self, size_bytes: int | None = None) -> None:
        """Make a segment for later, unless there is one. May run beside everything else.

        Args:
            size_bytes: how long it is; ``None``: of full length.

        Raises:
            OSError: the device refuses; nothing is left of it.
        """
        size = self.segment_bytes if size_bytes is None else blocks(size_bytes)
        with self._making:
            if not any(each.file.size >= size for each in self._spares):
                self._spares.append(self._make(size))

    def keep_spare(self) -> None:
        """Make a short segment if none is ready, little room is left, and the device has any."""
        left = self._segments[-1].file.size - self._end
        if not self._spares and left < self.short_bytes // RUNS_SHORT_SHARE:
            with contextlib.suppress(OSError):
                self._spares.append(self._make(self.short_bytes))

    def release(self, oldest: int) -> None:
        """Release the segments before ``oldest``, as a durable record says."""
        assert self.durable == self.last
        while self._segments[0].number < oldest:
            segment = self._segments.pop(0)
            self._entry_keys.pop(segment.number, None)
            self._spares.append(segment)

    def trim(self) -> None:
        """Remove the spare segments beyond the one that will be used."""
        while len(self._spares) > SPARES_KEPT:
            segment = min(self._spares, key=lambda each: each.file.size)
            self._spares.remove(segment)
            segment.file.close()
            self.device.remove(segment.name)

    def close(self) -> None:
        """Let go of the files."""
        for segment in (*self._segments, *self._spares):
            segment.file.close()
        self.device.close()

    def _oldest(self) -> bytes:
        return self._segments[0].number.to_bytes(8, "big")

    def _begin_segment(self, room: int) -> None:
        """Go on in another segment, with ``room`` for what is to be written at once."""
        self.sync()
        needed = FIRST_RECORD_AT + room
        spares = [each for each in self._spares if each.file.size >= needed]
        if spares:
            spare = max(spares, key=lambda each: each.file.size)
            self._spares.remove(spare)
        else:
            spare = self._make(max(_short(self.segment_bytes), needed))
        self._number += 1
        header = Header(self._log_id, self._number, spare.file.size, self.last + 1)
        spare.file.write(0, encode_header(header), sync=True)
        spare.header = header
        self._segments.append(spare)
        self.current = self._number
        self._end = FIRST_RECORD_AT

    def _make(self, size: int) -> Segment:
        with self._naming:  # one may be made in the background
            # In this order: one that is made meanwhile is in the folder before it leaves the names.
            taken = {*self._names, *self.device.names()}
            name = next(n for n in map("segment-{}".format, itertools.count(1)) if n not in taken)
            self._names.add(name)
        try:
            self.device.create(name + NEW_SUFFIX, size)
            self.device.rename(name + NEW_SUFFIX, name)
            return Segment(name, self._open(name), None)
        finally:
            self._names.discard(name)

    def _open(self, name: str) -> SegmentFile:
        """Open a segment that was just made; if that fails nothing is left of it."""
        try:
            return self.device.open(name)
        except OSError:  # no descriptor is left, say: another one would be made, and another one
            self.device.remove(name)
            raise

    def _locate(self, number: int, writes: Iterable[bytes]) -> list[bytes]:
        """Note where entries lie; return the other keys."""
        entry_keys, notes = self._entry_keys.setdefault(number, {}), []
        for key in writes:
            # This is ``is_entry``, inlined. There may be one for each of many groups in each turn.
            if len(key) == ENTRY_KEY_BYTES and key[9] == _ENTRY and key[0] == _RAFT_LOG:
                group = key[:-8]
                known = entry_keys.get(group)
                if known is None:
                    entry_keys[group] = [key, key]
                elif key > known[1]:
                    known[1] = key
                elif key < known[0]:
                    known[0] = key
            else:
                notes.append(key)
        return notes


def _index(key: bytes) -> int:
    """Return the index of an entry."""
    return int.from_bytes(key[-8:], "big")


def is_entry(key: bytes) -> bool:
    """Return whether a key of the log is that of an entry: ``02 range 'l' index``."""
    return len(key) == ENTRY_KEY_BYTES and key[0] == _RAFT_LOG and key[9] == _ENTRY


def _short(segment_bytes: int) -> int:
    """Return how long a segment is that somebody waits for."""
    return blocks(min(segment_bytes, max(segment_bytes // SHORT_SHARE, SHORT_BYTES_MIN)))


def create_log(device: Device, log_id: bytes, segment_bytes: int) -> None:
    """Make the first segment of a new log, under a name that does not count yet."""
    payload = encode_payload({OLDEST_NOTE: (1).to_bytes(8, "big")})
    needed = FIRST_RECORD_AT + blocks(RECORD_HEADER_BYTES + len(payload))
    size = max(_short(segment_bytes), needed + FIRST_RECORD_AT)
    device.create(FIRST_NEW, size)
    file = device.open(FIRST_NEW)
    try:
        file.write(0, encode_header(Header(log_id, 1, size, 1)), sync=True)
        record = encode_record(seed_of(log_id), 1, 0, 1, WHOLE, payload)
        file.write(FIRST_RECORD_AT, record, sync=True)
    finally:
        file.close()


FIRST_NEW: Final = "segment-1" + NEW_SUFFIX
FIRST: Final = "segment-1"


class RetainedLog(NamedTuple):
    """The part of its log that a group keeps.

    Attributes:
        entries: what the keys of its entries begin with.
        base: the last entry that it does not keep, which is applied; and its term.
        last: the newest one.
        values: the entries of a span of indices, both included, as they are stored.
    """

    entries: bytes
    base: int
    base_term: int
    last: int
    values: Callable[[int, int], Iterable[tuple[int, bytes]]]


@dataclass
class Reclamation:
    """The state is being synced so that older segments can go."""

    bases: dict[bytes, tuple[int, int]]
    marker: int
    done: bool = False
    error: Exception | None = None


def base_notes(bases: dict[bytes, tuple[int, int]]) -> WriteSet:
    """Return the notes that tell up to which entry the state of each group is durable."""
    return {
        entries[:-1] + b"b": keys.u64(index) + keys.u64(term)
        for entries, (index, term) in bases.items()
    }
