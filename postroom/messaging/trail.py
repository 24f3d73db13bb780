"""The trail of a range: what became of each entry of its image, since the last backup.

Outboxes, queues, sums and counters have no versions. If a backup asks for it, each command that is
applied also leaves the new values of the entries of an image that it changes::

    03 <range> 0C <name> <timestamp>  →  01 value, or nothing if the entry is gone
    03 <range> 05 "trail"             →  since when it is kept (:class:`TrailRecord`)
    03 <range> 05 "trail size"        →  what was added to it (:class:`TrailSize`)

An image, with the newest value of each name up to a later timestamp, is the image of that
timestamp. The engine has the names in order, so a backup reads the trail as it reads an image.

The trail is made when a command is applied, on every replica alike, and not replicated. Nothing is
in the log. *Price:* everything is written to the state twice while it is kept.

It *ends* when it is too large, with a command that is too large for the turn in which it is
applied, and when the range is split. Then nothing more is added until a backup begins it anew.

Invariant: from ``since`` up to the end it has every change of an entry of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from postroom import limits
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import Reader, WriteSet
from postroom.messaging import image_entries as entries
from postroom.messaging.trail_requests import KeepTrail, ReadTrail, TrailState
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import LeasedWrites
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Registry

RECORD: Final = "trail"
_VALUE: Final = b"\x01"
_STAMP_BYTES: Final = 8
_DEVICE_SHARE: Final = 8
"""The share of a device's free room that a trail may take: one part of so many."""

# --- records --------------------------------------------------------------------------------------


class TrailRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of a trail, which ``KeepTrail`` writes. There is none if no trail is kept.

    Attributes:
        since: the timestamp after which it is complete.
        forgotten: the bytes that were taken out of it again.
        bytes_max: the size at which it ends.
        is_resumed: whether it has ended before, and what came before that is still there. Then it
            may have twice that size.
    """

    since: int
    forgotten: int
    bytes_max: int
    is_resumed: bool = False


class TrailSize(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The size of a trail, which is written when commands are applied.

    Attributes:
        added: the bytes that were ever added.
        ended: the timestamp of the first command that was not added any more; 0: all were.
    """

    added: int = 0
    ended: int = 0


_encode: Final = msgspec.msgpack.Encoder().encode
_record: Final = msgspec.msgpack.Decoder(TrailRecord).decode
_size: Final = msgspec.msgpack.Decoder(TrailSize).decode


def entry_name(name: bytes, timestamp: int) -> bytes:
    """Return the name of an entry of the trail, without the prefix of its range."""
    return keys.escape(name) + keys.u64(timestamp)


def parted(name: bytes) -> tuple[bytes, int]:
    """Return the name of an entry of an image, and the timestamp, of the name in the trail.

    Raises:
        ValueError: it is no such name.
    """
    escaped, stamp = name[:-_STAMP_BYTES], name[-_STAMP_BYTES:]
    plain = keys.unescape(escaped[: -len(keys.END_OF_KEY)])
    if keys.escape(plain) != escaped:
        raise ValueError("it is no name of a trail")
    return plain, int.from_bytes(stamp, "big")


def value_in(stored: bytes) -> bytes | None:
    """Return the value of an entry of the trail; ``None``: the entry is gone."""
    return stored[len(_VALUE) :] if stored else None


def span_of(range_id: int, span: keys.KeySpan) -> keys.KeySpan:
    """Return the span of the trail of the entries whose names are in a span."""
    prefix, end = keys.trail_prefix(range_id), len(keys.END_OF_KEY)
    return keys.KeySpan(*(prefix + keys.escape(bound)[:-end] for bound in span))


# --- its two sides --------------------------------------------------------------------------------


class TrailRecorder:
    """The part that is done when a command is applied; it implements ``ChangeRecorder``.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.
        stored: the state.

    Attributes:
        is_on: see ``ChangeRecorder``.
    """

    def __init__(self, range_id: int, bounds: Bounds, stored: Reader) -> None:
        self._bounds = bounds
        self._prefix = keys.trail_prefix(range_id)
        self._of_range = keys.range_prefix(range_id)
        self._record_key = keys.record_key(range_id, RECORD)
        self._size_key = keys.record_key(range_id, "trail size")
        self._record: TrailRecord | None = None
        self._size = TrailSize()
        self.is_on = False
        self._take_size(stored.get(self._size_key))
        self._take_record(stored.get(self._record_key))

    def register(self, registry: Registry) -> None:
        """Record what is applied from now on."""
        registry.observers[self._size_key] = self._take_size
        registry.observers[self._record_key] = self._take_record
        registry.recorder = self

    def _take_size(self, packed: bytes | None) -> None:
        self._size = TrailSize() if packed is None else _size(packed)

    def _take_record(self, packed: bytes | None) -> None:
        self._record = record = None if packed is None else _record(packed)
        self.is_on = record is not None and self._size.ended <= record.since

    def record(self, command: LeasedWrites, timestamp: int, staged: WriteSet) -> None:
        """Stage the changes of the entries of an image."""
        writes, added = command.writes, self._size.added
        if len(writes) > limits.TRAIL_WRITES_MAX or self._is_full() or not self._bounds.is_whole:
            self.is_on = False
            self._stage_size(TrailSize(added, timestamp), staged)
            return
        stamp = keys.u64(timestamp)
        for name, value in _changes(command, self._of_range):
            raw = self._prefix + keys.escape(name) + stamp
            staged[raw] = stored = b"" if value is None else _VALUE + value
            added += len(raw) + len(stored)
        self._stage_size(TrailSize(added), staged)

    def _is_full(self) -> bool:
        assert self._record is not None
        room = self._record.bytes_max * (1 + self._record.is_resumed)
        return self._size.added - self._record.forgotten > room

    def _stage_size(self, size: TrailSize, staged: WriteSet) -> None:
        self._size = size
        staged[self._size_key] = _encode(size)


