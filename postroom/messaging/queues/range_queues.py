"""The queues of one range, put together: who evaluates what, and what a proposal does to them.

::

    writes (enqueue, settle) ─▶ raw writes + notes ┐
    AdvanceQueues (time)     ─▶ raw writes + notes ├─▶ rider fires ─▶ finisher counts ─▶ applied:
    claims (reads that wait) ─▶ who waits ─────────┘                              notes, answers

An evaluator writes, and leaves notes of what it has done (:mod:`.manager`). The *rider* goes along
with every proposal for which there is something to fire: so a message that somebody waits for is
fired in the very write that enqueues it. The *finisher* adds up the notes (:mod:`.summing_up`).
When the proposal is applied, the notes take effect in memory, and who was given something is
answered (:mod:`.claiming`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.errors import Invalid, TransactionTooLarge
from postroom.kv.engine import BlockDamaged, Reader
from postroom.limits import TURN_STEPS_MAX, UPKEEP_BYTES
from postroom.messaging.queues import groups, periodic
from postroom.messaging.queues.advance import Advance
from postroom.messaging.queues.claiming import Claiming
from postroom.messaging.queues.damage import UNREADABLE, QueueDamaged, damaged
from postroom.messaging.queues.definitions import Changed
from postroom.messaging.queues.directory import Directory
from postroom.messaging.queues.dropping import empty
from postroom.messaging.queues.enqueueing import enqueue, put
from postroom.messaging.queues.firing import FIRED_AT_ONCE, Firing
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.reading import Reading
from postroom.messaging.queues.requests import (
    Acknowledge,
    AdvanceQueues,
    CancelMessages,
    Enqueue,
    Extend,
    QueueSettings,
    Reject,
    ReplayMessages,
    Reschedule,
    SetSchedule,
    TrimArchive,
    WhenDone,
)
from postroom.messaging.queues.rescheduling import Rescheduling
from postroom.messaging.queues.service import ADVANCED_AT_ONCE
from postroom.messaging.queues.settling import Settling
from postroom.messaging.queues.summing_up import apply_bare, sum_up
from postroom.messaging.queues.surroundings import Nobody, Surroundings
from postroom.messaging.queues.trimming import Trimming
from postroom.messaging.requests import Moved
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.registry import Registry

POLL_SECONDS_MIN: Final = 0.05
_FEW: Final = 256


class _Share:
    """How much a step is of a whole one: whoever finds it too large asks for a smaller one.

    Attributes:
        fired_max: so many messages it fires of a queue.
        bytes_max: when it has come to so much, the rest is for the next one.
    """

    __slots__ = ("bytes_max", "fired_max")

    def __init__(self, messages_max: int) -> None:
        part = min(messages_max, ADVANCED_AT_ONCE)
        self.fired_max = max(FIRED_AT_ONCE * part // ADVANCED_AT_ONCE, 1)
        self.bytes_max = max(UPKEEP_BYTES * part // ADVANCED_AT_ONCE, 1)


class RangeQueues:
    """See the module.

    Args:
        range_id: whose.
        around: clocks, chance, and whom to wake.
    """

    def __init__(self, range_id: int, around: Surroundings) -> None:
        self._range_id = range_id
        self._around = around
        self._to_look: dict[Manager, None] = {}
        self._fired: list[Manager] = []
        self._advancing: Manager | None = None
        self._stepped: list[Manager] = []
        self._most: tuple[int, Manager | None] = 0, None
        self._stored: Reader | None = None
        self.kept = around.kept
        self.monotonic, self.reading = around.monotonic, around.reading
        self.chance, self.may_purge = around.chance, around.may_purge
        self._directory = Directory(range_id, self, self._has_dropped)
        self._by_name, self._dropped = self._directory.by_name, self._directory.dropped
        self.find, self.find_if_there = self._directory.find, self._directory.find_if_there
        self._claiming = Claiming(self._by_name, self._directory.known, around)
        self.answer = self._claiming.answer
        self._settling = Settling(self)
        self._rescheduling = Rescheduling(self)
        around.agenda = self

    def register(self, registry: Registry) -> None:
        """Adds them to ``registry``."""
        registry.writes |= {
            Enqueue: self.enqueue,
            Acknowledge: self._settling.acknowledge,
            Reject: self._settling.reject,
            Extend: self._settling.extend,
            CancelMessages: self._settling.cancel,
            Reschedule: self._rescheduling.reschedule,
            ReplayMessages: self._rescheduling.replay,
            TrimArchive: Trimming(self).trim,
            WhenDone: self._when_done,
            SetSchedule: self._set_schedule,
        }
        self._directory.register(registry)
        for kind in (Acknowledge, Reject, Extend, CancelMessages, Reschedule, ReplayMessages):
            registry.may_be_long[kind] = lambda write: len(write.attempts) > _FEW
        registry.commands[AdvanceQueues] = self.advance
        self._claiming.register(registry)
        registry.riders.append((self._has_to_fire, self._fire))
        registry.finishers.append(sum_up)
        registry.on_lease.append(lambda stored: self.restart(stored, is_whole=registry.is_whole))
        registry.on_lease_end.append(self._end)
        Reading(self._directory.known, self._directory.all, self._around.check_age).register(
            registry
        )

    # --- with a lease, and without

    def restart(self, stored: Reader, *, is_whole: bool = True) -> None:
        """With a new lease of the range: everything from what is stored; nothing, if that is not
        whole: there may be half of a queue, and nobody is served before all of it is there.
        """
        self._end()
        self._stored = stored
        if not is_whole:
            return
        known, unreadable = self._directory.definitions.read_all(stored)
        for error in unreadable:
            self._directory.set_aside(error, None)
        for definition in known:
            manager = Manager(self._range_id, definition, self)
            if definition.dropped:
                self._dropped[definition.number] = manager
                continue
            try:
                self._begin(stored, manager)
            except QueueDamaged as error:
                self._directory.set_aside(error, definition)
                continue
            self._by_name[definition.name] = manager
            self._directory.is_sound(definition.name)
            self._claiming.remember_transactions(manager)
            self._claiming.forget_strangers(manager)

    def _begin(self, stored: Reader, manager: Manager) -> None:
        """A queue, from what is stored.

        Raises:
            QueueDamaged: some of it cannot be read.
        """
        try:
            manager.restart(stored, min(self.reading(), self._around.by_wall()))
            manager.next_tick = periodic.first_tick(stored, manager)
        except (BlockDamaged, QueueDamaged):
            raise
        except UNREADABLE as error:
            raise damaged(manager.name, "a stored record", error) from error
        if not manager.counted.conserved():
            raise damaged(manager.name, "its record of counters", manager.counted)

    def _end(self) -> None:
        for manager in self._by_name.values():
            manager.end(None)
        self._directory.clear()
        self._to_look.clear()
        self._fired.clear()
        self._stepped.clear()
        self._claiming.clear()
        self._advancing, self._most = None, (0, None)

    def first_due(self, stored: Reader) -> int:
        """When there is something to do, by what is stored, before anything else is known.

        Returns:
            A timestamp; 0: never. Queues that are damaged have nothing to do.
        """
        first = 0
        for definition in self._directory.definitions.read_all(stored)[0]:
            manager = Manager(self._range_id, definition, Nobody(self._around))
            try:
                if not definition.dropped:
                    self._begin(stored, manager)
            except QueueDamaged:
                continue
            moments = [manager.first_due, manager.next_tick, manager.purge_at]
            if manager.counted.leased or definition.dropped:
                moments.append(1)
            first = min((each for each in (first, *moments) if each), default=0)
        return first

    def _has_dropped(self, manager: Manager) -> None:
        self._to_look.pop(manager, None)
        refusal = Invalid(f"the queue {manager.name!r} was dropped; nothing was claimed")
        manager.end(refusal)
        self._around.wake()

    # --- what transactions do

    def enqueue(self, ctx: Evaluation, request: Enqueue) -> str | None:
        """``Enqueue``."""
        manager, settings = self.find(ctx, request.queue)
        return self._enqueue(ctx, manager, settings, request)

    def _enqueue(
        self, ctx: Evaluation, manager: Manager, settings: QueueSettings, request: Enqueue
    ) -> str | None:
        followers: list[Enqueue] = []
        outcome = enqueue(ctx, manager, settings, request, followers)
        for follower in followers:  # one that replaces another message may add to them
            found = self.find_if_there(ctx, follower.queue)
            if found is not None:
                manager, settings = found[0], _of_followers(found[1])
                enqueue(ctx, manager, settings, _as_follower(follower), followers)
        return outcome

    def enqueue_once(self, ctx: Evaluation, request: Enqueue) -> str | None:
        """The same, but a duplicate is ignored whatever the queue makes of duplicates."""
        manager, _ = self.find(ctx, request.queue)
        return self._enqueue(ctx, manager, QueueSettings(), request)

    def follow(self, ctx: Evaluation, request: Enqueue) -> str | None:
        """The same with what was asked for before: an end must not fail because of what follows."""
        manager, settings = self.find(ctx, request.queue)
        return self._enqueue(ctx, manager, _of_followers(settings), _as_follower(request))

    def take_in(self, ctx: Evaluation, request: Enqueue) -> None:
        """A message dies into this queue, with whatever headers: they say why it did, besides."""
        manager, _ = self.find(ctx, request.queue)
        put(ctx, manager, request, manager.layout.body_key(request.key, request.kind, request.id))

    def _when_done(self, ctx: Evaluation, request: WhenDone) -> None:
        manager, _ = self.find(ctx, request.queue)
        self.find(ctx, request.enqueue.queue)
        groups.when_done(ctx, manager, request.group, request.enqueue, self.enqueue)

    def _set_schedule(self, ctx: Evaluation, request: SetSchedule) -> None:
        manager, _ = self.find(ctx, request.queue)
        periodic.set_schedule(ctx, manager, request)

    # --- firing

    def look_at(self, manager: Manager) -> None:
        """There may be something for those who wait at a queue."""
        if len(manager.consumers):
            self._to_look[manager] = None
            self._around.wake()

    def current(self, manager: Manager) -> Manager:
        """The manager of its queue now: what is stored may have been replaced, and memory begun
        afresh, by the very proposal that has fired something.
        """
        known = self._by_name.get(manager.name, manager)
        return known if known.layout.number == manager.layout.number else manager

    def wake_by(self, moment: float) -> None:
        """At that moment something is to be done."""
        self._around.wake_by(moment)

    def _has_to_fire(self, ctx: Evaluation) -> bool:
        """Whether a proposal should take a rider along."""
        for manager in self._fired:  # by one that was too large, perhaps: then they wait yet
            manager.take_back(ctx)
        self._fired.clear()
        return bool(ctx.notes or self._to_look) and Changed not in ctx.scratch

    def _fire(self, ctx: Evaluation) -> None:
        """Fires in all queues where there may be something for somebody."""
        to_look = dict.fromkeys(self._to_look)
        for manager, _, act, one, other in ctx.notes:
            if not len(manager.consumers):
                continue
            to_look[manager] = None
            manager.take_up(ctx, act, one, other)
        now, share = self.monotonic(), _Share(ctx.scratch.get(_Share, ADVANCED_AT_ONCE))
        bytes_max = ctx.bytes + share.bytes_max
        try:
            for manager in to_look:
                if ctx.bytes >= bytes_max:
                    self.look_at(manager)  # with the next proposal
                elif manager.trouble.until <= now:
                    self._fire_one(ctx, manager, share)
        except Exception as error:
            # Nothing of it takes place; but for the queue that has failed, all are tried again.
            for manager in to_look:
                manager.roll_back()
            self.failed(error)
            raise

    def _fire_one(self, ctx: Evaluation, manager: Manager, share: _Share) -> None:
        self._to_look.pop(manager, None)
        if not len(manager.consumers):
            return
        self._advancing = manager
        self._fired.append(manager)
        bytes_before = ctx.bytes
        is_behind = manager.ordered and self._catch_up(ctx, manager, share)
        more = is_behind or Firing(manager, ctx, share.fired_max, share.bytes_max).fire()
        if _Share in ctx.scratch:  # else it is not a step of the service that came to this
            self._grew(manager, ctx.bytes - bytes_before)
        self._advancing = None
        ctx.after.append(lambda: self._looked(ctx, manager, more=more))

    def _catch_up(self, ctx: Evaluation, manager: Manager, share: _Share) -> bool:
        """In an ordered queue, what is due comes before what was enqueued since; whether there is
        too much of it for now.
        """
        notes_before = len(ctx.notes)
        bytes_max = ctx.bytes + share.bytes_max
        step = Advance(self, self._settling, manager, ctx, bytes_max)
        more = step.become_due(share.fired_max)
        for _, _, act, key, entry in ctx.notes[notes_before:]:
            if act is Manager.ready_added:
                manager.begin(ctx)
                manager.ready.offer(key, entry)
        return more

    def _looked(self, ctx: Evaluation, manager: Manager, *, more: bool) -> None:
        manager.conclude(ctx)
        if more:
            self.look_at(manager)

    # --- time

    def advance(self, ctx: Evaluation, request: AdvanceQueues) -> Moved:
        """``AdvanceQueues``: what is due in all queues; what is to be fired then rides along."""
        if Changed in ctx.scratch:
            return Moved(0, more=True, next_due=0)
        now, more = self.monotonic(), False
        ctx.scratch[_Share] = request.messages_max
        notes_before, bytes_max = len(ctx.notes), ctx.bytes + _Share(request.messages_max).bytes_max
        self._most = 0, None
        for manager in self._stepped:  # by a step that was too large, perhaps: it is due yet
            manager.take_back(ctx)
        self._stepped.clear()
        for name, manager in list(self._by_name.items()):
            if ctx.bytes >= bytes_max:
                more = True
                break
            if manager.trouble.until <= now and self._is_due(manager):
                self._by_name[name] = self._by_name.pop(name)  # the others come first next time
                more |= self._step(ctx, manager, request.messages_max, bytes_max)
        more |= self._empty_some(ctx, request.messages_max, now)
        self._advancing = None
        ctx.after.append(lambda: apply_bare(ctx))
        return Moved(len(ctx.notes) - notes_before, more or bool(self._to_look), 0)

    def _step(self, ctx: Evaluation, manager: Manager, messages_max: int, bytes_max: int) -> bool:
        self._advancing, bytes_before = manager, ctx.bytes
        self._stepped.append(manager)
        # It may come to nothing, and leave no note: also then it is not to be taken back.
        ctx.after.append(lambda: manager.conclude(ctx))
        try:
            more = Advance(self, self._settling, manager, ctx, bytes_max).step(messages_max)
        except Exception:
            # Now, and not when the service hears of it: others may be served by then.
            manager.roll_back()
            raise
        self._grew(manager, ctx.bytes - bytes_before)
        return more

    def _grew(self, manager: Manager, size: int) -> None:
        """A step in a queue came to so much."""
        if size >= self._most[0]:
            self._most = size, manager

    def _empty_some(self, ctx: Evaluation, messages_max: int, now: float) -> bool:
        """A step in dropped queues, of as many as there is room for; whether there is more."""
        bytes_max = ctx.bytes + _Share(messages_max).bytes_max
        steps_max = ctx.steps + TURN_STEPS_MAX // 4
        more = False
        for number, manager in list(self._dropped.items()):
            if ctx.bytes >= bytes_max or ctx.steps >= steps_max:
                return True
            if manager.trouble.until <= now:
                self._advancing, bytes_before = manager, ctx.bytes
                more |= self._empty(ctx, number, manager, messages_max, bytes_max)
                self._grew(manager, ctx.bytes - bytes_before)
        return more

    def _empty(
        self, ctx: Evaluation, number: int, manager: Manager, messages_max: int, bytes_max: int
    ) -> bool:
        if empty(ctx, manager, messages_max, bytes_max):
            return True
        self._directory.definitions.forget(ctx, manager.definition)
        ctx.after.append(lambda: self._is_empty(number))
        return False

    def _is_empty(self, number: int) -> None:
        self._dropped.pop(number, None)

    def _is_due(self, manager: Manager) -> bool:
        moment = manager.next_moment(self.reading())
        return moment is not None and moment <= self.monotonic()

    def is_due(self) -> bool:
        """Whether the service has something to do now."""
        now = self.monotonic()
        if self._stored is not None:
            for manager in self._by_name.values():
                manager.poll(self._stored)
        for manager in list(self._to_look):
            if not len(manager.consumers):
                del self._to_look[manager]
            elif manager.trouble.until <= now:
                return True
        if any(manager.trouble.until <= now for manager in self._dropped.values()):
            return True
        return any(
            manager.trouble.until <= now and self._is_due(manager)
            for manager in self._by_name.values()
        )

    def seconds_left(self, seconds_max: float) -> float:
        """How long it has nothing to do."""
        now, reading = self.monotonic(), self.reading()
        moments = [now + seconds_max]
        for manager in self._by_name.values():
            moment = manager.next_moment(reading)
            if moment is not None:
                moments.append(max(moment, manager.trouble.until))
            poll = manager.next_poll()
            if poll is not None:
                moments.append(max(poll, now + POLL_SECONDS_MIN))
        waiting = (*self._to_look, *self._dropped.values())
        moments += [manager.trouble.until for manager in waiting]
        self._around.sleeps_until = until = max(min(moments), now)
        return until - now

    def failed(self, error: Exception) -> tuple[str, bool] | None:
        """What was being advanced has failed: it is left alone for a while.

        Returns:
            Which queue, and whether it was sound before; ``None``: no queue in particular.
        """
        manager, self._advancing = self._advancing, None
        if manager is None and isinstance(error, TransactionTooLarge):
            manager = self._most[1]  # no smaller step is left to try
        if isinstance(error, QueueDamaged) and error.queue in self._by_name:
            self.set_aside(error)
            return error.queue, False
        if manager is None:
            return None
        return manager.name, manager.trouble.failed(error, self.monotonic())

    def set_aside(self, error: QueueDamaged) -> None:
        """A queue is, as is seen now: it is set aside, and who waits there is told."""
        manager = self._by_name.pop(error.queue, None)
        if manager is None:
            return
        self._to_look.pop(manager, None)
        self._directory.set_aside(error, manager.definition)
        manager.end(QueueDamaged(error.queue, str(error)))
        self._around.wake()

    def trouble(self) -> tuple[int, str]:
        """How often queues have failed that are not sound, and what the first of them suffers
        from.
        """
        now = self.monotonic()
        managers = (*self._by_name.values(), *self._dropped.values())
        said = list(self._directory.damaged.values())
        failures = len(said)
        for each in managers:
            if each.trouble.failures(now):
                failures += each.trouble.failures(now)
                said.append(f"queue {each.name!r}: {each.trouble.why(now)}")
        if not said:
            return 0, ""
        more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
        return failures, said[0] + more


def _of_followers(settings: QueueSettings) -> QueueSettings:
    is_error = settings.on_duplicate == "error"
    return msgspec.structs.replace(settings, on_duplicate="ignore") if is_error else settings


def _as_follower(request: Enqueue) -> Enqueue:
    """Its id was made up when it was asked for, and there may be one by now."""
    return msgspec.structs.replace(request, is_unique=False)
