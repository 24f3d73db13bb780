"""Enqueuing: a message joins its queue in the transaction that sends it.

::

    Enqueue ─▶ body, beside its key ─▶ ready, or scheduled (due later) ─▶ note: a claim may wait

Messages are unique by kind and id, whatever their keys. A message lies under its key; if that is
not its id, a pointer under the id names the key. A duplicate is looked for with one read of each.
For an id that was made up nothing is looked for: there is no other one.

A message that is done and still kept is a duplicate like a live one. Its id is free after it is
purged, and with ``purge_after=0`` at once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from postroom.errors import ConditionFailed, Invalid, shorten
from postroom.kv.clock import from_seconds
from postroom.limits import HEADERS_BYTES_PER_STEP
from postroom.messaging import counters
from postroom.messaging.queues import groups, records
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import Place, find_unheld, lease_of, read_state
from postroom.messaging.queues.records import (
    Body,
    Entry,
    Locator,
    MessageState,
    damaged,
    decoded,
    encode,
)
from postroom.messaging.queues.requests import EnqueueInQueue, QueueSettings
from postroom.ranges.checks import check_headers
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation

IGNORED: Final = "ignored"
REPLACED: Final = "replaced"


class _Known(NamedTuple):
    """A message that exists already."""

    locator: Locator
    body: Body
    state: MessageState | None


def enqueue(
    ctx: Evaluation,
    manager: Manager,
    settings: QueueSettings,
    request: EnqueueInQueue,
    followers: list[EnqueueInQueue],
) -> str | None:
    """Evaluate ``EnqueueInQueue`` and return what became of a duplicate, or `None`.

    Args:
        followers: the followers to enqueue next are added to it, when a group loses its last
            message.

    Raises:
        ConditionFailed: there is such a message, and the queue takes that for an error.
        Invalid, ValueTooLarge: its headers are nested too deep, or too large.
        Invalid: the id is said to be made up, and is not.
    """
    if request.headers is not None:
        ctx.steps += check_headers(request.headers, request.key) // HEADERS_BYTES_PER_STEP
    body_key = manager.layout.body_key(request.key, request.kind, request.id)
    if request.is_unique:
        if ctx.get_once(body_key) is not None:
            raise Invalid(
                f"the queue {manager.name!r} has a message {shorten(request.id)}, which is no "
                "made-up id then; nothing was changed: an id that may be there is not sent as "
                "unique"
            )
    else:
        known = _find_known(ctx, manager, settings, request)
        if known is not None:
            if settings.on_duplicate == "replace":
                return _replace(ctx, manager, request, known, followers)
            return _on_duplicate(manager, settings, request, known)
    put(ctx, manager, request, body_key)
    return None


def put(ctx: Evaluation, manager: Manager, request: EnqueueInQueue, body_key: bytes) -> Entry:
    """Write a message that does not exist yet; its body will be at ``body_key``."""
    layout, now = manager.layout, ctx.timestamp
    key, kind, id_ = request.key, request.kind, request.id
    seq = ctx.stamp + ctx.next_ordinal()
    due = manager.due(request.due, now)
    group, priority = request.group, request.priority
    body = encode(Body(seq, request.payload, request.headers, due, priority, group))
    kept = records.kept_payload(request.payload, request.headers)
    entry = Entry(key, kind, id_, seq, due, due, priority, 0, group, 0, False, kept)
    ctx.writes[body_key] = body
    if key != id_:
        ctx.writes[layout.pointer_key(kind, id_)] = key
        ctx.grow(2 * len(key) + len(id_))
    if group:
        groups.count(ctx, manager, group, 1)
    place_new(ctx, manager, entry, now)
    ctx.steps += 1
    ctx.bytes += 2 * len(body) + 3 * len(body_key) + 3 * WRITE_BYTES
    return entry


def place_new(ctx: Evaluation, manager: Manager, entry: Entry, now: int) -> None:
    """Place a new message among the ready or the scheduled ones."""
    layout = manager.layout
    if entry.due > now:
        ctx.writes[layout.scheduled_key(entry, ordered=manager.ordered)] = encode(entry)
        ctx.notes.append(
            (manager, counters.ENQUEUED_SCHEDULED, Manager.scheduled_added, entry.due, now)
        )
    else:
        placed = layout.ready_key(entry, ordered=manager.ordered)
        ctx.writes[placed] = encode(entry)
        ctx.notes.append((manager, counters.ENQUEUED_READY, Manager.ready_added, placed, entry))


def _find_known(
    ctx: Evaluation, manager: Manager, settings: QueueSettings, request: EnqueueInQueue
) -> _Known | None:
    """Return the message of this kind and id, if there is one.

    Remove the rest of one that is gone.
    """
    layout, id_ = manager.layout, request.id
    key: bytes | None = id_
    stored = ctx.get(layout.body_key(id_, request.kind, id_))
    if stored is None:
        key = ctx.get(layout.pointer_key(request.kind, id_))
        if key is None:
            return None
        stored = ctx.get(layout.body_key(key, request.kind, id_))
        if stored is None:
            told = f"there is no message {shorten(id_)} under its key"
            raise damaged(manager.name, "a stored pointer", told)
    assert key is not None
    locator = (key, request.kind, id_)
    body = decoded(records.bodies, stored, manager.name)
    state = read_state(ctx, manager, locator)
    ctx.steps += 2
    if is_gone(state, settings, ctx.timestamp):
        remove(ctx, manager, locator)
        return None
    return _Known(locator, body, state)


def is_gone(state: MessageState | None, settings: QueueSettings, now: int) -> bool:
    """Return whether a message exists only for readers of the past."""
    if state is None or state.status in {records.LIVE, records.DEAD, records.ARCHIVED}:
        return False
    if state.status == records.DONE:
        return state.at + from_seconds(settings.purge_after) <= now
    return True


def remove(ctx: Evaluation, manager: Manager, locator: Locator) -> None:
    """Delete the body, the state and the pointer of a message."""
    layout = manager.layout
    key, kind, id_ = locator
    ctx.writes[layout.body_key(key, kind, id_)] = None
    ctx.writes[layout.state_key(key, kind, id_)] = None
    if key != id_:
        ctx.writes[layout.pointer_key(kind, id_)] = None
    ctx.grow(3 * (len(key) + len(id_)))


def _on_duplicate(
    manager: Manager, settings: QueueSettings, request: EnqueueInQueue, known: _Known
) -> str:
    if settings.on_duplicate == "error":
        raise ConditionFailed(
            f"the queue {manager.name!r} has a message {shorten(request.id)} of the kind "
            f"{request.kind!r} already; nothing was changed: take another id",
            actual=known.body.payload,
        )
    return IGNORED


def _replace(
    ctx: Evaluation,
    manager: Manager,
    request: EnqueueInQueue,
    known: _Known,
    followers: list[EnqueueInQueue],
) -> str:
    """Replace the schedule and the payload of a message, if it was never fired."""
    if lease_of(ctx, manager, known.locator) is not None:
        return IGNORED
    place = find_unheld(ctx, manager, known.locator, known.body)
    if place is None or place.where == counters.DEAD or _was_fired(place):
        return IGNORED
    _write_replacement(ctx, manager, request, known, place)
    before, group = known.body.group, request.group
    if group != before:
        if group:
            groups.count(ctx, manager, group, 1)
        if before:
            followers += groups.count(ctx, manager, before, -1)
    return REPLACED


def _was_fired(place: Place) -> bool:
    """Return whether an attempt has failed. A message that was only rescheduled has a state too."""
    state = place.state
    return place.entry.epoch > 0 or place.entry.has_failed or bool(state and state.error)


def _write_replacement(
    ctx: Evaluation, manager: Manager, request: EnqueueInQueue, known: _Known, place: Place
) -> None:
    """Write a replaced message, which keeps its key, its id, and when it was created."""
    now = ctx.timestamp
    due = manager.due(request.due, now)
    said: dict[str, Any] = {
        "first": due, "priority": request.priority, "group": request.group
    }  # fmt: skip
    body = msgspec.structs.replace(
        known.body, payload=request.payload, headers=request.headers, **said
    )
    kept = records.kept_payload(request.payload, request.headers)
    entry = records.with_schedule(
        place.entry, due, now, ordered=manager.ordered, payload=kept, **said
    )
    ctx.writes[manager.layout.body_key(*known.locator)] = stored = encode(body)
    ctx.grow(len(stored) + 4 * len(request.key))
    if known.state is not None:  # its state says when it would have been due
        ctx.writes[manager.layout.state_key(*known.locator)] = None
    move(ctx, manager, place, entry, now)


class Rewritten:
    """A mark in an evaluation's scratch: the keys of stored entries that it writes again.

    If such an entry is fired in the same proposal, the stored one has to be deleted as well.
    """


def rewritten(ctx: Evaluation, key: bytes) -> None:
    """Note that an entry is written to a key where it may be stored in an earlier form."""
    ctx.scratch.setdefault(Rewritten, set()).add(key)


def move(ctx: Evaluation, manager: Manager, place: Place, entry: Entry, now: int) -> None:
    """Move a ready or scheduled message to the place that ``entry`` gives it."""
    layout = manager.layout
    was = place.where
    ctx.writes[place.key] = None
    ready_at = records.ready_at(entry, ordered=manager.ordered)
    if ready_at > now:
        key, where = layout.scheduled_key(entry, ordered=manager.ordered), counters.SCHEDULED
    else:
        key, where = layout.ready_key(entry, ordered=manager.ordered), counters.READY
    ctx.writes[key] = encode(entry)
    if key == place.key:
        rewritten(ctx, key)
    change = counters.RESCHEDULED[was, where]
    if was == counters.READY:
        gone = place.key, place.entry.group
        ctx.notes.append((manager, counters.UNCHANGED, Manager.ready_removed, *gone))
    if where == counters.READY:
        ctx.notes.append((manager, change, Manager.ready_added, key, entry))
    else:
        ctx.notes.append((manager, change, Manager.scheduled_added, ready_at, now))
