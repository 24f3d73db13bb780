"""The moves of outbox entries: delivery of messages into inboxes, and execution of updates.

Each move is one write. Entries that are due for another range move to the outgoing ones of the
outbox (:mod:`.handover`); they are left out below. Entries come from the outbox, from a commit, or
from other ranges. Messages of one sender range to one key are delivered in the order of their
commits and enter the inbox under their ids. They never overtake each other. A message that was
scheduled for later keeps its id, and thus the place that its commit had.

Updates that commute are added up: ten thousand increments of one counter become one write.
Increments of a key are added up while nothing else touches the key; the metrics of ``Accounting``
are, too. All other requests to a key keep their order: before a ``Put``, the increments before it
are carried out.

The size of a pass is limited in advance: when its sums, or writes, are large already, no more
updates join it, and the others wait for the next one. A pass removes a limited number of keys of a
``DeleteRange``. The entry stays in the outbox with the cursor to go on at and the timestamp at
which it began; versions written later stay. The entries after it wait for its end.

Each step (an update, or a sum) is a unit of its own in the proposal. Its effect stays together with
the deletion of its outbox entries, or with the dead letter in its place. If a sum cannot be made,
its updates are tried one by one, so that only those die that must.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from postroom import limits
from postroom.errors import Error, Unavailable
from postroom.kv import keys
from postroom.limits import PREFIXES_MAX, PROPOSAL_BYTES_MAX
from postroom.messaging.inbox import Arrivals, Inboxes
from postroom.messaging.outbox import QUIET, Outbox, Parcel
from postroom.messaging.requests import (
    Deliverable,
    DeliverDue,
    Delivered,
    Executable,
    ExecuteDue,
    Moved,
)
from postroom.messaging.undelivered import DeadLetters
from postroom.ranges.accounting import add_metrics, add_posted, is_posted, summed_prefixes
from postroom.ranges.contract import KeySet
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.evaluators import delete_some
from postroom.ranges.ports import Registry, WriteEvaluator
from postroom.ranges.requests import Accounting, DeleteRange, Increment, UpdateRequest
from postroom.ranges.transactions.intents import IntentTable

_encode = msgspec.msgpack.Encoder().encode


class Delivery:
    """The delivery of messages, new ones as they are committed and those that are due.

    Changes of queues come along with those of other ranges (:mod:`.queues.crossing`).
    """

    def __init__(
        self,
        outbox: Outbox,
        inboxes: Inboxes,
        dead_letters: DeadLetters,
        intents: IntentTable,
        wake: Callable[[list[object]], None],
        take_change: Callable[[Evaluation, Deliverable], None],
    ) -> None:
        self._intents = intents
        self._outbox = outbox
        self._inboxes = inboxes
        self._dead_letters = dead_letters
        self._take_change = take_change
        self._quiet = partial(wake, [QUIET])

    def register(self, registry: Registry) -> None:
        """Register the delivery."""
        registry.commands[DeliverDue] = self.deliver_due

    def deliver_sent(self, ctx: Evaluation) -> Iterator[None] | None:
        """Deliver the messages that this proposal sends, or store them for later."""
        parcels: list[Parcel] = ctx.sent
        if not parcels:
            return None
        ctx.sent = []
        ctx.count("enqueued", len(parcels))
        left = 0 if self._outbox.has_due(ctx) else limits.DELIVERED_AT_ONCE_MAX
        if len(parcels) > 1 and len(parcels) > _parcels_a_turn():
            return self._take_up_in_parts(ctx, parcels, left)
        self._take_up(ctx, parcels, left)
        return None

    def _take_up_in_parts(
        self, ctx: Evaluation, parcels: list[Parcel], left: int
    ) -> Generator[None, None, None]:
        """Take up the many messages of a transaction, a part of them in each turn."""
        for first in range(0, len(parcels), _parcels_a_turn()):
            left = self._take_up(ctx, parcels[first : first + _parcels_a_turn()], left)
            yield

    def _take_up(self, ctx: Evaluation, parcels: list[Parcel], left: int) -> int:
        """Deliver up to ``left`` parcels that are due, and store the others.

        Return how many more may be delivered.
        """
        arrivals: Arrivals = {}
        now, outgoing = ctx.timestamp, self._outbox.outgoing
        may_go_out, intents = outgoing.may_go_out(), self._intents
        for due, id_, request, transaction_id, source in parcels:
            if intents.by_transaction and intents.keeps_mail_away(request.key):
                left = 0  # those after it do not overtake it
            if left and due <= now:
                left -= 1
                if may_go_out and outgoing.goes_out(request.key):
                    entry = Deliverable(
                        request.key, request.value, request.headers, transaction_id, source
                    )
                    outgoing.store(ctx, id_, entry)
                    continue
                message = _encode((now, request.value, request.headers))  # a ``Delivered``
                arrived, key = (id_, message), request.key
                if key in arrivals:
                    arrivals[key].append(arrived)
                else:
                    arrivals[key] = [arrived]
            else:
                entry = Deliverable(
                    request.key, request.value, request.headers, transaction_id, source
                )
                self._outbox.store(ctx, due, id_, entry)
        self._deliver(ctx, arrivals)
        return left

    def deliver_due(self, ctx: Evaluation, request: DeliverDue) -> Moved:
        """Evaluate ``DeliverDue``."""
        outbox, now = self._outbox, ctx.timestamp
        due, next_due = outbox.take_due(ctx, request.messages_max)
        arrivals: Arrivals = {}
        outgoing = outbox.outgoing
        may_go_out = outgoing.may_go_out()
        for key, stored in due:
            entry, id_ = outbox.decode(stored), outbox.id_of(key)
            ctx.erase(key)
            if may_go_out and outgoing.goes_out(entry.key):
                outgoing.store(ctx, id_, entry)
                continue
            if entry.is_of_queue:
                self._change_queue(ctx, id_, entry)
                continue
            arrivals.setdefault(entry.key, []).append((id_, _received(now, entry)))
        if due:
            self._deliver(ctx, arrivals)
            outbox.advance(ctx, [key for key, _ in due])
            ctx.count(outbox.pending, -len(due))
        ctx.after.append(self._quiet)
        return Moved(len(due), 0 < next_due <= now, next_due)

    def receive(self, ctx: Evaluation, messages: list[tuple[bytes, Deliverable]]) -> None:
        """Deliver messages that another range hands over, each with its id."""
        arrivals: Arrivals = {}
        for id_, entry in messages:
            if entry.is_of_queue:
                self._change_queue(ctx, id_, entry)
                continue
            message = _received(ctx.timestamp, entry)
            arrivals.setdefault(entry.key, []).append((id_, message))
            ctx.grow(len(entry.key) + len(id_) + len(message))
        ctx.count("received", len(messages))
        self._deliver(ctx, arrivals)

    def _change_queue(self, ctx: Evaluation, id_: bytes, entry: Deliverable) -> None:
        """Carry out a change of a queue, or bury it if that can never be done."""
        ctx.begin_step()
        try:
            self._take_change(ctx, entry)
        except Unavailable:
            raise
        except Error as error:
            ctx.undo_step()
            self._dead_letters.bury_message(ctx, id_, entry, f"{type(error).__name__}: {error}")
        else:
            ctx.count("executed")

    def _deliver(self, ctx: Evaluation, arrivals: Arrivals) -> None:
        if arrivals:
            ctx.count("delivered", self._inboxes.deliver(ctx, arrivals))


def _received(now: int, entry: Deliverable) -> bytes:
    return _encode(Delivered(now, entry.value, entry.headers, entry.trial))


def _parcels_a_turn() -> int:
    """Return how many parcels a turn takes: each of them is a read and a write."""
    return max(limits.TURN_STEPS_MAX // 2, 1)


def _is_kept_away(intents: IntentTable, request: UpdateRequest) -> bool:
    concern = request.concerns()
    return isinstance(concern, KeySet) and intents.keeps_away(concern)


class DeferredUpdate(NamedTuple):
    """An update, with the engine key at which it is stored (``b""``: nowhere)."""

    stored_at: bytes
    id: bytes
    due: int
    request: UpdateRequest
    transaction_id: bytes
    source: bytes
    cursor: bytes = b""
    began: bytes = b""
    is_received: bool = False

    def entry(self) -> Executable:
        """Return the update as it is stored."""
        return Executable(*self[3:])

    def outgoing_entry(self) -> Executable:
        """Return the update as it goes out."""
        return Executable(*self[3:-1], due=self.due)


def _deferred(stored_at: bytes, id_: bytes, due: int, entry: Executable) -> DeferredUpdate:
    return DeferredUpdate(stored_at, id_, due, *msgspec.structs.astuple(entry)[:-1])


class Step(NamedTuple):
    """The updates that are carried out together, and the request with their sum."""

    request: Any
    updates: list[DeferredUpdate]


class Totals(NamedTuple):
    """The metrics of prefixes, summed over updates, and the sums posted to each prefix itself."""

    metrics: dict[bytes, dict[str, int]]
    posted: dict[bytes, dict[str, int]]
    updates: list[DeferredUpdate]


@dataclass(slots=True)
class _Sum:
    """The sum of the increments of one key."""

    by: int
    packed: bool
    updates: list[DeferredUpdate]


class AddingUp:
    """A collector that turns updates, in order, into steps, and adds up increments of a key.

    The increments of a key gather until another update of the key comes.

    Args:
        stored_bytes: a function that returns the present size of the sums of a prefix.

    Attributes:
        steps: the steps.
        totals: the sums of ``Accounting``.
        is_full: whether the sums are so large that no more should be added.
    """

    def __init__(self, stored_bytes: Callable[[bytes], int]) -> None:
        self.steps: list[Step] = []
        self.totals = Totals({}, {}, [])
        self._stored_bytes = stored_bytes
        self._sums: dict[bytes, _Sum] = {}
        self._bytes = self._metrics = 0
        self.is_full = False

    def add(self, update: DeferredUpdate) -> bool:
        """Add an update; return `False` if it was only added to the increments of its key."""
        request = update.request
        if type(request) is Increment:
            key = request.key
            total = self._sums.get(key)
            if total is not None:
                total.by += request.by
                total.packed = total.packed or request.packed
                total.updates.append(update)
                return False
            self._sums[key] = _Sum(request.by, request.packed, [update])
        elif type(request) is Accounting:
            self._account(request, update)
        else:
            self._other(request, update)
        return True

    def finish(self) -> None:
        """Turn all gathered increments into steps: no more updates come."""
        for key in list(self._sums):
            self._flush(key)

    def _account(self, request: Accounting, update: DeferredUpdate) -> None:
        self.totals.updates.append(update)
        sums = summed_prefixes(request)
        for prefix in sums:
            self._sum_up(self.totals.metrics, prefix, request.deltas)
        if is_posted(request, sums):
            self._sum_up(self.totals.posted, sums[-1], request.deltas)
        self.is_full = (
            self._bytes >= limits.EXPANSION_BYTES_MAX
            or self._metrics >= limits.EXPANSION_METRICS_MAX
        )

    def _sum_up(
        self, of: dict[bytes, dict[str, int]], prefix: bytes, deltas: dict[str, int]
    ) -> None:
        sums = of.get(prefix)
        if sums is None:
            sums = of[prefix] = {}
            if len(of) > PREFIXES_MAX:  # a single update may have as many anyway
                self._bytes += len(prefix) + self._stored_bytes(prefix)
        self._metrics += len(deltas)
        for metric, delta in deltas.items():
            sums[metric] = sums.get(metric, 0) + delta

    def _other(self, request: Any, update: DeferredUpdate) -> None:
        """Add an update that does not commute with the increments of its key; they come first."""
        self._flush(request.key)
        self.steps.append(Step(request, [update]))

    def _flush(self, key: bytes) -> None:
        total = self._sums.pop(key, None)
        if total is not None:
            self.steps.append(Step(Increment(key, total.by, total.packed), total.updates))


class Execution:
    """The execution of updates, new ones as they are committed and those that are due."""

    def __init__(
        self,
        outbox: Outbox,
        dead_letters: DeadLetters,
        writes: dict[type, WriteEvaluator],
        intents: IntentTable,
        wake: Callable[[list[object]], None],
    ) -> None:
        self._intents = intents
        self._outbox = outbox
        self._dead_letters = dead_letters
        self._writes = writes
        self._quiet = partial(wake, [QUIET])

    def register(self, registry: Registry) -> None:
        """Register the execution."""
        registry.commands[ExecuteDue] = self.execute_due

    def execute_deferred(self, ctx: Evaluation) -> Iterator[None] | None:
        """Carry out the updates that this proposal defers, or store them for later."""
        parcels: list[Parcel] = ctx.deferred
        if not parcels:
            return None
        ctx.deferred = []
        ctx.count("enqueued", len(parcels))
        left = limits.EXECUTED_AT_ONCE_MAX if self._outbox.is_empty(ctx) else 0
        if len(parcels) > limits.TURN_STEPS_MAX:
            return self._take_up_in_parts(ctx, parcels, left)
        may_go_out = self._outbox.outgoing.may_go_out() or self._intents.by_transaction
        if len(parcels) == 1 and left and not may_go_out:
            due, _, request, _, _ = parcels[0]
            if type(request) is Increment and due <= ctx.timestamp:  # there is nothing to add up
                self._increment(ctx, parcels[0])
                return None
        updates: list[DeferredUpdate] = []
        self._take_up(ctx, parcels, updates, left)
        self._carry_out_new(ctx, updates)
        return None

    def _increment(self, ctx: Evaluation, parcel: Parcel) -> None:
        """Carry out the only update of a proposal, which is not stored, as ``_try_step`` does."""
        ctx.steps += 1
        ctx.begin_step()
        try:
            self._writes[Increment](ctx, parcel[2])
        except Error as error:
            ctx.undo_step()
            due, id_, request, transaction_id, source = parcel
            self._failed(
                ctx, [DeferredUpdate(b"", id_, due, request, transaction_id, source)], error
            )
        else:
            ctx.count("executed")

    def _take_up_in_parts(
        self, ctx: Evaluation, parcels: list[Parcel], left: int
    ) -> Generator[None, None, None]:
        """Take up the many updates of a transaction, a part of them in each turn."""
        updates: list[DeferredUpdate] = []
        for first in range(0, len(parcels), limits.TURN_STEPS_MAX):
            some = parcels[first : first + limits.TURN_STEPS_MAX]
            left = self._take_up(ctx, some, updates, left)
            yield
        self._carry_out_new(ctx, updates)
        yield

    def _take_up(
        self, ctx: Evaluation, parcels: list[Parcel], updates: list[DeferredUpdate], left: int
    ) -> int:
        """Sort parcels: up to ``left`` of them go to ``updates``, and the others are stored.

        Return how many more may be carried out.
        """
        now, outgoing = ctx.timestamp, self._outbox.outgoing
        may_go_out, intents = outgoing.may_go_out(), self._intents
        for due, id_, request, transaction_id, source in parcels:
            if intents.by_transaction and _is_kept_away(intents, request):
                left = 0  # those after it do not overtake it
            update = DeferredUpdate(b"", id_, due, request, transaction_id, source, b"", b"")
            if left and due <= now:
                left -= 1
                if may_go_out and outgoing.update_goes_out(ctx.scratch, request):
                    outgoing.store(ctx, id_, update.outgoing_entry())
                else:
                    updates.append(update)
            else:
                self._outbox.store(ctx, update.due, update.id, update.entry())
        return left

    def _carry_out_new(self, ctx: Evaluation, updates: list[DeferredUpdate]) -> None:
        for update in self._carry_out(ctx, updates):
            self._outbox.store(ctx, update.due, update.id, update.entry())

    def execute_due(self, ctx: Evaluation, request: ExecuteDue) -> Moved:
        """Evaluate ``ExecuteDue``."""
        outbox = self._outbox
        due, next_due = outbox.take_due(ctx, request.messages_max)
        updates = [
            _deferred(key, outbox.id_of(key), outbox.due_of(key), outbox.decode(stored))
            for key, stored in due
        ]
        if outbox.outgoing.may_go_out():
            updates = self._let_out(ctx, updates)
        left = self._carry_out(ctx, updates)
        if due:
            outbox.advance(ctx, [key for key, _ in due], [update.stored_at for update in left])
        ctx.after.append(self._quiet)
        if left:
            return Moved(len(due) - len(left), more=True, next_due=ctx.timestamp)
        return Moved(len(due), 0 < next_due <= ctx.timestamp, next_due)

    def _let_out(self, ctx: Evaluation, updates: list[DeferredUpdate]) -> list[DeferredUpdate]:
        """Let updates for other ranges go out; return those for this one."""
        outgoing, own = self._outbox.outgoing, []
        for update in updates:
            if outgoing.update_goes_out(
                ctx.scratch, update.request, is_received=update.is_received
            ):
                outgoing.store(ctx, update.id, update.outgoing_entry())
                self._forget(ctx, update)
            else:
                own.append(update)
        return own

    def receive(self, ctx: Evaluation, updates: list[tuple[bytes, int, Executable]]) -> None:
        """Carry out updates that a range hands over, with ids and due times, or store them."""
        left = [_deferred(b"", *each)._replace(is_received=True) for each in updates]
        if self._outbox.is_empty(ctx):
            left = self._carry_out(ctx, left)
        for update in left:
            self._outbox.store_at(ctx, keys.u64(update.due), update.id, update.entry())

    def _carry_out(self, ctx: Evaluation, updates: list[DeferredUpdate]) -> list[DeferredUpdate]:
        """Carry out as many updates as a pass has room for; return those left, in order."""
        adding, full_at = self._adding_up(ctx), ctx.bytes + ctx.moved + PROPOSAL_BYTES_MAX
        # Execute some even if other requests fill the turns. An entry that is stored keeps later
        # ones from being carried out at once, and costs three times as much.
        steps_max = max(limits.TURN_STEPS_MAX, ctx.steps + limits.TURN_STEPS_MAX // 4)
        for number, update in enumerate(updates):
            if number and (adding.is_full or ctx.steps >= steps_max):
                return [*self._finish(ctx, adding, full_at), *updates[number:]]
            if type(update.request) is not DeleteRange:
                ctx.steps += adding.add(update)
                continue
            ctx.steps += 1
            left = self._finish(ctx, adding, full_at)
            if left or ctx.bytes + ctx.moved > full_at:
                return [*left, *updates[number:]]
            adding = self._adding_up(ctx)
            going_on = self._delete_some(ctx, update)
            if going_on is not None:
                return [going_on, *updates[number + 1 :]]
        return self._finish(ctx, adding, full_at)

    def _adding_up(self, ctx: Evaluation) -> AddingUp:
        return AddingUp(lambda prefix: len(ctx.get(keys.accounting_key(prefix)) or b""))

    def _finish(self, ctx: Evaluation, adding: AddingUp, full_at: int) -> list[DeferredUpdate]:
        """Carry out the gathered steps; return the updates that there is no room left for."""
        adding.finish()
        if adding.totals.updates:
            self._try_totals(ctx, adding.totals)
        for number, step in enumerate(adding.steps):
            if ctx.bytes + ctx.moved > full_at:
                left = [update for step in adding.steps[number:] for update in step.updates]
                return sorted(left, key=attrgetter("stored_at", "due", "id"))
            self._try_step(ctx, step)
        return []

    def _delete_some(self, ctx: Evaluation, update: DeferredUpdate) -> DeferredUpdate | None:
        """Carry out a step of a ``DeleteRange``; return what is left of it, or `None`."""
        request = update.request
        assert type(request) is DeleteRange
        began = update.began or ctx.stamp
        ctx.begin_step()
        try:
            _, cursor = delete_some(ctx, request, update.cursor, began)
        except Error as error:
            ctx.undo_step()
            self._failed(ctx, [update], error)
            return None
        if cursor is None:
            self._done(ctx, [update])
            return None
        going_on = update._replace(cursor=cursor, began=began)
        if update.stored_at:
            ctx.writes[update.stored_at] = stored = _encode(going_on.entry())
            ctx.grow(len(update.stored_at) + len(stored))
        return going_on

    def _try_step(self, ctx: Evaluation, step: Step) -> None:
        ctx.begin_step()
        try:
            self._writes[type(step.request)](ctx, step.request)
        except Error as error:
            ctx.undo_step()
            self._failed(ctx, step.updates, error)
        else:
            self._done(ctx, step.updates)

    def _try_totals(self, ctx: Evaluation, totals: Totals) -> None:
        ctx.begin_step()
        try:
            for prefix, sums in totals.posted.items():
                add_posted(ctx, prefix, sums)
            for prefix, sums in totals.metrics.items():
                add_metrics(ctx, prefix, sums)
        except Error as error:
            ctx.undo_step()
            self._failed(ctx, totals.updates, error)
        else:
            self._done(ctx, totals.updates)

    def _failed(self, ctx: Evaluation, updates: list[DeferredUpdate], error: Error) -> None:
        """Bury a single update that has failed; of several, try each by itself."""
        if len(updates) > 1:
            for update in updates:
                self._try_step(ctx, Step(update.request, [update]))
            return
        (update,) = updates
        self._dead_letters.bury(ctx, update.id, update.entry(), f"{type(error).__name__}: {error}")
        self._forget(ctx, update)

    def _done(self, ctx: Evaluation, updates: list[DeferredUpdate]) -> None:
        for update in updates:
            if update.stored_at:
                self._forget(ctx, update)
        ctx.count("executed", len(updates))

    def _forget(self, ctx: Evaluation, update: DeferredUpdate) -> None:
        if update.stored_at:
            ctx.erase(update.stored_at)
            ctx.count(self._outbox.pending, -1)
