"""Puts the messaging of one range together, and registers it with the range.

A range does not know messaging: it gets evaluators and finishers, and three services run beside it
on its leaseholder.

What a proposal sends within its own range is delivered and executed in the same proposal, after the
requests: it costs no write of its own and is there at once. The services see to the rest: what is
scheduled for later, what was too much for one proposal, what a crash has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.attempt_notes import AttemptNotes
from postroom.messaging.attempts import Attempts
from postroom.messaging.bulk import BulkMessages
from postroom.messaging.bulk_loads import BulkLoads
from postroom.messaging.checks import InboxChecks
from postroom.messaging.counters import Conservation
from postroom.messaging.dead_letters import DeadLetters
from postroom.messaging.delivery import Delivery
from postroom.messaging.execution import Execution
from postroom.messaging.inbox import Inboxes
from postroom.messaging.outbox import Outboxes
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.messaging.queues.surroundings import Surroundings
from postroom.messaging.recount import Recount
from postroom.messaging.requests import Deliverable
from postroom.messaging.schedule import Schedule
from postroom.messaging.services import Signal
from postroom.messaging.staging import StagedBatches
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.holders import Holders
from postroom.ranges.registry import Registry


class Messaging:
    """Outboxes, inboxes, dead letters, counters and queues of one range.

    Args:
        range_id: whose.
        check_age: refuses timestamps that cannot be read at.
        wake: answers requests that wait for tokens.
        holders: told which transactions hold messages.
        deliveries, executions: set when a commit has added to the outbox.
        notes: set when there is something to write down about attempts.
        around: what queues are given.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a range has, and who is woken
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
        self.outboxes = Outboxes(range_id, self.conservation)
        self.inboxes = Inboxes(check_age, wake, holders)
        self.dead_letters = DeadLetters(range_id, self.outboxes, self._let_go)
        self.attempts = AttemptNotes(
            self.inboxes.claims, reading=around.reading, signal=notes, rouse=around.rouse,
            wake=wake, is_embedded=around.forgets_strangers,
        )  # fmt: skip
        self.inboxes.beginnings = self.attempts
        self._chance = around.chance
        self.queues = RangeQueues(range_id, around)
        self._bulk = BulkMessages(range_id, self.inboxes, check_age, around.reader)
        self._recount = Recount(range_id, around.reader)
        self._range_id = range_id
        self._wake = wake

    def register(self, registry: Registry) -> None:
        """Adds all of it to ``registry``, which holds the range's own evaluators already."""
        outboxes, conservation = self.outboxes, self.conservation
        schedule = Schedule(outboxes, self._wake, self._let_go)
        attempts = Attempts(
            self.inboxes, outboxes.deliverable, self.dead_letters, self._chance,
            lambda: self.attempts.since,
        )  # fmt: skip
        parts = (
            outboxes, self.inboxes, self.dead_letters, schedule, attempts, self.attempts,
            conservation, self.queues, self._bulk, self._recount,
        )  # fmt: skip
        for part in parts:
            part.register(registry)
        InboxChecks(outboxes.deliverable).register(registry)
        Delivery(self._range_id, outboxes.deliverable, self.inboxes, self._wake).register(registry)
        Execution(outboxes.executable, self.dead_letters, registry.writes, self._wake).register(
            registry
        )
        StagedBatches(self._range_id, self.dead_letters, registry.writes).register(registry)
        BulkLoads(self._range_id).register(registry)
        registry.finishers.append(self._signal)

    def _let_go(self, ctx: Evaluation, id_: bytes, message: Deliverable | None) -> None:
        """A message will not come out of the outbox: if it was postponed, nothing is held up."""
        if message is not None and message.trial is not None:
            self.inboxes.let_go(ctx, message.key, id_[:8] + keys.u64(self._range_id) + id_[8:])

    def first_due(self, stored: Reader) -> int:
        """When the services have something to do, by what is stored, before they are started.

        Returns:
            The timestamp at which the first entry of an outbox is due, or something in a queue;
            0: there is nothing.
        """
        self.conservation.restart(stored)
        parts = (self.outboxes.deliverable, self.outboxes.executable, self.queues)
        return min(filter(None, (each.first_due(stored) for each in parts)), default=0)

    def _signal(self, ctx: Evaluation) -> None:
        """Of what the proposal leaves pending, the services hear once it is applied."""
        deliverable, executable = self.outboxes.deliverable, self.outboxes.executable
        if deliverable.has_stored:
            deliverable.has_stored = False
            ctx.after.append(self._deliveries.set)
        if executable.has_stored:
            executable.has_stored = False
            ctx.after.append(self._executions.set)
