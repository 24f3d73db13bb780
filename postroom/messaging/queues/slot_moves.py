"""The slots of one range: counted, granted, left to others, and sent back; see :mod:`.slots`.

::

    a claim finds no usable slot ──▶ hungry ── AskForSlots ──▶ root ── GrantSlots ──▶ arrive
    the root wants some back ───────▶ LeaveSlots ─┐
    not needed for some seconds ─────▶ a step ────┼─▶ surplus ── no message holds it ──▶ root
    another limit ───────────────────▶ a step ────┘

All of this is evaluated into proposals. Firing sees the slots as the requests before it have left
them, and counts all leases that are applied, also those that the proposal ends. The root's own
slots move within its proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.queues import slots as rules
from postroom.messaging.queues.crossing import GrantSlots, ReturnSlots, TakeSlots
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.departing import Departures
from postroom.messaging.queues.maintenance import LeaveSlots, OwnedSlots
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.slots import LIMITS, Limit, Pool, Slots
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import Evaluation

ROOT_KEY: Final = b""
"""The key under which slots go to the root, whose keys begin with it."""


RATE_DIVISOR: Final = 8
"""The divisor of a rate: a range asks for so much of it at least, since few shares fire late."""
HEARD_SECONDS: Final = 5.0
"""The time after which the root has heard what a range has taken from its pools."""


class SlotMoves:
    """The slots of the queues of one range.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.
        departures: the way of slots to the root.
        give_back: at the root: puts slots into the pool of a queue, or takes them out of it.
        monotonic: seconds that never go back.

    Attributes:
        hungry: the queues that may need slots, by name, with the time at which to ask for them.
        on_hungry: called when one may.
    """

    def __init__(
        self,
        range_id: int,
        bounds: Bounds,
        departures: Departures,
        give_back: Callable[[Evaluation, Manager, Limit, int], None] | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._monotonic = monotonic
        self._took_at = -HEARD_SECONDS
        self._range_id = range_id
        self._bounds = bounds
        self._departures = departures
        self._give_back = give_back
        self.hungry: dict[str, float] = {}
        self.on_hungry: Callable[[], None] = lambda: None

    @property
    def are_here(self) -> bool:
        """Return whether the range owns all slots, since it contains every key."""
        return self._bounds.is_whole

    def owners(self, stored: Reader | Evaluation) -> Iterator[int]:
        """Iterate over the numbers of the queues of which the range owns slots."""
        if self._bounds.is_whole:
            return
        prefix = rules.slots_prefix(self._range_id)
        for raw, _ in stored.iterate(prefix, keys.after_prefix(prefix)):
            yield int(raw.rpartition(b" ")[2])

    def read(self, stored: Reader, manager: Manager) -> None:
        """Read the slots of a queue, with a new manager."""
        if not self._bounds.is_whole:
            for limit in LIMITS:
                found = rules.read_slots(stored, self._range_id, manager.definition.number, limit)
                manager.limits.slots[limit] = found

    # --- firing

    def usable(self, ctx: Evaluation, manager: Manager, limit: Limit) -> int:
        """Return how many slots the range may use, by the requests before."""
        most = rules.number_of_slots(manager.definition.settings, limit)
        if self._bounds.is_whole:
            return most
        found = self._of(ctx, manager, limit)
        return found.usable if found.limit == most else 0

    def share(self, manager: Manager) -> float:
        """Return the share of the rate of a queue that the range owns."""
        if self._bounds.is_whole:
            return 1.0
        most = rules.number_of_slots(manager.definition.settings, "rate")
        found = manager.limits.slots["rate"]
        return found.usable / most if most and found.limit == most else 0.0

    def look(self, manager: Manager) -> None:
        """Note a queue that needs more slots, since something could be fired with them."""
        if self._bounds.is_whole or not rules.is_limited(manager.definition.settings):
            return
        manager.limits.use_slots(is_wanted=self._demand(manager) > 0)
        if not self._is_starving(manager):
            manager.limits.starves_until = 0.0
        elif manager.name not in self.hungry:
            self.hungry[manager.name] = 0.0
            self.on_hungry()

    def is_awaited(self, manager: Manager) -> bool:
        """Return whether claims that do not wait do so for slots, for a moment."""
        if self._bounds.is_whole or not self._is_starving(manager):
            return False
        now = manager.host.monotonic()
        limits = manager.limits
        if limits.gets_none_until > now:
            return False
        limits.starve()
        if limits.starves_until > now:
            return True
        limits.starves_until = 0.0
        return False

    def _is_starving(self, manager: Manager) -> bool:
        return any(self.wanted(manager, limit) for limit in LIMITS)

    def wanted(self, manager: Manager, limit: Limit) -> int:
        """Return how many more slots waiting claims could use now.

        Without a share of the rate, a range can use no other slots either.
        """
        found, bucket = manager.limits.slots[limit], manager.limits.bucket
        settings = manager.definition.settings
        most, demand = rules.number_of_slots(settings, limit), self._demand(manager)
        if not (most and demand) or (found.owned and found.limit != most):
            return 0
        if limit == "concurrency":
            paced = settings.max_rate is not None and bucket is None
            if paced or len(manager.leases) < found.usable:
                return 0
            return min(demand, most - found.owned)
        if bucket is not None and bucket.has_any(manager.host.monotonic()):
            return 0
        return min(max(manager.counted.ready, -(-most // RATE_DIVISOR)), most - found.owned)

    def _demand(self, manager: Manager) -> int:
        """Return how many messages could be fired, if all slots were here."""
        ready = manager.counted.ready
        if not ready or manager.definition.paused:
            return 0
        return manager.consumers.room(ready)

    # --- moves

    def settle(self, ctx: Evaluation, manager: Manager) -> None:
        """Count for the limit that the range knows; send back what nobody needs."""
        if self._bounds.is_whole:
            return
        now = manager.host.monotonic()
        for limit in LIMITS:
            slots, given = self._counted(ctx, manager, limit)
            peak = manager.limits.uses[limit].take_peak(now)
            if peak is not None:
                slots = rules.left_over(slots, max(peak, rules.held(manager, limit)))
            self._send_back(ctx, manager, limit, slots, given)

    def _counted(self, ctx: Evaluation, manager: Manager, limit: Limit) -> tuple[Slots, int]:
        """Return the slots for the limit that the range knows, and how many it has no more."""
        slots, holds = self._of(ctx, manager, limit), rules.held(manager, limit)
        most = rules.number_of_slots(manager.definition.settings, limit)
        if slots.limit == most or not (slots.owned or holds):
            return slots, 0
        return rules.counted_anew(slots, most, holds)

    def leave(self, ctx: Evaluation, manager: Manager, request: LeaveSlots) -> OwnedSlots:
        """Leave slots to other ranges; return what the range owns then, and needs."""
        limit = request.limit
        found, holds = self._of(ctx, manager, limit), rules.held(manager, limit)
        needed = found.owned if limit == "rate" and self._demand(manager) else holds
        surplus, free = found.usable - request.keeps, found.usable - needed
        if surplus > 0:
            surplus = min(surplus, (free + 1) // 2) if free > 0 else surplus
            found = rules.left_over(found, found.usable - surplus)
            self._send_back(ctx, manager, limit, found, 0)
            found = self._of(ctx, manager, limit)
        return OwnedSlots(found.owned, needed, self.wanted(manager, limit))

    def _send_back(
        self, ctx: Evaluation, manager: Manager, limit: Limit, slots: Slots, given: int
    ) -> None:
        """Put slots of the range, and send what it does not own any more to the pool.

        Args:
            given: how many of those that it had are not among them; below 0: how many more these
                are than it had.
        """
        after, free = rules.returned(slots, rules.held(manager, limit))
        self._put(ctx, manager, limit, after)
        given += free
        name, number = manager.name, manager.definition.number
        if not given:
            return
        if self._give_back is not None:
            self._give_back(ctx, manager, limit, given)
        elif given > 0:
            self._departures.send(ctx, ROOT_KEY, ReturnSlots(name, number, limit, given))
        else:
            self._departures.send(ctx, ROOT_KEY, TakeSlots(name, number, limit, -given))
            self._took_at = self._monotonic()

    def arrive(self, ctx: Evaluation, manager: Manager, grant: GrantSlots) -> None:
        """Take slots that the root has granted.

        Those that were counted for another limit go back.

        Raises:
            Invalid: there are not so many.
        """
        limit, number = grant.limit, grant.slots
        found, given = self._counted(ctx, manager, limit)
        most = rules.number_of_slots(manager.definition.settings, limit)
        if grant.told != most:
            more = msgspec.structs.replace(found, surplus=found.surplus + number)
            self._send_back(ctx, manager, limit, more, given)
            return
        if found.usable + number > most:
            raise Invalid(
                f"{number} slots for {limit} were granted to range {self._range_id}, which has "
                f"{found.usable} of {most}; nothing was changed"
            )
        ctx.after.append(lambda: manager.host.current(manager).limits.rest(grant.rested))
        self._send_back(ctx, manager, limit, rules.granted(found, most, number), given)

    def halve(
        self,
        ctx: Evaluation,
        right_id: int,
        held: Callable[[int], tuple[int, int]],
        limited: list[QueueDefinition],
    ) -> None:
        """Stage the slots of both halves of the range.

        Args:
            right_id: the id of the right half.
            held: a function that returns how many messages each half holds, of a queue.
            limited: the queues with limits.
        """
        numbers = [each.number for each in limited] if self._bounds.is_whole else [
            *dict.fromkeys(self.owners(ctx))
        ]  # fmt: skip
        settings = {each.number: each.settings for each in limited}
        for number in numbers:
            for limit in LIMITS:
                holds = held(number) if limit == "concurrency" else (0, 0)
                if self._bounds.is_whole:
                    most = rules.number_of_slots(settings[number], limit)
                    slots = Slots(most, most) if sum(holds) <= most else Slots(most, 0, sum(holds))
                    pool = Pool(most, most - slots.owned) if most else Pool()
                    ctx.writes[rules.pool_key(number, limit)] = rules.encode_pool(pool)
                    slots = slots if most else rules.NO_SLOTS
                else:
                    slots = rules.read_slots(ctx, self._range_id, number, limit)
                left, right = rules.halves(slots, *holds)
                for range_id, half in ((self._range_id, left), (right_id, right)):
                    key = rules.slots_key(range_id, number, limit)
                    ctx.writes[key] = rules.encode_slots(half)
                    ctx.grow(2 * len(key))

    def has_just_taken(self) -> bool:
        """Return whether slots were taken from the pool, of which the root may not have heard.

        A right half could give them back earlier than they are taken.
        """
        return self._took_at + HEARD_SECONDS > self._monotonic()

    def forget(self, ctx: Evaluation, number: int) -> None:
        """Forget the slots of a queue that was dropped."""
        for limit in LIMITS:
            key = rules.slots_key(self._range_id, number, limit)
            if ctx.get(key) is not None:
                ctx.writes[key] = None

    def _of(self, ctx: Evaluation, manager: Manager, limit: Limit) -> Slots:
        return rules.read_slots(ctx, self._range_id, manager.definition.number, limit)

    def _put(self, ctx: Evaluation, manager: Manager, limit: Limit, slots: Slots) -> None:
        slots = slots if slots.owned else rules.NO_SLOTS
        if slots == self._of(ctx, manager, limit):
            return
        key = rules.slots_key(self._range_id, manager.definition.number, limit)
        ctx.writes[key] = rules.encode_slots(slots)
        ctx.grow(2 * len(key))
        ctx.after.append(lambda: manager.host.current(manager).limits.take_slots(limit, slots))