def _changes(command: LeasedWrites, of_range: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the names of the entries that a command changes, with their values; ``None``: gone.

    The prefix of the metadata of the range is ``of_range``: a command may also write that of a
    right half that is to come.
    """
    for raw, stored in command.writes.items():
        if raw[:1] == keys.RANGE and not raw.startswith(of_range):
            continue
        shown = None if stored is None else entries.shown(raw, stored)
        if shown is not None:
            yield shown
        elif entries.table_of(name := entries.name_of(raw)) is not None:
            yield name, None
    if command.sums is not None:
        yield entries.COUNTERS_NAME, command.sums


class TrailKeeping:
    """The evaluators of ``ReadTrail`` and ``KeepTrail``.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.
        free_bytes: returns the free room of the device.
    """

    def __init__(self, range_id: int, bounds: Bounds, free_bytes: Callable[[], int]) -> None:
        self._bounds = bounds
        self._free_bytes = free_bytes
        self._prefix = keys.trail_prefix(range_id)
        self._record_key = keys.record_key(range_id, RECORD)
        self._size_key = keys.record_key(range_id, "trail size")

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        registry.reads[ReadTrail] = self.read
        registry.commands[KeepTrail] = self.keep

    def read(self, view: View, _: ReadTrail) -> TrailState:
        """Evaluate ``ReadTrail``."""
        return self._state(view)

    def _state(self, stored: Reader, cursor: bytes | None = None) -> TrailState:
        record, size = self._records(stored)
        if record is None or not self._bounds.is_whole:
            return TrailState(cursor=cursor)
        return TrailState(record.since, size.ended if size.ended > record.since else 0, cursor)

    def _records(self, stored: Reader) -> tuple[TrailRecord | None, TrailSize]:
        packed = stored.get(self._record_key)
        # Read past the cache of values, which does not hear of what is added in applying.
        sizes = stored.iterate(self._size_key, self._size_key + b"\x00")
        size = next((_size(each) for _, each in sizes), TrailSize())
        return (None if packed is None else _record(packed)), size

    def keep(self, ctx: Evaluation, request: KeepTrail) -> TrailState:
        """Evaluate ``KeepTrail``.

        Raises:
            Invalid: the store has several ranges.
        """
        if request.is_kept and not self._bounds.is_whole:
            raise Invalid(
                "a store of several ranges keeps no trail, since a commit reaches them one after "
                "the other; nothing was changed: take increments without one, the first with "
                "--no-trail"
            )
        removed, cursor = self._forget(ctx, request)
        kept = self._kept(ctx, request, removed)
        ctx.writes[self._record_key] = None if kept is None else _encode(kept)
        return self._state(ctx, cursor)

    def _kept(self, ctx: Evaluation, request: KeepTrail, removed: int) -> TrailRecord | None:
        """Return the record from now on."""
        if not request.is_kept:
            return None
        record, size = self._records(ctx)
        room = min(limits.TRAIL_BYTES_MAX, self._free_bytes() // _DEVICE_SHARE)
        if record is None:
            return TrailRecord(ctx.timestamp, size.added, room)
        since, is_resumed = record.since, record.is_resumed and request.until < record.since
        if size.ended > since:
            since, is_resumed = ctx.timestamp, True
        forgotten = record.forgotten + removed
        return TrailRecord(max(since, request.until), forgotten, room, is_resumed)

    def _forget(self, ctx: Evaluation, request: KeepTrail) -> tuple[int, bytes | None]:
        """Remove entries; return how many bytes, and where to go on.

        The oldest entry of each name goes first: what is left of a name is its newest values.
        """
        if request.is_kept and not request.until:
            return 0, None
        removed = looked_at = 0
        end = keys.after_prefix(self._prefix)
        for raw, stored in ctx.iterate(self._prefix + request.cursor, end):
            if looked_at == limits.TRAIL_LOOKED_AT_ONCE_MAX:
                return removed, raw[len(self._prefix) :]
            looked_at += 1
            if not request.is_kept or raw[-_STAMP_BYTES:] <= keys.u64(request.until):
                ctx.writes[raw] = None
                removed += len(raw) + len(stored)
                ctx.grow(len(raw))
        ctx.steps += looked_at
        return removed, None
