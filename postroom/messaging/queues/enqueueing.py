"""Enqueuing: a message joins its queue in the transaction that sends it.

::

    Enqueue ─▶ body, at its home ─▶ ready, or scheduled (due later) ─▶ note: a claim may wait

In a store of several ranges, some of this takes place elsewhere (:mod:`.crossing`). An id that
somebody gave is unique because its range takes part in the transaction: the pointer there decides.
A message with a made-up id needs nobody's part. If its home lies elsewhere, it is sent there.

Messages are unique by kind and id, wherever they lie (:mod:`.homes`). If the home of a message is
not its id, a pointer under the id names the home. A duplicate is looked for with one read of each.
For an id that was made up nothing is looked for: there is no other one.

A message that is done and still kept is a duplicate like a live one. Its id is free after it is
purged, and with ``purge_after=0`` at once.

Enqueuing may be more than one message: the followers of a group go along, and a dead message may
join another queue. Settling, schedules and dead letters therefore enqueue here as transactions do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from postroom.errors import ConditionFailed, Invalid, shorten
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import Reader
from postroom.limits import (
    HEADERS_BYTES_PER_STEP,
)
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.queues import records
from postroom.messaging.queues.claiming import QueueEnvironment
from postroom.messaging.queues.crossing import (
    EnqueueById,
    PlaceMessage,
    ReplaceMessage,
)
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.directory import Directory
from postroom.messaging.queues.event_groups import count_in_group, when_done
from postroom.messaging.queues.homes import home_of, kept_key
from postroom.messaging.queues.manager import Manager, note_ready
from postroom.messaging.queues.places import (
    Place,
    find_unheld,
    lease_of,
    move,
    read_body,
    read_state,
)
from postroom.messaging.queues.records import (
    Body,
    Entry,
    Locator,
    MessageState,
    QueueLayout,
    damaged,
    decoded,
    encode,
)
from postroom.messaging.queues.requests import EnqueueInQueue, WhenDone
from postroom.messaging.undelivered import DeathLog
from postroom.ranges.bounds import Bounds
from postroom.ranges.checks import check_headers
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation
from postroom.ranges.ports import Registry

IGNORED: Final = "ignored"
REPLACED: Final = "replaced"


FAMILY_BYTES: Final = 16
"""The length of the beginning that all ids have that one client makes up."""
FAMILIES_KEPT: Final = 10_000


class MadeUpIds:
    """The greatest ids of messages, by family: a made-up id above that is new.

    A client makes ids up from its own id and a number that rises. To look for each of them in the
    store would cost as much as the rest of its enqueuing. A family is looked up when it is met for
    the second time, since others make up ids that have nothing in common.

    Invariant: no message has a greater id of a family that was looked up: neither a message nor a
    pointer lies there. The id may be too great, if a proposal comes to nothing: then the store is
    asked.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._greatest: dict[bytes, bytes] = {}
        self._met: dict[bytes, None] = {}

    def clear(self) -> None:
        """Forget all families, at the end of the lease."""
        self._greatest.clear()
        self._met.clear()

    def is_new(self, id_: bytes, reader: Reader | Evaluation) -> bool:
        """Return whether certainly no message has a made-up id, which is enqueued now."""
        family = id_[:FAMILY_BYTES]
        greatest = self._greatest.get(family)
        if greatest is None:
            if family not in self._met:
                if len(self._met) >= FAMILIES_KEPT:
                    self.clear()
                self._met[family] = None
                return False
            prefix = keys.DATA + keys.escape(family)[: -len(keys.END_OF_KEY)]
            lower, upper = self._bounds.data
            span = max(prefix, lower), min(keys.after_prefix(prefix), upper)
            stored = reader.iterate(*span, reverse=True)
            last, _ = next(stored, (prefix + keys.END_OF_KEY, None))
            greatest = keys.user_key(last)
        self._greatest[family] = max(greatest, id_)
        return id_ > greatest

    def placed(self, id_: bytes) -> None:
        """Note that a message with an id is enqueued."""
        greatest = self._greatest.get(id_[:FAMILY_BYTES])
        if greatest is not None and id_ > greatest:
            self._greatest[id_[:FAMILY_BYTES]] = id_


