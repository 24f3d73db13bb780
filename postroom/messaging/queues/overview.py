"""The stored queues of a range, read when a node begins to serve the range.

An embedded store asks twice when it is opened. First, whether anything is due; if not, it rests
(:mod:`postroom.server.resting`). Second, what to plan. For that all definitions are read, and some
keys of each queue (:mod:`.survey`). With a hundred thousand queues that takes half a second.
Therefore the first answer is kept for the second question. It is valid as long as nothing was
applied in between.
"""

from __future__ import annotations

from typing import NamedTuple

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.queues.damage import QueueDamaged
from postroom.messaging.queues.definitions import Definitions, retention
from postroom.messaging.queues.requests import QueueDefinition
from postroom.messaging.queues.survey import survey
from postroom.ranges.applied import APPLIED_RECORD


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
