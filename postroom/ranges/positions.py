"""Named positions: after each of them everything that has changed can be read.

A reader that comes back later names the timestamp up to which it has read. Garbage collection does
not pass that, whoever leads, until the reader names a later one, or the time of the position is
over. A protection (``Protect``) ends with its connection; a position outlives it::

    KeepPosition ─▶ kept ── KeepPosition, a later timestamp ─▶ kept, for its time anew
                     ├───── KeepPosition, the same one ──────▶ kept, for its time from the first on
                     └───── its time is over, or seconds=0 ──▶ gone

So a reader that does not get on, but tries again for ever, does not hold back collection for ever.
Its time is counted in timestamps, as all lengths of time (:mod:`postroom.kv.clock`).
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
    """Answers ``ReadPositions``: a position, and until when it is kept."""

    name: str
    timestamp: int
    until: int


class KeepPosition(ConcernsRoot, Write, frozen=True, tag="keep_position"):
    """Keeps what has changed after ``timestamp`` readable. Answers whether the name was known.

    Attributes:
        name: of the position; another timestamp of the same name takes its place.
        seconds: for how long; 0: the position is forgotten.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    frees_room: ClassVar = True

    name: PositionName
    timestamp: Moment
    seconds: PositionSeconds


class ReadPositions(ConcernsRoot, Read, frozen=True, tag="read_positions"):
    """All positions, in the order of their names."""

    answer: ClassVar = list[Position]
    since: ClassVar = 1
    is_served_in_restore: ClassVar = True


__all__ = ["KeepPosition", "Position", "PositionName", "PositionSeconds", "ReadPositions"]
