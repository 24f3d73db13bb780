"""Firing: ready messages are leased to waiting claims, in the proposal under evaluation.

::

    waiting claims (least busy first) ◀── ready (groups by turns, in order of rank) ── limits allow
                 │                          │ not in memory: read on
                 └── lease written, entry deleted, attempt counted ── applied ─▶ answered

Firing rides along with proposals, or comes with ``AdvanceQueues``. Each time it does a bounded
amount of work, and returns whether there is more.

A consumer that takes only some messages may find none of them in memory, although some are stored
behind thousands of others. The stored entries are searched for it once, a page at a time. The
position is remembered for all consumers with the same wish (:class:`.consumers.Wish`).
"""

from __future__ import annotations

import heapq
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS, from_seconds, seconds_until
from postroom.limits import LEASE_SECONDS_MAX, QUEUE_LEASED_MAX, READ_BYTES_MAX, UPKEEP_BYTES
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.queues import holdings
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.consumers import Placed as PlacedClaim
from postroom.messaging.queues.consumers import WaitingClaim
from postroom.messaging.queues.leases import attempt_of
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import Rewritten, leased_message
from postroom.messaging.queues.ready import Placed
from postroom.messaging.queues.records import (
    PAYLOAD_KEPT_BYTES,
    Entry,
    Holding,
    without_payload,
)
from postroom.messaging.queues.refilling import READ_AT_ONCE, Refilling
from postroom.messaging.queues.rotation import Queued
from postroom.ranges.checks import NO_HEADERS
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation

FIRED_AT_ONCE: Final = 2000
"""The number of messages of a queue that are fired in one proposal."""
RUN_MIN: Final = 2
"""The number of messages from which they are fired together."""


@dataclass(slots=True)
class _Hand:
    """The messages that one claim gets by one proposal.

    Attributes:
        until: the timestamp at which its leases end.
        lasts: the duration of the leases in milliseconds.
        deadline: when they end on the monotonic clock.
        bytes_max, messages_max: how much one answer may have.
        leased: the entries of the messages.
        again: how many of them had been fired before.
    """

    until: int
    lasts: int
    deadline: float
    bytes_max: int
    messages_max: int
    leased: list[Entry] = field(default_factory=list)
    again: int = 0


