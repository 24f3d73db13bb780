"""Mutations of queues."""

from __future__ import annotations

from typing import Any

from postroom.errors import LeaseLost
from postroom.messaging.queues import enqueueing, firing, places, slots
from postroom.messaging.queues.advance import Advance
from postroom.messaging.queues.claim_requests import Claimed
from postroom.messaging.queues.claiming import QueueEnvironment
from postroom.messaging.queues.consumers import Consumers, WaitingClaim, Wish
from postroom.messaging.queues.departing import Departures
from postroom.messaging.queues.directory import Directory
from postroom.messaging.queues.dividing import _Copies
from postroom.messaging.queues.enqueueing import Enqueueing
from postroom.messaging.queues.firing import Firing
from postroom.messaging.queues.leases import Lease, LeaseTable
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.node_claims import NodeClaim, NodeClaims, ServingRange
from postroom.messaging.queues.places import lease_of
from postroom.messaging.queues.queue_limits import QueueLimits
from postroom.messaging.queues.records import Entry, Locator
from postroom.messaging.queues.requests import Attempt, EnqueueInQueue
from postroom.messaging.queues.settling import REJECTED, Settling
from postroom.messaging.queues.slot_pool import SlotPools
from postroom.messaging.queues.slots import Limit, Pool, Slots, read_pool
from postroom.ranges.evaluation import Evaluation
from tests.sim.cluster.broken import Patch


def acknowledges_whoever_asks() -> Patch:
    """Let an attempt that was overtaken by another one end the message too."""

    def held(ctx: Evaluation, manager: Manager, attempt: Attempt) -> Lease:
        lease = lease_of(ctx, manager, (attempt.home, attempt.kind, attempt.id))
        if lease is None:
            raise LeaseLost("nobody holds it")
        return lease

    return places, "held", held


def leases_run_out_early() -> Patch:
    """Fire a message again while its consumer may still hold it."""
    take_expired = LeaseTable.take_expired

    def early(self: LeaseTable, now: float, leases_max: int) -> Any:
        return take_expired(self, now + 0.3, leases_max)

    return LeaseTable, "take_expired", early


def fires_before_its_time() -> Patch:
    """Make scheduled messages ready a little early."""
    become_due = Advance.become_due

    def early(self: Advance, messages_max: int) -> bool:
        timestamp, stamp = self._ctx.timestamp, self._ctx.stamp
        self._ctx.timestamp += 100 << 16
        try:
            return become_due(self, messages_max)
        finally:
            self._ctx.timestamp, self._ctx.stamp = timestamp, stamp

    return Advance, "become_due", early


def concurrency_is_not_kept() -> Patch:
    """Hold nobody up for ``max_concurrency``."""

    def allowance(self: QueueLimits, ctx: Evaluation, now: float) -> int:
        return 1 << 30

    return QueueLimits, "allowance", allowance


def groups_are_not_ordered() -> Patch:
    """Let a group fire on while one of its messages is held."""

    def may(self: Firing, group: str, head: Entry) -> bool:
        return True

    return Firing, "_may", may


def kinds_are_ignored() -> Patch:
    """Give a consumer what it has not asked for."""

    def takes(self: Wish, entry: Entry) -> bool:
        return True

    return Wish, "takes", takes


def expiry_leaves_the_lease() -> Patch:
    """Fire an expired message again while its former consumer still holds it."""

    def removed(self: Manager, locator: Any, _: object) -> None:
        return None

    return Manager, "lease_removed", removed


def copies_are_not_kept_up() -> Patch:
    """Leave the copies of a division as they were made."""

    def keep_up(self: _Copies, unit: bytes) -> None:
        return None

    return _Copies, "_keep_up", keep_up


def ids_are_unique_in_a_range_alone() -> Patch:
    """Enqueue a message though there is one of its kind and id whose home is in another range."""

    def nothing(ctx: Evaluation, manager: Manager, request: EnqueueInQueue) -> None:
        return None

    return enqueueing, "_home_elsewhere", nothing


def services_take_what_is_prepared() -> Patch:
    """Fire a message again while a transaction over several ranges is about to end it."""
    begin = Enqueueing.__init__

    def forgetful(self: Enqueueing, directory: Directory, environment: QueueEnvironment) -> None:
        begin(self, directory, environment)
        self.is_prepared = lambda key: False

    return Enqueueing, "__init__", forgetful


def what_is_given_back_counts() -> Patch:
    """Count an attempt that nobody began, or that was given back uncounted, as a failure."""

    def counted(self: Settling, lease: Lease) -> None:
        self.fail(lease, REJECTED, "given back", 0.0)

    return Settling, "give_back", counted


def pointers_outlive_their_messages() -> Patch:
    """Leave the pointer to a message that is gone, if it lies in another range."""

    def stay(self: Departures, ctx: Evaluation, queue: str, number: int, locator: Locator) -> None:
        return None

    return Departures, "end_pointer", stay


def both_halves_keep_all_slots() -> Patch:
    """Give each half of a range that splits all of its slots."""

    def halves(owned: Slots, holds_left: int, holds_right: int) -> tuple[Slots, Slots]:
        return owned, owned

    return slots, "halves", halves


def slots_that_go_back_stay() -> Patch:
    """Keep the slots that are sent back to the pool."""
    returned = slots.returned

    def kept(owned: Slots, holds: int) -> tuple[Slots, int]:
        return owned, returned(owned, holds)[1]

    return slots, "returned", kept


def grants_leave_the_pool_full() -> Patch:
    """Grant what is in a pool, and leave it there."""
    put = SlotPools._put

    def full(self: SlotPools, ctx: Evaluation, number: int, limit: Limit, pool: Pool) -> None:
        before = read_pool(ctx, number, limit)
        if (before.limit, before.free > pool.free) != (pool.limit, True):
            put(self, ctx, number, limit, pool)

    return SlotPools, "_put", full


def answered_claims_wait_on() -> Patch:
    """Have a claim for all ranges of a node wait again after its answer."""

    def answer(self: NodeClaims, claim: NodeClaim, answer: Claimed) -> None:
        if claim.taken is not None:
            consumers, waiter = claim.taken
            consumers.remove(waiter)
            claim.call.complete(answer, None)
            self.put_back(claim)

    return NodeClaims, "answer", answer


def cancelled_claims_keep_their_messages() -> Patch:
    """Give nothing back that was on its way to a claim which is given up."""

    def grant(manager: Manager, waiters: list[WaitingClaim]) -> None:
        for waiter in waiters:
            if manager.consumers.of(waiter.request) is waiter:
                waiter.granted = True
                manager.host.answer(waiter)

    return firing, "_grant", grant


def claims_wait_for_the_ranges_of_their_beginning() -> Patch:
    """Look for no messages of a range that comes to a node after the claims there."""

    def serve(self: NodeClaims, range_id: int, queues: ServingRange) -> None:
        self._ranges[range_id] = queues

    return NodeClaims, "serve", serve


def claims_of_lost_leases_wait_on() -> Patch:
    """Have a claim wait on though a range that was lost may have leased something to it."""

    def lose(self: Consumers, error: Exception) -> None:
        return None

    return Consumers, "lose", lose
