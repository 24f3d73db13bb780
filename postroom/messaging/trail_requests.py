"""The requests of trails (:mod:`.trail`)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from postroom.limits import SCAN_CURSOR_BYTES_MAX
from postroom.ranges.contract import Command, ConcernsRoot, Read, Role
from postroom.ranges.requests import TimestampNumber
from postroom.ranges.rights import Verb


class TrailState(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ReadTrail`` and ``KeepTrail``.

    Attributes:
        since: all changes after this timestamp are in the trail; 0: none is kept.
        ended: those from this timestamp on are not; 0: they are.
        cursor: where forgetting goes on; ``None``: all that had to be forgotten is.
    """

    since: int = 0
    ended: int = 0
    cursor: bytes | None = None


class ReadTrail(ConcernsRoot, Read, frozen=True, tag="read_trail"):
    """A request for the state of the trail."""

    answer: ClassVar = TrailState
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ,)


class KeepTrail(ConcernsRoot, Command, frozen=True, tag="keep_trail"):
    """A request to keep a trail, and to forget a part of it; or to end it.

    Forgetting takes several requests: each has the ``cursor`` of the answer before.

    Attributes:
        is_kept: whether it is kept; if not, all of it is forgotten.
        until: the timestamp up to which it is forgotten.
        cursor: where to go on with that.
    """

    answer: ClassVar = TrailState
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    frees_room: ClassVar = True
    is_served_in_restore: ClassVar = False

    is_kept: bool
    until: TimestampNumber = 0
    cursor: Annotated[bytes, msgspec.Meta(max_length=SCAN_CURSOR_BYTES_MAX)] = b""
