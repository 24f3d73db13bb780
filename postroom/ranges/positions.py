"""The named positions of readers: all changes after each of them can be read.

A reader that comes back later names the timestamp up to which it has read. Garbage collection does
not pass that timestamp until the reader names a later one, or the time of the position is over. A
protection (``Protect``) ends with its connection; a position outlives it::

    KeepPosition ─▶ kept ── KeepPosition, a later timestamp ─▶ kept, for its time anew
                     ├───── KeepPosition, the same one ──────▶ kept, for its time from the first on
                     └───── its time is over, or seconds=0 ──▶ gone

A reader that makes no progress, and tries again for ever, therefore does not hold back collection
for ever. Its time is counted in timestamps (:mod:`postroom.kv.clock`).

The evaluators of these requests also say how far collection may go.

Each position is a record of its own, so moving one costs as much as writing a key. The collection
looks through all of them (``POSITIONS_MAX`` at most), once for each of its requests, as the
requests before it have left them. Nothing is in memory that a new leader would have to learn.

A record goes when its reader forgets it, or with the collection that finds its time over. There is
always one: the commit that has written the record is listed as garbage after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from postroom.errors import Invalid, SnapshotTooOld
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.limits import POSITION_NAME_CHARACTERS_MAX, POSITION_SECONDS_MAX, POSITIONS_MAX
from postroom.ranges.contract import ConcernsRoot, Read, Write
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.protections import Protections
from postroom.ranges.registry import Registry
from postroom.ranges.requests import TimestampNumber

PositionName: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=POSITION_NAME_CHARACTERS_MAX)
]
PositionSeconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=POSITION_SECONDS_MAX)]


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A position in the answer of ``ReadPositions``, and until when it is kept."""

    name: str
    timestamp: int
    until: int


class KeepPosition(ConcernsRoot, Write, frozen=True, tag="keep_position"):
    """A request to keep all changes after ``timestamp`` readable.

    The answer is whether the name was known.

    Attributes:
        name: the name of the position; a later timestamp of this name takes its place.
        seconds: the time for which it is kept; 0: the position is forgotten.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    frees_room: ClassVar = True

    name: PositionName
    timestamp: TimestampNumber
    seconds: PositionSeconds


class ReadPositions(ConcernsRoot, Read, frozen=True, tag="read_positions"):
    """A request for all positions, in the order of their names."""

    answer: ClassVar = list[Position]
    since: ClassVar = 1
    is_served_in_restore: ClassVar = True


_RECORD: Final = "position "
_STEPS_PER_RECORD: Final = 4
"""Records are looked through this many to a step."""


class PositionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of a position.

    Attributes:
        since: the timestamp at which it was kept first.
        until: the timestamp at which its time is over.
    """

    timestamp: int
    since: int
    until: int


_encode = msgspec.msgpack.encode
_records = msgspec.msgpack.Decoder(PositionRecord)


class PositionRecords:
    """The positions of readers; see the module.

    Args:
        range_id: the id of the range.
        protections: the protections of the range.
    """

    def __init__(self, range_id: int, protections: Protections) -> None:
        self._prefix = keys.record_key(range_id, _RECORD)
        self._end = keys.after_prefix(self._prefix)
        self._protections = protections

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.writes[KeepPosition] = self.keep
        registry.reads[ReadPositions] = self.read

    # --- requests

    def keep(self, ctx: Evaluation, request: KeepPosition) -> bool:
        """Evaluate ``KeepPosition``.

        Raises:
            SnapshotTooOld: something after the timestamp is collected already.
            Invalid: it lies in the future, or there are too many positions.
        """
        key = self._prefix + request.name.encode()
        packed = ctx.get(key)
        known = None if packed is None else _records.decode(packed)
        if known is not None and self._is_over(known, ctx.timestamp):
            known = None
        ctx.scratch.pop(PositionRecords, None)
        ctx.grow(2 * len(key))
        if not request.seconds:
            if packed is not None:
                ctx.writes[key] = None
            return known is not None
        self._check_readable(ctx, request.timestamp)
        if packed is None:
            self._make_room(ctx)
        anew = known is None or known.timestamp != request.timestamp
        since = ctx.timestamp if known is None or anew else known.since
        until = since + from_seconds(request.seconds)
        ctx.writes[key] = _encode(PositionRecord(request.timestamp, since, until))
        return known is not None

    def _check_readable(self, ctx: Evaluation, timestamp: int) -> None:
        if timestamp < self._protections.collected:
            raise SnapshotTooOld(
                f"changes up to {self._protections.collected} have been garbage collected, "
                f"{timestamp} is older; the position was not kept: begin at a later one"
            )
        self._protections.check_replaced(timestamp)
        if timestamp > ctx.timestamp:
            raise Invalid(
                f"the position {timestamp} lies in the future; it was not kept: give a timestamp "
                "that now() or a commit has told"
            )

    def _make_room(self, ctx: Evaluation) -> None:
        kept = 0
        for key, record in self._all(ctx):
            if self._is_over(record, ctx.timestamp):
                ctx.writes[key] = None
            else:
                kept += 1
        if kept >= POSITIONS_MAX:
            raise Invalid(
                f"{kept} positions are kept already, and no more can be; nothing was changed: "
                "forget those that nobody needs (postroom forget-position NAME; 'postroom status' "
                "shows them)"
            )

    def read(self, view: View, _: ReadPositions) -> list[Position]:
        """Evaluate ``ReadPositions``."""
        found = []
        for key, packed in view.iterate(self._prefix, self._end):
            view.steps += 1
            record = _records.decode(packed)
            if not self._is_over(record, view.now):
                name = key[len(self._prefix) :].decode()
                found.append(Position(name, record.timestamp, record.until))
        return found

    # --- collection

    def limit(self, ctx: Evaluation, threshold: int) -> int:
        """Return ``threshold``, or the oldest timestamp that somebody reads at, if that is older.

        The oldest is a protected timestamp, or a position.
        """
        looked_at, oldest = ctx.scratch.get(PositionRecords, (0, 0))
        if looked_at != ctx.timestamp:
            kept = (
                record.timestamp
                for _, record in self._all(ctx)
                if not self._is_over(record, ctx.timestamp)
            )
            oldest = min(kept, default=ctx.timestamp)
            ctx.scratch[PositionRecords] = ctx.timestamp, oldest
        return self._protections.limit(min(threshold, oldest))

    def remove_those_over(self, ctx: Evaluation) -> None:
        """Delete the records of positions whose time is over."""
        for key, record in self._all(ctx):
            if self._is_over(record, ctx.timestamp):
                ctx.writes[key] = None
                ctx.grow(len(key))

    def _all(self, ctx: Evaluation) -> Iterator[tuple[bytes, PositionRecord]]:
        for number, (key, packed) in enumerate(list(ctx.iterate(self._prefix, self._end)), 1):
            ctx.steps += not number % _STEPS_PER_RECORD
            yield key, _records.decode(packed)

    def _is_over(self, record: PositionRecord, now: int) -> bool:
        """Return whether its time is over, or it is of the store that a restore has replaced."""
        return record.until <= now or record.timestamp < self._protections.replaced[1]


__all__ = [
    "KeepPosition",
    "Position",
    "PositionName",
    "PositionRecords",
    "PositionSeconds",
    "ReadPositions",
]
