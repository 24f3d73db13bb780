"""The pools of slots at the root, and who gets some; see :mod:`.slots`.

::

    AskForSlots ──▶ asker: noted for a second ─┬─ the pool has some ──▶ GrantSlots
    ReturnSlots ──▶ pool ──────────────────────┘
                       └─ it has none: the root looks where slots are (:mod:`.slot_sharing`)

The pool is stored; the askers are memory, and ask again. While several ask, each gets a part of
what is there. Once the root has looked around, each gets what is missing to its fair share first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from postroom.errors import Invalid
from postroom.kv.engine import ValueReader
from postroom.messaging.queues import slots as rules
from postroom.messaging.queues.crossing import GrantSlots, ReturnSlots, TakeSlots
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.definitions import Changed
from postroom.messaging.queues.departing import Departures
from postroom.messaging.queues.maintenance import AskForSlots
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.slots import LIMITS, Limit, Pool
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation

RESTING_TIMES: Final = 16
"""The number of times in a period at which slots are counted that come into a pool."""
ASKER_SECONDS: Final = 1.5
"""The time for which an asker is remembered that does not ask again."""


@dataclass(slots=True)
class Asker:
    """A range that could use slots.

    Attributes:
        key: the first of its keys.
        wanted: how many more it could use.
        missing: how many of these it lacks to its fair share, as far as is known.
        until: when it is forgotten.
    """

    key: bytes
    wanted: int
    missing: int
    until: float


class LimitOf(NamedTuple):
    """A limit of a queue."""

    queue: str
    number: int
    limit: Limit


@dataclass(slots=True)
class Demand:
    """The demand for the slots of a limit.

    Attributes:
        askers: the ranges that have asked, by their ids.
        shares: the fair share of each range, as far as is known.
    """

    askers: dict[int, Asker] = field(default_factory=dict)
    shares: dict[int, int] = field(default_factory=dict)


class RootSlots(Protocol):
    """The root's own slots."""

    def arrive(self, ctx: Evaluation, manager: Manager, grant: GrantSlots) -> None:
        """Take slots that were granted."""


class Resting:
    """The slots that have come into a pool within a period."""

    def __init__(self) -> None:
        self._came: list[tuple[float, int]] = []

    def add(self, slots: int, now: float, period: float) -> None:
        """Note that slots have come."""
        self._forget(now, period)
        if self._came and now - self._came[-1][0] < period / RESTING_TIMES:
            slots += self._came.pop()[1]
        self._came.append((now, slots))

    def number(self, now: float, period: float) -> int:
        """Return how many have come within the period."""
        self._forget(now, period)
        return sum(slots for _, slots in self._came)

    def _forget(self, now: float, period: float) -> None:
        self._came = [each for each in self._came if each[0] + period > now]


