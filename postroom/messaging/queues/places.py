"""The search for a message of a queue by its name, and the check of an attempt at it.

::

    locator ─▶ leased? (memory) ─▶ state ─▶ body ─▶ its entry: ready, scheduled or dead

The key of a message's entry follows from its body, or from its state if it has failed before. Thus
nothing has to be written to find it again. The leaseholder has the leases in memory.

An attempt is named by its message, its epoch and the timestamp at which it began. The epoch alone
is not enough: a replayed message, and another one that gets the same id, begin with the same epoch.
An attempt whose lease has passed, or whose message has ended, can change nothing. ``LeaseLost``
says which of these it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from postroom.errors import LeaseLost, StoreCorrupted, shorten
from postroom.kv import keys
from postroom.messaging import counters
from postroom.messaging import due as times
from postroom.messaging.queues import records
from postroom.messaging.queues.holdings import changes, extended, is_over
from postroom.messaging.queues.leases import Lease, LeasedHolding
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import Body, Entry, Locator, MessageState, damaged, decoded
from postroom.messaging.queues.requests import Attempt, StoredQueueMessage
from postroom.ranges.checks import NO_HEADERS, Headers
from postroom.ranges.evaluation import Evaluation, View


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


def lease_of(ctx: Evaluation, manager: Manager, locator: Locator) -> Lease | None:
    """Return the lease of a message as the requests before have left it, or `None`."""
    lease = extended(ctx, manager, locator) or manager.leases.get(locator)
    return None if lease is None or is_over(ctx, manager, lease) else lease


def read_state(
    reader: Evaluation | View, manager: Manager, locator: Locator
) -> MessageState | None:
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
    layout = manager.layout
    state = read_state(reader, manager, locator)
    if state is not None and state.seq != body.seq:
        state = None
    if state is not None and state.status == records.DEAD:
        key = layout.dead_key(state.at, state.seq)
        entry = Entry(*locator, state.seq, state.due, 0, epoch=state.epoch)
        return _placed(reader, manager, counters.DEAD, key, entry, state) or _missing(
            manager, locator
        )
    if state is not None and state.status != records.LIVE:
        return None
    due, epoch = (body.first, 0) if state is None else (state.due, state.epoch)
    entry = Entry(*locator, body.seq, due, body.first, body.priority, epoch, body.group)
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
        f"what is stored of the message {shorten(locator[2])}",
        "nobody holds it, and it is not where its state, or its body, tells",
    )


def locators(
    reader: Evaluation | View, manager: Manager, id_: bytes, kind: str | None
) -> Iterator[Locator]:
    """Iterate over the messages with an id, of a kind or (``None``) of any, whatever their keys.

    A few of them may be done.
    """
    layout = manager.layout
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
    for raw, key in reader.iterate(pointers, keys.after_prefix(pointers)):
        name = raw[len(pointers) : -len(keys.END_OF_KEY)]
        yield key, keys.unescape(name).decode(), id_


def named(ctx: Evaluation, manager: Manager, attempt: Attempt) -> list[Locator]:
    """Return the messages that an attempt names, by their keys or by id.

    An id may name messages under any key, and of any kind if no kind is named.
    """
    if not attempt.by_id:
        return [(attempt.key, attempt.kind, attempt.id)]
    ctx.steps += 4
    is_of_one = attempt.kind or attempt.of_kind
    return list(locators(ctx, manager, attempt.id, attempt.kind if is_of_one else None))


_ID_CHARACTERS_SHOWN: Final = 48
"""The number of characters of an id that errors show."""


def held(ctx: Evaluation, manager: Manager, attempt: Attempt) -> Lease:
    """Return the lease of an attempt.

    Raises:
        LeaseLost: it has none any more.
    """
    locator = (attempt.key, attempt.kind, attempt.id)
    lease = lease_of(ctx, manager, locator)
    if lease is None or not is_named_by(attempt, lease):
        raise _lease_lost(ctx, manager, attempt, lease)
    return lease


def is_named_by(attempt: Attempt, lease: Lease) -> bool:
    """Return whether ``attempt`` names the attempt that holds this lease."""
    return lease.entry.epoch == attempt.epoch and attempt.fired_at in {0, lease.fired_at}


def held_together(
    ctx: Evaluation, manager: Manager, attempts: list[Attempt]
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
        locator = (attempt.key, attempt.kind, attempt.id)
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


def _lease_lost(
    ctx: Evaluation, manager: Manager, attempt: Attempt, lease: Lease | None
) -> LeaseLost:
    state = read_state(ctx, manager, (attempt.key, attempt.kind, attempt.id))
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
        "whoever holds a message does the work, so leave it at that"
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
