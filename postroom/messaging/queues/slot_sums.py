"""The sums of the slots of a store: at any moment, none is lost, and none is made up.

::

    owned by ranges + granted, on their way + returned, on their way - taken, on their way + pool
        = limit
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from postroom.messaging.queues.crossing import GrantSlots, ReturnSlots, TakeSlots, decode
from postroom.messaging.queues.slots import Limit, Pool, Slots
from postroom.messaging.requests import Deliverable

_SLOTS: Final = b"slots "
_POOL: Final = b"pool "


@dataclass(slots=True)
class SlotSums:
    """The places of the slots of a limit.

    Attributes:
        limit: how many there are.
        pool: those in the pool; below 0: a debt.
        owned: those that ranges own.
        moving: those on their way; what was taken, and the root has not heard of, counts below 0.
    """

    limit: int = 0
    pool: int = 0
    owned: int = 0
    moving: int = 0

    @property
    def conserved(self) -> bool:
        """Return whether all of them are found."""
        return self.pool + self.owned + self.moving == self.limit


def slot_sums(
    records: Iterable[tuple[bytes, bytes]], in_transit: Iterable[Deliverable]
) -> dict[tuple[int, Limit], SlotSums]:
    """Return the places of slots, by the number of the queue and the limit.

    Args:
        records: the records of all ranges, by name; others than those of slots are left out.
        in_transit: the outgoing messages that no range has taken; others are left out, too.
    """
    found: defaultdict[tuple[int, Limit], SlotSums] = defaultdict(SlotSums)
    for name, stored in records:
        if name.startswith(_SLOTS):
            found[_named(name)].owned += msgspec.msgpack.decode(stored, type=Slots).owned
        elif name.startswith(_POOL):
            pool, sums = msgspec.msgpack.decode(stored, type=Pool), found[_named(name)]
            sums.limit, sums.pool = pool.limit, pool.free
    for entry in in_transit:
        change = decode(entry.value) if entry.is_of_queue else None
        if isinstance(change, GrantSlots | ReturnSlots):
            found[change.number, change.limit].moving += change.slots
        elif isinstance(change, TakeSlots):
            found[change.number, change.limit].moving -= change.slots
    return dict(found)


def _named(name: bytes) -> tuple[int, Limit]:
    _, limit, number = name.decode().split(" ")
    return int(number), "rate" if limit == "rate" else "concurrency"
