"""The changes that time brings about in queues: ``AdvanceQueues``.

::

    leases that ran out ──────────────────────────▶ failed: back-off, or dead
    consumers that have gone ─────────────────────▶ failed: ready again at once, or dead
    messages granted and never taken ─────────────▶ ready again, uncounted
    scheduled messages that are due ──────────────▶ ready
    ticks of periodic schedules ──────────────────▶ enqueued
    done messages that were kept long enough ─────▶ purged
    dropped queues ───────────────────────────────▶ emptied, a step at a time (:mod:`.dropping`)
    waiting claims ◀──────────────────────────────── ready

The service (:mod:`.agenda`) sends the request when one of these is due, or when a claim can be
served. Each step takes a bounded number of messages of each queue, and returns whether there is
more. A queue in which a step fails is set aside for a while, and the others go on. If one of its
records cannot be read, it is set aside for good (:mod:`.trouble`).
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from postroom.kv import keys
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.queues import periodic, records
from postroom.messaging.queues.enqueueing import remove
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import lease_of, read_state
from postroom.messaging.queues.records import AttemptName, Ended, damaged, decoded
from postroom.messaging.queues.settling import SettledQueues, Settling
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.requests import UNBOUNDED

TIME_IS_OVER: Final = "it was not acknowledged in time"
CONSUMER_HAS_GONE: Final = "the consumer has gone"
LISTS_PURGED_AT_ONCE: Final = 16


class Advance:
    """A step in one queue.

    Args:
        bytes_max: the size of the proposal at which the rest is left to the next step.
    """

    def __init__(
        self,
        queues: SettledQueues,
        settling: Settling,
        manager: Manager,
        ctx: Evaluation,
        bytes_max: int = UNBOUNDED,
    ) -> None:
        self._bytes_max = bytes_max
        self._queues = queues
        self._settling = settling
        self._manager = manager
        self._ctx = ctx
        self._settings = manager.definition.settings

    def step(self, messages_max: int) -> bool:
        """Do all that is due, except firing; return whether there is more."""
        manager, now = self._manager, self._manager.host.monotonic()
        manager.begin(self._ctx)
        manager.free_groups(now)
        more = self._give_back(messages_max)
        more |= self._expire(now, messages_max)
        more |= self.become_due(messages_max)
        if manager.next_tick and manager.next_tick <= manager.host.by_wall():
            more |= periodic.tick(self._ctx, manager, self._queues)
        if manager.purge_at and manager.purge_at <= self._ctx.timestamp:
            more |= self._purge(messages_max)
        return more

    # --- attempts that are over

    def _expire(self, now: float, messages_max: int) -> bool:
        manager = self._manager
        expired = manager.leases.take_expired(now, messages_max)
        more = len(expired) == messages_max
        for lease in expired:
            if self._is_full:
                manager.leases.watch_again(lease.holding, now)
                more = True
                break
            held = lease_of(self._ctx, manager, lease.entry.locator)
            if held is lease:
                settling, settings = self._settling, self._settings
                settling.expire(self._ctx, manager, settings, lease, TIME_IS_OVER)
                self._ctx.steps += 4
        return more

    @property
    def _is_full(self) -> bool:
        """Return whether the proposal is full: a dying message may move with its whole payload."""
        return self._ctx.bytes >= self._bytes_max

    def _give_back(self, messages_max: int) -> bool:
        manager, ctx = self._manager, self._ctx
        due = list(islice(manager.to_give_back.items(), messages_max))
        names = []
        for name, why in due:
            if self._is_full:
                break
            names.append(name)
            lease = lease_of(ctx, manager, name[0])
            if lease is None or lease.attempt != name:
                continue
            if why is None:
                self._settling.give_back(ctx, manager, lease)
            else:
                self._settling.lose(ctx, manager, self._settings, lease, why)
            ctx.steps += 4
        if names:
            ctx.after.append(lambda: _forget(manager, names))
        return len(due) == messages_max or len(names) < len(due)

    # --- scheduled messages

    def become_due(self, messages_max: int) -> bool:
        """Make due messages ready; return whether more are due."""
        manager, now = self._manager, self._ctx.timestamp
        more = False
        if 0 < manager.first_due <= now:
            more = self._become_due(messages_max, manager.scheduled_lines[0], now)
        if manager.first_moment and manager.first_moment <= manager.host.by_wall():
            last = times.at(manager.host.by_wall() + 1) - 1
            more |= self._become_due(messages_max, manager.scheduled_lines[1], last)
        return more

    def _become_due(self, messages_max: int, line: tuple[bytes, bytes], last: int) -> bool:
        """Make those messages of a line ready that are due at ``last`` or before."""
        manager, ctx, layout = self._manager, self._ctx, self._manager.layout
        head, end = line
        upper = layout.scheduled + keys.u64(last + 1)
        for key, packed in list(islice(ctx.iterate(head, upper), messages_max)):
            if self._is_full:
                break
            entry = decoded(records.entries, packed, manager.name)
            if key != layout.scheduled_key(entry, ordered=manager.ordered):
                raise damaged(manager.name, "a stored entry", "it is scheduled for another time")
            ctx.writes[key] = None
            ready = layout.ready_key(entry, ordered=manager.ordered)
            ctx.writes[ready] = packed
            ctx.grow(len(packed) + len(ready) + len(key))
            ctx.notes.append((manager, counters.BECAME_DUE, Manager.ready_added, ready, entry))
            ctx.steps += 2
            head = key + b"\x00"
        next_due = manager.first_in(ctx, head, end)
        ctx.notes.append((manager, (), Manager.scheduled_moved, head, next_due))
        return 0 < next_due <= last

    # --- done messages

    def _purge(self, messages_max: int) -> bool:
        manager, ctx, layout = self._manager, self._ctx, self._manager.layout
        end = keys.after_prefix(layout.done)
        purged = 0
        for number, (key, packed) in enumerate(ctx.iterate(manager.purge_from, end)):
            done_at = int.from_bytes(key[len(layout.done) :][:8], "big")
            # Readers of the past find the messages kept then, however long they read.
            read_from = self._queues.may_purge(ctx, ctx.timestamp)
            old_enough = read_from - manager.retention
            is_enough = purged >= messages_max or number >= LISTS_PURGED_AT_ONCE or self._is_full
            if done_at >= old_enough or is_enough:
                at = max(done_at + manager.retention, ctx.timestamp - 1)
                if done_at >= old_enough:
                    # Do not look every second at messages that a reader needs for a day.
                    behind = (ctx.timestamp - read_from) // _LOOKS_WHILE_BEHIND
                    at = max(at, ctx.timestamp + min(max(behind, _A_SECOND), _MINUTES))
                ctx.notes.append((manager, (), Manager.purged, key, at))
                return done_at < old_enough
            ended = decoded(records.ended_lists, packed, manager.name)
            while ended:
                if self._is_full:  # the last ones first, so that reading page by page can go on
                    ctx.writes[key] = left = records.encode(ended)
                    ctx.grow(len(left))
                    ctx.notes.append((manager, (), Manager.purged, key, ctx.timestamp - 1))
                    return True
                self._purge_one(ended.pop())
                purged += 1
            ctx.writes[key] = None
        # The messages that this proposal has ended are in no list yet.
        has_ended = any(each[0] is manager and each[2] is Manager.ended for each in ctx.notes)
        at = ctx.timestamp + manager.retention if has_ended else 0
        ctx.notes.append((manager, (), Manager.purged, layout.done, at))
        return False

    def _purge_one(self, ended: Ended) -> None:
        """Purge a message, if it is still the same: its id may have been used again."""
        manager, ctx = self._manager, self._ctx
        if ended.status not in records.PURGED:
            raise damaged(manager.name, "a stored list", f"it lists the status {ended.status}")
        locator = (ended.key, ended.kind, ended.id)
        state = read_state(ctx, manager, locator)
        ctx.steps += 3
        if state is not None and state.seq == ended.seq:
            remove(ctx, manager, locator)
        is_done = ended.status == records.DONE
        change = counters.PURGED_DONE if is_done else counters.PURGED_OTHER
        ctx.notes.append((manager, change, Manager.nothing, None, None))


_A_SECOND: Final = 1000 << 16
_MINUTES: Final = 600 * _A_SECOND
_LOOKS_WHILE_BEHIND: Final = 8


def _forget(manager: Manager, names: list[AttemptName]) -> None:
    for name in names:
        manager.to_give_back.pop(name, None)
