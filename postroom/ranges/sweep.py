"""The sweep of a right half: garbage of before its range began.

The lists of garbage of a range that splits stay with its left half, which passes over the keys of
the right half. The right half therefore looks once through all of its keys for what was obsolete
before the split, when that is old enough to be collected. Its own lists name what came later::

    03 <range> 05 "sweep"  →  [timestamp of the split, engine key to go on at, newer version]

*Price:* the data of the right half is read once, a part at a time. Dividing the lists beforehand
would write each list anew, and the collector would have to follow two kinds of lists.

A version is obsolete since the next version of its key was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from postroom.kv import keys, versions
from postroom.kv.engine import Reader, WriteSet
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import Evaluation

SWEEP_RECORD: Final = "sweep"
VISITED_AT_ONCE: Final = 4000
"""The number of engine keys that one step visits, whether they go or not."""
_VISITED_A_STEP: Final = 16

_encode: Final = msgspec.msgpack.Encoder().encode


class SweepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of a sweep.

    Attributes:
        until: the timestamp of the split.
        cursor: the engine key to go on at.
        newer: the timestamp of the version before the cursor; 0: the cursor is at another key.
    """

    until: int
    cursor: bytes
    newer: int = 0


_decode: Final = msgspec.msgpack.Decoder(SweepRecord).decode


def sweep_records(range_id: int, until: int) -> WriteSet:
    """Return the record of a sweep that has to be made."""
    record = SweepRecord(until, keys.TRANSACTION)
    return {keys.record_key(range_id, SWEEP_RECORD): _encode(record)}


class Swept(NamedTuple):
    """The answer of a step: how many keys went, and whether there is more."""

    removed: int
    more: bool


class Sweep:
    """The sweep of a range, if it has to make one.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.
    """

    def __init__(self, range_id: int, bounds: Bounds) -> None:
        self._key = keys.record_key(range_id, SWEEP_RECORD)
        self._bounds = bounds
        self._until = 0

    def restart(self, stored: Reader) -> None:
        """Begin with a new lease."""
        record = stored.get(self._key)
        self._until = 0 if record is None else _decode(record).until

    @property
    def until(self) -> int:
        """Return up to which timestamp it collects; 0: there is nothing to sweep."""
        return self._until

    def go_on(self, ctx: Evaluation, keys_max: int) -> Swept:
        """Remove some of what was obsolete before the split."""
        packed = ctx.get(self._key)
        if packed is None:
            return Swept(0, more=False)
        record = _decode(packed)
        cursor, newer = record.cursor, record.newer
        removed = 0
        for visited, (raw, stored) in enumerate(self._rest(ctx, cursor), 1):
            if visited > VISITED_AT_ONCE or removed >= keys_max:
                ctx.writes[self._key] = packed = _encode(SweepRecord(record.until, raw, newer))
                ctx.grow(len(packed))
                return Swept(removed, more=True)
            ctx.steps += not visited % _VISITED_A_STEP
            since, newer = _obsolete_since(raw, stored, newer)
            if since is not None and since < record.until:
                ctx.writes[raw] = None
                removed += 1
        ctx.writes[self._key] = None
        ctx.after.append(self._end)
        return Swept(removed, more=False)

    def _end(self) -> None:
        self._until = 0

    def _rest(self, ctx: Evaluation, cursor: bytes) -> Iterator[tuple[bytes, bytes]]:
        for lower, upper in (self._bounds.records, self._bounds.data):
            if cursor < upper:
                yield from ctx.iterate(max(lower, cursor), upper)


def _obsolete_since(raw: bytes, stored: bytes, newer: int) -> tuple[int | None, int]:
    """Return since when an engine key is obsolete, and the version that the next one is older than.

    ``None``: it is not obsolete.
    """
    if raw[:1] == keys.TRANSACTION:
        return int.from_bytes(stored[:8], "big"), 0
    end = raw.index(keys.END_OF_KEY, 1)
    suffix = raw[end + 2 : end + 3]
    if suffix == keys.HEAD:
        written = int.from_bytes(stored[1:9], "big")
        return (written if stored[0] == versions.TOMBSTONE else None), written
    if suffix == keys.HISTORY:
        written = int.from_bytes(stored[1:9], "big")
        return newer, written
    if suffix == keys.REAPED:
        return int.from_bytes(keys.reaped_in(raw, end)[0], "big"), 0
    return None, 0
