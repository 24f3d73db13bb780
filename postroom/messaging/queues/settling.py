"""The ends of attempts: acknowledged, rejected, expired, given back; and their extension.

::

    leased ─┬─ acknowledged ─────────────▶ done: kept, archived, purged
            ├─ rejected, expired ─┬──────▶ scheduled (back-off), or ready at once
            │                     └─ max_attempts, or for good ─▶ dead, or in another queue
            ├─ given back, uncounted ────▶ ready, as if it had never been fired
            └─ extended ─────────────────▶ leased, until later

An attempt is named by its message, its epoch and the timestamp of firing. An attempt that does not
hold its message any more can change nothing: it fails with ``LeaseLost``, and so does its whole
transaction. Therefore the effects of a message exist once, by the attempt that acknowledged it.

The back-off of a failed message doubles with each attempt. It begins with ``ack_wait`` if the
attempt expired, and with ``min_backoff`` (or a second) if its consumer rejected it. It lies between
``min_backoff`` and ``max_backoff`` (an hour if that is not set). It varies at random by a tenth, so
that messages that failed together are not tried again together.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.limits import (
    KEY_BYTES_MAX,
    LEASE_SECONDS_MAX,
    QUEUE_BACKOFF_SECONDS_MAX,
    REASON_CHARACTERS_MAX,
)
from postroom.log_once import shown
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.due import due_after, jittered_backoff
from postroom.messaging.queues import holdings, records
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.enqueueing import Enqueueing
from postroom.messaging.queues.event_groups import count_in_group, read_group
from postroom.messaging.queues.holdings import Draft
from postroom.messaging.queues.leases import Lease
from postroom.messaging.queues.manager import Manager, Note
from postroom.messaging.queues.places import (
    Place,
    find,
    held,
    held_together,
    is_attempt,
    named,
    read_body,
    settle_each,
)
from postroom.messaging.queues.records import (
    Entry,
    Locator,
    MessageState,
    QueueDamaged,
    encode,
)
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    CancelMessages,
    EnqueueInQueue,
    Extend,
    RejectMessages,
)
from postroom.messaging.undelivered import reviving_queue_message
from postroom.ranges.checks import unpacked
from postroom.ranges.evaluation import Evaluation, check_size
from postroom.ranges.ports import Registry

BACKOFF_SECONDS: Final = 1.0
"""The back-off after the first rejection, if the queue has no ``min_backoff``."""
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
DEAD_HEADER: Final = "dead"
"""The header of a message moved to a dead letter queue: where it comes from, and why it died."""
TOGETHER_AT_ONCE: Final = 100
"""The number of acknowledgements of one request that are evaluated as one."""


class Death(NamedTuple):
    """The reason of a death, the number of attempts, and how the last one ended.

    An empty ``how`` means that no attempt was under way.
    """

    reason: str
    epoch: int
    how: str = ""


def backoff_seconds(settings: QueueSettings, epoch: int, how: str, chance: float) -> float:
    """Return how long a failed message waits until it is fired again, in seconds.

    Args:
        settings: the settings of its queue.
        epoch: the epoch of the attempt that failed.
        how: ``REJECTED`` or ``EXPIRED``.
        chance: a random number from 0 up to 1.
    """
    least = settings.min_backoff or 0.0
    most = QUEUE_BACKOFF_SECONDS_MAX if settings.max_backoff is None else settings.max_backoff
    most = max(most, least)
    base = settings.ack_wait if how == EXPIRED else settings.min_backoff or BACKOFF_SECONDS
    return jittered_backoff(base, epoch, least, most, chance)


def register(queues: Enqueueing, registry: Registry) -> None:
    """Register the evaluators of all that ends attempts."""

    def settling(ctx: Evaluation, queue: str) -> Settling:
        return Settling(queues, ctx, *queues.find(ctx, queue))

    registry.writes |= {
        Acknowledge: lambda ctx, request: settling(ctx, request.queue).acknowledge(request),
        RejectMessages: lambda ctx, request: settling(ctx, request.queue).reject(request),
        Extend: lambda ctx, request: settling(ctx, request.queue).extend(request),
        CancelMessages: lambda ctx, request: settling(ctx, request.queue).cancel(request),
    }


@dataclass(eq=False)
class Settling:
    """The settling of messages of one queue in one proposal: all that ends attempts.

    Attributes:
        queues: the queues of the range.
        ctx: the evaluation.
        manager: the manager of the queue.
        settings: the settings of the queue, as the requests before have left them.
    """

    queues: Enqueueing
    ctx: Evaluation
    manager: Manager
    settings: QueueSettings

    # --- requests

    def acknowledge(self, request: Acknowledge) -> Generator[None, None, int]:
        """Evaluate ``Acknowledge`` and return how many messages were ended.

        Raises:
            LeaseLost: an attempt does not hold its message any more.
        """
        ctx, manager = self.ctx, self.manager
        ended, size_before = 0, ctx.bytes
        for first in range(0, len(request.attempts), TOGETHER_AT_ONCE):
            attempts = request.attempts[first : first + TOGETHER_AT_ONCE]
            leases = held_together(ctx, manager, attempts)
            if leases is not None:
                self._finish_together(leases)
                ended += len(leases)
                yield from _next(ctx, size_before)
                continue
            for attempt in attempts:
                ended += self._acknowledge_one(attempt)
                yield from _next(ctx, size_before)
        return ended

    def _acknowledge_one(self, attempt: Attempt) -> int:
        ctx, manager = self.ctx, self.manager
        if attempt.epoch >= 0 and not attempt.by_id:
            self._finish(_place_of(held(ctx, manager, attempt)))
            return 1
        ended = 0
        for locator in named(ctx, manager, attempt):
            place = find(ctx, manager, locator)
            if place is not None and is_attempt(attempt, place, manager):
                self._finish(place)
                ended += 1
        return ended

    def reject(self, request: RejectMessages) -> Generator[None, None, int]:
        """Evaluate ``RejectMessages`` and return how many messages were given back or buried.

        Raises:
            LeaseLost: an attempt does not hold its message any more.
        """
        ctx = self.ctx
        rejected, size_before = 0, ctx.bytes
        for attempt in request.attempts:
            if attempt.epoch >= 0 and not attempt.by_id:
                self._reject_lease(held(ctx, self.manager, attempt), request)
                rejected += 1
            else:
                rejected += self._reject_named(attempt, request)
            yield from _next(ctx, size_before)
        return rejected

    def extend(self, request: Extend) -> Generator[None, None, int]:
        """Evaluate ``Extend`` and return the timestamp at which the leases now end.

        Raises:
            LeaseLost: an attempt does not hold its message any more.
        """
        ctx, manager = self.ctx, self.manager
        seconds = min(request.seconds, LEASE_SECONDS_MAX)
        until, size_before = ctx.timestamp + from_seconds(seconds), ctx.bytes
        for attempt in request.attempts:
            lease = held(ctx, manager, attempt)
            holdings.end(ctx, manager, [lease])
            longer = msgspec.structs.replace(
                lease.holding.stored,
                since=ctx.timestamp, until=until, entries=[lease.entry], fired=lease.fired_at,
            )  # fmt: skip
            leased = holdings.give(ctx, manager, longer, manager.host.monotonic() + seconds)
            holdings.extend(ctx, manager, Lease(lease.entry, leased, 0))
            ctx.notes.append((manager, (), Manager.leases_added, leased, None))
            yield from _next(ctx, size_before)
        return until

    def cancel(self, request: CancelMessages) -> Generator[None, None, int]:
        """Evaluate ``CancelMessages`` and return how many messages were found."""

        def end(place: Place) -> None:
            self._end(place, records.CANCELLED, counters.CANCELLED[place.where])

        where = counters.CANCELLED
        return settle_each(self.ctx, self.manager, request.attempts, where, end, "name")

    # --- done messages

    def _finish_together(self, leases: dict[Locator, Lease]) -> None:
        for group in finish_together(self.ctx, self.manager, self.settings, leases):
            self._group_ended(group)

    def _finish(self, place: Place) -> None:
        status, _, changes = _ARCHIVED if self.settings.archive else _DONE
        self._end(place, status, changes[place.where])

    def _end(self, place: Place, status: int, change: counters.Change) -> None:
        """End a message, which is live no longer, wherever it was."""
        ctx, manager, entry = self.ctx, self.manager, place.entry
        self._leave(place)
        state = MessageState(
            entry.seq, status, entry.epoch, entry.due, ctx.timestamp, "", _fired_at(place)
        )
        state_key = manager.layout.state_key(*entry.locator)
        ctx.writes[state_key] = encode(state)
        ctx.steps += 1
        ctx.bytes += 2 * len(state_key) + 128
        if place.where == counters.READY:
            ctx.notes.append((manager, (), Manager.ready_removed, place.key, entry.group))
        act = Manager.archived if status == records.ARCHIVED else Manager.ended
        ended = [(*entry.locator, entry.seq, status)]
        locators = [] if place.lease is None else [entry.locator]
        ctx.notes.append((manager, change, act, locators, ended))
        if entry.group:
            self._group_ended(entry.group)

    def _group_ended(self, group: str) -> None:
        for follower in count_in_group(self.ctx, self.manager, group, -1):
            if self.queues.find_if_there(self.ctx, follower.queue) is not None:
                self.queues.follow(self.ctx, follower)

    def _leave(self, place: Place) -> None:
        """Delete a message from the place where it is."""
        if place.lease is None:
            self.ctx.writes[place.key] = None
        else:
            holdings.end(self.ctx, self.manager, [place.lease])

    # --- failed attempts

    def _reject_named(self, attempt: Attempt, request: RejectMessages) -> int:
        """Reject a message by id, whoever holds it.

        A message that nobody holds can only be buried.
        """
        rejected = 0
        for locator in named(self.ctx, self.manager, attempt):
            place = find(self.ctx, self.manager, locator)
            if place is None or place.where == counters.DEAD:
                continue
            if not is_attempt(attempt, place, self.manager):
                continue
            if place.lease is not None:
                self._reject_lease(place.lease, request)
            elif request.dead:
                self._bury(place, Death(request.reason, place.entry.epoch))
            else:
                continue
            rejected += 1
        return rejected

    def _reject_lease(self, lease: Lease, request: RejectMessages) -> None:
        epoch = lease.entry.epoch
        if request.uncounted:
            self.give_back(lease)
        elif request.dead:
            self._bury(_place_of(lease), Death(request.reason, epoch + 1, REJECTED))
        else:
            seconds = request.delay
            if seconds is None:
                chance = self.queues.chance()
                seconds = backoff_seconds(self.settings, epoch, REJECTED, chance)
            self.fail(lease, REJECTED, request.reason, seconds)

    def expire(self, lease: Lease, why: str) -> None:
        """Fail an attempt whose lease has expired."""
        chance = self.queues.chance()
        seconds = backoff_seconds(self.settings, lease.entry.epoch, EXPIRED, chance)
        self.fail(lease, EXPIRED, why, seconds)

    def fail(self, lease: Lease, how: str, why: str, seconds: float) -> None:
        """Fail an attempt; its message is fired again after some seconds, if it is not dead."""
        ctx, manager = self.ctx, self.manager
        epoch, attempts_max = lease.entry.epoch + 1, self.settings.max_attempts
        if attempts_max is not None and epoch >= attempts_max:
            death = Death(why, epoch, how)
            other = self._bury(_place_of(lease), death)
            if how == EXPIRED:
                self._tell_death(lease.entry, death, other)
            return
        manager.figures.failed(lease.entry.kind)
        now = ctx.timestamp
        due = min(due_after(now, seconds), times.LATEST)
        entry = records.with_schedule(
            lease.entry, due, now, ordered=manager.ordered, epoch=epoch, has_failed=True
        )
        holdings.end(ctx, manager, [lease])
        state = MessageState(entry.seq, records.LIVE, epoch, due, 0, why[:REASON_CHARACTERS_MAX])
        ctx.writes[manager.layout.state_key(*entry.locator)] = stored = encode(state)
        ctx.grow(2 * len(stored) + 2 * len(entry.locator[0]) + 128)
        self._place_again(entry, how)

    def _place_again(self, entry: Entry, how: str) -> None:
        manager, now = self.manager, self.ctx.timestamp
        layout, locator = manager.layout, entry.locator
        if manager.keeps_order_in(entry.group) or entry.due <= now:
            key = layout.ready_key(entry, ordered=manager.ordered)
            change = counters.FAILED[how, counters.READY]
            note: Note = (manager, change, Manager.given_back, locator, (key, entry))
        else:
            key = layout.scheduled_key(entry, ordered=manager.ordered)
            change = counters.FAILED[how, counters.SCHEDULED]
            note = (manager, change, Manager.postponed, locator, (entry.due, now))
        self.ctx.writes[key] = encode(entry)
        self.ctx.notes.append(note)

    def give_back(self, lease: Lease) -> None:
        """Make a leased message ready again, as if it had not been fired."""
        ctx, manager, entry = self.ctx, self.manager, lease.entry
        holdings.end(ctx, manager, [lease])
        key = manager.layout.ready_key(entry, ordered=manager.ordered)
        ctx.writes[key] = stored = encode(entry)
        ctx.grow(2 * len(stored) + len(key))
        act = Manager.given_back
        ctx.notes.append((manager, counters.GIVEN_BACK, act, entry.locator, (key, entry)))

    # --- dead messages

    def _bury(self, place: Place, death: Death) -> str | None:
        """Bury a message: keep it here with the reason, or move it to the dead letter queue.

        Return the name of that queue if it was moved.
        """
        ctx, manager, at = self.ctx, self.manager, self.ctx.timestamp
        reason, epoch, how = death
        entry = msgspec.structs.replace(place.entry, epoch=epoch, not_before=0)
        reason = reason[:REASON_CHARACTERS_MAX]
        if how:
            manager.figures.failed(entry.kind)
            ctx.notes.append((manager, counters.DIED[how], Manager.nothing, None, None))
        other = self.settings.dead_letter_queue
        if other is not None and self._may_move(other, entry.group):
            self._move_away(other, entry, reason)
            self._end(place, records.MOVED, counters.MOVED_AWAY[place.where])
            return other
        self._leave(place)
        ctx.writes[manager.layout.dead_key(at, entry.seq)] = stored = encode(entry)
        state = MessageState(
            entry.seq, records.DEAD, epoch, entry.due, at, reason, _fired_at(place)
        )
        ctx.writes[manager.layout.state_key(*entry.locator)] = encode(state)
        ctx.grow(2 * len(stored) + len(reason) + 128)
        change = counters.BURIED[place.where]
        if place.lease is not None:
            ctx.notes.append((manager, change, Manager.lease_removed, entry.locator, None))
        else:
            ctx.notes.append((manager, change, Manager.ready_removed, place.key, entry.group))
        ctx.notes.append((manager, (), Manager.buried, entry.kind, entry.id))
        return None

    def _tell_death(self, entry: Entry, death: Death, moved_to: str | None) -> None:
        """Log the death of a message whose consumer cannot log it."""
        queue = self.manager.name
        try:
            id_: str | bytes = entry.id.decode()
        except UnicodeDecodeError:
            id_ = entry.id
        revive = f"to revive it: {reviving_queue_message(queue, id_)}"
        if moved_to is not None:
            revive = f"it is in queue {moved_to!r} now"
        what = f"message {shown(id_)} of queue {queue!r}"
        self.queues.deaths.died(self.ctx, what, death.epoch, death.reason, revive)

    def _may_move(self, other: str, group: str) -> bool:
        """Return whether a dying message can move to another queue.

        It cannot if that queue does not exist or is damaged, or if the queue of a follower of its
        group is damaged. Then the message stays in its own queue.
        """
        try:
            if self.queues.find_if_there(self.ctx, other) is None:
                return False
            if group:
                for follower in read_group(self.ctx, self.manager, group).followers:
                    self.queues.find_if_there(self.ctx, follower.queue)
        except QueueDamaged:
            return False
        return True

    def _move_away(self, other: str, entry: Entry, reason: str) -> None:
        ctx, manager = self.ctx, self.manager
        body = read_body(ctx, manager, entry.locator)
        if body is None:
            return
        told = {
            "queue": manager.name, "kind": entry.kind, "id": entry.id, "key": entry.key,
            "reason": reason, "attempts": entry.epoch,
        }  # fmt: skip
        headers = {**unpacked(body.headers), DEAD_HEADER: told}
        id_ = ctx.stamp + ctx.next_ordinal() + manager.layout.number
        moved = EnqueueInQueue(
            other, entry.key[:KEY_BYTES_MAX], entry.kind, id_, body.payload, headers,
            entry.priority, group=entry.group, is_unique=True,
        )  # fmt: skip
        self.queues.enqueue_moved(ctx, moved)


def finish_together(
    ctx: Draft, manager: Manager, settings: QueueSettings, leases: dict[Locator, Lease]
) -> list[str]:
    """Finish messages as done, by the attempts that hold them, with one note for all.

    Return the group of each one that has one.
    """
    now, groups = ctx.timestamp, []
    status, act, changes = _ARCHIVED if settings.archive else _DONE
    writes, ended, size, message_key = ctx.writes, [], 0, keys.queue_message_key
    holding, fired_at, of_kind, infix = None, 0, None, b""
    holdings.end(ctx, manager, leases.values())
    for (home, kind, id_), lease in leases.items():
        if lease.holding is not holding:
            holding, fired_at = lease.holding, lease.fired_at
        if kind != of_kind:
            of_kind, infix = kind, manager.layout.state_infix(kind)
        entry, state_key = lease.entry, message_key(home, infix, id_)
        seq = entry.seq
        # Tuples of the fields are stored as a ``MessageState`` and an ``Ended`` are.
        writes[state_key] = encode((seq, status, entry.epoch, entry.due, now, "", fired_at))
        size += 2 * len(state_key) + 128
        ended.append((home, kind, id_, seq, status))
        if entry.group:
            groups.append(entry.group)
    ctx.steps += len(leases)
    ctx.bytes += size
    change = counters.times(changes[counters.LEASED], len(leases))
    ctx.notes.append((manager, change, act, list(leases), ended))
    return groups


_DONE: Final = records.DONE, Manager.ended, counters.ACKNOWLEDGED
_ARCHIVED: Final = records.ARCHIVED, Manager.archived, counters.ARCHIVED
"""The status of acknowledged messages, the act that notes it, and the changes by place."""


def _place_of(lease: Lease) -> Place:
    return Place(counters.LEASED, lease.holding.key, lease.entry, lease, None)


def _fired_at(place: Place) -> int:
    return 0 if place.lease is None else place.lease.fired_at


def _next(ctx: Evaluation, size_before: int) -> Generator[None, None, None]:
    check_size(ctx.bytes - size_before, "name fewer messages in a transaction")
    if ctx.is_used_up():
        yield
