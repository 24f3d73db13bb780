"""The entries on their way between ranges, as an audit counts them.

::

    messages, updates   taken by the receiver, not dropped by the sender     received - handed
    a message           by no mark taken, yet in an inbox: doubled           the same
    Accounting          one range has added to sums of its prefixes, and     as if it were
                        another one will, or its part is a dead letter       carried out
    slots of queues     owned by ranges, in the pool, granted, returned      the limit

A message that was lost or doubled between ranges makes the first line wrong. A message that was
doubled is also found by itself (:mod:`.audit_facts`). The third line makes sums fit what is posted,
though updates are carried out in one range after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from postroom.client.blocking import iterate
from postroom.client.outboxes import StoreOutboxes
from postroom.client.sync import CoreDatabase
from postroom.messaging.queues.crossing import are_slots
from postroom.messaging.queues.slot_sums import SlotSums, slot_sums
from postroom.messaging.queues.slots import Limit
from postroom.messaging.requests import Deliverable, Executable
from postroom.ranges.accounting import is_posted, summed_prefixes
from postroom.ranges.checks import prefixes
from postroom.ranges.requests import Accounting

Metric: TypeAlias = tuple[bytes, str]
"""A prefix, and the name of a metric."""
_SIGN: Final = 1 << 63


class StoreTransit(NamedTuple):
    """The entries between the ranges of a store.

    Attributes:
        taken: the number of entries that are in two ranges, as their receivers know.
        messages: the number of messages in outboxes that no receiver has taken.
        sums: what is to be added to a sum that is stored, for it to be what is posted.
        slots: the places of slots, by the number of the queue and the limit.
    """

    taken: int
    messages: int
    sums: Mapping[Metric, int]
    slots: Mapping[tuple[int, Limit], SlotSums]


NOTHING: Final = StoreTransit(0, 0, {}, {})


def read_transit(db: CoreDatabase, at: int, queues: Container[int]) -> StoreTransit:
    """Return what is on its way at a timestamp that is protected as a whole.

    Args:
        db: the store.
        at: the timestamp.
        queues: the numbers of the queues whose slots are compared.
    """
    ranges = db.ranges()
    if len(ranges) == 1:
        return NOTHING
    outboxes = StoreOutboxes(db.core.bulk, ranges, at)
    sums: Counter[Metric] = Counter()
    slots: list[Deliverable] = []
    messages = 0
    for entry in chain(iterate(db.sender, outboxes.waiting()), _dead_updates(db, at)):
        if isinstance(entry, Deliverable):
            messages += 1
            slots += [entry] if are_slots(entry) else []
        elif type(entry.request) is Accounting:
            _carry_out(entry.request, sums)
    found = {metric: _signed(number) for metric, number in sums.items()}
    places = slot_sums(chain.from_iterable(db.bulk.records("slots", at=at)), slots)
    compared = {of: each for of, each in places.items() if of[0] in queues}
    return StoreTransit(outboxes.taken, messages, found, compared)


def _dead_updates(db: CoreDatabase, at: int) -> Iterator[Executable]:
    letters = chain.from_iterable(db.bulk.records("dead_letters", at=at))
    return (each.record.update for each in letters if each.record.update is not None)


def _carry_out(request: Accounting, sums: Counter[Metric]) -> None:
    """Add to sums what a part of an update adds, without what is posted with it."""
    found = summed_prefixes(request)
    posted = prefixes(request.key) if is_posted(request, found) else []
    for metric, delta in request.deltas.items():
        for prefix in found:
            _add(sums, (prefix, metric), delta)
        for prefix in posted:
            _add(sums, (prefix, metric), -delta)


def _add(sums: Counter[Metric], metric: Metric, delta: int) -> None:
    """Add to a sum; one of nothing takes no room."""
    sums[metric] += delta
    if not sums[metric]:
        del sums[metric]


def _signed(number: int) -> int:
    """Return a number as 64 bits with a sign, since sums count modulo 2 ** 64."""
    return (number + _SIGN) % (2 * _SIGN) - _SIGN
