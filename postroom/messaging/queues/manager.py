"""The manager of one queue in one range: the leaseholder's memory of that queue.

::

    notes of a proposal ── applied ─▶ ready cache · leases · first due · counters ─▶ waiting claims
                                              ▲
    evaluation of the next one ── takes, promises ── (aborted: all is forgotten, read again)

Everything that must last is stored. A manager begins anew with each lease of the range and ends
with it. An evaluator describes in *notes* what a proposal does to a queue. The notes take effect
here once the proposal is applied. A note is ``(manager, change, act, a, b)``: a change of the
counters, and a method of this class with its two arguments. A run of messages that one request
enqueues has one note (``run_added``), and the change counts for each of them.

Firing is the exception: it changes this memory already while the proposal is under evaluation::

    begin ─▶ taken from the ready cache, promised, given to claims ─┬─ it is applied ────▶ commit
                                                                    └─ it never will be ─▶ abort

The proposal may be too large, or fail. It is not reported then: the next evaluation that begins
notices it. An abort forgets the ready cache, which is read again, and restores the rest of the
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from postroom.kv import keys
from postroom.kv.clock import seconds_until
from postroom.kv.engine import Reader
from postroom.limits import QUEUE_LEASED_MAX
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.counters import Change
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.consumers import Consumers, WaitingClaim, Wish, Wishes
from postroom.messaging.queues.definition_requests import QueueDefinition, QueueSettings
from postroom.messaging.queues.definitions import retention
from postroom.messaging.queues.figures import QueueFigures
from postroom.messaging.queues.leases import LeasedHolding, LeaseTable
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.queue_limits import QueueLimits
from postroom.messaging.queues.ready import Placed, ReadyCache
from postroom.messaging.queues.records import (
    AttemptName,
    EndedFields,
    Entry,
    Locator,
    QueueLayout,
    bodies,
    decoded,
)
from postroom.messaging.queues.speculation import Speculation
from postroom.messaging.queues.timing import GroupBuckets, Trouble
from postroom.messaging.queues.waits import ResultToken
from postroom.ranges.checks import Headers
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.waiting import Deadlines

if TYPE_CHECKING:
    from postroom.messaging.queues.range_queues import RangeQueues

LOOKED_THROUGH: Final = 64
"""The number of ready messages up to which a claim that does not wait looks through all of them."""
PUT_OFF_SECONDS: Final = 0.1
"""The time after which an attempt is given back that a prepared transaction has kept."""


LATENESS_KEPT: Final = 1000

Note: TypeAlias = "tuple[Manager, Change, Callable[[Manager, Any, Any], None], Any, Any]"


def note_ready(notes: list[Note], manager: Manager, stamp: bytes, key: bytes, entry: Entry) -> None:
    """Note that the request of this stamp has enqueued a ready message.

    Those that it enqueues one after the other, in one group, are a run with one note.
    """
    if notes:
        of_manager, _, act, of_stamp, run = notes[-1]
        is_run = act is Manager.run_added and of_stamp == stamp and of_manager is manager
        if is_run and run[-1][1].group == entry.group:
            run.append((key, entry))
            return
    notes.append((manager, counters.ENQUEUED_READY, Manager.run_added, stamp, [(key, entry)]))


class Manager:
    """The leaseholder's memory of one queue in one range.

    Attributes:
        definition: the definition of the queue, as applied.
        layout: the engine keys of the queue.
        counted: the counters of the queue, as applied.
        leases: the leases of its messages.
        consumers, wishes: the claims that wait, and what they select.
        ready: the ready messages in memory.
        first_due: the timestamp of the first message that is scheduled for a timestamp; 0: none is.
        first_moment: the same for messages scheduled for a moment of the wall clock.
        next_tick: the next tick of a periodic schedule, by the wall clock; 0: there is none.
        purge_from: the key at which the lists of ended messages begin.
        purge_at: when the first of these lists may be deleted; 0: there is none.
        results_from: the key at which the entries of kept results begin.
        results_until: when the first of these results goes; 0: there is none.
        to_give_back: attempts to give back, each with the reason of its failure; ``None``: the
            attempt is not counted.
        speculation: what the proposal under evaluation has taken from this memory.
        lateness: how late the last messages were fired, in milliseconds.
        figures: its figures for metrics.
        limits: its limits: the slots and the rate that the range has.
        poll_at: when the stored state is read again although no timer rang.
        empty_from: the key of a dropped queue below which nothing is left.
        names_all: whether all records of a dropped queue that were found could be read.
        trouble: its failures; a queue that fails is set aside for a while.
        was_asked_for: whether it was used since idle managers were last looked for.
    """

    def __init__(self, range_id: int, definition: QueueDefinition, host: RangeQueues) -> None:
        self.definition = definition
        self.range_id = range_id
        self.layout = QueueLayout(range_id, definition.number, host.index)
        self.counted = QueueCounts()
        self.leases = LeaseTable(
            host.waits, lambda client: host.holds(self, client), host.node_claims.held
        )
        self.consumers = Consumers(definition.name, host.node_claims, self.wish_of)
        settings = definition.settings
        self.ordered = settings.order == "group"
        self.wishes = Wishes(self._headers)
        self.ready = ReadyCache(
            settings.cache_size, ordered=self.ordered, on_left_out=self.wishes.left_out
        )
        self.speculation = Speculation(self)
        self.host, self.steps = host, host.steps
        self.departures = host.departures
        self.first_due = 0
        self.first_moment = 0
        self.purge_from = self.layout.done
        self.purge_at = 0
        self.results_from = self.layout.expiring
        self.results_until = 0
        self.next_tick = 0
        self.to_give_back: dict[AttemptName, str | None] = {}
        self._gives_back_at = 0.0
        self.lateness: deque[int] = deque(maxlen=LATENESS_KEPT)
        self.figures = QueueFigures()
        self.trouble = Trouble()
        self.was_asked_for = True
        self._planned: tuple[int, ...] = ()
        self.poll_at = host.monotonic() + settings.poller_interval
        self.empty_from = self.layout.whole
        self.names_all = True
        self.freed_at: Deadlines[str] = Deadlines()
        self.group_buckets = GroupBuckets(host.monotonic())
        self.limits = QueueLimits(self)
        self._heads = [self.layout.scheduled, self.layout.moments]
        self.limits.change()

    @property
    def name(self) -> str:
        """Return the name of the queue."""
        return self.definition.name

    # --- start and end

    def restart(self, stored: Reader, now: int) -> None:
        """Read the stored state as of ``now`` (a timestamp), with a new lease of the range."""
        layout = self.layout
        self.counted = counters.read_queue_counts(stored.get(layout.counters))
        if not self.counted.ready:
            self.ready.nothing_is_stored()
        self.leases.read(stored, layout, self.host.monotonic(), now, self.host.handed)
        self.find_first_due(stored)
        counters.check_queue_counts(
            self.counted, len(self.leases), has_scheduled=self._has_scheduled
        )
        first = next(iter(stored.iterate(layout.done, keys.after_prefix(layout.done))), None)
        if first is not None:
            done_at = int.from_bytes(first[0][len(layout.done) :][:8], "big")
            self.purge_from, self.purge_at = first[0], done_at + self.retention
        self.results_until = self.first_in(stored, *self.result_span)
        self.host.slots.read(stored, self)
        self.limits.change()

    def find_first_due(self, reader: Reader | Evaluation) -> None:
        """Read when the first scheduled messages are due."""
        lengths, moments = (self.first_in(reader, *line) for line in self.scheduled_lines)
        self.first_due, self.first_moment = lengths, times.shown(moments)

    def first_in(self, reader: Reader | Evaluation, lower: bytes, upper: bytes) -> int:
        """Return the timestamp of the first entry between two keys; 0: there is none."""
        first = next(iter(reader.iterate(lower, upper)), None)
        begins = len(self.layout.scheduled)
        return 0 if first is None else int.from_bytes(first[0][begins:][:8], "big")

    @property
    def scheduled_lines(self) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """Return the bounds of the keys scheduled for timestamps, and of those for moments.

        Each lower bound is one below which nothing is scheduled, so that reading starts there.
        """
        layout, (lengths, moments) = self.layout, self._heads
        return (lengths, layout.moments), (moments, keys.after_prefix(layout.scheduled))

    @property
    def result_span(self) -> tuple[bytes, bytes]:
        """Return the bounds of the keys of the entries of kept results."""
        return self.results_from, keys.after_prefix(self.layout.expiring)

    def has_due(self, now: int) -> bool:
        """Return whether scheduled messages are due at a timestamp."""
        return 0 < self.first_due <= now or 0 < self.first_moment <= self.host.by_wall()

    @property
    def _has_scheduled(self) -> bool:
        return bool(self.first_due or self.first_moment)

    def change(self, definition: QueueDefinition) -> None:
        """Take over new settings of the queue."""
        kept_before = self.retention
        self.definition = definition
        if self.purge_at:
            self.purge_at = max(self.purge_at - kept_before + self.retention, 1)
        self.order_by(definition.settings)
        self.ready.change(definition.settings.cache_size, ordered=self.ordered)
        # Messages that memory has no room for are searched in the store.
        self.wishes.begin_again()
        self.poll_at = self.host.monotonic() + definition.settings.poller_interval
        self.limits.change()
        self.group_buckets.change(definition.settings.group_max_rate, self.host.monotonic())
        self.ready.free_all()
        self.steps.look_at(self)
        self.steps.wake_by(self, self.host.monotonic())

    def keeps_order_in(self, group: str) -> bool:
        """Return whether the messages of a group are in order. Those without a group are not."""
        return self.ordered and group != ""

    def order_by(self, settings: QueueSettings) -> None:
        """Set the order in which new messages are placed."""
        self.ordered = settings.order == "group"

    def end(self, refusal: Exception | None) -> None:
        """Stop serving the queue; tell the waiting claims ``refusal``, unless it is `None`."""
        self.leases.end()
        for waiter in self.consumers.clear():
            if refusal is not None:
                waiter.refused = refusal
                self.host.answer(waiter)

    # --- evaluation

    def begin(self, ctx: Evaluation) -> None:
        """Begin the speculation of an evaluation that concerns this queue."""
        if self.speculation.begin(ctx):
            self.order_by(self.definition.settings)

    def speculate(self, ctx: Evaluation, act: Callable[..., None], one: Any, other: Any) -> None:
        """Apply a note of the proposal under evaluation to the ready cache, so that it can fire it.

        Only notes that add or remove ready messages count. The arguments are those of the note.
        """
        gone: bytes | None = None
        placed: tuple[bytes, Entry] | None = None
        if act is Manager.ready_added:
            placed = one, other
        elif act is Manager.given_back:
            placed = other
        elif act is Manager.ready_removed:
            gone = one
        elif act is Manager.ready_replaced:
            gone, placed = one, other
        elif act is Manager.run_added:
            self.begin(ctx)
            staged, is_written = ctx.staged, ctx.is_written
            self._offer_all([each for each in other if staged.get(each[0]) or is_written(each[0])])
            return
        else:
            return
        self.begin(ctx)
        if gone is not None:
            self.ready.discard(gone)
        if placed is None or placed[0] in self.speculation.taken:
            return
        if ctx.staged.get(placed[0]) or ctx.is_written(placed[0]):
            self.offer(*placed)

    def applied(self, counted: QueueCounts) -> None:
        """Take over the counters of an applied proposal, whose notes have taken effect."""
        self.counted = counted
        self.speculation.commit()
        planned = (
            self.first_due, self.first_moment, self.next_tick, self.purge_at, self.results_until,
        )  # fmt: skip
        # All other changes that make something due earlier call `wake_by`.
        if planned != self._planned:
            self._planned = planned
            self.steps.plan(self)

    def commit(self, ctx: Evaluation) -> None:
        """Commit the speculation of an evaluation, which may have written nothing here."""
        if self.speculation.commit_if(ctx):
            self.steps.plan(self)

    # --- waiting claims

    def wait(self, request: ClaimQueue) -> WaitingClaim:
        """Add a waiting claim and return its waiter."""
        waiter = WaitingClaim(request, self.wish_of(request.selection))
        self.consumers.add(waiter)
        self.look_for(is_answered=not request.wait)
        return waiter

    def wish_of(self, selection: ClaimSelection) -> Wish | None:
        """Return what a selection takes; ``None``: anything."""
        return self.wishes.of(selection, self.consumers.selected)

    def has_none_for(self, wish: Wish | None) -> bool:
        """Return whether no message is ready for a claim, and none is due, as memory tells at once.

        Memory is not asked if it may be wrong: the queue is in trouble, or it is time to poll.

        Args:
            wish: what the claim takes; ``None``: anything.
        """
        ready = self.ready
        if not ready.is_complete or len(ready) > LOOKED_THROUGH:
            return False
        by_time, moment = self.next_by_time(), self.next_by_wall()
        now = self.host.monotonic()  # read last: what is due at once is due by this clock
        if by_time is not None and by_time <= now:
            return False
        has_any = bool(self.counted.ready or self.counted.scheduled)
        if self.trouble.until > now or (has_any and self.poll_at <= now):
            return False
        if 0 < self.first_due <= self.host.reading() or 0 < moment <= self.host.by_wall():
            return False
        return not any(wish is None or wish.may_take(entry) for entry in ready.entries)

    def look_for(self, *, is_answered: bool = False) -> None:
        """Look for messages, since a claim waits.

        Args:
            is_answered: whether the claim is answered if there are none, too.
        """
        if self.counted.ready or self.counted.scheduled:
            self.steps.poll(self)
        if is_answered or not self.ready.is_complete or len(self.ready):
            self.steps.look_at(self)

    def _headers(self, entry: Entry) -> Headers:
        ctx = self.speculation.ctx
        stored = ctx.get(self.layout.body_key(*entry.locator))
        ctx.steps += 1
        return None if stored is None else decoded(bodies, stored, self.name).headers

    def give_back_later(self, attempts: Iterable[AttemptName], why: str | None) -> None:
        """Give attempts back with the next ``AdvanceQueues``.

        Args:
            attempts: their names. An attempt that is already to be given back keeps its reason.
            why: the reason of their failure; ``None``: they are not counted.
        """
        for each in attempts:
            self.to_give_back.setdefault(each, why)
        self._gives_back_at = 0.0
        self.steps.wake_by(self, self.host.monotonic())

    def gave_back(self, names: list[AttemptName], put_off: list[AttemptName]) -> None:
        """Note that attempts were given back; those that were put off come behind all others."""
        for name in names:
            self.to_give_back.pop(name, None)
        for name in put_off:
            self.to_give_back[name] = self.to_give_back.pop(name)
        if put_off:
            self._gives_back_at = self.host.monotonic() + PUT_OFF_SECONDS

    # --- effects of notes

    def ready_added(self, key: bytes, entry: Entry) -> None:
        """Add a message that is ready."""
        if key in self.speculation.taken:
            return  # it was taken by the same proposal
        self.offer(key, entry)
        if not self.speculation.has_fired:
            self.steps.look_at(self)

    def run_added(self, _: bytes, placed: list[Placed]) -> None:
        """Add ready messages of one group; see ``note_ready``."""
        if self._offer_all(placed) and not self.speculation.has_fired:
            self.steps.look_at(self)

    def _offer_all(self, placed: list[Placed]) -> bool:
        """Offer ready messages of one group that this proposal has not taken.

        Return whether there are any.
        """
        taken = self.speculation.taken
        left = [each for each in placed if each[0] not in taken] if taken else placed
        if left and self.keeps_order_in(left[0][1].group):
            for each in left:
                self.offer(*each)
        elif left:
            self.ready.offer_run(left)
        return bool(left)

    def offer(self, key: bytes, entry: Entry) -> None:
        """Offer a ready message to the cache; free its ordered group, whose head it may be."""
        self.ready.offer(key, entry)
        if self.keeps_order_in(entry.group) and self.freed_at.cancel(entry.group):
            self.ready.free(entry.group)

    def ready_removed(self, key: bytes, group: str) -> None:
        """Remove a message that is ready no longer: it has ended, or is scheduled later."""
        self.ready.discard(key)
        if self.keeps_order_in(group):  # another message may be the head now
            self.group_freed(group, None)

    def ready_replaced(self, old: bytes, placed: tuple[bytes, Entry]) -> None:
        """Move a ready message from its old key to another place."""
        self.ready.discard(old)
        self.ready_added(*placed)

    def group_freed(self, group: str, _: object) -> None:
        """Free a group whose head may be fired at another time than expected."""
        self.freed_at.cancel(group)
        self.ready.free(group)
        self.steps.look_at(self)

    def scheduled_added(self, due: int, now: int) -> None:
        """Note that a message was scheduled, due at ``due``."""
        if due >= times.MOMENT:
            self.first_moment = times.earliest(self.first_moment, times.shown(due))
        else:
            self.first_due = times.earliest(self.first_due, due)
        seconds = seconds_until(times.look_at(due, now, self.host.by_wall), now)
        self.steps.wake_by(self, self.host.monotonic() + seconds)
        line = due >= times.MOMENT
        self._heads[line] = min(self._heads[line], self.layout.scheduled + due.to_bytes(8, "big"))

    def scheduled_moved(self, head: bytes, next_due: int) -> None:
        """Note the next due time of a line of scheduled messages after its due ones became ready.

        Nothing in that line (see ``scheduled_lines``) is stored below ``head``.
        """
        if head >= self.layout.moments:
            self._heads[1], self.first_moment = head, times.shown(next_due)
        else:
            self._heads[0], self.first_due = head, next_due

    def leases_added(self, holding: LeasedHolding, _: object) -> None:
        """Add a holding: messages fired for one claim, or one message that is held longer."""
        self.leases.add(holding)
        self.steps.wake_by(self, holding.deadline)

    def lease_removed(self, locator: Locator, _: object) -> None:
        """Remove the lease of a message."""
        self.leases_removed([locator])

    def leases_removed(self, locators: list[Locator]) -> None:
        """Remove the leases of messages."""
        groups = self.leases.remove_all(locators, self._ran)
        for group in groups:
            self.ready.free(group)
        if groups and self._is_limited(len(locators)):
            self.steps.look_at(self)
        if not self.host.bounds.is_whole and self.limits.slots["concurrency"].owned:
            self.limits.use_slots()

    def _ran(self, holding: LeasedHolding, number: int) -> None:
        """Count attempts of one holding that have ended."""
        self.figures.ran(holding.stored.fired_at, self.host.reading(), number)

    def _is_limited(self, ended: int) -> bool:
        """Return whether the end of so many leases may allow another message to be fired."""
        settings = self.definition.settings
        if self.ordered or len(self.leases) + ended >= QUEUE_LEASED_MAX:
            return True
        return settings.max_concurrency is not None or settings.group_max_concurrency is not None

    def given_back(self, locator: Locator, placed: tuple[bytes, Entry]) -> None:
        """Make a leased message ready again."""
        self.lease_removed(locator, None)
        self.ready_added(*placed)

    def postponed(self, locator: Locator, dues: tuple[int, int]) -> None:
        """Schedule a leased message again; ``dues`` are its due time and now."""
        self.lease_removed(locator, None)
        self.scheduled_added(*dues)

    def ended(self, locators: list[Locator], ended: list[EndedFields]) -> None:
        """Note that messages are done or cancelled; ``locators`` are those that were leased."""
        self.archived(locators, ended)
        if not self.purge_at:
            self.purge_at = self.host.reading() + self.retention

    def archived(self, locators: list[Locator], ended: list[EndedFields]) -> None:
        """Note that messages were archived; ``locators`` are those that were leased."""
        self.leases_removed(locators)
        if self.host.waits.results:
            for _, kind, id_, _, _ in ended:
                self.buried(kind, id_)

    def buried(self, kind: str, id_: bytes) -> None:
        """Note that a message is over: wake those who wait for its result."""
        self.host.waits.wake(ResultToken(self.name, kind, id_))

    def result_kept(self, until: int, _: object) -> None:
        """Note that a result is kept until a timestamp."""
        self.results_until = times.earliest(self.results_until, until)
        self.results_from = min(self.results_from, self.layout.expiring + keys.u64(until))

    def results_purged(self, head: bytes, next_until: int) -> None:
        """Set the key below which no result is listed, and when the next one goes (0: never)."""
        self.results_from, self.results_until = head, next_until

    def tick_set(self, tick: int, _: object) -> None:
        """Note that a periodic schedule was set."""
        if not self.next_tick or tick < self.next_tick:
            self.next_tick = tick
        self.steps.wake_by(self, self.host.monotonic())

    def ticked(self, next_tick: int, _: object) -> None:
        """Set the next tick after the messages of the due ones were enqueued."""
        self.next_tick = next_tick

    def nothing(self, _: object, __: object) -> None:
        """Do nothing; the note changes the counters only."""

    def purged(self, purge_from: bytes, purge_at: int) -> None:
        """Set the key below which no ended message is listed, and when to purge next (0: never)."""
        self.purge_from, self.purge_at = purge_from, purge_at

    @property
    def retention(self) -> int:
        """Return how long ended messages are kept, in timestamp units; readers need them, too."""
        return retention(self.definition.settings, self.host.kept())

    def free_groups(self, now: float) -> None:
        """Free the groups whose time has come, and the queue if its rate allows a message again."""
        for group in self.freed_at.take_due(now):
            self.ready.free(group)
            self.steps.look_at(self)
        try_again_at = self.limits.try_again_at
        if try_again_at is not None and try_again_at <= now:
            self.limits.try_again_at = None
            self.steps.look_at(self)

    # --- time

    def due(self, asked: int, now: int) -> int:
        """Return when a message is due, as it is stored.

        Args:
            asked: the requested due time.
            now: the timestamp of the proposal.
        """
        return times.resolved(asked, now, self.host.by_wall) or now

    def poll(self, stored: Reader) -> None:
        """Read the stored state again if it is time, so that no error in memory lasts.

        An error lasts no longer than ``poller_interval``. Nothing is written.
        """
        now = self.host.monotonic()
        if not self._is_polled or self.poll_at > now or self.speculation.is_under_way:
            return
        self.poll_at = now + self.definition.settings.poller_interval
        if self.counted.scheduled:
            self.find_first_due(stored)
        if self.counted.ready:
            self.ready.forget()
            self.steps.look_at(self)

    @property
    def _is_polled(self) -> bool:
        """Return whether an error in memory could delay a message that a consumer waits for."""
        return len(self.consumers) > 0 and bool(self.counted.scheduled or self.counted.ready)

    def next_poll(self) -> float | None:
        """Return when to poll next on the monotonic clock, or `None` if there is no need."""
        return self.poll_at if self._is_polled else None

    def next_by_timestamp(self) -> int:
        """Return the first timestamp at which something is due; 0: nothing is."""
        purge_at = self.purge_at and self.purge_at + 1
        return times.earliest(self.first_due, purge_at, self.results_until)

    def next_by_wall(self) -> int:
        """Return the first moment of the wall clock at which something is due; 0: nothing is."""
        return times.earliest(self.first_moment, self.next_tick)

    def next_by_time(self) -> float | None:
        """Return the first time on the monotonic clock at which something is due, or `None`."""
        if self.to_give_back:
            return max(self.host.monotonic(), self._gives_back_at)
        deadlines = (
            self.leases.next_deadline(), self.freed_at.first(), self.limits.try_again_at,
            self.limits.slots_due(),
        )  # fmt: skip
        return min((each for each in deadlines if each is not None), default=None)

    @property
    def is_at_rest(self) -> bool:
        """Return whether this memory can be forgotten now and read again later without loss."""
        return not (
            len(self.consumers)
            or len(self.leases)
            or self.to_give_back
            or self.speculation.is_under_way
            or any(each.owned for each in self.limits.slots.values())
            or self.trouble.failures(self.host.monotonic())
        )
