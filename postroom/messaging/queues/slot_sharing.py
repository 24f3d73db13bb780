"""The services that have slots go where they are used; see :mod:`.slots`.

::

    each range   a queue is hungry ── AskForSlots ──▶ root        again, while it is
    the root     ranges ask in vain ── LeaveSlots ──▶ every range: what do you own, and need?
                    fair shares ◀───────────────────────┘
                    LeaveSlots ──▶ those that own more than their share

A range that does not answer keeps what it owns, and the others share the rest. Slots that cannot be
divided go to ranges in rotation.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from postroom.limits import SLOTS_MAX
from postroom.messaging.queues.maintenance import AskForSlots, LeaveSlots, OwnedSlots
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.slot_moves import SlotMoves
from postroom.messaging.queues.slot_pool import LimitOf, SlotPools
from postroom.messaging.queues.slots import LIMITS, shares
from postroom.ranges.bounds import Bounds
from postroom.ranges.carrier import Carrier, Recipient
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.ports import ServiceWakeUp

ASK_SECONDS: Final = 0.1
"""The first pause before a range asks again; it doubles up to half a second."""
ASK_SECONDS_LAST: Final = 0.5
LOOK_SECONDS: Final = 0.05
"""The first pause before the root looks around again; it doubles up to a quarter of a second."""
LOOK_SECONDS_LAST: Final = 0.25
ANSWER_SECONDS: Final = 0.25
"""The time for which the root waits for the answers of ranges."""
RANGE_SECONDS: Final = 0.002
"""The pause for each range that was asked, at least."""
ASKED_AT_ONCE: Final = 2000
"""The number of questions to ranges that are under way."""
ROOT: Final = Recipient(ROOT_ID, b"", b"")
ROTATION_SECONDS: Final = {"concurrency": 1.0, "rate": 5.0}
"""The time after which slots that cannot be divided go to other ranges, by limit."""


@dataclass(eq=False)
class SlotAsker:
    """The service of a range that asks for slots.

    Attributes:
        range_id, bounds: the range.
        moves: its slots.
        manager: returns the manager of a queue in use.
        carrier: the way to the root.
        monotonic: seconds that never go back.
        wake_up: the wake-up that a queue is hungry.
    """

    range_id: int
    bounds: Bounds
    moves: SlotMoves
    manager: Callable[[str], Manager | None]
    carrier: Carrier
    monotonic: Callable[[], float]
    wake_up: ServiceWakeUp
    _pauses: dict[str, float] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Ask, for ever."""
        while True:
            hungry, now = self.moves.hungry, self.monotonic()
            for name in [each for each, at in hungry.items() if at <= now]:
                self._ask_for(name)
            await self.wake_up.wait(min(hungry.values(), default=math.inf) - now)

    def _ask_for(self, name: str) -> None:
        """Ask for slots of a queue, and again after a pause; unless it needs none any more."""
        manager = self.manager(name)
        asks = [] if manager is None else self._asks(manager)
        if manager is None or not asks:
            self.moves.hungry.pop(name, None)
            self._pauses.pop(name, None)
            return
        pause = self._pauses.get(name, ASK_SECONDS)
        self._pauses[name] = min(2 * pause, ASK_SECONDS_LAST)
        self.moves.hungry[name] = self.monotonic() + pause
        for each in asks:
            self.carrier.carry(ROOT, each, partial(self._answered, manager))

    def _asks(self, manager: Manager) -> list[AskForSlots]:
        return [
            AskForSlots(
                manager.name, manager.definition.number, limit, self.range_id, self.bounds.start,
                manager.limits.slots[limit].owned, wanted,
            )
            for limit in LIMITS if (wanted := self.moves.wanted(manager, limit))
        ]  # fmt: skip

    def _answered(self, manager: Manager, answer: Any) -> None:
        if answer == 0 and self.manager(manager.name) is manager:
            manager.limits.get_none()


@dataclass(eq=False)
class SlotSharer:
    """The service of the root that has ranges leave slots to others.

    Attributes:
        pools: the pools.
        carrier: the way to all ranges.
        monotonic: seconds that never go back.
        sleep: a function that sleeps.
        wake_up: the wake-up that a range has asked in vain.
        answers: the wake-up that all ranges have answered.
    """

    pools: SlotPools
    carrier: Carrier
    monotonic: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    wake_up: ServiceWakeUp
    answers: ServiceWakeUp

    async def run(self) -> None:
        """Look around while ranges ask, for ever."""
        pause = LOOK_SECONDS
        while True:
            in_demand = self.pools.in_demand()
            if not in_demand:
                pause = LOOK_SECONDS
                await self.wake_up.wait(math.inf)
                continue
            ranges = self._ranges()
            together, moves = max(ASKED_AT_ONCE // len(ranges), 1), False
            for first in range(0, len(in_demand), together):
                some = in_demand[first : first + together]
                found = await self._ask_all(some, ranges)
                for name in some:
                    moves |= self._balance(name, found[name])
            pause = LOOK_SECONDS if moves else min(2 * pause, LOOK_SECONDS_LAST)
            await self.sleep(max(pause, len(ranges) * RANGE_SECONDS))

    def _balance(self, name: LimitOf, found: dict[Recipient, OwnedSlots]) -> bool:
        """Have ranges leave what is more than their share; return whether any has more."""
        owned = {recipient.range_id: each.owned for recipient, each in found.items()}
        wanted = {
            recipient.range_id: each.needed + each.wanted for recipient, each in found.items()
        }
        rotation = int(self.monotonic() / ROTATION_SECONDS[name.limit])
        fair = shares(sum(owned.values()) + self.pools.free(name), wanted, rotation)
        self.pools.note_shares(name, fair, owned)
        if not any(fair[each] > owned[each] for each in fair):
            return False
        richer = [each for each in found if owned[each.range_id] > fair[each.range_id]]
        for each in richer:
            request = LeaveSlots(name.queue, name.number, name.limit, fair[each.range_id])
            self.carrier.carry(each, request, lambda _: None)
        return bool(richer)

    async def _ask_all(
        self, names: list[LimitOf], ranges: list[Recipient]
    ) -> dict[LimitOf, dict[Recipient, OwnedSlots]]:
        """Return what the ranges own that answer in time."""
        found: dict[LimitOf, dict[Recipient, OwnedSlots]] = {name: {} for name in names}
        asked = len(names) * len(ranges)

        def answered(name: LimitOf, recipient: Recipient, answer: Any) -> None:
            nonlocal asked
            asked -= 1
            if isinstance(answer, OwnedSlots):
                found[name][recipient] = answer
            if not asked:
                self.answers.set()

        for name in names:
            request = LeaveSlots(name.queue, name.number, name.limit, SLOTS_MAX)
            for each in ranges:
                self.carrier.carry(each, request, partial(answered, name, each))
        ends_at = self.monotonic() + ANSWER_SECONDS
        while asked and (left := ends_at - self.monotonic()) > 0:
            await self.answers.wait(left)
        return {name: dict(each) for name, each in found.items()}

    def _ranges(self) -> list[Recipient]:
        found: list[Recipient] = []
        key: bytes | None = b""
        while key is not None:
            recipient = self.carrier.recipient_of(key)
            if recipient.range_id:
                found.append(recipient)
            key = None if recipient.end is not None and recipient.end <= key else recipient.end
        return found
