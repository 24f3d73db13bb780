"""The queues of one range: their evaluators, and their memory from a lease's start to its end.

::

    evaluators ─▶ raw writes + notes ─▶ rider fires ─▶ sum_up counts ─▶ applied: notes, answers

An evaluator writes, and leaves notes of what it has done (:mod:`.manager`). The rider fires
(:mod:`.range_steps`), and ``sum_up`` adds up the notes (:mod:`.holdings`). When the proposal is
applied, the notes take effect in memory, and the claims that were given something are answered
(:mod:`.claiming`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from functools import partial

from postroom.errors import Invalid, NoSuchQueue
from postroom.kv import keys
from postroom.kv.engine import BlockDamaged, Reader
from postroom.messaging import due as times
from postroom.messaging.counters import read_queue_counts
from postroom.messaging.queues import periodic, prepared, settling
from postroom.messaging.queues.advance import trim
from postroom.messaging.queues.arriving import Arrivals
from postroom.messaging.queues.claim_requests import HomeSpan
from postroom.messaging.queues.claiming import Claiming, QueueEnvironment
from postroom.messaging.queues.consumers import Wish
from postroom.messaging.queues.definition_requests import QueueDefinition, SetSchedule
from postroom.messaging.queues.departing import Departures
from postroom.messaging.queues.directory import Directory
from postroom.messaging.queues.enqueueing import Enqueueing, MadeUpIds
from postroom.messaging.queues.figures import QueueReport, report
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
from postroom.messaging.queues.range_steps import RangeSteps
from postroom.messaging.queues.reading import Reading
from postroom.messaging.queues.records import (
    UNREADABLE,
    QueueDamaged,
    QueueLayout,
    damaged,
    index_in_use,
)
from postroom.messaging.queues.requests import TrimArchive
from postroom.messaging.queues.results import Results
from postroom.messaging.queues.slot_moves import SlotMoves
from postroom.messaging.queues.slot_pool import SlotPools
from postroom.messaging.queues.slots import is_limited
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation, MustWait
from postroom.ranges.ports import Registry, ServiceWakeUp


class RangeQueues:
    """The queues of one range, as its leaseholder serves them.

    Args:
        range_id: the id of the range.
        environment: the clocks, chance, and the service to wake.
        departures: the way of changes to other ranges.

    Attributes:
        take_change: see :meth:`.Arrivals.take`.
        enqueue_staged: see :meth:`.Enqueueing.enqueue_staged`.
        steps: the steps of the queues: what is due, and what is fired.
        made_up: the made-up ids of messages, which tell that one is new.
        index: the kind of the index of queues that is in use.
        slots: the slots that the range owns; ``pools``: at the root, those that no range owns.
        drops: the wake-up of the service that has all ranges learn of dropped queues, if any.
        bounds, kept, waits, node_claims, monotonic, reading, by_wall: see
            :class:`.QueueEnvironment`.
    """

    def __init__(
        self, range_id: int, environment: QueueEnvironment, departures: Departures
    ) -> None:
        self._range_id = range_id
        self._environment = environment
        self.drops: ServiceWakeUp | None = None
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
        self.kept = environment.kept
        self.waits, self.node_claims = environment.waits, environment.node_claims
        self.monotonic, self.reading = environment.monotonic, environment.reading
        self.by_wall = environment.by_wall
        self._directory = Directory(range_id, self, environment, self._begin, self._has_dropped)
        self._learning = self._directory.learning
        self._by_name, self._dropped = self._directory.by_name, self._directory.dropped
        self.claiming = Claiming(self._by_name, self._directory.known, environment)
        self.in_use = self._directory.in_use
        self.answer, self.note = self.claiming.answer, self.claiming.note
        self.made_up = MadeUpIds(environment.bounds)
        self._enqueueing = Enqueueing(self._directory, environment)
        self.enqueue_staged = self._enqueueing.enqueue_staged
        self.steps = RangeSteps(
            range_id, environment, self._directory, self._enqueueing, self.claiming, self.pools
        )
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
            AdvanceQueues: self.steps.advance,
            LearnDefinitions: self.learn,
            NoteAllKnow: self.note_all_know,
            AskForSlots: self.pools.ask,
            LeaveSlots: self._leave_slots,
        }
        self.claiming.register(registry)
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
        self.steps.begin(stored)
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
        self.steps.plan_all(found)
        for name in found.held:  # its clients may have gone, and its leases may end
            directory.manager(name)
        names = {each.number: name for name, each in directory.defined.items()}
        for number in self.slots.owners(stored):
            directory.manager(names.get(number, ""))
        self.node_claims.serve(self._range_id, self)

    def _empty_later(self, dropped: list[QueueDefinition]) -> None:
        for definition in dropped:
            if definition.number not in self._dropped:
                self._dropped[definition.number] = Manager(self._range_id, definition, self)

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
        self.claiming.remember(manager)
        self.steps.plan(manager)
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
                self.steps.wake_by(manager, self.monotonic())
        self._environment.wake_tokens(tokens)

    @property
    def handed(self) -> dict[bytes, float]:
        """Return the deadlines with which the holdings of this range begin, by their keys."""
        return self._environment.handed.get(self._range_id, {})

    def deadlines(self) -> Iterator[tuple[bytes, float]]:
        """Iterate over the deadlines of all holdings, with their engine keys."""
        for manager in self._by_name.values():
            yield from manager.leases.deadlines()

    def hand(self, range_id: int, deadlines: dict[bytes, float]) -> None:
        """Let a range of this node begin with these deadlines, and with no others."""
        self._environment.handed[range_id] = deadlines

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
                self.hand(self._range_id, deadlines)
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
        self.claiming.clear()
        self.steps.end()

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
        refusal = Invalid(f"the queue {dropped.name!r} was dropped; nothing was claimed")
        self.steps.forget(dropped.name, manager)
        self.claiming.refuse(dropped.name, dropped.number, manager, refusal)

    # --- definitions

    def heard(self, names: Iterable[str]) -> None:
        """Hear which queues have changed at the root."""
        if self._learning.hear(names):
            assert self._stored is not None
            self.hand(self._range_id, dict(self.deadlines()))
            self.restart(self._stored)  # until now this node knew less than the range
            self._environment.wake_tokens([self._learning])
        if self._learning.has_news:
            self._environment.wake()

    def learn(self, ctx: Evaluation, _: LearnDefinitions) -> Learned:
        """Evaluate ``LearnDefinitions``."""
        return Learned(self._learning.learn(ctx, self._directory.take), self.bounds.end)

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

    # --- questions of the node, and of managers

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

    def current(self, manager: Manager) -> Manager:
        """Return the manager that its queue has now.

        The proposal that fired something may have replaced the stored state and begun memory anew.
        """
        known = self._by_name.get(manager.name, manager)
        return known if known.layout.number == manager.layout.number else manager

    def holds(self, manager: Manager, client: bytes) -> None:
        """Note that a client's consumers began or ceased to hold messages of a queue."""
        if self._by_name.get(manager.name) is manager:
            self.claiming.holds(manager, client)

    # --- reports

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
