"""The stored queues of a range, read when a node begins to serve the range, and their due times.

An embedded store asks twice when it is opened. First, whether anything is due; if not, it rests
(:mod:`postroom.server.services`). Second, what to plan. For that all definitions are read, and some
keys of each queue (``survey``). With a hundred thousand queues that takes half a second.
Therefore the first answer is kept for the second question. It is valid as long as nothing was
applied in between.

The survey finds the due times of all stored queues.

The index of the queues is read in leaps. Only the first key of a part tells when something is due;
the keys behind it are skipped. A queue that has nothing stored costs nothing. A queue with many
messages costs hardly more than one with few.

::

    queue 1   scheduled ▲ · · ·   ready ⤳   leased ▲ ⤳   done ▲ ⤳   dead ⤳   ticks ▲ ▲
    queue 7   done ▲ ⤳
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging import due as times
from postroom.messaging.queues import periodic
from postroom.messaging.queues.definitions import Definitions, retention
from postroom.messaging.queues.records import UNDECODABLE, QueueDamaged
from postroom.messaging.queues.requests import QueueDefinition
from postroom.ranges.applied import APPLIED_RECORD

PASSED_AT_ONCE: Final = 8
"""The number of keys that are read in a row before the others are skipped."""
_NUMBER_BYTES: Final = 4
_MOMENTS: Final = keys.u64(times.MOMENT)
_AFTER: Final = {
    keys.SCHEDULED: keys.LEASED,
    keys.READY: keys.LEASED,
    keys.LEASED: keys.DONE,
    keys.DONE: keys.TICKS,
    keys.ARCHIVED: keys.TICKS,
    keys.DEAD: keys.TICKS,
    keys.GROUPS: keys.TICKS,
    keys.TICKS: keys.TICKS,
}
"""The part to read next, by part."""


@dataclass(slots=True)
class Seen:
    """The due times that are stored of a queue.

    Attributes:
        number: the number under which it is stored.
        first_due: the timestamp of its first message scheduled for a timestamp; 0: there is none.
        first_moment: the same for a moment, by the wall clock; 0: there is none.
        done_at: the timestamp of the first list of done messages; 0: there is none.
        next_tick: its next tick, by the wall clock; 0: there is none.
        has_leases: whether messages of it are leased.
    """

    number: int
    first_due: int = 0
    first_moment: int = 0
    done_at: int = 0
    next_tick: int = 0
    has_leases: bool = False


def survey(stored: Reader, range_id: int, wall: int) -> Iterator[Seen]:
    """Iterate over the queues that have anything stored, in the order of their numbers.

    Args:
        stored: the stored state.
        range_id: the id of the range.
        wall: now, by the wall clock.
    """
    begins = len(keys.queue_prefix(range_id, 0)) - _NUMBER_BYTES
    end = keys.after_prefix(keys.queue_prefix(range_id, 0)[:begins])
    size, seen = begins + _NUMBER_BYTES, Seen(0)
    after = _AFTER.get
    cursor: bytes | None = keys.queue_prefix(range_id, 1)
    while cursor is not None:
        wanted, cursor, passed = cursor, None, 0
        for key, packed in stored.iterate(wanted, end):
            if key < wanted:
                passed += 1
                if passed > PASSED_AT_ONCE:
                    cursor = wanted
                    break
                continue
            passed = 0
            number = int.from_bytes(key[begins:size], "big")
            if seen.number != number:
                if seen.number:
                    yield seen
                seen = Seen(number)
            part = key[size : size + 1]
            _note(seen, part, key[size + 1 :], packed, wall)
            wanted = key[:size] + after(part, keys.TICKS)
            if part == keys.SCHEDULED and not seen.first_moment:
                wanted = key[: size + 1] + _MOMENTS
    if seen.number:
        yield seen


def _note(seen: Seen, part: bytes, rest: bytes, packed: bytes, wall: int) -> None:
    if part == keys.SCHEDULED and rest >= _MOMENTS:
        seen.first_moment = times.shown(int.from_bytes(rest[:8], "big"))
    elif part == keys.SCHEDULED:
        seen.first_due = int.from_bytes(rest[:8], "big")
    elif part == keys.LEASED:
        seen.has_leases = True
    elif part == keys.DONE:
        seen.done_at = int.from_bytes(rest[:8], "big")
    elif part == keys.TICKS:
        try:
            tick = periodic.next_of(packed, wall)
        except UNDECODABLE:
            tick = 1  # the next load of the queue finds the damage
        if tick:
            seen.next_tick = min(seen.next_tick or tick, tick)


class Stored(NamedTuple):
    """The stored queues of a range.

    Attributes:
        applied: the applied index at which they were read.
        wall: when they were read, by the trusted wall clock.
        defined: the definitions of the queues, by name.
        dropped: the definitions of queues that are being emptied.
        unreadable: the errors of definitions that cannot be read.
        by_timestamp: the timestamp at which something is due in a queue, by name.
        by_wall: the same by the wall clock.
        held: the queues with leased messages.
    """

    applied: bytes | None
    wall: int
    defined: dict[str, QueueDefinition]
    dropped: list[QueueDefinition]
    unreadable: list[QueueDamaged]
    by_timestamp: dict[str, int]
    by_wall: dict[str, int]
    held: list[str]


class Overview:
    """The reader of the stored queues, which keeps its last answer once.

    Args:
        range_id: the id of the range.
        definitions: the reader of definitions.
        kept: how long the past can be read, in timestamp units.
    """

    def __init__(self, range_id: int, definitions: Definitions, kept: int) -> None:
        self._range_id = range_id
        self._definitions = definitions
        self._kept = kept
        self._applied_key = keys.record_key(range_id, APPLIED_RECORD)
        self._last: Stored | None = None

    def read(self, reader: Reader, wall: int) -> Stored:
        """Read the stored queues, and keep the answer for :meth:`take`.

        Args:
            reader: the stored state.
            wall: now, by the trusted wall clock.
        """
        known, unreadable = self._definitions.read_all(reader)
        defined, dropped = {}, []
        for definition in known:
            if definition.dropped:
                dropped.append(definition)
            else:
                defined[definition.name] = definition
        self._last = Stored(
            reader.get(self._applied_key), wall, defined, dropped, unreadable, {}, {}, []
        )
        self._look(reader, self._last)
        return self._last

    def take(self, reader: Reader, wall: int) -> Stored:
        """Return the last answer if nothing was applied since, else read again."""
        last = self._last
        if last is None or last.applied != reader.get(self._applied_key):
            last = self.read(reader, wall)
        self._last = None
        return last

    def _look(self, reader: Reader, stored: Stored) -> None:
        by_number = {each.number: each for each in stored.defined.values()}
        by_timestamp, by_wall, kept = stored.by_timestamp, stored.by_wall, self._kept
        for seen in survey(reader, self._range_id, stored.wall):
            definition = by_number.get(seen.number)
            if definition is None:
                continue
            name, timestamp = definition.name, seen.first_due
            if seen.done_at:
                purge_at = seen.done_at + retention(definition.settings, kept)
                timestamp = min(timestamp or purge_at, purge_at)
            if timestamp:
                by_timestamp[name] = timestamp
            moment = seen.first_moment or seen.next_tick
            if moment:
                by_wall[name] = min(moment, seen.next_tick or moment)
            if seen.has_leases:
                stored.held.append(name)
