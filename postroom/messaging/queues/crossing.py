"""The changes of queues that leave their range: outgoing entries of its outbox.

::

    where it commits                       range of the id           range of the home
    made-up id ─────────── PlaceMessage ────────────────────────────▶ placed
                                           pointer ◀──── PointTo ───────┘
    given id, takes part ────────────────▶ pointer ─ PlaceMessage ──▶ placed
    follower, tick ─────── EnqueueById ──▶ the same, if it is new
    id that is there ────────────────────▶ pointer ─ ReplaceMessage ▶ replaced, if it was not fired
                                           no pointer ◀─ EndPointer ──  purged
    root ── GrantSlots ──▶ range ── ReturnSlots, TakeSlots ──▶ root      (:mod:`.slots`)

A message with a group and a made-up id is placed by its commit: the range of its group takes part.
Only its pointer goes out, if the id is of another range.

An entry is handed over exactly once, and those of a key in their order
(:mod:`postroom.messaging.handover`). A message is in no queue until it has arrived; on its way it
counts as pending at the sender. Everything names its queue by number too: nothing that was on its
way to a dropped queue arrives in a later one of that name.

A queue in a range that contains every key sends nothing.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from postroom.messaging.queues.requests import (
    EnqueueInQueue,
    Kind,
    QueueMessageId,
    QueueName,
)
from postroom.messaging.queues.slots import Limit, SlotNumber, SomeSlots
from postroom.messaging.requests import Deliverable
from postroom.ranges.requests import Count, Key


class Crossing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A change of a queue in another range.

    Attributes:
        queue: the name of the queue; ``number``: its number.
    """

    queue: QueueName
    number: Count


class PlaceMessage(Crossing, frozen=True, tag="place"):
    """A new message on its way to its home: no other one has its kind and id."""

    message: EnqueueInQueue


class EnqueueById(Crossing, frozen=True, tag="enqueue_by_id"):
    """A message on its way to the range of its id, which tells whether it is new.

    Attributes:
        replaces: whether it may replace another one, if its queue says so.
    """

    message: EnqueueInQueue
    replaces: bool


class ReplaceMessage(Crossing, frozen=True, tag="replace"):
    """A message that replaces the one of its kind and id, which lies at ``home``."""

    home: Key
    message: EnqueueInQueue


class PointTo(Crossing, frozen=True, tag="point"):
    """A pointer under an id, to the message at ``home``."""

    home: Key
    kind: Kind
    id: QueueMessageId


class EndPointer(Crossing, frozen=True, tag="end_pointer"):
    """The end of such a pointer: the message is gone."""

    home: Key
    kind: Kind
    id: QueueMessageId


class GrantSlots(Crossing, frozen=True, tag="grant_slots"):
    """Slots of the pool for a range.

    Attributes:
        told: the limit for which the root has counted.
        rested: how many of them nobody has fired with lately.
    """

    limit: Limit
    told: SlotNumber
    slots: SomeSlots
    rested: SlotNumber = 0


class ReturnSlots(Crossing, frozen=True, tag="return_slots"):
    """Slots that go back to the pool."""

    limit: Limit
    slots: SomeSlots


class TakeSlots(Crossing, frozen=True, tag="take_slots"):
    """Slots that messages of a range held before there was a limit: the pool is without them."""

    limit: Limit
    slots: SomeSlots


AnyCrossing: TypeAlias = (
    PlaceMessage | EnqueueById | ReplaceMessage | PointTo | EndPointer | GrantSlots | ReturnSlots
    | TakeSlots
)  # fmt: skip

encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(AnyCrossing).decode


def are_slots(entry: Deliverable) -> bool:
    """Return whether a message moves slots between ranges."""
    return entry.is_of_queue and isinstance(
        decode(entry.value), GrantSlots | ReturnSlots | TakeSlots
    )