def is_there(
    get: Callable[[bytes], bytes | None], layout: QueueLayout, kind: str, id_: bytes
) -> bool:
    """Return whether there is a message of a kind and id, or was one, wherever it lies."""
    return (
        get(layout.body_key(id_, kind, id_)) is not None
        or get(layout.pointer_key(kind, id_)) is not None
    )


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
    if request.is_unique:
        _check_made_up(ctx, manager, request)
    else:
        home = _home_elsewhere(ctx, manager, request)
        if home is not None:
            return _on_duplicate_elsewhere(ctx, manager, settings, request, home)
        known = _find_known(ctx, manager, settings, request)
        if known is not None:
            if settings.on_duplicate == "replace":
                return _replace(ctx, manager, request, known, followers)
            return _on_duplicate(manager, settings, request, known.body.payload)
    if manager.departures.is_elsewhere(request.home):
        send_home(ctx, manager, request)
    else:
        put(ctx, manager, request)
    return None


def _check_made_up(ctx: Evaluation, manager: Manager, request: EnqueueInQueue) -> None:
    """Refuse an id that is said to be made up, and is not, as far as this range can tell."""
    id_ = request.id
    if manager.departures.is_elsewhere(id_) or manager.host.made_up.is_new(id_, ctx):
        return
    if is_there(ctx.get_once, manager.layout, request.kind, id_):
        raise Invalid(
            f"the queue {manager.name!r} has a message {shorten(id_)}, which is no made-up id "
            "then; nothing was changed: an id that may be there is not sent as unique"
        )


def send_home(ctx: Evaluation, manager: Manager, request: EnqueueInQueue) -> None:
    """Send a new message to its home in another range; the pointer is here, if somebody gave an id.

    The home has one made that belongs to a made-up id, after the message is there.
    """
    number = manager.definition.number
    if not request.is_unique:
        point(ctx, manager, (request.home, request.kind, request.id))
    due = manager.due(request.due, ctx.timestamp)
    sent = msgspec.structs.replace(request, due=due) if request.due else request
    manager.departures.send(ctx, request.home, PlaceMessage(manager.name, number, sent))


def put(ctx: Evaluation, manager: Manager, request: EnqueueInQueue) -> Entry:
    """Write a message that does not exist yet."""
    layout, now = manager.layout, ctx.timestamp
    key, kind, id_ = request.key, request.kind, request.id
    manager.host.made_up.placed(id_)
    seq = layout.seq(ctx.stamp, ctx.next_number())
    due = manager.due(request.due, now)
    group, priority = request.group, request.priority
    body = encode(Body(
        seq, request.payload, request.headers, due, priority, group, kept_key(key, id_, group)
    ))  # fmt: skip
    kept = records.kept_payload(request.payload, request.headers)
    entry = Entry(key, kind, id_, seq, due, due, priority, 0, group, 0, False, kept)
    body_key = layout.body_key(*entry.locator)
    ctx.writes[body_key] = body
    if request.is_unique or not manager.departures.is_elsewhere(id_):  # else it is there
        point(ctx, manager, entry.locator)
    if group:
        count_in_group(ctx, manager, group, 1)
    place_new(ctx, manager, entry, now)
    ctx.steps += 1
    ctx.bytes += 2 * len(body) + 3 * len(body_key) + 3 * WRITE_BYTES
    return entry


def point(ctx: Evaluation, manager: Manager, locator: Locator) -> None:
    """Write the pointer to a message, if its home is not its id."""
    home, kind, id_ = locator
    if home != id_ and manager.departures.is_elsewhere(id_):
        manager.departures.point(ctx, manager.name, manager.definition.number, locator)
    elif home != id_:
        ctx.writes[manager.layout.pointer_key(kind, id_)] = home
        ctx.grow(2 * len(home) + len(id_))


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
        note_ready(ctx.notes, manager, ctx.stamp, placed, entry)


def _home_elsewhere(ctx: Evaluation, manager: Manager, request: EnqueueInQueue) -> bytes | None:
    """Return the home of the message of this kind and id, if it is in another range, or coming."""
    if not manager.departures.may_cross():
        return None
    layout, kind, id_ = manager.layout, request.kind, request.id
    home = ctx.get(layout.pointer_key(kind, id_))
    if home is None:
        return None
    is_here = not manager.departures.is_elsewhere(home)
    return None if is_here and ctx.get(layout.body_key(home, kind, id_)) is not None else home


