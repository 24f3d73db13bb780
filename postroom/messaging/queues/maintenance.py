"""The requests of the services of queues: definitions that are learned, slots, and time."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from postroom.limits import SLOTS_MAX
from postroom.messaging.queues.requests import QueueName
from postroom.messaging.requests import Moved
from postroom.ranges.contract import ConcernsRange, Maintenance
from postroom.ranges.requests import Bound, Count, TimestampNumber


class Learned(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``LearnDefinitions``.

    Attributes:
        version: the version of the definitions that the range has learned.
        end: the end of its keys.
    """

    version: int
    end: bytes | None


class LearnDefinitions(ConcernsRange, Maintenance, frozen=True, tag="learn_definitions"):
    """A request to a range to learn the definitions that its node has heard of."""

    answer: ClassVar = Learned
    since: ClassVar = 2
    is_served_in_restore: ClassVar = False


class NoteAllKnow(ConcernsRange, Maintenance, frozen=True, tag="note_all_know"):
    """A request to note that all ranges have learned a version of the definitions."""

    answer: ClassVar = None
    since: ClassVar = 2
    is_served_in_restore: ClassVar = False

    version: TimestampNumber


LimitName: TypeAlias = Literal["concurrency", "rate"]
"""The limits of a whole queue over several ranges (:mod:`.slots`)."""


class AskForSlots(ConcernsRange, Maintenance, frozen=True, tag="ask_for_slots"):
    """A range's request to the root for slots of a queue; the answer is how many are on their way.

    Attributes:
        number: the number of the queue.
        range_id: the range that asks; its keys begin with ``first``.
        owned: how many it owns.
        wanted: how many more it could use.
    """

    answer: ClassVar = int
    since: ClassVar = 2
    is_served_in_restore: ClassVar = False

    queue: QueueName
    number: Count
    limit: LimitName
    range_id: Count
    first: Bound
    owned: Count
    wanted: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]


class OwnedSlots(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``LeaveSlots``.

    Attributes:
        owned: how many slots the range owns, without those that go to the pool now.
        needed: how many of them its messages hold.
        wanted: how many more it could use.
    """

    owned: int
    needed: int
    wanted: int


class LeaveSlots(ConcernsRange, Maintenance, frozen=True, tag="leave_slots"):
    """The root's request to a range to leave slots of a queue to others, and to tell its needs.

    Attributes:
        number: the number of the queue.
        keeps: how many it may keep at most. It gives half of its free ones at once; if it has none,
            the others as messages end.
    """

    answer: ClassVar = OwnedSlots
    since: ClassVar = 2
    is_served_in_restore: ClassVar = False

    queue: QueueName
    number: Count
    limit: LimitName
    keeps: Count


class AdvanceQueues(ConcernsRange, Maintenance, frozen=True, tag="advance_queues"):
    """A request to do what is due in all queues of the range, within ``messages_max``.

    It fires, expires leases, enqueues for ticks, and purges. The answer is ``Moved``, like those of
    the requests of the dispatcher and the executor.
    """

    answer: ClassVar = Moved
    since: ClassVar = 1
    is_served_in_restore: ClassVar = False

    messages_max: Count
