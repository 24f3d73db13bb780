"""The queues of one range: their evaluators, and the effects of a proposal on them.

::

    writes (enqueue, settle) ─▶ raw writes + notes ┐
    AdvanceQueues (time)     ─▶ raw writes + notes ├─▶ rider fires ─▶ sum_up counts ──▶ applied:
    claims (reads that wait) ─▶ waiting claims ────┘                              notes, answers

An evaluator writes, and leaves notes of what it has done (:mod:`.manager`). The *rider* joins every
proposal for which there is something to fire. Thus a message that a consumer waits for is fired in
the very write that enqueues it. ``sum_up`` adds up the notes (:mod:`.holdings`). When the
proposal is applied, the notes take effect in memory, and the claims that were given something are
answered (:mod:`.claiming`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from functools import partial
from typing import Final

from postroom.errors import Invalid, NoSuchQueue, TransactionTooLarge
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import BlockDamaged, Reader
from postroom.limits import TURN_STEPS_MAX, UPKEEP_BYTES
from postroom.messaging import due as times
from postroom.messaging.counters import read_queue_counts
from postroom.messaging.queues import periodic, prepared, settling
from postroom.messaging.queues.advance import Advance, empty, trim
from postroom.messaging.queues.arriving import Arrivals
from postroom.messaging.queues.claiming import Claiming, QueueEnvironment
from postroom.messaging.queues.consumers import Wish
from postroom.messaging.queues.definitions import Changed, retention
from postroom.messaging.queues.departing import Departures
from postroom.messaging.queues.directory import Directory, survey
from postroom.messaging.queues.enqueueing import Enqueueing, MadeUpIds
from postroom.messaging.queues.figures import QueueReport, report
from postroom.messaging.queues.firing import FIRED_AT_ONCE, Firing
from postroom.messaging.queues.holdings import apply_bare
from postroom.messaging.queues.leases import attempt_of
from postroom.messaging.queues.maintenance import (
    AdvanceQueues,
    AskForSlots,
    LearnDefinitions,
    Learned,
    LeaveSlots,
    NoteAllKnow,
    OwnedSlots,
)
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.node_claims import NOT_LEARNED
from postroom.messaging.queues.places import Rescheduling
from postroom.messaging.queues.reading import Reading
from postroom.messaging.queues.records import (
    UNREADABLE,
    QueueDamaged,
    QueueLayout,
    damaged,
    index_in_use,
)
from postroom.messaging.queues.requests import (
    HomeSpan,
    QueueDefinition,
    SetSchedule,
    TrimArchive,
)
from postroom.messaging.queues.results import Results
from postroom.messaging.queues.slot_moves import SlotMoves
from postroom.messaging.queues.slot_pool import SlotPools
from postroom.messaging.queues.slots import is_limited
from postroom.messaging.queues.timing import Agenda, Trouble, told_troubles
from postroom.messaging.requests import Moved
from postroom.messaging.services import ADVANCED_AT_ONCE
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation, MustWait
from postroom.ranges.ports import Registry, ServiceWakeUp

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


class RangeQueues:
    """The queues of one range, as its leaseholder serves them.

    Args:
        range_id: the id of the range.
        environment: the clocks, chance, and the service to wake.
        departures: the way of changes to other ranges.

    Attributes:
        take_change: see :meth:`.Arrivals.take`.
        enqueue_staged: see :meth:`.Enqueueing.enqueue_staged`.
        is_wanted: whether a queue is to be looked at with the next proposal.
        made_up: the made-up ids of messages, which tell that one is new.
        index: the kind of the index of queues that is in use.
        slots: the slots that the range owns; ``pools``: at the root, those that no range owns.
        drops: the wake-up of the service that has all ranges learn of dropped queues, if any.
        bounds, handed, kept, waits, node_claims, monotonic, reading, by_wall: see
            :class:`.QueueEnvironment`.
    """

    def __init__(
        self, range_id: int, environment: QueueEnvironment, departures: Departures
    ) -> None:
        self._range_id = range_id
        self._environment = environment
        self._to_look: dict[Manager, None] = {}
        self.is_wanted = False
        self.drops: ServiceWakeUp | None = None
        self._fired: list[Manager] = []
        self._advancing: Manager | None = None
        self._stepped: list[Manager] = []
        self._most: tuple[int, Manager | None] = 0, None
        self._stored: Reader | None = None
        self.index = keys.QUEUES
        self.departures = departures
        self.bounds = environment.bounds
        self.pools = SlotPools(
            departures, self._manager, environment.monotonic, lambda: self._stored
        )  # fmt: skip
        is_root = range_id == ROOT_ID
        self.slots = SlotMoves(
            range_id, environment.bounds, departures,
            self.pools.give_back if is_root else None, environment.monotonic,
        )  # fmt: skip
        self.pools.own = self.slots
        self.kept, self.handed = environment.kept, environment.handed
        self.waits, self.node_claims = environment.waits, environment.node_claims
        self.monotonic, self.reading = environment.monotonic, environment.reading
        self.by_wall = environment.by_wall
        self._agenda = Agenda(
            environment.monotonic, environment.reading, environment.by_wall,
            environment.seconds_until,
        )  # fmt: skip
        self._wall_seen = self._kept_seen = 0
        self._troubles: dict[str, Trouble] = {}
        self._directory = Directory(range_id, self, environment, self._begin, self._has_dropped)
        self._learning = self._directory.learning
        self._by_name, self._dropped = self._directory.by_name, self._directory.dropped
        self.claiming = self._claiming = Claiming(self._by_name, self._directory.known, environment)
        self.in_use = self._directory.in_use
        self.answer, self.note = self._claiming.answer, self._claiming.note
        self.made_up = MadeUpIds(environment.bounds)
        self._enqueueing = Enqueueing(self._directory, environment)
        self.enqueue_staged = self._enqueueing.enqueue_staged
        self.take_change = Arrivals(
            range_id, self._directory, self._enqueueing, self.slots, self.pools
        ).take

    def register(self, registry: Registry) -> None:
        """Register the evaluators and the reads of the queues."""
        for each in (
            self._directory, self._enqueueing, Rescheduling(self._directory.find),
        ):  # fmt: skip
            each.register(registry)
        settling.register(self._enqueueing, registry)
        registry.writes[TrimArchive] = partial(trim, self._enqueueing)
        registry.writes[SetSchedule] = self._set_schedule
        registry.commands |= {
            AdvanceQueues: self.advance,
            LearnDefinitions: self.learn,
            NoteAllKnow: self.note_all_know,
            AskForSlots: self.pools.ask,
            LeaveSlots: self._leave_slots,
        }
        self._claiming.register(registry)
        Results(self._directory.find, self._directory.known, self.waits).register(registry)
        prepared.register(self._directory, self._enqueueing, registry)
        environment = self._environment
        Reading(
            self._directory.known, self._directory.all, environment.check_age, environment.bounds
        ).register(registry)

    def _manager(self, name: str) -> Manager | None:
        return self._directory.manager(name)

    # --- start and end of a lease

    def restart(self, stored: Reader, *, is_whole: bool = True) -> None:
        """Begin with a new lease of the range, and read everything from the store.

        Nothing is read if the stored state is not whole: half of a queue may be missing, and nobody
        is served before all of it is there.
        """
        self._forget()
        self._stored = stored
        self.index = index_in_use(stored, self._range_id)
        if not is_whole:
            return
        directory = self._directory
        self._learning.begin(stored, self)
        found = directory.take_stored(stored, self.by_wall())
        for error in found.unreadable:
            directory.set_aside(error, None)
        directory.defined.update(found.defined)
        self._empty_later(found.dropped)
        self._wall_seen, self._kept_seen = found.wall, self.kept()
        self._agenda.begin(found.by_timestamp, found.by_wall)
        for name in found.held:  # its clients may have gone, and its leases may end
            directory.manager(name)
        names = {each.number: name for name, each in directory.defined.items()}
        for number in self.slots.owners(stored):
            directory.manager(names.get(number, ""))
        self.node_claims.serve(self._range_id, self)

    def look_for(self, queue: str) -> int:
        """Look for messages of a queue, since a claim waits for all ranges; return its number."""
        try:
            manager = self._directory.known(queue)
        except MustWait:
            return NOT_LEARNED
        except NoSuchQueue:
            return 0
        manager.look_for()
        return manager.definition.number

    @property
    def span(self) -> HomeSpan:
        """Return the span of the homes that lie in the range."""
        return self.bounds.descriptor.start, self.bounds.end

    def has_none_for(self, queue: str, wish: Wish | None) -> bool:
        """Return whether memory tells at once that a claim gets nothing here.

        Another node may serve the range if its lease is over, and know more.
        """
        manager = self.in_use(queue)
        return manager is not None and self._environment.serves() and manager.has_none_for(wish)

    def _empty_later(self, dropped: list[QueueDefinition]) -> None:
        for definition in dropped:
            if definition.number not in self._dropped:
                self._dropped[definition.number] = Manager(self._range_id, definition, self)

    def _wall_was_set_back(self) -> None:
        """Find the next ticks anew that were found by a wall clock that was ahead."""
        assert self._stored is not None
        names = {each.number: each.name for each in self._directory.defined.values()}
        for seen in survey(self._stored, self._range_id, self.by_wall()):
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
        for seen in survey(self._stored, self._range_id, self.by_wall()):
            definition = defined.get(seen.number)
            if definition is None or not seen.done_at:
                continue
            purge_at = seen.done_at + retention(definition.settings, self.kept())
            manager = self._by_name.get(definition.name)
            if manager is not None:
                manager.purge_at = purge_at
            wait = self._environment.seconds_until(purge_at)
            self._agenda.by(definition.name, self.monotonic() + wait)

    def _begin(self, definition: QueueDefinition) -> Manager:
        """Make the manager of a queue, from the stored state.

        Raises:
            QueueDamaged: some of it cannot be read.
        """
        assert self._stored is not None
        manager, stored = Manager(self._range_id, definition, self), self._stored
        try:
            manager.restart(stored, min(self.reading(), self._environment.by_wall()))
            manager.next_tick = periodic.first_tick(stored, manager)
        except (BlockDamaged, QueueDamaged):
            raise
        except UNREADABLE as error:
            raise damaged(manager.name, "a stored record", error) from error
        if not manager.counted.conserved():
            raise damaged(manager.name, "its record of counters", manager.counted)
        self._by_name[manager.name] = manager
        self._claiming.remember(manager)
        self.plan(manager)
        return manager

    def begin_again(self) -> None:
        """Begin with another index, since the range was split.

        Requests that wait begin anew. Messages that were to be given back still are.
        """
        assert self._stored is not None
        waiting = [each for manager in self._by_name.values() for each in manager.consumers]
        tokens = [*waiting, *self.waits.all()]
        to_give_back = {
            manager.name: manager.to_give_back
            | {attempt_of(each): None for waiter in manager.consumers if waiter.granted
               for each in waiter.messages}
            for manager in self._by_name.values()
        }  # fmt: skip
        self.restart(self._stored)
        for name, attempts in to_give_back.items():
            manager = self._directory.manager(name) if attempts else None
            if manager is not None:
                manager.to_give_back |= attempts
                self.wake_by(manager, self.monotonic())
        self._environment.wake_tokens(tokens)

    def deadlines(self) -> Iterator[tuple[bytes, float]]:
        """Iterate over the deadlines of all holdings, with their engine keys."""
        for manager in self._by_name.values():
            yield from manager.leases.deadlines()

    def gives_back(self) -> bool:
        """Return whether the next step gives messages back, in a queue that does not fail."""
        now = self.monotonic()
        return any(
            each.to_give_back and not each.trouble.failures(now) for each in self._by_name.values()
        )

    def limited(self) -> list[QueueDefinition]:
        """Return the queues with limits that hold for all of their messages."""
        return [each for each in self._directory.defined.values() if is_limited(each.settings)]

    def end(self) -> None:
        """Forget everything, at the end of the lease.

        An embedded store will have the next one, too. Message leases then last as long as they
        were given for, though clocks may be set meanwhile.
        """
        if self._environment.forgets_strangers:
            deadlines = dict(self.deadlines())
            if deadlines:  # none are known while a lease has yet to begin
                self.handed.clear()
                self.handed.update(deadlines)
        for manager in self._by_name.values():
            manager.consumers.lose(NotLeaseholder(None))
        self._forget()

    def _forget(self) -> None:
        """Forget everything."""
        self.node_claims.serve_no_more(self._range_id)
        self._learning.end()
        self.slots.hungry.clear()
        self.pools.clear()
        for manager in self._by_name.values():
            manager.end(None)
        self._directory.clear()
        self.made_up.clear()
        self._to_look.clear()
        self._fired.clear()
        self._stepped.clear()
        self._claiming.clear()
        self._agenda.clear()
        self._troubles.clear()
        self._advancing, self._most = None, (0, None)

    def first_due(self, stored: Reader) -> int:
        """Return when there is something to do, by the stored state alone.

        Returns:
            A timestamp; 0: never. Queues that are damaged have nothing to do.
        """
        wall = self.by_wall
        self._learning.begin(stored, self)
        found, has_news = self._directory.read_stored(stored, wall()), self._learning.has_news
        self._learning.end()
        if found.dropped or found.held or has_news:
            return 1
        first = min(found.by_timestamp.values(), default=0)
        moment = min(found.by_wall.values(), default=0)
        by_wall = times.look_at(times.at(moment), self.reading(), wall) if moment else 0
        return times.earliest(first, by_wall)

    def _has_dropped(self, dropped: QueueDefinition, manager: Manager | None) -> None:
        name = dropped.name
        refusal = Invalid(f"the queue {name!r} was dropped; nothing was claimed")
        self._agenda.plan(name)
        self.waits.wake_results(name)
        if manager is not None:
            self._to_look.pop(manager, None)
            self._claiming.forget(manager)
            manager.end(refusal)
        self.node_claims.refuse_queue(name, dropped.number, refusal)
        self._environment.wake()

    # --- definitions

    def heard(self, names: Iterable[str]) -> None:
        """Hear which queues have changed at the root."""
        if self._learning.hear(names):
            assert self._stored is not None
            self.restart(self._stored)  # until now this node knew less than the range
            self._environment.wake_tokens([self._learning])
        if self._learning.has_news:
            self._environment.wake()

    def learn(self, ctx: Evaluation, _: LearnDefinitions) -> Learned:
        """Evaluate ``LearnDefinitions``."""
        return Learned(self._learn(ctx), self.bounds.end)

    def _learn(self, ctx: Evaluation) -> int:
        """Learn what the node has heard of, for which claims may wait; return the version."""
        if not self._learning.has_news:
            return self._learning.version
        version = self._learning.learn(ctx, self._directory.take)
        ctx.after.append(lambda: self.node_claims.learned(self._range_id))
        return version

    def _leave_slots(self, ctx: Evaluation, request: LeaveSlots) -> OwnedSlots:
        """Evaluate ``LeaveSlots``."""
        manager = self._directory.manager(request.queue)
        if manager is None or manager.definition.number != request.number:
            return OwnedSlots(0, 0, 0)
        return self.slots.leave(ctx, manager, request)

    def _set_schedule(self, ctx: Evaluation, request: SetSchedule) -> None:
        self._directory.check_root(f"the schedule {request.name!r} was not changed")
        periodic.set_schedule(self._directory.find, ctx, request)

    def find_dropped(self) -> None:
        """Look for queues that are not empty here, and were dropped."""
        assert self._stored is not None
        self._empty_later(self._directory.dropped_here(self._stored))

    def note_all_know(self, ctx: Evaluation, request: NoteAllKnow) -> None:
        """Evaluate ``NoteAllKnow``: forget the queues that were empty before."""
        definitions = self._directory.definitions
        for number in definitions.all_know(ctx, request.version):
            if number not in self._dropped:
                definitions.forget(ctx, number)

    def untold(self) -> int:
        """Return the version with which the last queue was dropped that some ranges may serve.

        0: there is none.
        """
        assert self._stored is not None
        definitions = self._directory.definitions
        dropped = max((each.version for each in definitions.dropped(self._stored)), default=0)
        # An image has the versions of another store.
        return min(dropped, definitions.version(self._stored))

    def tell_drops(self) -> None:
        """Wake the service that has all ranges learn of dropped queues."""
        if self.drops is not None:
            self.drops.set()

    # --- firing

    def look_at(self, manager: Manager) -> None:
        """Look at a queue with the next proposal, if claims wait there."""
        if len(manager.consumers):
            self._to_look[manager] = None
            self.is_wanted = True
            self._environment.wake(urgent=True)

    def current(self, manager: Manager) -> Manager:
        """Return the manager that its queue has now.

        The proposal that fired something may have replaced the stored state and begun memory anew.
        """
        known = self._by_name.get(manager.name, manager)
        return known if known.layout.number == manager.layout.number else manager

    def wake_by(self, manager: Manager, deadline: float) -> None:
        """Wake the service at a deadline on the monotonic clock for a queue."""
        if self._by_name.get(name := manager.name) is manager:
            self._agenda.by(name, deadline)
        self._environment.wake_by(deadline)

    def plan(self, manager: Manager) -> None:
        """Plan anew when something is due in a queue, since its memory has changed."""
        if self._by_name.get(manager.name) is not manager:
            return
        now, poll = self.monotonic(), manager.next_poll()
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

    def holds(self, manager: Manager, client: bytes) -> None:
        """Note that a client's consumers began or ceased to hold messages of a queue."""
        if self._by_name.get(manager.name) is manager:
            self._claiming.holds(manager, client)

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
        now, share = self.monotonic(), _Share(ctx.scratch.get(_Share, ADVANCED_AT_ONCE))
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
        self.slots.look(manager)
        if len(manager.consumers) and manager.counted.ready:
            self.poll(manager)
        if more:
            self.look_at(manager)

    # --- time

    def advance(self, ctx: Evaluation, request: AdvanceQueues) -> Moved:
        """Evaluate ``AdvanceQueues``: do what is due in all queues; the rider then fires."""
        if Changed in ctx.scratch:
            return Moved(0, more=True, next_due=0)
        self._learn(ctx)
        if self._directory.has_too_many:
            self._directory.forget_some({note[0] for note in ctx.notes})
        now, more = self.monotonic(), False
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
                    self.pools.forget(ctx, number)
                ctx.after.append(partial(self._is_empty, number))
            self._grew(manager, ctx.bytes - bytes_before)
        return more

    def _is_empty(self, number: int) -> None:
        self._dropped.pop(number, None)

    def _is_due(self, manager: Manager) -> bool:
        timestamp, by_wall = manager.next_by_timestamp(), manager.next_by_wall()
        if 0 < timestamp <= self.reading() or 0 < by_wall <= self.by_wall():
            return True
        by_time = manager.next_by_time()
        return by_time is not None and by_time <= self.monotonic()

    def is_due(self) -> bool:
        """Return whether the service has something to do now."""
        now = self.monotonic()
        for name in self._agenda.polls():
            if (manager := self._by_name.get(name)) is not None:
                self.poll(manager)
        wall_before, self._wall_seen = self._wall_seen, self.by_wall()
        if wall_before - self._wall_seen > SET_BACK:
            self._wall_was_set_back()
        kept_before, self._kept_seen = self._kept_seen, self.kept()
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
        if manager.trouble.until <= self.monotonic() and self._is_due(manager):
            return True
        self.plan(manager)
        return False

    def poll(self, manager: Manager) -> None:
        """Poll the stored state of a queue, if it is time and a claim waits for it."""
        if manager.poll_at > self.monotonic() and self._agenda.has_poll(manager.name):
            return
        if self._stored is not None:
            manager.poll(self._stored)
        self.plan(manager)

    def seconds_left(self) -> float:
        """Return for how many seconds the service has nothing to do, as far as is known."""
        now = self.monotonic()
        waiting = (*self._to_look, *self._dropped.values())
        deadlines = [*self._agenda.deadlines(), *(each.trouble.until for each in waiting)]
        self._environment.sleeps_until = until = max(min(deadlines, default=math.inf), now)
        return until - now

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
        is_news = manager.trouble.failed(error, self.monotonic())
        self.plan(manager)
        return manager.name, is_news

    def set_aside(self, error: QueueDamaged) -> None:
        """Set a damaged queue aside, and refuse the claims that wait there."""
        manager = self._by_name.get(error.queue)
        if manager is None:
            return
        self._to_look.pop(manager, None)
        self._agenda.plan(error.queue)
        self._directory.set_aside(error, manager.definition)
        self.waits.wake_results(error.queue)
        self._claiming.forget(manager)
        refusal = QueueDamaged(error.queue, str(error))
        manager.end(refusal)
        self.node_claims.refuse_queue(error.queue, manager.definition.number, refusal)
        self._environment.wake()

    def names(self) -> tuple[Set[str], Set[str]]:
        """Return the names of the queues in use, and of all that are sound."""
        return self._by_name.keys(), self._directory.defined.keys()

    def reports(self, names: Iterable[str]) -> Iterator[QueueReport]:
        """Iterate over the states of some queues, as far as the range knows them.

        Raises:
            QueueDamaged: at the end, if the counters of a queue cannot be read.
        """
        stored, now = self._stored, self.reading()
        if stored is None:
            return
        damage: QueueDamaged | None = None
        for name in names:
            if name in self._by_name:
                yield report(self._by_name[name], now)
                continue
            if name not in self._directory.defined:
                continue
            number = self._directory.defined[name].number
            layout = QueueLayout(self._range_id, number, self.index)
            try:
                counts = read_queue_counts(stored.get(layout.counters))
            except UNREADABLE as error:
                damage = damaged(name, "its record of counters", error)
            else:
                yield QueueReport(name, counts)
        if damage is not None:
            raise damage

    def number(self) -> tuple[int, int]:
        """Return the number of sound queues, and of damaged ones."""
        return len(self._directory.defined), len(self._directory.damaged)

    def trouble(self) -> tuple[int, str]:
        """Return how often the queues that are not sound have failed, and why the first one has."""
        damaged = self._directory.damaged.values()
        return told_troubles(damaged, self._troubles, self.monotonic())