class SlotPools:
    """The pools of all queues, at the root.

    Args:
        departures: the way of grants to other ranges.
        manager: a function that returns the manager of a queue at the root, if it has one.
        monotonic: seconds that never go back.
        stored: the applied state.

    Attributes:
        own: the root's own slots.
        on_asked: called when a range asks in vain.
    """

    own: RootSlots

    def __init__(
        self,
        departures: Departures,
        manager: Callable[[str], Manager | None],
        monotonic: Callable[[], float],
        stored: Callable[[], ValueReader | None],
    ) -> None:
        self._stored = stored
        self._departures = departures
        self._manager = manager
        self._monotonic = monotonic
        self._demands: dict[LimitOf, Demand] = {}
        self._resting: dict[LimitOf, Resting] = {}
        self._began_at = monotonic()
        self.on_asked: Callable[[], None] = lambda: None

    def clear(self) -> None:
        """Forget all askers, at the end of the lease."""
        self._demands.clear()
        self._resting.clear()
        self._began_at = self._monotonic()

    # --- limits that change

    def change(self, ctx: Evaluation, number: int, settings: QueueSettings) -> None:
        """Count for the limits of a queue that was made, or changed."""
        for limit in LIMITS:
            known = rules.read_pool(ctx, number, limit)
            most = rules.number_of_slots(settings, limit)
            self._put(ctx, number, limit, Pool(most, known.free + most - known.limit))

    def forget(self, ctx: Evaluation, number: int) -> None:
        """Forget the pools of a queue that was dropped."""
        for limit in LIMITS:
            self._put(ctx, number, limit, Pool())
        for name in [each for each in self._resting if each.number == number]:
            del self._resting[name]

    # --- slots that move

    def give_back(self, ctx: Evaluation, manager: Manager, limit: Limit, slots: int) -> None:
        """Put slots of the root's own into the pool; below 0: take them out."""
        self._add(ctx, LimitOf(manager.name, manager.definition.number, limit), slots)

    def arrive(self, ctx: Evaluation, change: ReturnSlots | TakeSlots) -> None:
        """Put slots of another range into the pool, or take them out.

        Raises:
            Invalid: it would have more than there are.
        """
        name = LimitOf(change.queue, change.number, change.limit)
        if isinstance(change, TakeSlots):
            self._add(ctx, name, -change.slots)
            return
        pool = rules.read_pool(ctx, change.number, change.limit)
        if pool.free + change.slots > pool.limit:
            raise Invalid(
                f"{change.slots} slots for {change.limit} of the queue {change.queue!r} came "
                f"back to the {pool.free} in the pool, which would be more than {pool.limit}; "
                "nothing was changed"
            )
        self._add(ctx, name, change.slots)

    def ask(self, ctx: Evaluation, request: AskForSlots) -> int:
        """Evaluate ``AskForSlots``: grant what there is."""
        manager = self._manager(request.queue)
        if manager is None or manager.definition.number != request.number or Changed in ctx.scratch:
            return 0
        self.change(ctx, request.number, manager.definition.settings)
        name = LimitOf(request.queue, request.number, request.limit)
        demand = self._demands.setdefault(name, Demand())
        missing = request.wanted
        if demand.shares:
            share = demand.shares.get(request.range_id, 0)
            missing = min(missing, max(share - request.owned, 0))
        until = self._monotonic() + ASKER_SECONDS
        demand.askers.pop(request.range_id, None)
        demand.askers[request.range_id] = Asker(request.first, request.wanted, missing, until)
        got = self._share_out(ctx, name).get(request.range_id, 0)
        if got < request.wanted:
            self.on_asked()
        return got

    def _add(self, ctx: Evaluation, name: LimitOf, slots: int) -> None:
        pool = rules.read_pool(ctx, name.number, name.limit)
        self._put(ctx, name.number, name.limit, Pool(pool.limit, pool.free + slots))
        if name.limit == "rate" and slots > 0:
            resting = self._resting.setdefault(name, Resting())
            resting.add(slots, self._monotonic(), self._period(name))
        self._share_out(ctx, name)

    def _period(self, name: LimitOf) -> float:
        """Return the seconds in which each share of a rate may be used once."""
        manager = self._manager(name.queue)
        rate = None if manager is None else manager.definition.settings.max_rate
        return max(int(rate), 1) / rate if rate else 0.0

    def _rested(self, name: LimitOf, free: int) -> int:
        """Return how many of the shares in a pool nobody can have fired with for a period."""
        now, period = self._monotonic(), self._period(name)
        if name.limit != "rate" or now < self._began_at + period:
            return 0
        resting = self._resting.get(name)
        came = 0 if resting is None else resting.number(now, period)
        if not came:
            self._resting.pop(name, None)
        return max(free - came, 0)

    def _share_out(self, ctx: Evaluation, name: LimitOf) -> dict[int, int]:
        """Grant what is in a pool to those that ask; return how many each range gets."""
        askers, pool = self._askers(name), rules.read_pool(ctx, name.number, name.limit)
        got: dict[int, int] = {}
        left = pool.free
        for lacks in ("missing", "wanted"):
            found = [(each, asker) for each, asker in askers.items() if getattr(asker, lacks) > 0]
            for place, (range_id, asker) in enumerate(found):
                fair = -(-left // (len(found) - place))
                some = min(getattr(asker, lacks), fair)
                if left > 0:
                    asker.wanted -= some
                    asker.missing = max(asker.missing - some, 0)
                    got[range_id] = got.get(range_id, 0) + some
                    left -= some
        if got:
            rested = self._rested(name, pool.free)
            self._put(ctx, name.number, name.limit, Pool(pool.limit, left))
            for range_id, some in got.items():
                ready = min(some, rested)
                rested -= ready
                grant = GrantSlots(name.queue, name.number, name.limit, pool.limit, some, ready)
                self._grant(ctx, grant, range_id, askers[range_id].key)
        return got

    def _grant(self, ctx: Evaluation, grant: GrantSlots, range_id: int, key: bytes) -> None:
        if range_id != ROOT_ID:
            self._departures.send(ctx, key, grant)
            return
        manager = self._manager(grant.queue)
        if manager is not None:
            self.own.arrive(ctx, manager, grant)

    def _askers(self, name: LimitOf) -> dict[int, Asker]:
        """Return the ranges that ask, without those that have not asked again."""
        demand = self._demands.get(name)
        if demand is None:
            return {}
        now = self._monotonic()
        for range_id, asker in list(demand.askers.items()):
            if asker.until <= now:
                del demand.askers[range_id]
        if not demand.askers:
            del self._demands[name]
        return demand.askers

    # --- demand

    def free(self, name: LimitOf) -> int:
        """Return how many slots are in a pool, as applied."""
        stored = self._stored()
        return 0 if stored is None else rules.read_pool(stored, name.number, name.limit).free

    def in_demand(self) -> list[LimitOf]:
        """Return the limits of which ranges could use more slots."""
        return [
            name for name in list(self._demands)
            if any(asker.wanted for asker in self._askers(name).values())
        ]  # fmt: skip

    def note_shares(self, name: LimitOf, shares: dict[int, int], owned: dict[int, int]) -> None:
        """Note the fair share of each range, and what it owns."""
        demand = self._demands.get(name)
        if demand is None:
            return
        demand.shares = shares
        for range_id, asker in demand.askers.items():
            asker.missing = max(shares.get(range_id, 0) - owned.get(range_id, 0), 0)

    def _put(self, ctx: Evaluation, number: int, limit: Limit, pool: Pool) -> None:
        if pool.limit == 0 and pool.free == 0:
            pool = Pool()
        if pool == rules.read_pool(ctx, number, limit):
            return
        key = rules.pool_key(number, limit)
        ctx.writes[key] = rules.encode_pool(pool)
        ctx.grow(2 * len(key))
