"""The limits of a whole queue over several ranges: each range fires with the slots that it owns.

::

    root: pool ── GrantSlots ──▶ range: usable ── fires ──▶ held by leased messages
      ▲                            │ told to leave some, not needed, or the limit has changed
      └──── ReturnSlots ◀──────── surplus, once no message holds it

A queue with ``max_concurrency`` has as many *slots*. At any time, what ranges own, what is on its
way, and what is in the pool add up to the limit. A range fires while fewer messages are leased than
it has usable slots. Slots move as entries that are handed over exactly once (:mod:`.crossing`).
Thus sums never exceed the limit, whatever becomes of leaders, nodes and clocks.

The slots of ``max_rate`` are shares of the rate: one for each message a second, and one at least. A
range has a token bucket with the rate of its shares. Each share that arrives costs a token, since
another range may have fired with it just before. Thus no second sees more than the limit.

A range remembers for which limit it has counted. If it learns of another limit, its slots become
*surplus*: those that no message holds go back at once, the others when their messages end. A new
limit takes from the pool what messages hold already. The pool may thus be in debt. Then nothing is
granted, and nothing fires, before enough has come back.

A range that contains every key owns all slots, and has no record of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.kv.engine import ValueReader
from postroom.limits import SLOTS_MAX
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.maintenance import LimitName
from postroom.ranges.contract import ROOT_ID

if TYPE_CHECKING:
    from postroom.messaging.queues.manager import Manager

Limit: TypeAlias = LimitName
LIMITS: Final[tuple[Limit, ...]] = ("concurrency", "rate")
SlotNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=SLOTS_MAX)]
SomeSlots: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]


USE_SECONDS: Final = 1.5
"""The length of a span: what was not used in two of them, and the rest of one, goes back."""


class Slots(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The slots of a queue that a range owns, as they are stored.

    Attributes:
        limit: the limit for which they are counted; 0: there is none.
        usable: those with which it fires.
        surplus: those that go back once no message holds them.
    """

    limit: int = 0
    usable: int = 0
    surplus: int = 0

    @property
    def owned(self) -> int:
        """Return their number."""
        return self.usable + self.surplus