def _on_duplicate_elsewhere(
    ctx: Evaluation,
    manager: Manager,
    settings: QueueSettings,
    request: EnqueueInQueue,
    home: bytes,
) -> str:
    """Return what becomes of a duplicate of a message in another range, which may replace that.

    A message that has ended is a duplicate until it is purged there.
    """
    if settings.on_duplicate != "replace":
        return _on_duplicate(manager, settings, request, None)
    number = manager.definition.number
    manager.departures.send(ctx, home, ReplaceMessage(manager.name, number, home, request))
    return REPLACED


def _find_known(
    ctx: Evaluation, manager: Manager, settings: QueueSettings, request: EnqueueInQueue
) -> _Known | None:
    """Return the message of this kind and id, if there is one.

    Remove the rest of one that is gone.
    """
    layout, id_ = manager.layout, request.id
    home: bytes | None = id_
    stored = ctx.get(layout.body_key(id_, request.kind, id_))
    if stored is None:
        home = ctx.get(layout.pointer_key(request.kind, id_))
        if home is None:
            return None
        stored = ctx.get(layout.body_key(home, request.kind, id_))
        if stored is None:
            told = f"there is no message {shorten(id_)} at its home"
            raise damaged(manager.name, "a stored pointer", told)
    assert home is not None
    locator = (home, request.kind, id_)
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
    _remove_records(ctx, manager, locator)
    _end_pointer(ctx, manager, locator)


def _end_pointer(ctx: Evaluation, manager: Manager, locator: Locator) -> None:
    """Delete the pointer to a message, if it has one."""
    home, kind, id_ = locator
    if home != id_ and manager.departures.is_elsewhere(id_):
        manager.departures.end_pointer(ctx, manager.name, manager.definition.number, locator)
    elif home != id_:
        ctx.writes[manager.layout.pointer_key(kind, id_)] = None


def _remove_records(ctx: Evaluation, manager: Manager, locator: Locator) -> None:
    """Delete the body and the state of a message."""
    ctx.writes[manager.layout.body_key(*locator)] = None
    ctx.writes[manager.layout.state_key(*locator)] = None
    ctx.grow(3 * (len(locator[0]) + len(locator[2])))


