"""The counters of messages and of queues, changed in the write that changes what they count.

::

    messages of a range   enqueued + received = delivered + executed + pending + dead + handed
    a queue               enqueued = ready + scheduled + leased + dead + acknowledged + cancelled
                                     + moved

These equations hold at any timestamp, so a reader never sees another state. They are checked before
each proposal is sent; a proposal that would break one is never sent. *pending*, with what is on its
way to other ranges, is counted by itself, not derived, so that the equation can fail. It also tells
the services whether an outbox has entries, so they would miss an entry that is not counted. If an
outbox is empty although its counter says otherwise, that is reported.

The counters of messages are the sums in the applied record of the range
(:mod:`postroom.ranges.state`). Each queue has a record, written once in a proposal. Evaluators
describe an event by a *change*: the numbers to add to counters. The changes of a proposal are added
up first.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import Final, TypeAlias

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv.engine import Reader
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.requests import Counters, ReadCounters
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry
from postroom.ranges.state import read_applied

_astuple = msgspec.structs.astuple
_INDEXES: Final = {name: index for index, name in enumerate(Counters.__struct_fields__)}
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Counters)


def read_counters(stored: Reader, range_id: int) -> Counters:
    """Return the counters of a range, as ``stored`` has them."""
    return counters_of(read_applied(stored, range_id).sums)


def counters_of(sums: bytes) -> Counters:
    """Return the counters in the sums of a range."""
    return _decoder.decode(sums) if sums else Counters()


class Conservation:
    """The counters of one range, as applied, in the leaseholder's memory.

    They are the sums in the range's applied record (:mod:`postroom.ranges.state`).
    """

    def __init__(self, range_id: int) -> None:
        self._range_id = range_id
        self.applied = Counters()

    def register(self, registry: Registry) -> None:
        """Register the read of the counters."""
        registry.reads[ReadCounters] = lambda _, __: self.applied

    def restart(self, stored: Reader) -> None:
        """Read the stored counters."""
        self.applied = read_counters(stored, self._range_id)

    def finish(self, ctx: Evaluation) -> None:
        """Add the proposal's tally to the stored counters.

        Raises:
            StoreCorrupted: messages would be lost or made up.
        """
        tally = ctx.tally
        counted = list(_astuple(self.applied))
        for name in tally:
            counted[_INDEXES[name]] += tally[name]
        after = Counters(*counted)
        if not after.conserved():
            raise StoreCorrupted(
                f"messages would be lost or made up ({self.applied} would become {after}); "
                "the proposal was stopped and nothing was changed: please report this"
            )
        ctx.sums = _encode(after)
        ctx.after.append(partial(setattr, self, "applied", after))


Change: TypeAlias = tuple[tuple[str, int], ...]


_queue_counts: Final = msgspec.msgpack.Decoder(QueueCounts)

READY: Final = "ready"
SCHEDULED: Final = "scheduled"
LEASED: Final = "leased"
DEAD: Final = "dead"

ENQUEUED_READY: Final[Change] = (("enqueued", 1), ("ready", 1))
ENQUEUED_SCHEDULED: Final[Change] = (("enqueued", 1), ("scheduled", 1))
BECAME_DUE: Final[Change] = (("scheduled", -1), ("ready", 1))
FIRED: Final[Change] = (("ready", -1), ("leased", 1), ("fired", 1))
GIVEN_BACK: Final[Change] = (("leased", -1), ("ready", 1))
PURGED_DONE: Final[Change] = (("done", -1), ("purged", 1))
PURGED_OTHER: Final[Change] = (("purged", 1),)
TRIMMED: Final[Change] = (("archived", -1), ("purged", 1))
UNCHANGED: Final[Change] = ()
RESULT_KEPT: Final[Change] = (("results", 1),)
RESULT_GONE: Final[Change] = (("results", -1),)

_FROM: Final = (READY, SCHEDULED, LEASED, DEAD)


def _moves(*more: tuple[str, int]) -> dict[str, Change]:
    return {where: ((where, -1), *more) for where in _FROM}


ACKNOWLEDGED: Final = _moves(("acknowledged", 1), ("done", 1))
ARCHIVED: Final = _moves(("acknowledged", 1), ("archived", 1))
CANCELLED: Final = _moves(("cancelled", 1))
BURIED: Final = _moves(("dead", 1), ("buried", 1))
MOVED_AWAY: Final = _moves(("moved", 1), ("buried", 1))
"""The changes by the part where the message was."""

FAILED: Final[dict[tuple[str, str], Change]] = {
    (how, to): (("leased", -1), (to, 1), (how, 1))
    for how in ("rejected", "expired")
    for to in (READY, SCHEDULED)
}
"""The changes of failures, by how the attempt ended and where the message goes.

If the message dies, ``DIED`` counts the failure instead.
"""
DIED: Final[dict[str, Change]] = {how: ((how, 1),) for how in ("rejected", "expired")}

RESCHEDULED: Final[dict[tuple[str, str], Change]] = {
    (was, to): (() if was == to else ((was, -1), (to, 1)))
    for was in (READY, SCHEDULED)
    for to in (READY, SCHEDULED)
}
REPLAYED: Final[Change] = (("dead", -1), ("ready", 1), ("replayed", 1))


@functools.lru_cache(maxsize=4096)
def times(change: Change, number: int) -> Change:
    """Return a change that takes place ``number`` times."""
    return tuple((counter, more * number) for counter, more in change)


def fired(number: int, again: int) -> Change:
    """Return the change for fired messages, of which ``again`` had been fired before."""
    change = times(FIRED, number)
    return (*change, ("retried", again)) if again else change


def read_queue_counts(stored: bytes | None) -> QueueCounts:
    """Return the counters in a record."""
    return QueueCounts() if stored is None else _queue_counts.decode(stored)


def check_queue_counts(counted: QueueCounts, leased: int, *, has_scheduled: bool) -> None:
    """Check the counters against the number of leases, and whether messages are scheduled.

    Raises:
        ValueError: they do not agree.
    """
    if counted.leased != leased:
        raise ValueError(f"{counted.leased} are leased by the counters, and {leased} by holdings")
    if bool(counted.scheduled) != has_scheduled:
        raise ValueError(f"{counted.scheduled} are scheduled by the counters, which is not so")


def add_changes(name: str, before: QueueCounts, changes: dict[Change, int]) -> QueueCounts:
    """Return the counters of the queue ``name`` after changes, each with how often it took place.

    Raises:
        StoreCorrupted: messages would be lost or made up.
    """
    counted: dict[str, int] = {}
    for change, times in changes.items():
        for counter, number in change:
            counted[counter] = counted.get(counter, 0) + number * times
    totals = {counter: getattr(before, counter) + more for counter, more in counted.items()}
    after = msgspec.structs.replace(before, **totals)
    if not after.conserved():
        raise StoreCorrupted(
            f"messages of the queue {name!r} would be lost or made up ({before} would become "
            f"{after}); the proposal was stopped and nothing was changed: please report this"
        )
    return after
