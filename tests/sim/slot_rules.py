"""The rules of the slots of queues, over all ranges of a store.

Slots that ranges own, that are on their way, or that are in the pool of a queue are its limit. No
range has more messages leased than it owns slots, once it has counted for the limit of its queue.
All ranges together have no more leased than the limit, unless its pool is in debt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.messaging.handover.channels import Channel, lane_of
from postroom.messaging.handover.marks import mark_of
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.slot_sums import slot_sums
from postroom.messaging.queues.slots import Slots, number_of_slots
from postroom.messaging.requests import Deliverable
from tests.sim.checkers import Content, require

_decode: Final = msgspec.msgpack.decode


def check_slots(contents: Sequence[Content]) -> None:
    """Check that no slot is lost or made up, and that each leased message holds one."""
    if len(contents) == 1:
        return
    definitions = {
        each.number: each
        for content in contents
        for each in _definitions(content)
        if not each.dropped
    }
    records = [each for content in contents for each in content.slots.items()]
    sums = slot_sums(records, _in_transit(contents))
    for (number, limit), found in sums.items():
        definition = definitions.get(number)
        if definition is None:
            continue
        most = number_of_slots(definition.settings, limit)
        require(found.limit == most, f"{definition.name}: {limit} is {most}, but {found}")
        require(found.conserved, f"{definition.name}: slots are lost or made up: {found}")
    for number, definition in definitions.items():
        most = number_of_slots(definition.settings, "concurrency")
        leased = [_leased(content, number) for content in contents]
        pool = sums.get((number, "concurrency"))
        for content, holds in zip(contents, leased, strict=True):
            slots = _owned(content, number)
            is_counted = most and slots is not None and slots.limit == most
            require(
                not is_counted or holds <= slots.owned,  # type: ignore[union-attr]
                f"{definition.name}: {holds} are leased with {slots}",
            )
        if most and pool is not None and pool.pool >= 0 and pool.moving >= 0:
            require(sum(leased) <= most, f"{definition.name}: {leased} are leased, {pool}")


def _definitions(content: Content) -> Iterable[QueueDefinition]:
    for key, stored in content.queues.items():
        if key[9:14] == keys.QUEUES + keys.u32(0):
            yield _decode(stored, type=QueueDefinition)


def _in_transit(contents: Sequence[Content]) -> list[Deliverable]:
    """Return the outgoing messages that no range has taken."""
    found = []
    for sender in contents:
        for name, entry in sender.outgoing.items():
            if not isinstance(entry, Deliverable):
                continue
            channel = Channel(sender.descriptor.range_id, False, lane_of(entry.key))
            receiver = next(each for each in contents if _owns(each, entry.key))
            if name[1:] > mark_of(receiver.marks.get(channel, []), entry.key):
                found.append(entry)
    return found


def _owns(content: Content, key: bytes) -> bool:
    start, end = content.descriptor.start, content.descriptor.end
    return start <= key and (end is None or key < end)


def _owned(content: Content, number: int) -> Slots | None:
    stored = content.slots.get(b"slots concurrency %d" % number)
    return None if stored is None else _decode(stored, type=Slots)


def _leased(content: Content, number: int) -> int:
    key = keys.queue_counters_key(content.descriptor.range_id, number)
    stored = content.queues.get(key)
    return 0 if stored is None else _decode(stored, type=QueueCounts).leased