def _on_duplicate(
    manager: Manager, settings: QueueSettings, request: EnqueueInQueue, payload: bytes | None
) -> str:
    if settings.on_duplicate == "error":
        raise ConditionFailed(
            f"the queue {manager.name!r} has a message {shorten(request.id)} of the kind "
            f"{request.kind!r} already; nothing was changed: take another id",
            actual=payload,
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
    before, group = known.body.group, request.group
    if manager.departures.is_elsewhere(home_of(place.entry.key, group)):
        _move_home(ctx, manager, request, known, place)
        if before:
            followers += count_in_group(ctx, manager, before, -1)
        return REPLACED
    _write_replacement(ctx, manager, request, known, place)
    if group != before:
        if group:
            count_in_group(ctx, manager, group, 1)
        if before:
            followers += count_in_group(ctx, manager, before, -1)
    return REPLACED


def _was_fired(place: Place) -> bool:
    """Return whether an attempt has failed. A message that was only rescheduled has a state too."""
    state = place.state
    return place.entry.epoch > 0 or place.entry.has_failed or bool(state and state.error)


def _write_replacement(
    ctx: Evaluation, manager: Manager, request: EnqueueInQueue, known: _Known, place: Place
) -> None:
    """Write a replaced message, which keeps its key, its id, and when it was created.

    With another group it has another home.
    """
    now = ctx.timestamp
    due = manager.due(request.due, now)
    said: dict[str, Any] = {
        "first": due, "priority": request.priority, "group": request.group
    }  # fmt: skip
    kept = records.kept_payload(request.payload, request.headers)
    entry = records.with_schedule(
        place.entry, due, now, ordered=manager.ordered, payload=kept, **said
    )
    body = msgspec.structs.replace(
        known.body, payload=request.payload, headers=request.headers,
        key=kept_key(entry.key, entry.id, entry.group), **said,
    )  # fmt: skip
    if entry.locator != known.locator:
        remove(ctx, manager, known.locator)
        point(ctx, manager, entry.locator)
    ctx.writes[manager.layout.body_key(*entry.locator)] = stored = encode(body)
    ctx.grow(len(stored) + 4 * len(request.key))
    if known.state is not None:  # its state says when it would have been due
        ctx.writes[manager.layout.state_key(*known.locator)] = None
    move(ctx, manager, place, entry, now)


def _move_home(
    ctx: Evaluation, manager: Manager, request: EnqueueInQueue, known: _Known, place: Place
) -> None:
    """Send a replaced message to its new home in another range: that of its new group.

    It counts as cancelled here.
    """
    entry = place.entry
    ctx.writes[place.key] = None
    if place.where == counters.READY:
        ctx.notes.append((manager, (), Manager.ready_removed, place.key, entry.group))
    change = counters.CANCELLED[place.where]
    ctx.notes.append((manager, change, Manager.nothing, None, None))
    moved = msgspec.structs.replace(request, key=entry.key, is_unique=False)
    _remove_records(ctx, manager, known.locator)
    if moved.home == moved.id:  # else its pointer is changed
        _end_pointer(ctx, manager, known.locator)
    send_home(ctx, manager, moved)


class Enqueueing:
    """The evaluators that enqueue messages, in the queues of a range.

    Args:
        directory: the directory of the queues.
        environment: the clocks and chance.

    Attributes:
        find, find_if_there: see :class:`.Directory`.
        kept, chance, may_purge, is_prepared: see :class:`.QueueEnvironment`.
        deaths: the log of messages that died without a consumer that could tell it.
    """

    def __init__(self, directory: Directory, environment: QueueEnvironment) -> None:
        self.find, self.find_if_there = directory.find, directory.find_if_there
        self.kept, self._by_wall = environment.kept, environment.by_wall
        self.chance, self.may_purge = environment.chance, environment.may_purge
        self.is_prepared = environment.is_prepared
        self.deaths = DeathLog()

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.writes[EnqueueInQueue] = self.enqueue
        registry.writes[WhenDone] = self._when_done

    def enqueue(self, ctx: Evaluation, request: EnqueueInQueue) -> str | None:
        """Evaluate ``EnqueueInQueue``."""
        manager, settings = self.find(ctx, request.queue)
        for key in (request.home, request.id):  # its message, or its pointer, goes out
            manager.departures.check_room(key)
        return self._enqueue(ctx, manager, settings, request)

    def _enqueue(
        self, ctx: Evaluation, manager: Manager, settings: QueueSettings, request: EnqueueInQueue
    ) -> str | None:
        followers: list[EnqueueInQueue] = []
        outcome = enqueue(ctx, manager, settings, request, followers)
        self._follow_all(ctx, followers)
        return outcome

    def _follow_all(self, ctx: Evaluation, followers: list[EnqueueInQueue]) -> None:
        for follower in followers:  # one that replaces another message may add followers
            found = self.find_if_there(ctx, follower.queue)
            if found is None:
                continue
            manager, settings = found
            request = _as_follower(follower)
            if self._is_decided_elsewhere(manager, request.id):
                _send_by_id(ctx, manager, request, replaces=True)
            else:
                enqueue(ctx, manager, _follower_settings(settings), request, followers)

    def _is_decided_elsewhere(self, manager: Manager, id_: bytes) -> bool:
        """Return whether another range, or a later proposal, tells whether an id is new.

        An id for which a transaction is prepared has to wait, and what ends a group cannot.
        """
        return manager.departures.is_elsewhere(id_) or self.is_prepared(id_)

    def enqueue_staged(self, ctx: Evaluation, request: EnqueueInQueue) -> None:
        """Enqueue a staged message, which has no other range take part.

        Its id may be of another range. Then a duplicate is no error.
        """
        manager, _ = self.find(ctx, request.queue)
        if request.is_unique or not manager.departures.is_elsewhere(request.id):
            self.enqueue(ctx, request)
            return
        manager.departures.check_room(request.id)
        due = manager.due(request.due, ctx.timestamp)
        sent = msgspec.structs.replace(request, due=due) if request.due else request
        _send_by_id(ctx, manager, sent, replaces=True)

    def enqueue_once(self, ctx: Evaluation, request: EnqueueInQueue) -> str | None:
        """Enqueue a message; ignore a duplicate whatever the settings of the queue say."""
        manager, _ = self.find(ctx, request.queue)
        if self._is_decided_elsewhere(manager, request.id):
            _send_by_id(ctx, manager, request, replaces=False)
            return None
        return self._enqueue(ctx, manager, QueueSettings(), request)

    def enqueue_committed(self, ctx: Evaluation, request: EnqueueInQueue) -> str | None:
        """Enqueue a message of a transaction that has committed: nothing refuses it."""
        manager, settings = self.find(ctx, request.queue)
        return self._enqueue(ctx, manager, _follower_settings(settings), request)

    def follow(self, ctx: Evaluation, request: EnqueueInQueue) -> None:
        """Enqueue a follower that was checked before, if its queue is there.

        The end of a group's last message must not fail because of what follows.
        """
        self._follow_all(ctx, [request])

    def enqueue_moved(self, ctx: Evaluation, request: EnqueueInQueue) -> None:
        """Enqueue a message that died in another queue, with whatever headers.

        Its headers say also why it died.
        """
        manager, _ = self.find(ctx, request.queue)
        put(ctx, manager, request)  # its home is that of the dead one

    def _when_done(self, ctx: Evaluation, request: WhenDone) -> None:
        self.find(ctx, request.enqueue.queue)
        self._let_follow(ctx, request, self._enqueue_follower)

    def when_done_committed(self, ctx: Evaluation, request: WhenDone) -> None:
        """Let a message follow a group, in a transaction that has committed: nothing refuses it."""
        self._let_follow(ctx, request, self.follow)

    def _let_follow(
        self,
        ctx: Evaluation,
        request: WhenDone,
        enqueue: Callable[[Evaluation, EnqueueInQueue], object],
    ) -> None:
        manager, _ = self.find(ctx, request.queue)
        due = times.resolved(request.enqueue.due, ctx.timestamp, self._by_wall)
        follower = msgspec.structs.replace(request.enqueue, due=due)
        when_done(ctx, manager, request.group, follower, enqueue)

    def _enqueue_follower(self, ctx: Evaluation, follower: EnqueueInQueue) -> None:
        """Enqueue a follower at once, since nothing of its group is outstanding."""
        if follower.is_unique:
            self.enqueue(ctx, follower)
            return
        manager, _ = self.find(ctx, follower.queue)
        if self._is_decided_elsewhere(manager, follower.id):
            _send_by_id(ctx, manager, follower, replaces=True)
        else:
            self.enqueue(ctx, follower)

    # --- changes that come from other ranges

    def place(self, ctx: Evaluation, request: EnqueueInQueue) -> None:
        """Place a new message that was sent home.

        Raises:
            Invalid: it is not new: its id was no made-up id.
        """
        manager, _ = self.find(ctx, request.queue)
        body_key = manager.layout.body_key(request.home, request.kind, request.id)
        if ctx.get_once(body_key) is not None:
            raise Invalid(f"there is a message {shorten(request.id)}, which is no made-up id")
        put(ctx, manager, request)

    def enqueue_sent(self, ctx: Evaluation, request: EnqueueInQueue, *, replaces: bool) -> None:
        """Enqueue a message that was sent to the range of its id; a duplicate is no error."""
        manager, settings = self.find(ctx, request.queue)
        known = _follower_settings(settings) if replaces else QueueSettings()
        self._enqueue(ctx, manager, known, request)

    def replace_sent(self, ctx: Evaluation, request: EnqueueInQueue, home: bytes) -> None:
        """Replace a message that lies at a home; if it has ended, enqueue the new one by its id.

        The pointer to what has ended is gone by then. A pointer to a message that is yet to come
        is not, and the new one is left out: damage would look the same.
        """
        manager, settings = self.find(ctx, request.queue)
        locator = home, request.kind, request.id
        body = read_body(ctx, manager, locator)
        state = None if body is None else read_state(ctx, manager, locator)
        if body is not None and not is_gone(state, settings, ctx.timestamp):
            followers: list[EnqueueInQueue] = []
            _replace(ctx, manager, request, _Known(locator, body, state), followers)
            self._follow_all(ctx, followers)
            return
        if body is not None:
            remove(ctx, manager, locator)
        _send_by_id(ctx, manager, request, replaces=False)


def _send_by_id(
    ctx: Evaluation, manager: Manager, request: EnqueueInQueue, *, replaces: bool
) -> None:
    """Send a message to the range of its id, which tells whether it is new."""
    change = EnqueueById(manager.name, manager.definition.number, request, replaces)
    manager.departures.send(ctx, request.id, change)


def _follower_settings(settings: QueueSettings) -> QueueSettings:
    is_error = settings.on_duplicate == "error"
    return msgspec.structs.replace(settings, on_duplicate="ignore") if is_error else settings


def _as_follower(request: EnqueueInQueue) -> EnqueueInQueue:
    """Return the follower as one whose id may exist by now, since it was made up earlier."""
    return msgspec.structs.replace(request, is_unique=False)
