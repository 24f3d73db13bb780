"""The requests between the two ends of a channel.

A *batch* is a prefix of what a channel has for a span of keys: its first entries whose keys lie
there, without a gap. :mod:`.marks` says why.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from postroom.limits import HANDED_OVER_MAX
from postroom.messaging.handover.channels import Channel
from postroom.messaging.handover.marks import MarkedSpan
from postroom.messaging.handover.positions import Position
from postroom.messaging.requests import Deliverable, Executable
from postroom.ranges.contract import ConcernsRange, ConcernsSpan, Maintenance
from postroom.ranges.requests import Bound

_AtOnce = msgspec.Meta(max_length=HANDED_OVER_MAX)


class HandOver(ConcernsSpan, Maintenance, frozen=True, tag="hand_over"):
    """A request to take a batch from the outbox of another range.

    The answer is the marks of the span, after the batch was taken, or as they are if some of it was
    known already. The sender may delete whatever they cover, and nothing else.

    Attributes:
        channel: the channel.
        start, end: the span of keys.
        messages, updates: the entries, with their positions; one of the two is empty. An update has
            no keys outside of the span.
        further: the positions of further parts of updates (:mod:`.parts`).
    """

    answer: ClassVar = list[MarkedSpan]
    since: ClassVar = 1
    is_served_in_restore: ClassVar = False

    channel: Channel
    start: Bound
    end: Bound | None
    messages: Annotated[tuple[tuple[Position, Deliverable], ...], _AtOnce] = ()
    updates: Annotated[tuple[tuple[Position, Executable], ...], _AtOnce] = ()
    further: Annotated[tuple[Position, ...], _AtOnce] = ()


class DropHandedOver(ConcernsRange, Maintenance, frozen=True, tag="drop_handed_over"):
    """A request to delete outgoing entries that their receivers have taken; it answers how many.

    Attributes:
        are_updates: whether these are updates, and not messages.
        positions: their positions.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    frees_room: ClassVar = True
    is_served_in_restore: ClassVar = False

    are_updates: bool
    positions: tuple[Position, ...]
