"""The assembly of the messaging of one range, and its registration with the range.

A range does not know messaging: it gets evaluators and finishers, and three services run beside it
on its leaseholder.

The messages that a proposal sends within its own range are delivered and executed in the same
proposal, after the requests. This costs no write of its own. The services do the rest: entries that
are scheduled for later, too many for one proposal, or left by a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.attempt_notes import AttemptNotes
from postroom.messaging.attempts import Attempts
from postroom.messaging.checks import InboxChecks
from postroom.messaging.counters import Conservation
from postroom.messaging.dead_letters import DeadLetters
from postroom.messaging.delivery import Delivery
from postroom.messaging.execution import Execution
from postroom.messaging.inbox import Inboxes
from postroom.messaging.ingest.batches import StagedBatches
from postroom.messaging.ingest.loads import BulkLoads
from postroom.messaging.ingest.reading import read_staging
from postroom.messaging.ingest.records import StagedRecords
from postroom.messaging.ingest.sweeping import Sweeping
from postroom.messaging.outbox import Outboxes
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.messaging.queues.surroundings import Surroundings
from postroom.messaging.requests import Deliverable
from postroom.messaging.scanning import RecordScans
from postroom.messaging.schedule import Schedule
from postroom.messaging.services import Signal
from postroom.messaging.staging_requests import ReadStaging
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.holders import Holders
from postroom.ranges.registry import Registry


class Messaging:
    """The outboxes, inboxes, dead letters, counters and queues of one range.

    Args:
        range_id: the id of the range.
        check_age: a function that refuses timestamps that cannot be read at.
        wake: a function that answers requests that wait for tokens.
        holders: the transactions that hold messages.
        deliveries, executions: the signals that a commit has added to an outbox.
        notes: the signal that attempts have to be written down.
        around: the environment of the queues.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a range
        self,
        range_id: int,
        check_age: Callable[[View, int], None],
        wake: Callable[[Iterable[object]], None],
        holders: Holders,
        deliveries: Signal,
        executions: Signal,
        notes: Signal,
        around: Surroundings,
    ) -> None:
        self._deliveries = deliveries
        self._executions = executions
        self.conservation = Conservation(range_id)
        self.outboxes = Outboxes(range_id, self.conservation, around.by_wall)
        self.inboxes = Inboxes(check_age, wake, holders)
        self.dead_letters = DeadLetters(range_id, self.outboxes, self._let_go)
        self.attempts = AttemptNotes(
            self.inboxes.claims, reading=around.reading, signal=notes, rouse=around.rouse,
            wake=wake, is_embedded=around.forgets_strangers,
        )  # fmt: skip
        self.inboxes.beginnings = self.attempts
        self._chance = around.chance
        self._reading = around.reading
        self.queues = RangeQueues(range_id, around)
        self._scans = RecordScans(range_id, check_age, around.reader, self.inboxes.peek_then)
        self._range_id = range_id
        self._wake = wake

    def register(self, registry: Registry) -> None:
        """Register all of it with a registry that has the range's own evaluators already."""
        outboxes, conservation = self.outboxes, self.conservation
        schedule = Schedule(outboxes, self._wake, self._let_go)
        attempts = Attempts(
            self.inboxes, outboxes.deliverable, self.dead_letters, self._chance,
            lambda: self.attempts.since,
        )  # fmt: skip
        parts = (
            outboxes, self.inboxes, self.dead_letters, schedule, attempts, self.attempts,
            conservation, self.queues, self._scans,
        )  # fmt: skip
        for part in parts:
            part.register(registry)
        InboxChecks(outboxes.deliverable).register(registry)
        Delivery(self._range_id, outboxes.deliverable, self.inboxes, self._wake).register(registry)
        Execution(outboxes.executable, self.dead_letters, registry.writes, self._wake).register(
            registry
        )
        staged = StagedRecords(self._range_id)
        StagedBatches(staged, self.dead_letters, registry.writes).register(registry)
        Sweeping(staged).register(registry)
        registry.reads[ReadStaging] = partial(read_staging, staged)
        BulkLoads(self._range_id).register(registry)
        registry.finishers.append(self._signal)

    def _let_go(self, ctx: Evaluation, id_: bytes, message: Deliverable | None) -> None:
        """Let a message that leaves the outbox for good no longer hold up its inbox."""
        if message is not None and message.trial is not None:
            self.inboxes.let_go(ctx, message.key, id_[:8] + keys.u64(self._range_id) + id_[8:])

    def first_due(self, stored: Reader) -> int:
        """Return when the services have something to do, before they are started.

        Returns:
            The timestamp at which the first entry of an outbox is due, or something in a queue, by
            the
            stored state; 0: there is nothing.
        """
        self.conservation.restart(stored)
        now = self._reading()
        outboxes = (self.outboxes.deliverable, self.outboxes.executable)
        moments = [each.first_due(stored, now) for each in outboxes]
        return min(filter(None, (*moments, self.queues.first_due(stored))), default=0)

    def _signal(self, ctx: Evaluation) -> None:
        """Wake the services once the proposal is applied, if it leaves entries for them."""
        deliverable, executable = self.outboxes.deliverable, self.outboxes.executable
        if deliverable.has_stored:
            deliverable.has_stored = False
            ctx.after.append(self._deliveries.set)
        if executable.has_stored:
            executable.has_stored = False
            ctx.after.append(self._executions.set)
