"""The requests of splits."""

from __future__ import annotations

from typing import ClassVar

from postroom.ranges.contract import (
    UNTIL_IT_HAPPENS,
    Command,
    ConcernsKey,
    ConcernsRange,
    ConcernsRoot,
    Maintenance,
    Read,
    Role,
)
from postroom.ranges.listing import RangeInfo
from postroom.ranges.requests import Count, Key
from postroom.ranges.rights import Verb


class NewRangeId(ConcernsRoot, Command, frozen=True, tag="new_range_id"):
    """A request for an id that no range has had."""

    answer: ClassVar = int
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    is_served_in_restore: ClassVar = False


class PrepareSplit(ConcernsKey, Command, frozen=True, tag="prepare_split"):
    """A request to begin the split of a range at ``key``. Its service does the rest.

    Repeated with the same id, it changes nothing.

    Attributes:
        key: the first key of the right half.
        right_id: the id of the right half, which ``NewRangeId`` has told.
    """

    answer: ClassVar = None
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    is_served_in_restore: ClassVar = False

    key: Key
    right_id: Count


class AwaitSplit(ConcernsKey, Read, frozen=True, tag="await_split"):
    """A request for the range that begins at ``key``, once the split there is over."""

    answer: ClassVar = RangeInfo
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    wait_seconds_max: ClassVar[float] = UNTIL_IT_HAPPENS

    key: Key


class CancelSplit(ConcernsKey, Command, frozen=True, tag="cancel_split"):
    """A request to give up the split that is prepared at ``key``.

    The answer is whether there was one.

    Attributes:
        key: the first key of the right half.
        reason: why; those that await the split are told.
    """

    answer: ClassVar = bool
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    frees_room: ClassVar = True

    key: Key
    reason: str = ""


class DivideSome(ConcernsRange, Maintenance, frozen=True, tag="divide_some"):
    """A request to look for a part of what goes with its key.

    The answer is the number of steps that this took, about one for each record; 0: all is done.
    """

    answer: ClassVar = int
    since: ClassVar = 2


class Split(ConcernsRange, Maintenance, frozen=True, tag="split"):
    """A request to split the range as it is prepared."""

    answer: ClassVar = None
    since: ClassVar = 2
