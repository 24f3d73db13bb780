"""The limits of a whole queue, as the memory of one range has them: when they allow more.

::

    slots arrive, or leave ─▶ bucket with the share of the rate ─┐
    leases of the range ─────────────────────────────────────────┴─▶ allowance ─▶ firing

The rules of slots are in :mod:`.slots`, the buckets in :mod:`.timing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroom.messaging.queues.slots import (
    LIMITS,
    NO_SLOTS,
    Limit,
    Slots,
    Use,
    held,
    number_of_slots,
)
from postroom.messaging.queues.timing import TokenBucket
from postroom.ranges.evaluation import Evaluation

if TYPE_CHECKING:
    from postroom.messaging.queues.manager import Manager

PATIENCE_SECONDS: Final = 0.3
"""The time for which claims that do not wait do so while their range asks for slots."""
NONE_SECONDS: Final = 0.5
"""The time for which claims that do not wait are answered at once if the root had no slots."""


class QueueLimits:
    """The limits of a queue in one range.

    Args:
        manager: the manager of the queue.

    Attributes:
        slots: the slots that the range owns, by limit; none in a store of one range.
        uses: how many of them it has used lately.
        bucket: the token bucket of the whole queue; ``None``: its rate is unlimited, or other
            ranges have all of it.
        starves_until: until when claims that do not wait do so for slots.
        gets_none_until: until when they do not, since the root had none.
        try_again_at: when the rate of the queue allows the next message.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self.slots: dict[Limit, Slots] = dict.fromkeys(LIMITS, NO_SLOTS)
        self.uses = {limit: Use(manager.host.monotonic()) for limit in LIMITS}
        self.starves_until = self.gets_none_until = 0.0
        self.try_again_at: float | None = None
        self._rested = 0
        self.bucket: TokenBucket | None = None

    def allowance(self, ctx: Evaluation, now: float) -> int:
        """Return how many messages the limits of the whole queue allow to fire now."""
        manager, settings = self._manager, self._manager.definition.settings
        allowed = 1 << 30
        if settings.max_concurrency is not None:
            allowed = manager.host.slots.usable(ctx, manager, "concurrency") - len(manager.leases)
        if settings.max_rate is not None and self.bucket is None:
            return 0
        if self.bucket is not None and allowed > 0:
            tokens = self.bucket.available(now)
            if not tokens:
                self.try_again_at = self.bucket.next_at(now)
                manager.steps.wake_by(manager, self.try_again_at)
            allowed = min(allowed, tokens)
        return max(allowed, 0)

    def take_slots(self, limit: Limit, slots: Slots) -> None:
        """Take over the slots that the range owns now."""
        before, self.slots[limit] = self.slots[limit], slots
        if slots.usable > before.usable:
            self.starves_until = self.gets_none_until = 0.0
            self.uses[limit].note(slots.usable)
        if limit == "rate":
            self._take_shares(slots.usable - before.usable)
        self._manager.steps.look_at(self._manager)
        self._manager.steps.plan(self._manager)

    def _take_shares(self, more: int) -> None:
        """Change the rate; of new shares, no token is there before all have had time for one.

        Another range may have fired with each of them just before.
        """
        is_new = self.bucket is None
        self.change()
        if self.bucket is not None and more > 0:
            self.bucket.owe(more - is_new - self._rested, self._manager.host.monotonic())
        self._rested = 0

    def rest(self, shares: int) -> None:
        """Note how many of the shares that arrive next nobody has fired with lately."""
        self._rested = shares

    def use_slots(self, *, is_wanted: bool = False) -> None:
        """Note how many slots are used now; shares of the rate are if messages wait for them."""
        self.uses["concurrency"].note(len(self._manager.leases))
        if is_wanted:
            self.uses["rate"].note(self.slots["rate"].usable)
        due = self.slots_due()
        if due is not None:
            self._manager.steps.wake_by(self._manager, due)

    def starve(self) -> None:
        """Note that claims need slots; those that do not wait do so for a moment."""
        manager = self._manager
        if not self.starves_until:
            self.starves_until = self.try_again_at = manager.host.monotonic() + PATIENCE_SECONDS
            manager.steps.wake_by(manager, self.starves_until)

    def get_none(self) -> None:
        """Let claims that do not wait be answered, now and for a moment: there are no slots."""
        self.gets_none_until = self._manager.host.monotonic() + NONE_SECONDS
        if self.starves_until:
            self.starves_until = 0.0
            self._manager.steps.look_at(self._manager)

    def slots_due(self) -> float | None:
        """Return when slots are counted anew, or go back; ``None``: never."""
        manager = self._manager
        if manager.host.bounds.is_whole:
            return None
        found: list[float] = []
        for limit, slots in self.slots.items():
            holds = held(manager, limit)
            if not (slots.owned or holds):
                continue
            is_outdated = slots.limit != number_of_slots(manager.definition.settings, limit)
            if is_outdated or min(slots.surplus, slots.owned - holds) > 0:
                return manager.host.monotonic()
            if slots.usable > holds:
                found.append(self.uses[limit].told_at)
        return min(found, default=None)

    def change(self) -> None:
        """Take over new settings, or another share of the rate."""
        manager, rate = self._manager, self._manager.definition.settings.max_rate
        now = manager.host.monotonic()
        rate = None if rate is None else rate * manager.host.slots.share(manager)
        if not rate:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(rate, now)
        else:
            self.bucket.change(rate, now)
