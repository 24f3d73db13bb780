"""The named positions of readers: all changes after each of them can be read.

A reader that comes back later names the timestamp up to which it has read. Garbage collection does
not pass that timestamp until the reader names a later one, or the time of the position is over. A
protection (``Protect``) ends with its connection; a position outlives it::

    KeepPosition ─▶ kept ── KeepPosition, a later timestamp ─▶ kept, for its time anew
                     ├───── KeepPosition, the same one ──────▶ kept, for its time from the first on
                     └───── its time is over, or seconds=0 ──▶ gone

A reader that makes no progress, and tries again for ever, therefore does not hold back collection
for ever. Its time is counted in timestamps (:mod:`postroom.kv.clock`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

import msgspec

from postroom.limits import POSITION_NAME_CHARACTERS_MAX, POSITION_SECONDS_MAX
from postroom.ranges.contract import ConcernsRoot, Read, Write
from postroom.ranges.requests import Moment

PositionName: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=POSITION_NAME_CHARACTERS_MAX)
]
PositionSeconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=POSITION_SECONDS_MAX)]


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A position in the answer of ``ReadPositions``, and until when it is kept."""

    name: str
    timestamp: int
    until: int


class KeepPosition(ConcernsRoot, Write, frozen=True, tag="keep_position"):
    """A request to keep all changes after ``timestamp`` readable.

    The answer is whether the name was known.

    Attributes:
        name: the name of the position; a later timestamp of this name takes its place.
        seconds: the time for which it is kept; 0: the position is forgotten.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    frees_room: ClassVar = True

    name: PositionName
    timestamp: Moment
    seconds: PositionSeconds


class ReadPositions(ConcernsRoot, Read, frozen=True, tag="read_positions"):
    """A request for all positions, in the order of their names."""

    answer: ClassVar = list[Position]
    since: ClassVar = 1
    is_served_in_restore: ClassVar = True


__all__ = ["KeepPosition", "Position", "PositionName", "PositionSeconds", "ReadPositions"]
