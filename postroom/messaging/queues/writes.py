"""The writes of transactions to the queues of a range, and their evaluators.

Enqueuing may be more than one message: the followers of a group go along, and a dead message may
join another queue. Settling, schedules and dead letters therefore enqueue here as transactions do.
"""

from __future__ import annotations

import msgspec

from postroom.messaging import due as times
from postroom.messaging.queues import groups, periodic
from postroom.messaging.queues.directory import Directory
from postroom.messaging.queues.enqueueing import enqueue, put
from postroom.messaging.queues.manager import Manager
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
from postroom.messaging.queues.rescheduling import Rescheduling
from postroom.messaging.queues.settling import Settling
from postroom.messaging.queues.surroundings import Surroundings
from postroom.messaging.queues.trimming import Trimming
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.registry import Registry


class Writes:
    """The evaluators of the writes to the queues of a range.

    Args:
        directory: the directory of the queues.
        around: the clocks and chance.

    Attributes:
        settling: the evaluator of all that ends attempts.
    """

    def __init__(self, directory: Directory, around: Surroundings) -> None:
        self.find, self.find_if_there = directory.find, directory.find_if_there
        self.kept, self._by_wall = around.kept, around.by_wall
        self.chance, self.may_purge = around.chance, around.may_purge
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
                manager, settings = found[0], _of_followers(found[1])
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
        return self._enqueue(ctx, manager, _of_followers(settings), _as_follower(request))

    def take_in(self, ctx: Evaluation, request: EnqueueInQueue) -> None:
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


def _of_followers(settings: QueueSettings) -> QueueSettings:
    is_error = settings.on_duplicate == "error"
    return msgspec.structs.replace(settings, on_duplicate="ignore") if is_error else settings


def _as_follower(request: EnqueueInQueue) -> EnqueueInQueue:
    """Return the follower as one whose id may exist by now, since it was made up earlier."""
    return msgspec.structs.replace(request, is_unique=False)
