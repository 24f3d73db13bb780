"""The evaluation of ``Reschedule`` and ``ReplayMessages``.

``Reschedule`` brings messages forward in bulk, or puts them off; it may set their epoch too. Leased
messages are left alone: their consumers decide. In an ordered group the place of a message does not
change, only the time before which its group waits for it. A message that is brought forward does
not wait for those before it that are not due yet.

``ReplayMessages`` makes dead messages ready again, as if they had never been fired.
"""

from __future__ import annotations

from collections.abc import Generator

from postroom.limits import QUEUE_EPOCH_MAX
from postroom.messaging.queues import counters, records
from postroom.messaging.queues.enqueueing import move, rewritten
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import Place, find, named
from postroom.messaging.queues.records import State, encode
from postroom.messaging.queues.requests import ReplayMessages, Reschedule
from postroom.messaging.queues.settling import Queues
from postroom.ranges.evaluation import Evaluation, check_size


class Rescheduling:
    """The evaluator of both requests, in all queues of a range."""

    def __init__(self, queues: Queues) -> None:
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
        state = State(old.seq, records.LIVE, epoch, due, 0, error)
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
        state = State(entry.seq, records.LIVE, 0, now)
        ctx.writes[layout.state_key(*entry.locator)] = encode(state)
        key = layout.ready_key(entry, ordered=manager.ordered)
        ctx.writes[key] = stored = encode(entry)
        ctx.grow(len(key) + 2 * len(stored) + len(place.key))
        ctx.notes.append((manager, counters.REPLAYED, Manager.ready_added, key, entry))
