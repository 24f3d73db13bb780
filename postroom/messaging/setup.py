"""The assembly of the messaging of one range: its companion and its keeper.

A range does not know messaging. It has messaging take part in its proposals, as its companion, and
keep claims and queues in memory with its lease, as its keeper (:mod:`postroom.ranges.ports`). Three
services run beside it on its leaseholder.

The messages that a proposal sends within its own range are delivered and executed in the same
proposal, after the requests. This costs no write of its own. The services do the rest: entries that
are scheduled for later, too many for one proposal, or left by a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from postroom.kv.engine import Reader, WriteSet
from postroom.messaging.attempts import AttemptNotes, Attempts
from postroom.messaging.counters import Conservation
from postroom.messaging.due import earliest
from postroom.messaging.halves import MessagingHalves
from postroom.messaging.handover.receiving import HandedOver
from postroom.messaging.history import MessageHistory
from postroom.messaging.images import check_image
from postroom.messaging.inbox import Inboxes
from postroom.messaging.inbox_reads import Peeks, check_inbox
from postroom.messaging.ingest.batches import StagedBatches
from postroom.messaging.ingest.halves import IngestHalves
from postroom.messaging.ingest.loads import BulkLoads
from postroom.messaging.ingest.requests import CheckImage
from postroom.messaging.ingest.restores import Restoring
from postroom.messaging.ingest.staging import StagedRecords, Sweeping
from postroom.messaging.moving import Delivery, Execution
from postroom.messaging.outbox import Outboxes
from postroom.messaging.queues.claiming import QueueEnvironment
from postroom.messaging.queues.departing import Departures
from postroom.messaging.queues.holdings import sum_up
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.messaging.requests import CheckInbox, Deliverable
from postroom.messaging.scanning import RecordScans
from postroom.messaging.trail import TrailKeeping, TrailRecorder
from postroom.messaging.undelivered import DeadLetters, Schedule
from postroom.messaging.usual import UsualEvaluator
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Rider, ServiceWakeUp
from postroom.ranges.protections import Protections
from postroom.ranges.replica import Replica
from postroom.ranges.transactions.intents import IntentTable


class Messaging:
    """The outboxes, inboxes, dead letters, counters and queues of one range.

    It implements ``Companion`` and ``Keeper``.

    Args:
        replica: the replica of the range.
        deliveries, executions: the wake-ups that a commit has added to an outbox.
        notes: the wake-up that attempts have to be written down.
        environment: the environment of the queues.
        is_general_only: whether all proposals are made in the general way.

    Attributes:
        departures: the wake-up that a commit has added outgoing entries, if somebody waits for it.
        restoring: the restore of the range, if there may be one: it decides under each lease
            whether the range serves.
        deliver_sent, execute_deferred, rider, hear: see ``Companion``.
    """

    deliver_sent: Callable[[Evaluation], Iterator[None] | None]
    execute_deferred: Callable[[Evaluation], Iterator[None] | None]
    rider: Rider
    hear: Callable[[WriteSet], None]

    def __init__(
        self,
        replica: Replica,
        deliveries: ServiceWakeUp,
        executions: ServiceWakeUp,
        notes: ServiceWakeUp,
        environment: QueueEnvironment,
        *,
        is_general_only: bool,
    ) -> None:
        range_id, check_age, self._wake = replica.range_id, replica.check_age, replica.wake
        self._range_id = range_id
        self._registry = replica.registry
        self._deliveries = deliveries
        self._executions = executions
        self._reading = environment.reading
        self.departures: ServiceWakeUp | None = None
        self.restoring: Restoring | None = None
        self.conservation = Conservation(range_id)
        self.outboxes = Outboxes(range_id, self.conservation, environment.by_wall, replica.bounds)
        self.inboxes = Inboxes(self._wake, replica.holders, replica.bounds)
        self.dead_letters = DeadLetters(range_id, self.outboxes, self._let_go)
        self.attempts = AttemptNotes(
            self.inboxes.claims, reading=environment.reading, wake_up=notes,
            rouse=environment.rouse, wake=self._wake, is_embedded=environment.forgets_strangers,
        )  # fmt: skip
        self.inboxes.beginnings = self.attempts
        environment.is_prepared = replica.intents.will_write
        departures = Departures(range_id, self.outboxes.deliverable.outgoing)
        self.queues = RangeQueues(range_id, environment, departures)
        self._bounds = replica.bounds
        self._halves = MessagingHalves(
            range_id, replica.bounds, self.outboxes, self.inboxes, self.queues
        )
        self._registry.divisible.append(self._halves)
        self._register(environment, check_age, replica.bounds, replica.intents, replica.protections)
        for each in (
            TrailRecorder(range_id, replica.bounds, replica.stored),
            TrailKeeping(range_id, replica.bounds, replica.stored.free_bytes),
        ):
            each.register(self._registry)
        self.rider, self.hear = self.queues.steps, environment.answer_woken
        replica.join(self, self)
        if not is_general_only:
            replica.usual_way = UsualEvaluator(
                range_id,
                replica.usual_parts,
                self.conservation,
                self.outboxes,
                self.inboxes,
                self.queues,
            )

    def _register(
        self,
        environment: QueueEnvironment,
        check_age: Callable[[View, int], None],
        bounds: Bounds,
        intents: IntentTable,
        protections: Protections,
    ) -> None:
        """Register the evaluators with the registry, which has the range's own already."""
        registry, outboxes, range_id = self._registry, self.outboxes, self._range_id
        delivery = Delivery(
            outboxes.deliverable, self.inboxes, self.dead_letters, intents, self._wake,
            self.queues.take_change,
        )  # fmt: skip
        execution = Execution(
            outboxes.executable, self.dead_letters, registry.writes, intents, self._wake
        )
        attempts = Attempts(
            self.inboxes, outboxes.deliverable, self.dead_letters, environment.chance,
            lambda: self.attempts.since, bounds,
        )  # fmt: skip
        staged, peeks = StagedRecords(range_id, bounds), Peeks(check_age)
        batches = StagedBatches(
            staged,
            self.dead_letters,
            registry.writes,
            self.queues.enqueue_staged,
            outboxes,
            intents,
        )
        loads = BulkLoads(range_id, bounds, intents)
        self._ingests = IngestHalves(batches, loads)
        registry.divisible.append(self._ingests)
        evaluators = (
            outboxes, self.inboxes, peeks, self.dead_letters,
            Schedule(range_id, outboxes, self._wake, self._let_go), attempts, self.attempts,
            self.conservation, self.queues,
            RecordScans(range_id, check_age, protections, peeks.peek_then),
            delivery, execution,
            HandedOver(range_id, bounds, outboxes, delivery, execution, self._wake),
            staged, batches, Sweeping(staged), loads,
            MessageHistory(range_id, outboxes, self.inboxes, bounds),
        )  # fmt: skip
        for each in evaluators:
            each.register(registry)
        registry.reads[CheckImage] = partial(check_image, bounds, environment.reader)
        registry.writes[CheckInbox] = partial(check_inbox, outboxes.deliverable)
        self.deliver_sent = delivery.deliver_sent
        self.execute_deferred = execution.execute_deferred

    # --- a companion

    @property
    def is_dividing(self) -> bool:
        """Return whether the queues are divided for a split."""
        return self._halves.queues.key is not None

    def sum_up(self, ctx: Evaluation) -> Iterator[None] | None:
        """Stage the counters, and wake the services if the proposal leaves entries for them.

        Return a generator if a turn has no room for what changes in divided queues.
        """
        if ctx.tally:
            self.conservation.finish(ctx)
        if ctx.notes:
            sum_up(ctx)
        deliverable, executable = self.outboxes.deliverable, self.outboxes.executable
        if deliverable.has_stored:
            deliverable.has_stored = False
            ctx.after.append(self._deliveries.set)
        if executable.has_stored:
            executable.has_stored = False
            ctx.after.append(self._executions.set)
        if deliverable.outgoing.has_stored or executable.outgoing.has_stored:
            deliverable.outgoing.has_stored = executable.outgoing.has_stored = False
            if self.departures is not None:
                ctx.after.append(self.departures.set)
        return self._halves.queues.follow(ctx) if self.is_dividing else None

    # --- a keeper

    def begin_lease(self, stored: Reader) -> None:
        """Begin afresh from what is stored, under a new lease."""
        if self.restoring is not None:
            self.restoring.restart(stored)  # first: it tells whether what is stored is whole
        self.conservation.restart(stored)
        self.outboxes.restart(stored)
        self.inboxes.forget()
        self.attempts.restart()
        self._halves.restart()
        self._ingests.prepared(None)
        self.queues.restart(stored, is_whole=self._registry.is_whole)

    def end_lease(self) -> None:
        """Forget all that is kept for clients."""
        self.inboxes.forget()
        self.attempts.end()
        self.queues.end()

    def release(self, transaction_id: bytes) -> list[object]:
        """Free what a transaction holds; return the tokens of what may be free."""
        self.attempts.released(transaction_id)
        tokens = self.inboxes.release(transaction_id)
        return tokens + self.queues.claiming.release(transaction_id)

    def vanished(self, transaction_id: bytes, why: str) -> None:
        """Note the attempts of a transaction that ended without a word."""
        self.attempts.vanished(transaction_id, why)
        self.queues.claiming.vanished(transaction_id, why)

    def client_gone(self, client: bytes) -> None:
        """Fail the attempts of a client that was not heard of for too long."""
        self.queues.claiming.client_gone(client)

    def holds_for(self, client: bytes) -> bool:
        """Return whether the consumers of a client hold any message."""
        return self.queues.claiming.holds_for(client)

    def clients_that_hold(self) -> Iterable[bytes]:
        """Return the clients whose consumers hold any message."""
        return self.queues.claiming.holders()

    def given_up(self, request: object) -> None:
        """Give back what is found for a request that is waited for no more."""
        self.attempts.given_up(request)
        self.queues.claiming.given_up(request)

    def _let_go(self, ctx: Evaluation, id_: bytes, message: Deliverable | None) -> None:
        """Let a message that leaves the outbox for good no longer hold up its inbox."""
        if message is None or message.trial is None or not self._bounds.contains(message.key):
            return
        self.inboxes.let_go(ctx, message.key, id_)

    def first_due(self, stored: Reader) -> int:
        """Return when the services have something to do, before they are started.

        Returns:
            The timestamp at which the first entry of an outbox is due, or something in a queue, by
            the stored state; 0: there is nothing.
        """
        self.conservation.restart(stored)
        now = self._reading()
        outboxes = (self.outboxes.deliverable, self.outboxes.executable)
        moments = [each.first_due(stored, now) for each in outboxes]
        return earliest(*moments, self.queues.first_due(stored))
