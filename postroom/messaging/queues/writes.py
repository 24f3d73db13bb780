"""The writes of transactions to the queues of a range, and their evaluators.

Enqueuing may be more than one message: the followers of a group go along, and a dead message may
join another queue. Settling, schedules and dead letters therefore enqueue here as transactions do.

Archived messages are deleted a step at a time (``TrimArchive``).

Archived messages are never purged: a client has to say that they are safe elsewhere. The messages
that one proposal has archived are in lists under its timestamp, and nothing is ever added to a
list. Thus the lists up to a timestamp name all messages archived up to it, whatever comes later.

A step deletes whole lists, oldest first. If a list is too large for it, it deletes the last
messages, so that those who read it page by page find the first ones where they were. Messages
remain that are read at a protected timestamp, or can be read without one (``gc_ttl``).

``Reschedule`` brings messages forward in bulk, or puts them off; it may set their epoch too. Leased
messages are left alone: their consumers decide. In an ordered group the place of a message does not
change, only the time before which its group waits for it. A message that is brought forward does
not wait for those before it that are not due yet.

``ReplayMessages`` makes dead messages ready again, as if they had never been fired.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import msgspec

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.limits import QUEUE_EPOCH_MAX
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.queues import groups, periodic, records
from postroom.messaging.queues.directory import Directory
from postroom.messaging.queues.enqueueing import enqueue, move, put, remove, rewritten
from postroom.messaging.queues.environment import QueueEnvironment
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import Place, find, named, read_state
from postroom.messaging.queues.records import Ended, MessageState, damaged, decoded, encode
from postroom.messaging.queues.requests import (
    Acknowledge,
    CancelMessages,
    EnqueueInQueue,
    Extend,
    QueueSettings,
    RejectMessages,
    ReplayMessages,
    Reschedule,
    SetSchedule,
    TrimArchive,
    WhenDone,
)
from postroom.messaging.queues.settling import SettledQueues, Settling
from postroom.ranges.evaluation import Evaluation, check_size
from postroom.ranges.registry import Registry

TRIMMED_AT_ONCE: Final = 1000
"""The number of messages that are deleted in one step."""
TRIMMED_BYTES_AT_ONCE: Final = 1024 * 1024
"""The size in bytes of a step at which it deletes no more."""


class Trimming:
    """The evaluator of ``TrimArchive``.

    Args:
        queues: the queues of the range.
    """

    def __init__(self, queues: SettledQueues) -> None:
        self._queues = queues

    def trim(self, ctx: Evaluation, request: TrimArchive) -> list[int]:
        """Evaluate ``TrimArchive``; return the number of deleted messages, and 1 if there are more.

        Raises:
            Invalid: there is no such queue, or another one of this name.
            QueueDamaged: a list of archived messages cannot be read.
        """
        manager, _ = self._queues.find(ctx, request.queue)
        if manager.definition.created_at != request.created_at:
            raise Invalid(
                f"the queue {request.queue!r} was dropped, and made anew; nothing was deleted: "
                "what was read of the one before is gone by itself"
            )
        layout = manager.layout
        kept_from = self._queues.may_purge(ctx, ctx.timestamp - self._queues.kept)
        upper = layout.archived + keys.u64(min(request.until + 1, kept_from))
        trimmed, size_before = 0, ctx.bytes
        for key, packed in ctx.iterate(layout.archived, upper):
            ended = decoded(records.ended_lists, packed, manager.name)
            while ended:
                if trimmed >= TRIMMED_AT_ONCE or ctx.bytes - size_before > TRIMMED_BYTES_AT_ONCE:
                    ctx.writes[key] = left = records.encode(ended)
                    ctx.grow(len(left))
                    return [trimmed, 1]
                self._trim_one(ctx, manager, ended.pop())
                trimmed += 1
            ctx.writes[key] = None
            ctx.grow(len(key))
        return [trimmed, 0]

    def _trim_one(self, ctx: Evaluation, manager: Manager, ended: Ended) -> None:
        if ended.status != records.ARCHIVED:
            raise damaged(manager.name, "a stored list", f"it lists the status {ended.status}")
        locator = (ended.key, ended.kind, ended.id)
        state = read_state(ctx, manager, locator)
        ctx.steps += 3
        if state is not None and state.seq == ended.seq:
            remove(ctx, manager, locator)
        ctx.notes.append((manager, counters.TRIMMED, Manager.nothing, None, None))


__all__ = ["TRIMMED_AT_ONCE", "TRIMMED_BYTES_AT_ONCE", "Trimming"]


class Rescheduling:
    """The evaluator of both requests, in all queues of a range."""

    def __init__(self, queues: SettledQueues) -> None:
        self._queues = queues

    def reschedule(self, ctx: Evaluation, request: Reschedule) -> Generator[None, None, int]:
        """Evaluate ``Reschedule`` and return how many messages were found."""
        manager, _ = self._queues.find(ctx, request.queue)
        found, size_before = 0, ctx.bytes
        for attempt in request.attempts:
            for locator in named(ctx, manager, attempt):
                place = find(ctx, manager, locator)
                if place is not None and place.where in {counters.READY, counters.SCHEDULED}:
                    self._put(ctx, manager, place, request)
                    found += 1
            check_size(ctx.bytes - size_before, "reschedule fewer messages in a transaction")
            if ctx.is_used_up():
                yield
        return found

    def _put(self, ctx: Evaluation, manager: Manager, place: Place, request: Reschedule) -> None:
        now, old = ctx.timestamp, place.entry
        due = manager.due(request.due, now)
        epoch = old.epoch if request.epoch is None else min(request.epoch, QUEUE_EPOCH_MAX)
        error = "" if place.state is None else place.state.error
        entry = records.with_schedule(old, due, now, ordered=manager.ordered, epoch=epoch)
        state = MessageState(old.seq, records.LIVE, epoch, due, 0, error)
        ctx.writes[manager.layout.state_key(*old.locator)] = encode(state)
        ctx.grow(len(place.key) * 2 + 256)
        if manager.keeps_order_in(entry.group) and place.where == counters.READY:
            ctx.writes[place.key] = encode(entry)
            rewritten(ctx, place.key)
            placed = (place.key, entry)
            ctx.notes.append((manager, (), Manager.ready_replaced, place.key, placed))
            ctx.notes.append((manager, (), Manager.group_freed, entry.group, None))
        else:
            move(ctx, manager, place, entry, now)

    def replay(self, ctx: Evaluation, request: ReplayMessages) -> Generator[None, None, int]:
        """Evaluate ``ReplayMessages`` and return how many messages were found."""
        manager, _ = self._queues.find(ctx, request.queue)
        found, size_before = 0, ctx.bytes
        for attempt in request.attempts:
            for locator in named(ctx, manager, attempt):
                place = find(ctx, manager, locator)
                if place is not None and place.where == counters.DEAD:
                    self._revive(ctx, manager, place)
                    found += 1
            check_size(ctx.bytes - size_before, "replay fewer messages in a transaction")
            if ctx.is_used_up():
                yield
        return found

    def _revive(self, ctx: Evaluation, manager: Manager, place: Place) -> None:
        now, layout = ctx.timestamp, manager.layout
        entry = records.with_schedule(
            place.entry, now, now, ordered=manager.ordered, epoch=0, has_failed=False
        )
        ctx.writes[place.key] = None
        state = MessageState(entry.seq, records.LIVE, 0, now)
        ctx.writes[layout.state_key(*entry.locator)] = encode(state)
        key = layout.ready_key(entry, ordered=manager.ordered)
        ctx.writes[key] = stored = encode(entry)
        ctx.grow(len(key) + 2 * len(stored) + len(place.key))
        ctx.notes.append((manager, counters.REPLAYED, Manager.ready_added, key, entry))


class QueueWriteEvaluators:
    """The evaluators of the writes to the queues of a range.

    Args:
        directory: the directory of the queues.
        environment: the clocks and chance.

    Attributes:
        settling: the evaluator of all that ends attempts.
    """

    def __init__(self, directory: Directory, environment: QueueEnvironment) -> None:
        self.find, self.find_if_there = directory.find, directory.find_if_there
        self.kept, self._by_wall = environment.kept, environment.by_wall
        self.chance, self.may_purge = environment.chance, environment.may_purge
        self.settling = Settling(self)
        self._rescheduling = Rescheduling(self)

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.writes |= {
            EnqueueInQueue: self.enqueue,
            Acknowledge: self.settling.acknowledge,
            RejectMessages: self.settling.reject,
            Extend: self.settling.extend,
            CancelMessages: self.settling.cancel,
            Reschedule: self._rescheduling.reschedule,
            ReplayMessages: self._rescheduling.replay,
            TrimArchive: Trimming(self).trim,
            WhenDone: self._when_done,
            SetSchedule: self._set_schedule,
        }

    def enqueue(self, ctx: Evaluation, request: EnqueueInQueue) -> str | None:
        """Evaluate ``EnqueueInQueue``."""
        manager, settings = self.find(ctx, request.queue)
        return self._enqueue(ctx, manager, settings, request)

    def _enqueue(
        self, ctx: Evaluation, manager: Manager, settings: QueueSettings, request: EnqueueInQueue
    ) -> str | None:
        followers: list[EnqueueInQueue] = []
        outcome = enqueue(ctx, manager, settings, request, followers)
        for follower in followers:  # one that replaces another message may add followers
            found = self.find_if_there(ctx, follower.queue)
            if found is not None:
                manager, settings = found[0], _follower_settings(found[1])
                enqueue(ctx, manager, settings, _as_follower(follower), followers)
        return outcome

    def enqueue_once(self, ctx: Evaluation, request: EnqueueInQueue) -> str | None:
        """Enqueue a message; ignore a duplicate whatever the settings of the queue say."""
        manager, _ = self.find(ctx, request.queue)
        return self._enqueue(ctx, manager, QueueSettings(), request)

    def follow(self, ctx: Evaluation, request: EnqueueInQueue) -> str | None:
        """Enqueue a follower that was checked before.

        The end of a group's last message must not fail because of what follows.
        """
        manager, settings = self.find(ctx, request.queue)
        return self._enqueue(ctx, manager, _follower_settings(settings), _as_follower(request))

    def enqueue_moved(self, ctx: Evaluation, request: EnqueueInQueue) -> None:
        """Enqueue a message that died in another queue, with whatever headers.

        Its headers say also why it died.
        """
        manager, _ = self.find(ctx, request.queue)
        put(ctx, manager, request, manager.layout.body_key(request.key, request.kind, request.id))

    def _when_done(self, ctx: Evaluation, request: WhenDone) -> None:
        manager, _ = self.find(ctx, request.queue)
        self.find(ctx, request.enqueue.queue)
        due = times.resolved(request.enqueue.due, ctx.timestamp, self._by_wall)
        follower = msgspec.structs.replace(request.enqueue, due=due)
        groups.when_done(ctx, manager, request.group, follower, self.enqueue)

    def _set_schedule(self, ctx: Evaluation, request: SetSchedule) -> None:
        manager, _ = self.find(ctx, request.queue)
        periodic.set_schedule(ctx, manager, request)


def _follower_settings(settings: QueueSettings) -> QueueSettings:
    is_error = settings.on_duplicate == "error"
    return msgspec.structs.replace(settings, on_duplicate="ignore") if is_error else settings


def _as_follower(request: EnqueueInQueue) -> EnqueueInQueue:
    """Return the follower as one whose id may exist by now, since it was made up earlier."""
    return msgspec.structs.replace(request, is_unique=False)