class Firing:
    """The messages of one queue that one proposal fires, up to a number and a size in bytes."""

    def __init__(
        self,
        manager: Manager,
        ctx: Evaluation,
        fired_max: int = FIRED_AT_ONCE,
        bytes_max: int = UPKEEP_BYTES,
    ) -> None:
        self._manager = manager
        self._ctx = ctx
        self._fired_max = fired_max
        self._bytes_max = bytes_max
        self._now = manager.host.monotonic()
        self._taken = manager.speculation.taken
        self._refilling = Refilling(manager, ctx)
        self._hands: dict[WaitingClaim, _Hand] = {}
        self._looked_through = 0
        self._looks_again = False
        settings = manager.definition.settings
        self._is_paced = settings.max_rate is not None or settings.group_max_rate is not None
        self._has_group_limits = (
            manager.ordered
            or settings.group_max_concurrency is not None
            or settings.group_max_rate is not None
        )

    def fire(self, *, is_behind: bool = False) -> bool:
        """Lease messages to waiting claims; return whether there may be more to do at once.

        Args:
            is_behind: more is due than is ready.
        """
        manager, ctx = self._manager, self._ctx
        manager.begin(ctx)
        definition = manager.definition
        more = False
        if not definition.paused and not definition.dropped:
            room = QUEUE_LEASED_MAX - len(manager.leases)
            allowed = min(manager.limits.allowance(self._ctx, self._now), room, self._fired_max)
            if allowed > 0:
                read_all = self._refilling.read_on()
                left = self._hand_out(allowed)
                is_full = allowed == self._fired_max or self._ctx.bytes >= self._bytes_max
                is_cut = self._looks_again or (left and is_full)
                more = is_behind or is_cut or not read_all or self._refilling.makes_room()
                if left and not more:
                    manager.limits.allowance(self._ctx, self._now)  # it says when to go on
        self._note()
        self._answer_later(more)
        manager.speculation.has_fired = True
        return more

    # --- leasing

    def _hand_out(self, allowed: int) -> bool:
        """Lease messages to claims; return whether there may be more for those that wait."""
        manager = self._manager
        ready = manager.ready
        line = manager.consumers.line(ready.additions, len(ready), is_complete=ready.is_complete)
        bytes_max = self._ctx.bytes + self._bytes_max
        if line and not (self._has_group_limits or self._is_paced):
            allowed -= self._lease_run(line, allowed)
        while line and allowed > 0 and self._ctx.bytes < bytes_max:
            waiter = line[0][2]
            placed = self._next_for(waiter)
            if placed is None:
                heapq.heappop(line)
                room = READ_AT_ONCE - self._looked_through
                before = len(manager.leases)
                self._looked_through += self._look_through(waiter, room)
                allowed -= len(manager.leases) - before
                self._looks_again |= self._looked_through >= READ_AT_ONCE
                continue
            fits = self._lease(waiter, *placed)
            allowed -= fits
            if not fits or self._is_full(waiter):
                heapq.heappop(line)
            else:
                heapq.heapreplace(line, (waiter.busy, waiter.served, waiter))
        return bool(line)

    def _next_for(self, waiter: WaitingClaim) -> Placed | None:
        ready = self._manager.ready
        placed = ready.take(waiter.wish, self._may if self._has_group_limits else None)
        if placed is None and ready.is_complete:
            self._manager.consumers.looked(waiter, ready.additions)
        return placed

    def _may(self, group: str, head: Entry) -> bool:
        """Return whether a group may fire now; if not, it is freed when it may."""
        if not group:  # entries without a group are in no order, and share no limit
            return True
        manager = self._manager
        settings = manager.definition.settings
        held = manager.leases.in_group(group)
        if manager.ordered:
            if held:
                return False
            now = self._ctx.timestamp
            may_at = times.look_at(head.not_before, now, manager.host.by_wall)
            if may_at > now:
                self._free_later(group, seconds_until(may_at, now))
                return False
        most = settings.group_max_concurrency
        if most is not None and held >= most:
            return False
        if settings.group_max_rate is not None:
            bucket = manager.group_buckets.of(group, settings.group_max_rate, self._now)
            if not bucket.available(self._now):
                self._free_later(group, bucket.next_at(self._now) - self._now)
                return False
        return True

    def _free_later(self, group: str, seconds: float) -> None:
        deadline = self._now + seconds
        self._manager.freed_at.set(group, deadline)
        self._manager.steps.wake_by(self._manager, deadline)

    def _lease(self, waiter: WaitingClaim, key: bytes, entry: Entry) -> bool:
        """Fire a message for a claim; return `False` if it is too large to join the others."""
        manager, ctx, now = self._manager, self._ctx, self._ctx.timestamp
        hand = self._hands.get(waiter) or self._fill_hand(waiter)
        message = leased_message(ctx, manager, entry, (hand.until, now, hand.lasts))
        size = waiter.size + len(message.payload)
        if waiter.messages and size > hand.bytes_max:
            manager.ready.offer(key, entry)
            return False
        if key in ctx.staged and key not in ctx.scratch.get(Rewritten, ()):
            ctx.erase(key)
        else:
            ctx.writes[key] = None
        self._taken.add(key)
        waiter.messages.append(message)
        waiter.size = size
        hand.leased.append(without_payload(entry))
        hand.again += entry.epoch > 0
        manager.leases.promise(entry.group)
        manager.consumers.served(waiter)
        if self._is_paced:
            self._pace(entry.group)
        due = times.passed(entry.due, now, manager.host.by_wall)
        late = now - due >> LOGICAL_BITS
        manager.lateness.append(late)
        manager.figures.lateness.count(late)
        ctx.steps += 2
        ctx.bytes += 2 * len(key) + len(entry.key) + len(entry.id) + 2 * WRITE_BYTES
        return True

    def _lease_run(self, line: list[PlacedClaim], allowed: int) -> int:
        """Fire a run of small messages for the claims in line, as one by one.

        Return how many; the rest is fired one by one. The line is changed accordingly.
        """
        manager, ready = self._manager, self._manager.ready
        line.sort()  # a sorted list is a heap
        hands = [self._hands.get(each) or self._fill_hand(each) for _, _, each in line]
        most = hands[0].messages_max
        for (busy, _, waiter), hand in zip(line, hands, strict=True):
            if waiter.wish is not None or busy != line[0][0] or hand.messages_max != most:
                return 0
            if hand.bytes_max < most * PAYLOAD_KEPT_BYTES:
                return 0
        run = ready.run(min(allowed, most * len(line)))
        if len(run) < RUN_MIN:
            return 0
        run = run[: self._fire_small(run, [each for _, _, each in line], hands)]
        if not run:
            return 0
        ready.take_run(run)
        manager.leases.promise(run[0][2].group, len(run))
        manager.consumers.served_all(line, len(run))
        line[:] = [
            (waiter.busy, waiter.served, waiter)
            for _, _, waiter in line
            if len(waiter.messages) < most
        ]
        heapq.heapify(line)
        return len(run)

    def _fire_small(
        self, run: list[Queued], waiters: list[WaitingClaim], hands: list[_Hand]
    ) -> int:
        """Give messages of a run to claims, as long as the entry says all that they hear.

        Return how many.
        """
        ctx, now, lateness = self._ctx, self._ctx.timestamp, self._manager.lateness
        late_by_digits, late_in_all = self._manager.figures.lateness.counts, 0
        staged, writes, room = ctx.staged, ctx.writes, self._bytes_max
        again: Container[bytes] = ctx.scratch.get(Rewritten, ())
        receivers = cycle(
            [(hand, each.messages) for hand, each in zip(hands, waiters, strict=True)]
        )
        fired = size = 0
        for (key, _, entry), (hand, messages) in zip(run, receivers, strict=False):
            payload, first, due, epoch = entry.payload, entry.first, entry.due, entry.epoch
            if payload is None or entry.has_failed or size >= room or (first | due) & times.MOMENT:
                break
            messages.append(StoredQueueMessage(
                entry.key, entry.kind, entry.id, payload, NO_HEADERS, entry.priority, entry.group,
                int.from_bytes(entry.seq[:8], "big"), first, due, epoch, hand.until, "", "leased",
                0, now, hand.lasts,
            ))  # fmt: skip
            hand.leased.append(without_payload(entry))
            hand.again += epoch > 0
            if key in staged and key not in again:
                ctx.erase(key)
            else:
                writes[key] = None
            late = now - due >> LOGICAL_BITS
            lateness.append(late)
            late_by_digits[late.bit_length()] += 1
            late_in_all += late
            size += 2 * len(key) + len(entry.key) + len(entry.id) + 2 * WRITE_BYTES
            fired += 1
        self._manager.figures.lateness.total += late_in_all
        self._taken.update([key for key, _, _ in run[:fired]])
        for waiter in waiters:
            waiter.size = sum([len(each.payload) for each in waiter.messages])
        ctx.steps += 2 * fired
        ctx.bytes += size
        return fired

    def _fill_hand(self, waiter: WaitingClaim) -> _Hand:
        manager, request = self._manager, waiter.request
        settings = manager.definition.settings
        seconds = min(request.seconds or settings.ack_wait, LEASE_SECONDS_MAX)
        until = self._ctx.timestamp + from_seconds(seconds)
        self._hands[waiter] = hand = _Hand(
            until,
            int(seconds * 1000),
            self._now + seconds,
            min(request.bytes_max, READ_BYTES_MAX),
            min(request.messages_max, settings.batch_size),
        )
        return hand

    def _pace(self, group: str) -> None:
        manager = self._manager
        limits = manager.limits
        if limits.bucket is not None:
            limits.bucket.take()
            limits.uses["rate"].note(limits.slots["rate"].usable)
        manager.group_buckets.take(group)

    def _is_full(self, waiter: WaitingClaim) -> bool:
        hand = self._hands.get(waiter)
        return hand is not None and len(waiter.messages) >= hand.messages_max

    def _note(self) -> None:
        """Write a holding and a note for each claim that got messages."""
        manager, ctx = self._manager, self._ctx
        for waiter, hand in self._hands.items():
            if hand.leased:
                manager.consumers.take(waiter)
                request, now = waiter.request, ctx.timestamp
                transaction = request.transaction_id or b""
                held = Holding(
                    request.consumer, now, hand.until, transaction, request.number, hand.leased
                )
                leased = holdings.give(ctx, manager, held, hand.deadline)
                change = counters.fired(len(hand.leased), hand.again)
                ctx.notes.append((manager, change, Manager.leases_added, leased, None))

    # --- searching the store

    def _look_through(self, waiter: WaitingClaim, entries_max: int) -> int:
        """Search stored messages that are not in memory for a claim.

        Return how many were visited.
        """
        manager, wish = self._manager, waiter.wish
        if wish is None or manager.ready.is_complete or entries_max <= 0:
            return 0
        wish.look_again(manager.ready.additions)
        if wish.cursor is None:
            return 0
        visited = 0
        stored = self._refilling.entries(
            wish.cursor or manager.layout.ready, keys.after_prefix(manager.layout.ready)
        )
        for key, entry in stored:
            if visited >= entries_max or manager.limits.allowance(self._ctx, self._now) <= 0:
                wish.cursor = key
                return visited
            visited += 1
            self._ctx.steps += 1
            if not wish.takes(entry):
                continue
            if not self._may_be_next(key, entry):
                wish.misses(key, manager.ready.additions)
                continue
            manager.ready.discard(key)
            if not self._lease(waiter, key, entry) or self._is_full(waiter):
                wish.cursor = key
                return visited
        wish.cursor = None
        if wish.look_again(manager.ready.additions):
            self._looks_again = True
        else:
            manager.consumers.looked(waiter, manager.ready.additions)
        return visited

    def _may_be_next(self, key: bytes, entry: Entry) -> bool:
        """Return whether a message may be fired now: its group may fire, and order allows it.

        If not, it is looked at again after the group was freed.
        """
        manager = self._manager
        if manager.keeps_order_in(entry.group) and not self._is_first(key, entry):
            manager.ready.watch(entry.group)
            return False
        if self._may(entry.group, entry):
            return True
        manager.ready.hold_up(entry.group)
        return False

    def _is_first(self, key: bytes, entry: Entry) -> bool:
        """Return whether an entry is the head of its ordered group."""
        prefix = self._manager.layout.group_prefix(entry.group)
        first = next(self._refilling.entries(prefix, keys.after_prefix(prefix)), None)
        return first is not None and first[0] == key

    # --- answering

    def _answer_later(self, more: bool) -> None:
        """Answer claims once the proposal is applied: those served, and those that do not wait."""
        manager = self._manager
        answered = [waiter for waiter, hand in self._hands.items() if hand.leased]
        if not (more or manager.host.slots.is_awaited(manager)):
            answered += [
                waiter
                for waiter in manager.consumers
                if not (waiter.request.wait or waiter.granted or waiter.messages)
            ]
        if answered:
            self._ctx.after.append(lambda: _grant(manager, answered))


def _grant(manager: Manager, waiters: list[WaitingClaim]) -> None:
    for waiter in waiters:
        if manager.consumers.of(waiter.request) is waiter:
            waiter.granted = True
            manager.host.answer(waiter)
        else:  # it was given up while the proposal was under way, or memory has begun anew
            now = manager.host.current(manager)
            now.give_back_later(map(attempt_of, waiter.messages), None)