class Pool(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The slots of a queue that no range owns, as the root stores them.

    Attributes:
        limit: the number of all slots.
        free: those in the pool; below 0: a debt.
    """

    limit: int = 0
    free: int = 0


NO_SLOTS: Final = Slots()
_encode: Final = msgspec.msgpack.Encoder().encode
_slots: Final = msgspec.msgpack.Decoder(Slots)
_pools: Final = msgspec.msgpack.Decoder(Pool)


def number_of_slots(settings: QueueSettings, limit: Limit) -> int:
    """Return how many slots a queue has; 0: it has no such limit."""
    if limit == "concurrency":
        return settings.max_concurrency or 0
    return 0 if settings.max_rate is None else max(int(settings.max_rate), 1)


def is_limited(settings: QueueSettings) -> bool:
    """Return whether a queue has a limit that holds for all of its messages."""
    return settings.max_concurrency is not None or settings.max_rate is not None


def held(manager: Manager, limit: Limit) -> int:
    """Return how many slots messages hold; a share of a rate is held by none."""
    return len(manager.leases) if limit == "concurrency" else 0


# --- records --------------------------------------------------------------------------------------


def slots_prefix(range_id: int) -> bytes:
    """Return the key prefix of the slots that a range owns; limit and number follow."""
    return keys.record_key(range_id, "slots ")


def slots_key(range_id: int, number: int, limit: Limit) -> bytes:
    """Return the key of the slots of the queue ``number`` that a range owns."""
    return keys.record_key(range_id, f"slots {limit} {number}")


def pool_key(number: int, limit: Limit) -> bytes:
    """Return the key of the pool of the queue ``number``."""
    return keys.record_key(ROOT_ID, f"pool {limit} {number}")


def read_slots(reader: ValueReader, range_id: int, number: int, limit: Limit) -> Slots:
    """Return the slots of a queue that a range owns."""
    stored = reader.get(slots_key(range_id, number, limit))
    return NO_SLOTS if stored is None else _slots.decode(stored)


def encode_slots(slots: Slots) -> bytes | None:
    """Return the record of slots; ``None``: there are none."""
    return _encode(slots) if slots.owned else None


def read_pool(reader: ValueReader, number: int, limit: Limit) -> Pool:
    """Return the pool of a queue."""
    stored = reader.get(pool_key(number, limit))
    return Pool() if stored is None else _pools.decode(stored)


def encode_pool(pool: Pool) -> bytes | None:
    """Return the record of a pool; ``None``: it has nothing to tell."""
    return _encode(pool) if pool != Pool() else None


class Use:
    """The greatest number of slots of a queue that were used lately.

    Args:
        now: seconds of a monotonic clock.

    Attributes:
        told_at: when it is told next: at the end of a span of ``USE_SECONDS``.
    """

    __slots__ = ("_before", "_number", "told_at")

    def __init__(self, now: float) -> None:
        self._before = self._number = 0
        self.told_at = now + USE_SECONDS

    def note(self, number: int) -> None:
        """Note how many are used now."""
        self._number = max(self._number, number)

    def take_peak(self, now: float) -> int | None:
        """Return how many were used in this span and the one before; ``None``: it has not ended."""
        if now < self.told_at:
            return None
        peak = max(self._before, self._number)
        self._before, self._number, self.told_at = self._number, 0, now + USE_SECONDS
        return peak


# --- rules ----------------------------------------------------------------------------------------


def counted_anew(slots: Slots, limit: int, holds: int) -> tuple[Slots, int]:
    """Return the slots of a range for another limit, and how many go to the pool.

    Args:
        slots: the slots that it owns.
        limit: the new limit; 0: there is none.
        holds: how many its messages hold: they are its surplus now. If it owns fewer, the pool has
            to give it the others.
    """
    keeps = holds if limit else 0
    return Slots(limit, 0, keeps), slots.owned - keeps


def returned(slots: Slots, holds: int) -> tuple[Slots, int]:
    """Return the slots without the surplus that no message holds, and how much that is."""
    free = max(min(slots.surplus, slots.owned - holds), 0)
    return msgspec.structs.replace(slots, surplus=slots.surplus - free), free


def left_over(slots: Slots, keeps: int) -> Slots:
    """Return the slots of a range that keeps so many at most, and has the others as a surplus."""
    more = max(slots.usable - keeps, 0)
    return Slots(slots.limit, slots.usable - more, slots.surplus + more)


def granted(slots: Slots, limit: int, number: int) -> Slots:
    """Return the slots of a range that gets some of the pool: its surplus is welcome, too."""
    return Slots(limit, slots.owned + number, 0)


def halves(slots: Slots, holds_left: int, holds_right: int) -> tuple[Slots, Slots]:
    """Return the slots of both halves of a range; each has at least what its messages hold."""
    spare = max(slots.owned - holds_left - holds_right, 0)
    owned = min(holds_right + spare // 2, slots.owned)
    surplus = min(slots.surplus, owned)
    right = Slots(slots.limit, owned - surplus, surplus)
    return Slots(slots.limit, slots.usable - right.usable, slots.surplus - surplus), right


def shares(slots: int, wanted: dict[int, int], rotation: int) -> dict[int, int]:
    """Return a fair share of slots for each range.

    A range gets no more than it wants. Slots that cannot be divided go to ranges in rotation.

    Args:
        slots: the number of slots.
        wanted: how many each range can use, by its id.
        rotation: a number that rises.
    """
    found: dict[int, int] = {}
    rest = sorted(wanted, key=lambda each: (wanted[each], each))
    left = max(slots, 0)
    while rest:
        least = wanted[rest[0]]
        if least * len(rest) > left:
            break
        found[rest.pop(0)] = least
        left -= least
    for place, each in enumerate(sorted(rest)):
        comes = (place - rotation * (left % len(rest))) % len(rest)
        found[each] = left // len(rest) + (comes < left % len(rest))
    return found
