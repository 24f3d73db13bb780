"""The changes that time brings about in queues, ``AdvanceQueues``; and the deletion of messages.

::

    leases that ran out ──────────────────────────▶ failed: back-off, or dead
    consumers that have gone ─────────────────────▶ failed: ready again at once, or dead
    messages granted and never taken ─────────────▶ ready again, uncounted
    scheduled messages that are due ──────────────▶ ready
    ticks of periodic schedules ──────────────────▶ enqueued
    done messages that were kept long enough ─────▶ purged
    results that were kept long enough ───────────▶ purged
    dropped queues ───────────────────────────────▶ emptied, a step at a time
    waiting claims ◀──────────────────────────────── ready

The service (:mod:`postroom.messaging.services`) sends the request when one of these is due, or when
a claim can be served. Each step takes a bounded number of messages of each queue, and returns
whether there is more. A queue in which a step fails is set aside for a while, and the others go on.
If one of its records cannot be read, it is set aside for good (:mod:`.records`).

A transaction over several ranges may be prepared that ends an attempt. Nothing else ends that
meanwhile: it is looked at again a moment later.

A dropped queue is emptied until it is forgotten::

    its index: the messages of an entry, or a list, are deleted, and the entry with them
        │ all could be read                     │ some could not: others may be left
        ▼                                       ▼
    empty ◀── what is left of its index ◀── all keys are looked through for its messages

Records of the index that cannot be read stay until the end. Thus a leaseholder that takes over in
between finds them again, and looks through the keys anew.

Archived messages are never purged: a client has to say that they are safe elsewhere
(``TrimArchive``). The messages that one proposal has archived are in lists under its timestamp, and
nothing is ever added to a list. Thus the lists up to a timestamp name all messages archived up to
it, whatever comes later. A step deletes whole lists, oldest first. If a list is too large for it,
it deletes the last messages, so that those who read it page by page find the first ones where they
were. Messages remain that are read at a protected timestamp, or can be read without one
(``gc_ttl``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.queues import periodic, records, results
from postroom.messaging.queues.enqueueing import Enqueueing, remove
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import lease_of, read_state
from postroom.messaging.queues.records import (
    UNDECODABLE,
    AttemptName,
    Ended,
    Locator,
    damaged,
    decoded,
)
from postroom.messaging.queues.requests import (
    TrimArchive,
)
from postroom.messaging.queues.settling import EXPIRED, Settling
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.requests import UNBOUNDED

TIME_IS_OVER: Final = "it was not acknowledged in time"
LISTS_PURGED_AT_ONCE: Final = 16


class Advance:
    """A step in one queue.

    Args:
        bytes_max: the size of the proposal at which the rest is left to the next step.
    """

    def __init__(
        self,
        queues: Enqueueing,
        manager: Manager,
        ctx: Evaluation,
        bytes_max: int = UNBOUNDED,
    ) -> None:
        self._bytes_max = bytes_max
        self._queues = queues
        self._manager = manager
        self._ctx = ctx
        self._settling = Settling(queues, ctx, manager, manager.definition.settings)

    def step(self, messages_max: int) -> bool:
        """Do all that is due, except firing; return whether there is more."""
        manager, now = self._manager, self._manager.host.monotonic()
        manager.begin(self._ctx)
        manager.free_groups(now)
        manager.host.slots.settle(self._ctx, manager)
        more = self._give_back(messages_max)
        more |= self._expire(now, messages_max)
        more |= self.become_due(messages_max)
        if manager.next_tick and manager.next_tick <= manager.host.by_wall():
            more |= periodic.tick(self._ctx, manager, self._queues.enqueue_once)
        if manager.purge_at and manager.purge_at <= self._ctx.timestamp:
            more |= self._purge(messages_max)
        if manager.results_until and manager.results_until <= self._ctx.timestamp:
            more |= results.purge(self._ctx, manager, messages_max, self._bytes_max)
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
            locator = lease.entry.locator
            held = lease_of(self._ctx, manager, locator)
            if held is lease and not self._queues.is_prepared(locator[0]):  # else in a second
                self._settling.expire(lease, TIME_IS_OVER)
                self._ctx.steps += 4
        return more

    @property
    def _is_full(self) -> bool:
        """Return whether the proposal is full: a dying message may move with its whole payload."""
        return self._ctx.bytes >= self._bytes_max

    def _give_back(self, messages_max: int) -> bool:
        manager, ctx = self._manager, self._ctx
        due = list(islice(manager.to_give_back.items(), messages_max))
        names: list[AttemptName] = []
        put_off: list[AttemptName] = []
        for name, why in due:
            if self._is_full:
                break
            if self._queues.is_prepared(name[0][0]):
                put_off.append(name)
                continue
            names.append(name)
            lease = lease_of(ctx, manager, name[0])
            if lease is None or lease.attempt != name:
                continue
            if why is None:
                self._settling.give_back(lease)
            else:
                # A back-off is for messages that failed while a consumer processed them.
                self._settling.fail(lease, EXPIRED, why, 0.0)
            ctx.steps += 4
        if names or put_off:
            ctx.after.append(lambda: manager.gave_back(names, put_off))
        return len(names) == messages_max or len(names) + len(put_off) < len(due)

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
                if self._is_full:
                    _keep(ctx, key, ended)
                    ctx.notes.append((manager, (), Manager.purged, key, ctx.timestamp - 1))
                    return True
                is_done = ended[-1].status == records.DONE
                _remove_ended(ctx, manager, ended.pop(), records.PURGED)
                change = counters.PURGED_DONE if is_done else counters.PURGED_OTHER
                ctx.notes.append((manager, change, Manager.nothing, None, None))
                purged += 1
            ctx.writes[key] = None
        # The messages that this proposal has ended are in no list yet.
        has_ended = any(each[0] is manager and each[2] is Manager.ended for each in ctx.notes)
        at = ctx.timestamp + manager.retention if has_ended else 0
        ctx.notes.append((manager, (), Manager.purged, layout.done, at))
        return False


_A_SECOND: Final = 1000 << 16
_MINUTES: Final = 600 * _A_SECOND
_LOOKS_WHILE_BEHIND: Final = 8


PASSED_AT_ONCE: Final = 8
"""The number of keys of others that are read in a row before they are skipped."""
LOOKED_AT_ONCE: Final = 2000
"""The number of keys that a step looks at."""
_REST: Final = keys.DATA_END
"""The cursor behind all keys: the rest of the index is next."""


def empty(ctx: Evaluation, manager: Manager, messages_max: int, bytes_max: int) -> bool:
    """Delete some of a queue that was dropped; return whether there is anything left.

    Args:
        messages_max: the number of messages that are deleted at most.
        bytes_max: the size of the proposal at which the rest is left to the next step.
    """
    if manager.empty_from < keys.DATA:
        if _empty_index(ctx, manager, messages_max, bytes_max):
            return True
        if manager.names_all:
            ctx.writes[manager.layout.counters] = None
            manager.host.slots.forget(ctx, manager.definition.number)
            return False
        return _go_on(ctx, manager, keys.DATA)
    if manager.empty_from < _REST:
        return _go_on(ctx, manager, _look_through(ctx, manager, messages_max))
    return _delete_rest(ctx, manager, messages_max)


def _go_on(ctx: Evaluation, manager: Manager, cursor: bytes) -> bool:
    ctx.after.append(partial(setattr, manager, "empty_from", cursor))
    return True


# --- the index ------------------------------------------------------------------------------------


def _empty_index(ctx: Evaluation, manager: Manager, messages_max: int, bytes_max: int) -> bool:
    """Delete the messages that the index names; return whether there is more to look at."""
    layout = manager.layout
    deleted = 0
    for key, packed in ctx.iterate(manager.empty_from, keys.after_prefix(layout.whole)):
        if deleted >= messages_max or ctx.bytes >= bytes_max:
            return _go_on(ctx, manager, key)
        deleted += 1
        ctx.steps += 1
        try:
            named = list(_said_by(layout, key, packed))
        except UNDECODABLE:
            manager.names_all = False
            continue
        while named:
            if ctx.bytes >= bytes_max:  # one at least is deleted, so this record names several
                ctx.writes[key] = left = _first_of(layout, key, packed, len(named))
                ctx.grow(len(left))
                return _go_on(ctx, manager, key)
            remove(ctx, manager, named.pop())
            ctx.steps += 2
            deleted += 1
        ctx.writes[key] = None
        ctx.grow(len(key))
    return False


def _said_by(layout: records.QueueLayout, key: bytes, packed: bytes) -> Iterator[Locator]:
    """Iterate over the messages that a stored entry, holding or list names."""
    subspace = key[: len(layout.scheduled)]
    if layout.is_list(key):
        for ended in records.ended_lists.decode(packed):
            yield ended.home, ended.kind, ended.id
    elif subspace in {layout.scheduled, layout.ready, layout.dead}:
        yield records.entries.decode(packed).locator
    elif subspace == layout.leased and not layout.is_mark(key):
        yield from (each.locator for each in records.holdings.decode(packed).entries)


def _first_of(layout: records.QueueLayout, key: bytes, packed: bytes, number: int) -> bytes:
    """Return a stored list, or holding, with its first messages only."""
    if layout.is_list(key):
        return records.encode(records.ended_lists.decode(packed)[:number])
    holding = records.holdings.decode(packed)
    return records.encode(msgspec.structs.replace(holding, entries=holding.entries[:number]))


# --- messages outside of the index ----------------------------------------------------------------


def _look_through(ctx: Evaluation, manager: Manager, messages_max: int) -> bytes:
    """Delete bodies, states and pointers of the queue under any key; return where to go on."""
    queue, deleted, looked_at = manager.layout.number, 0, 0
    lower, upper = manager.host.bounds.data
    onward: bytes | None = max(manager.empty_from, lower)
    while onward is not None:
        cursor, onward, passed = onward, None, 0
        for key, _ in ctx.iterate(cursor, upper):
            if deleted >= messages_max or looked_at >= LOOKED_AT_ONCE:
                return key
            looked_at += 1
            ctx.steps += 1
            prefix = key[: key.index(keys.END_OF_KEY, 1) + 2]
            if key[len(prefix) : len(prefix) + 5] in _own(queue):
                ctx.writes[key] = None
                ctx.grow(len(key))
                deleted += 1
                passed = 0
                continue
            passed += 1
            if passed > PASSED_AT_ONCE:
                onward = min(
                    (prefix + own for own in _own(queue) if prefix + own > key),
                    default=prefix + keys.SUFFIX_END,
                )
                break
    return _REST


def _own(queue: bytes) -> tuple[bytes, ...]:
    """Return the infixes of the keys of a queue behind the user key, in their order."""
    return keys.QUEUE_BODY + queue, keys.QUEUE_STATE + queue, keys.QUEUE_POINTER + queue


def _delete_rest(ctx: Evaluation, manager: Manager, keys_max: int) -> bool:
    """Delete the records that could not be read; return whether there are more."""
    layout = manager.layout
    for number, (key, _) in enumerate(ctx.iterate(layout.whole, keys.after_prefix(layout.whole))):
        if number >= keys_max:
            return True
        ctx.writes[key] = None
        ctx.grow(len(key))
        ctx.steps += 1
    ctx.writes[layout.counters] = None
    manager.host.slots.forget(ctx, manager.definition.number)
    return False


# --- archived messages

TRIMMED_AT_ONCE: Final = 1000
"""The number of messages that are deleted in one step."""
TRIMMED_BYTES_AT_ONCE: Final = 1024 * 1024
"""The size in bytes of a step at which it deletes no more."""
_ARCHIVED: Final = frozenset({records.ARCHIVED})


def trim(queues: Enqueueing, ctx: Evaluation, request: TrimArchive) -> list[int]:
    """Evaluate ``TrimArchive``; return the number of deleted messages, and 1 if there are more.

    Raises:
        Invalid: there is no such queue, or another one of this name.
        QueueDamaged: a list of archived messages cannot be read.
    """
    manager, _ = queues.find(ctx, request.queue)
    if manager.definition.created_at != request.created_at:
        raise Invalid(
            f"the queue {request.queue!r} was dropped, and made anew; nothing was deleted: "
            "its archived messages have gone with it"
        )
    layout = manager.layout
    kept_from = queues.may_purge(ctx, ctx.timestamp - queues.kept())
    upper = layout.archived + keys.u64(min(request.until + 1, kept_from))
    trimmed, size_before = 0, ctx.bytes
    for key, packed in ctx.iterate(layout.archived, upper):
        ended = decoded(records.ended_lists, packed, manager.name)
        while ended:
            if trimmed >= TRIMMED_AT_ONCE or ctx.bytes - size_before > TRIMMED_BYTES_AT_ONCE:
                _keep(ctx, key, ended)
                return [trimmed, 1]
            _remove_ended(ctx, manager, ended.pop(), _ARCHIVED)
            ctx.notes.append((manager, counters.TRIMMED, Manager.nothing, None, None))
            trimmed += 1
        ctx.writes[key] = None
        ctx.grow(len(key))
    return [trimmed, 0]


def _keep(ctx: Evaluation, key: bytes, ended: list[Ended]) -> None:
    """Keep the first messages of a list: the last ones go first, so that pages stay as they are."""
    ctx.writes[key] = left = records.encode(ended)
    ctx.grow(len(left))


def _remove_ended(
    ctx: Evaluation, manager: Manager, ended: Ended, statuses: frozenset[int]
) -> None:
    """Delete a listed message, if it is still the same: its id may have been used again."""
    if ended.status not in statuses:
        raise damaged(manager.name, "a stored list", f"it lists the status {ended.status}")
    locator = (ended.home, ended.kind, ended.id)
    state = read_state(ctx, manager, locator)
    ctx.steps += 3
    if state is not None and state.seq == ended.seq:
        remove(ctx, manager, locator)
