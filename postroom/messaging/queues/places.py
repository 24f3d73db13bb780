"""The places of messages: found by name, changed by another schedule; and attempts at them.

::

    locator ─▶ leased? (memory) ─▶ state ─▶ body ─▶ its entry: ready, scheduled or dead

The key of a message's entry follows from its body, or from its state if it has failed before. Thus
nothing has to be written to find it again. The leaseholder has the leases in memory.

``Reschedule`` brings messages forward in bulk, or puts them off; it may set their epoch too. Leased
messages are left alone: their consumers decide. In an ordered group the place of a message does not
change, only the time before which its group waits for it. A message that is brought forward does
not wait for those before it that are not due yet. ``ReplayMessages`` makes dead messages ready
again, as if they had never been fired.

An attempt is named by its message, its epoch and the timestamp at which it began. The epoch alone
is not enough: a replayed message, and another one that gets the same id, begin with the same epoch.
An attempt whose lease has passed, or whose message has ended, can change nothing. ``LeaseLost``
says which of these it was.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator
from functools import partial
from typing import Final, NamedTuple, NoReturn

from postroom.errors import LeaseLost, StoreCorrupted, TransactionConflict, shorten
from postroom.kv import keys
from postroom.kv.engine import ValueReader
from postroom.limits import QUEUE_EPOCH_MAX
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.queues import records
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.holdings import Draft, changes, extended, is_over
from postroom.messaging.queues.leases import Lease, LeasedHolding
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import (
    Body,
    Entry,
    Locator,
    MessageState,
    damaged,
    decoded,
    encode,
)
from postroom.messaging.queues.requests import Attempt, ReplayMessages, Reschedule
from postroom.ranges.checks import NO_HEADERS, Headers
from postroom.ranges.evaluation import Evaluation, View, check_size
from postroom.ranges.ports import Registry


class Place(NamedTuple):
    """The place of a message that is live, or dead.

    Attributes:
        where: the counter of the messages there: ready, scheduled, leased or dead.
        key: the engine key of its entry, or of the holding that contains it.
        entry: its entry.
        lease: its lease; ``None``: nobody holds it.
        state: its stored state, if it was read.
    """

    where: str
    key: bytes
    entry: Entry
    lease: Lease | None
    state: MessageState | None


def lease_of(ctx: Draft, manager: Manager, locator: Locator) -> Lease | None:
    """Return the lease of a message as the requests before have left it, or `None`."""
    lease = extended(ctx, manager, locator) or manager.leases.get(locator)
    return None if lease is None or is_over(ctx, manager, lease) else lease


def read_state(reader: ValueReader, manager: Manager, locator: Locator) -> MessageState | None:
    """Return the stored state of a message, or `None` if it has none."""
    stored = reader.get(manager.layout.state_key(*locator))
    if stored is None:
        return None
    state = decoded(records.states, stored, manager.name)
    if not records.LIVE <= state.status <= records.MOVED:
        raise damaged(manager.name, "a stored state", f"there is no status {state.status}")
    return state


def read_body(reader: Evaluation | View, manager: Manager, locator: Locator) -> Body | None:
    """Return the stored body of a message, or `None` if there is none."""
    stored = reader.get(manager.layout.body_key(*locator))
    return None if stored is None else decoded(records.bodies, stored, manager.name)


def find(ctx: Evaluation, manager: Manager, locator: Locator) -> Place | None:
    """Return the place of a message that is not done, or `None` if there is none."""
    ctx.steps += 4
    lease = lease_of(ctx, manager, locator)
    if lease is not None:
        return Place(counters.LEASED, lease.holding.key, lease.entry, lease, None)
    body = read_body(ctx, manager, locator)
    if body is None:
        return None
    return find_unheld(ctx, manager, locator, body)


def find_unheld(
    reader: Evaluation | View, manager: Manager, locator: Locator, body: Body
) -> Place | None:
    """Return the place of a message that nobody holds, or `None` if it is neither live nor dead.

    Raises:
        QueueDamaged: it is not where its state, or its body, says.
    """
    layout, key = manager.layout, body.key_of(locator)
    state = read_state(reader, manager, locator)
    if state is not None and state.seq != body.seq:
        state = None
    if state is not None and state.status == records.DEAD:
        dead = layout.dead_key(state.at, state.seq)
        entry = Entry(key, *locator[1:], state.seq, state.due, 0, 0, state.epoch, body.group)
        return _placed(reader, manager, counters.DEAD, dead, entry, state) or _missing(
            manager, locator
        )
    if state is not None and state.status != records.LIVE:
        return None
    due, epoch = (body.first, 0) if state is None else (state.due, state.epoch)
    entry = Entry(key, *locator[1:], body.seq, due, body.first, body.priority, epoch, body.group)
    ready = layout.ready_key(entry, ordered=manager.ordered)
    scheduled = layout.scheduled_key(entry, ordered=manager.ordered)
    return (
        _placed(reader, manager, counters.READY, ready, entry, state)
        or _placed(reader, manager, counters.SCHEDULED, scheduled, entry, state)
        or _missing(manager, locator)
    )


def leased_message(
    reader: Evaluation | View,
    manager: Manager,
    entry: Entry,
    lease: tuple[int, int, int],
) -> StoredQueueMessage:
    """Return a message as its holder is told of it.

    Args:
        reader: the stored state.
        manager: the manager of its queue.
        entry: its entry.
        lease: the timestamps at which the lease ends and the message was fired; and how many
            milliseconds are left.
    """
    until, fired_at, lasts = lease
    error = ""
    if entry.has_failed:
        state = read_state(reader, manager, entry.locator)
        if state is None or state.seq != entry.seq or state.status != records.LIVE:
            raise damaged(manager.name, "a stored entry", "its state is that of another message")
        error = state.error
    payload: bytes | None = entry.payload
    headers: Headers = NO_HEADERS
    if payload is None:
        body = _body_of(reader, manager, entry)
        payload, headers = body.payload, body.headers
    created_at = int.from_bytes(entry.seq[:8], "big")
    first, due = times.shown(entry.first), times.shown(entry.due)
    return StoredQueueMessage(
        entry.key, entry.kind, entry.id, payload, headers, entry.priority, entry.group,
        created_at, first, due, entry.epoch, until, error, "leased", 0, fired_at,
        lasts,
    )  # fmt: skip


def _body_of(reader: Evaluation | View, manager: Manager, entry: Entry) -> Body:
    body = read_body(reader, manager, entry.locator)
    if body is None:
        raise StoreCorrupted(
            f"the message {shorten(entry.id)} of the queue {manager.name!r} says nothing: its "
            "body is gone; nothing was changed: please report this"
        )
    if body.seq != entry.seq:
        raise damaged(manager.name, "a stored entry", "its body is that of another message")
    return body


def _placed(
    reader: Evaluation | View,
    manager: Manager,
    where: str,
    key: bytes,
    told: Entry,
    state: MessageState | None,
) -> Place | None:
    """Return the place of the entry at a key, or `None` if there is none.

    The entry must be that of the message ``told``.
    """
    stored = reader.get(key)
    if stored is None:
        return None
    entry = decoded(records.entries, stored, manager.name)
    if (entry.locator, entry.seq, entry.epoch) != (told.locator, told.seq, told.epoch):
        raise damaged(manager.name, "a stored entry", "it is that of another message, or attempt")
    return Place(where, key, entry, None, state)


def _missing(manager: Manager, locator: Locator) -> NoReturn:
    raise damaged(
        manager.name,
        f"a record of the message {shorten(locator[2])}",
        "no consumer holds it, and it is not at the place that its state, or its body, tells",
    )


def locators(
    reader: Evaluation | View,
    manager: Manager,
    id_: bytes,
    kind: str | None,
    *,
    home: bytes | None = None,
) -> Iterator[Locator]:
    """Iterate over the messages with an id, of a kind or (``None``) of any, wherever they lie.

    A few of them may be done, and some may lie in other ranges. With ``home`` it is only the one
    that lies there, if there is one.
    """
    layout = manager.layout
    if kind is not None and home is not None:
        yield home, kind, id_
        return
    if kind is not None:
        locator = (id_, kind, id_)
        if reader.get(layout.body_key(*locator)) is not None:
            yield locator
        pointer = reader.get(layout.pointer_key(kind, id_))
        if pointer is not None:
            yield pointer, kind, id_
        return
    lower = layout.body_key(id_, "", b"")[: -len(keys.END_OF_KEY)]
    for raw, _ in reader.iterate(lower, keys.after_prefix(lower)):
        name, _, end = raw[len(lower) :].partition(keys.END_OF_KEY)
        if end == id_:
            yield id_, keys.unescape(name).decode(), id_
    pointers = layout.pointers(id_)
    for raw, pointed in reader.iterate(pointers, keys.after_prefix(pointers)):
        name = raw[len(pointers) : -len(keys.END_OF_KEY)]
        yield pointed, keys.unescape(name).decode(), id_


def named(ctx: Evaluation, manager: Manager, attempt: Attempt) -> list[Locator]:
    """Return the messages that an attempt names, by their homes or by id.

    An id may name messages wherever they lie, and of any kind if no kind is named.

    Raises:
        TransactionConflict: one of them lies in another range.
    """
    if not attempt.by_id:
        return [(attempt.home, attempt.kind, attempt.id)]
    ctx.steps += 4
    is_of_one = attempt.kind or attempt.of_kind
    found = list(locators(ctx, manager, attempt.id, attempt.kind if is_of_one else None))
    if not all(manager.host.bounds.contains(locator[0]) for locator in found):
        raise TransactionConflict(
            f"the message {shorten(attempt.id)} of the queue {manager.name!r} lies in another "
            "range than its id, which the client did not know; nothing was changed: try again"
        )
    return found


_ID_CHARACTERS_SHOWN: Final = 48
"""The number of characters of an id that errors show."""


def held(ctx: Draft, manager: Manager, attempt: Attempt) -> Lease:
    """Return the lease of an attempt.

    Raises:
        LeaseLost: it has none any more.
    """
    locator = (attempt.home, attempt.kind, attempt.id)
    lease = lease_of(ctx, manager, locator)
    if lease is None or not is_named_by(attempt, lease):
        raise _lease_lost(ctx, manager, attempt, lease)
    return lease


def is_named_by(attempt: Attempt, lease: Lease) -> bool:
    """Return whether ``attempt`` names the attempt that holds this lease."""
    return lease.entry.epoch == attempt.epoch and attempt.fired_at in {0, lease.fired_at}


def held_together(
    ctx: Draft, manager: Manager, attempts: list[Attempt]
) -> dict[Locator, Lease] | None:
    """Return the leases of attempts, or `None` if some are named by id, or twice.

    Raises:
        LeaseLost: one of them has none any more.
    """
    leases: dict[Locator, Lease] = {}
    applied, sure = manager.leases, changes(ctx, manager) is None
    known: LeasedHolding | None = None
    fired_at = 0
    for attempt in attempts:
        if attempt.epoch < 0 or attempt.by_id:
            return None
        locator = (attempt.home, attempt.kind, attempt.id)
        lease = applied.get(locator) if sure else None
        is_sure = lease is not None and lease.holding is known and fired_at == attempt.fired_at
        if lease is None or not is_sure or lease.entry.epoch != attempt.epoch:
            lease = held(ctx, manager, attempt)
            known, fired_at = lease.holding, attempt.fired_at
        leases[locator] = lease
    return leases if len(leases) == len(attempts) else None


def is_attempt(attempt: Attempt, place: Place, manager: Manager) -> bool:
    """Return whether no attempt was named, or this one holds the message, found by its id.

    Raises:
        LeaseLost: the attempt that was named does not hold it.
    """
    if attempt.epoch < 0:
        return True
    if place.lease is None or not is_named_by(attempt, place.lease):
        raise LeaseLost(
            f"{_named(attempt, manager)} does not hold it any more; nothing was changed"
        )
    return True


def _lease_lost(ctx: Draft, manager: Manager, attempt: Attempt, lease: Lease | None) -> LeaseLost:
    state = read_state(ctx, manager, (attempt.home, attempt.kind, attempt.id))
    if lease is not None:
        epoch = lease.entry.epoch
        why = f"{'a later one' if epoch == attempt.epoch else f'attempt {epoch + 1}'} holds it now"
    elif state is not None and state.status in {records.DONE, records.ARCHIVED}:
        why = "it is done already"
    elif state is not None and state.status != records.LIVE:
        why = "it was given up"
    else:
        why = (state.error if state is not None else "") or "it was given back"
    return LeaseLost(
        f"{_named(attempt, manager)} does not hold it any more: {why}; nothing was changed: "
        "leave the work to the consumer that holds it"
    )


def _named(attempt: Attempt, manager: Manager) -> str:
    """Return an attempt as the log of workers names it: counted from 1 on, ids that are text."""
    which = f"attempt {attempt.epoch + 1}" if attempt.epoch >= 0 else "an attempt"
    text = attempt.id.decode(errors="replace")
    id_ = (
        repr(text)
        if text.isprintable() and len(text) <= _ID_CHARACTERS_SHOWN
        else shorten(attempt.id)
    )
    return f"{which} at the message {id_} of the queue {manager.name!r}"


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


def settle_each(
    ctx: Evaluation,
    manager: Manager,
    attempts: list[Attempt],
    where: Container[str],
    act: Callable[[Place], None],
    verb: str,
) -> Generator[None, None, int]:
    """Act on the named messages that are in some places; return how many there were."""
    found, size_before = 0, ctx.bytes
    for attempt in attempts:
        for locator in named(ctx, manager, attempt):
            place = find(ctx, manager, locator)
            if place is not None and place.where in where:
                act(place)
                found += 1
        check_size(ctx.bytes - size_before, f"{verb} fewer messages in a transaction")
        if ctx.is_used_up():
            yield
    return found


class Rescheduling:
    """The evaluators of ``Reschedule`` and ``ReplayMessages``, in all queues of a range.

    Args:
        find: a function that returns the manager and the settings of a queue.
    """

    def __init__(self, find: Callable[[Evaluation, str], tuple[Manager, QueueSettings]]) -> None:
        self._find = find

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.writes[Reschedule] = self.reschedule
        registry.writes[ReplayMessages] = self.replay

    def reschedule(self, ctx: Evaluation, request: Reschedule) -> Generator[None, None, int]:
        """Evaluate ``Reschedule`` and return how many messages were found."""
        manager, _ = self._find(ctx, request.queue)
        where = (counters.READY, counters.SCHEDULED)
        act = partial(_reschedule, ctx, manager, request)
        return settle_each(ctx, manager, request.attempts, where, act, "reschedule")

    def replay(self, ctx: Evaluation, request: ReplayMessages) -> Generator[None, None, int]:
        """Evaluate ``ReplayMessages`` and return how many messages were found."""
        manager, _ = self._find(ctx, request.queue)
        act = partial(_revive, ctx, manager)
        return settle_each(ctx, manager, request.attempts, (counters.DEAD,), act, "replay")


def _reschedule(ctx: Evaluation, manager: Manager, request: Reschedule, place: Place) -> None:
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


def _revive(ctx: Evaluation, manager: Manager, place: Place) -> None:
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
