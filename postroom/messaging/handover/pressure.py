"""The limit of what is on its way to other ranges, so that no outbox grows without end.

A range that cannot be reached takes nothing, and its senders keep everything for it. Beyond the
limit a commit that would add to that is refused. Entries that are scheduled still become outgoing
when they are due: their transactions have happened.
"""

from __future__ import annotations

from postroom import limits
from postroom.errors import OutboxFull
from postroom.messaging.requests import Counters


def check_room(applied: Counters, part: int = 1, most: int = limits.OUTGOING_MAX) -> None:
    """Check that one more entry may join those that are outgoing.

    Args:
        applied: the counters of the sending range.
        part: the part of the room that may be used: 2 is a half, which leaves the other to others.
        most: the number of entries beyond which no more may join, if it is smaller.

    Raises:
        OutboxFull: too much is on its way already.
    """
    number, size = applied.outgoing, applied.outgoing_bytes
    room = min(limits.OUTGOING_MAX // part, most)
    if number < room and size < limits.OUTGOING_BYTES_MAX // part:
        return
    raise OutboxFull(
        f"{number} messages and updates ({size} bytes) are on their way to other ranges, and no "
        "more may join them; nothing happened: try again later"
    )
