"""The steps of the queues of one range: what is due, and what is fired.

::

    memory changes ─▶ plan ─ due ─▶ AdvanceQueues ─▶ raw writes + notes ┐
    writes (enqueue, settle) ──────────────────────▶ raw writes + notes ├─▶ rider fires
    claims (reads that wait) ──────────────────────▶ waiting claims ────┘

The *rider* joins every proposal for which there is something to fire. Thus a message that a
consumer waits for is fired in the very write that enqueues it. The service sends ``AdvanceQueues``
when something is due. A queue whose step fails is set aside for a while (:mod:`.timing`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

from postroom.errors import TransactionTooLarge
from postroom.kv.clock import from_seconds
from postroom.kv.engine import Reader
from postroom.limits import TURN_STEPS_MAX, UPKEEP_BYTES
from postroom.messaging.queues import periodic
from postroom.messaging.queues.advance import Advance, empty
from postroom.messaging.queues.claiming import Claiming, QueueEnvironment
from postroom.messaging.queues.definitions import Changed, retention
from postroom.messaging.queues.directory import Directory, Stored, survey
from postroom.messaging.queues.enqueueing import Enqueueing
from postroom.messaging.queues.firing import FIRED_AT_ONCE, Firing
from postroom.messaging.queues.holdings import apply_bare
from postroom.messaging.queues.maintenance import AdvanceQueues
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import QueueDamaged
from postroom.messaging.queues.slot_pool import SlotPools
from postroom.messaging.queues.timing import Agenda, Trouble, told_troubles
from postroom.messaging.requests import Moved
from postroom.messaging.services import ADVANCED_AT_ONCE
from postroom.ranges.evaluation import Evaluation

SET_BACK: Final = from_seconds(periodic.SET_BACK_SECONDS)
POLL_SECONDS_MIN: Final = 0.05


class _Share:
    """The size of a step, as a share of a whole one; a caller that fails asks for a smaller one.

    Attributes:
        fired_max: the number of messages of a queue that it fires at most.
        bytes_max: the size in bytes at which the rest is left to the next step.
    """

    __slots__ = ("bytes_max", "fired_max")

    def __init__(self, messages_max: int) -> None:
        messages = min(messages_max, ADVANCED_AT_ONCE)
        self.fired_max = max(FIRED_AT_ONCE * messages // ADVANCED_AT_ONCE, 1)
        self.bytes_max = max(UPKEEP_BYTES * messages // ADVANCED_AT_ONCE, 1)


class RangeSteps:
    """The steps of the queues of one range; it implements ``Rider`` and ``AdvancedQueues``.

    Args:
        range_id: the id of the range.
        environment: the clocks, and the service to wake.
        directory: the queues.
        enqueueing: enqueues what a step moves, or a schedule makes.
        claiming: the claims on the queues.
        pools: the slots that no range owns.

    Attributes:
        is_wanted: whether a queue is to be looked at with the next proposal.
    """

    def __init__(
        self,
        range_id: int,
        environment: QueueEnvironment,
        directory: Directory,
        enqueueing: Enqueueing,
        claiming: Claiming,
        pools: SlotPools,
    ) -> None:
        self._range_id = range_id
        self._environment, self._directory = environment, directory
        self._enqueueing, self._claiming, self._pools = enqueueing, claiming, pools
        self._by_name, self._dropped = directory.by_name, directory.dropped
        self._learning = directory.learning
        self._monotonic, self._reading = environment.monotonic, environment.reading
        self._by_wall, self._kept = environment.by_wall, environment.kept
        self._agenda = Agenda(
            self._monotonic, self._reading, self._by_wall, environment.seconds_until
        )
        self.is_wanted = False
        self._stored: Reader | None = None
        self._to_look: dict[Manager, None] = {}
        self._fired: list[Manager] = []
        self._advancing: Manager | None = None
        self._stepped: list[Manager] = []
        self._most: tuple[int, Manager | None] = 0, None
        self._wall_seen = self._kept_seen = 0
        self._troubles: dict[str, Trouble] = {}

    # --- start and end of a lease

    def begin(self, stored: Reader) -> None:
        """Begin with a new lease of the range; nothing is planned yet."""
        self._stored = stored

    def plan_all(self, found: Stored) -> None:
        """Plan all queues by the stored state."""
        self._wall_seen, self._kept_seen = found.wall, self._kept()
        self._agenda.begin(found.by_timestamp, found.by_wall)

    def end(self) -> None:
        """Forget everything, at the end of the lease."""
        self._to_look.clear()
        self._fired.clear()
        self._stepped.clear()
        self._agenda.clear()
        self._troubles.clear()
        self._advancing, self._most = None, (0, None)

    def forget(self, name: str, manager: Manager | None) -> None:
        """Plan nothing more for a queue that is dropped, or set aside."""
        self._agenda.plan(name)
        if manager is not None:
            self._to_look.pop(manager, None)

    # --- firing

    def look_at(self, manager: Manager) -> None:
        """Look at a queue with the next proposal, if claims wait there."""
        if len(manager.consumers):
            self._to_look[manager] = None
            self.is_wanted = True
            self._environment.wake(urgent=True)

    def has_to_fire(self, ctx: Evaluation) -> bool:
        """Return whether a proposal should take a rider along."""
        # The proposal that fired was too large, perhaps: then the claims still wait.
        for manager in self._fired:
            manager.speculation.abort_other(ctx)
        self._fired.clear()
        self.is_wanted = bool(self._to_look)
        return bool(ctx.notes or self._to_look) and Changed not in ctx.scratch

    def fire(self, ctx: Evaluation) -> None:
        """Fire in all queues where something may be ready for a waiting claim."""
        to_look = dict.fromkeys(self._to_look)
        now, share = self._monotonic(), _Share(ctx.scratch.get(_Share, ADVANCED_AT_ONCE))
        bytes_max = ctx.bytes + share.bytes_max
        try:
            self._speculate(ctx, to_look, now)
            for manager in to_look:
                if ctx.bytes >= bytes_max:
                    self.look_at(manager)  # with the next proposal
                elif manager.trouble.until <= now:
                    self._fire_one(ctx, manager, share)
        except Exception as error:
            # Nothing of it takes place. All queues but the failed one are tried again.
            for manager in to_look:
                manager.speculation.abort()
            self.failed(error)
            raise

    def _speculate(self, ctx: Evaluation, to_look: dict[Manager, None], now: float) -> None:
        """Apply the notes of the proposal to the managers with waiting claims.

        These managers are added to ``to_look``. A queue that is set aside takes them when they are
        applied.
        """
        for manager, _, act, one, other in ctx.notes:
            if len(manager.consumers) and manager.trouble.until <= now:
                to_look[manager] = None
                # This manager is blamed if it fails.
                before, self._advancing = self._advancing, manager
                manager.speculate(ctx, act, one, other)
                self._advancing = before

    def _fire_one(self, ctx: Evaluation, manager: Manager, share: _Share) -> None:
        self._to_look.pop(manager, None)
        if not len(manager.consumers):
            return
        self._advancing = manager
        self._fired.append(manager)
        self.is_wanted = True
        bytes_before = ctx.bytes
        more = is_behind = self._catch_up(ctx, manager, share)
        if not (is_behind and manager.ordered):
            firing = Firing(manager, ctx, share.fired_max, share.bytes_max)
            more = firing.fire(is_behind=is_behind)
        if _Share in ctx.scratch:  # otherwise this is not a step of the service
            self._grew(manager, ctx.bytes - bytes_before)
        self._advancing = None
        ctx.after.append(lambda: self._looked(ctx, manager, more=more))

    def _catch_up(self, ctx: Evaluation, manager: Manager, share: _Share) -> bool:
        """Make due messages ready before the service does; return whether more are due.

        In an ordered queue they come before those that are ready already.
        """
        if not manager.has_due(ctx.timestamp):
            return False
        notes_before = len(ctx.notes)
        bytes_max = ctx.bytes + share.bytes_max
        step = Advance(self._enqueueing, manager, ctx, bytes_max)
        more = step.become_due(share.fired_max)
        for _, _, act, key, entry in ctx.notes[notes_before:]:
            if act is Manager.ready_added:
                manager.begin(ctx)
                manager.offer(key, entry)
        return more

    def _looked(self, ctx: Evaluation, manager: Manager, *, more: bool) -> None:
        manager.commit(ctx)
        manager.host.slots.look(manager)
        if len(manager.consumers) and manager.counted.ready:
            self.poll(manager)
        if more:
            self.look_at(manager)

    # --- steps

    def advance(self, ctx: Evaluation, request: AdvanceQueues) -> Moved:
        """Evaluate ``AdvanceQueues``: do what is due in all queues; the rider then fires."""
        if Changed in ctx.scratch:
            return Moved(0, more=True, next_due=0)
        self._learning.learn(ctx, self._directory.take)
        if self._directory.has_too_many:
            self._directory.forget_some({note[0] for note in ctx.notes})
        now, more = self._monotonic(), False
        ctx.scratch[_Share] = request.messages_max
        notes_before, bytes_max = len(ctx.notes), ctx.bytes + _Share(request.messages_max).bytes_max
        self._most = 0, None
        for manager in self._stepped:  # too large a step: it is still due
            manager.speculation.abort_other(ctx)
        self._stepped.clear()
        for name in list(self._agenda.due()):
            due = self._directory.manager(name)
            if ctx.bytes >= bytes_max:
                more = True
                break
            if due is not None and due.trouble.until <= now and self._is_due(due):
                self._agenda.move_back(name)
                more |= self._step(ctx, due, request.messages_max, bytes_max)
        more |= self._empty_some(ctx, request.messages_max, now)
        self._advancing = None
        ctx.after.append(lambda: apply_bare(ctx))
        return Moved(len(ctx.notes) - notes_before, more or bool(self._to_look), 0)

    def _step(self, ctx: Evaluation, manager: Manager, messages_max: int, bytes_max: int) -> bool:
        self._advancing, bytes_before = manager, ctx.bytes
        self._stepped.append(manager)
        # It may do nothing and leave no note. It must not be aborted then either.
        ctx.after.append(lambda: manager.commit(ctx))
        try:
            step = Advance(self._enqueueing, manager, ctx, bytes_max)
            more = step.step(messages_max)
        except Exception:
            # Abort now: others may be served before the service hears of the failure.
            manager.speculation.abort()
            raise
        self._grew(manager, ctx.bytes - bytes_before)
        return more

    def _grew(self, manager: Manager, size: int) -> None:
        """Note the queue whose step has grown the proposal most."""
        if size >= self._most[0]:
            self._most = size, manager

    def _empty_some(self, ctx: Evaluation, messages_max: int, now: float) -> bool:
        """Empty some of the dropped queues, as many as there is room for.

        Return whether more is left.
        """
        bytes_max = ctx.bytes + _Share(messages_max).bytes_max
        steps_max = ctx.steps + TURN_STEPS_MAX // 4
        more = False
        for number, manager in list(self._dropped.items()):
            if ctx.bytes >= bytes_max or ctx.steps >= steps_max:
                return True
            if manager.trouble.until > now:
                continue
            self._advancing, bytes_before = manager, ctx.bytes
            if empty(ctx, manager, messages_max, bytes_max):
                more = True
            else:
                if self._directory.is_root:
                    self._directory.definitions.forget(ctx, number)
                    self._pools.forget(ctx, number)
                ctx.after.append(partial(self._is_empty, number))
            self._grew(manager, ctx.bytes - bytes_before)
        return more

    def _is_empty(self, number: int) -> None:
        self._dropped.pop(number, None)

    # --- when something is due

    def is_due(self) -> bool:
        """Return whether the service has something to do now."""
        now = self._monotonic()
        for name in self._agenda.polls():
            if (manager := self._by_name.get(name)) is not None:
                self.poll(manager)
        wall_before, self._wall_seen = self._wall_seen, self._by_wall()
        if wall_before - self._wall_seen > SET_BACK:
            self._wall_was_set_back()
        kept_before, self._kept_seen = self._kept_seen, self._kept()
        if self._kept_seen < kept_before:
            self._purge_earlier()
        if self._directory.has_too_many or self._learning.has_news:
            return True
        for manager in list(self._to_look):
            if not len(manager.consumers):
                del self._to_look[manager]
            elif manager.trouble.until <= now:
                return True
        if any(manager.trouble.until <= now for manager in self._dropped.values()):
            return True
        return any(self._is_really_due(name) for name in list(self._agenda.due()))

    def _is_really_due(self, name: str) -> bool:
        """Return whether there is something to do in a queue; if not, plan it anew."""
        manager = self._directory.manager(name)
        if manager is None:
            self._agenda.plan(name)
            return False
        if manager.trouble.until <= self._monotonic() and self._is_due(manager):
            return True
        self.plan(manager)
        return False

    def _is_due(self, manager: Manager) -> bool:
        timestamp, by_wall = manager.next_by_timestamp(), manager.next_by_wall()
        if 0 < timestamp <= self._reading() or 0 < by_wall <= self._by_wall():
            return True
        by_time = manager.next_by_time()
        return by_time is not None and by_time <= self._monotonic()

    def seconds_left(self) -> float:
        """Return for how many seconds the service has nothing to do, as far as is known."""
        now = self._monotonic()
        waiting = (*self._to_look, *self._dropped.values())
        deadlines = [*self._agenda.deadlines(), *(each.trouble.until for each in waiting)]
        self._environment.sleeps_until = until = max(min(deadlines, default=math.inf), now)
        return until - now

    def wake_by(self, manager: Manager, deadline: float) -> None:
        """Wake the service at a deadline on the monotonic clock for a queue."""
        if self._by_name.get(name := manager.name) is manager:
            self._agenda.by(name, deadline)
        self._environment.wake_by(deadline)

    def plan(self, manager: Manager) -> None:
        """Plan anew when something is due in a queue, since its memory has changed."""
        if self._by_name.get(manager.name) is not manager:
            return
        now, poll = self._monotonic(), manager.next_poll()
        if manager.trouble.until > now:
            self._agenda.plan(manager.name, by_time=manager.trouble.until)
            return
        self._agenda.plan(
            manager.name,
            by_timestamp=manager.next_by_timestamp(),
            by_wall=manager.next_by_wall(),
            by_time=manager.next_by_time(),
            poll=None if poll is None else max(poll, now + POLL_SECONDS_MIN),
        )

    def poll(self, manager: Manager) -> None:
        """Poll the stored state of a queue, if it is time and a claim waits for it."""
        if manager.poll_at > self._monotonic() and self._agenda.has_poll(manager.name):
            return
        if self._stored is not None:
            manager.poll(self._stored)
        self.plan(manager)

    def _wall_was_set_back(self) -> None:
        """Find the next ticks anew that were found by a wall clock that was ahead."""
        assert self._stored is not None
        names = {each.number: each.name for each in self._directory.defined.values()}
        for seen in survey(self._stored, self._range_id, self._by_wall()):
            manager = (
                self._directory.manager(names.get(seen.number, "")) if seen.next_tick else None
            )
            if manager is not None:
                manager.next_tick = seen.next_tick
                self.plan(manager)

    def _purge_earlier(self) -> None:
        """Plan purges anew: the time for which the past can be read has become shorter."""
        assert self._stored is not None
        defined = {each.number: each for each in self._directory.defined.values()}
        for seen in survey(self._stored, self._range_id, self._by_wall()):
            definition = defined.get(seen.number)
            if definition is None or not seen.done_at:
                continue
            purge_at = seen.done_at + retention(definition.settings, self._kept())
            manager = self._by_name.get(definition.name)
            if manager is not None:
                manager.purge_at = purge_at
            wait = self._environment.seconds_until(purge_at)
            self._agenda.by(definition.name, self._monotonic() + wait)

    # --- failures

    def failed(self, error: Exception) -> tuple[str, bool] | None:
        """Set aside for a while the queue that was being advanced, since it has failed.

        Returns:
            The name of the queue, and whether it was sound before; ``None``: no queue in
            particular.
        """
        manager, self._advancing = self._advancing, None
        if manager is None and isinstance(error, TransactionTooLarge):
            manager = self._most[1]  # no smaller step is left to try
        if isinstance(error, QueueDamaged) and error.queue in self._by_name:
            self.set_aside(error)
            return error.queue, False
        if manager is None:
            return None
        self._troubles[manager.name] = manager.trouble
        is_news = manager.trouble.failed(error, self._monotonic())
        self.plan(manager)
        return manager.name, is_news

    def set_aside(self, error: QueueDamaged) -> None:
        """Set a damaged queue aside, and refuse the claims that wait there."""
        manager = self._by_name.get(error.queue)
        if manager is None:
            return
        self.forget(error.queue, manager)
        self._directory.set_aside(error, manager.definition)
        refusal = QueueDamaged(error.queue, str(error))
        self._claiming.refuse(error.queue, manager.definition.number, manager, refusal)

    def trouble(self) -> tuple[int, str]:
        """Return how often the queues that are not sound have failed, and why the first one has."""
        damaged = self._directory.damaged.values()
        return told_troubles(damaged, self._troubles, self._monotonic())
