"""The check that an attempt still holds its message, and the error if it does not.

An attempt is named by its message, its epoch and the moment at which it began. The epoch alone is
not enough: a replayed message, and another one that gets the same id, begin with the same epoch. An
attempt whose lease has passed, or whose message has ended, can change nothing. ``LeaseLost`` says
which of these it was.
"""

from __future__ import annotations

from typing import Final

from postroom.errors import LeaseLost, shorten
from postroom.messaging.queues import records
from postroom.messaging.queues.holdings import changes
from postroom.messaging.queues.leases import Hold, Lease
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import Place, lease_of, read_state
from postroom.messaging.queues.records import Locator
from postroom.messaging.queues.requests import Attempt
from postroom.ranges.evaluation import Evaluation

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
        raise _lost(ctx, manager, attempt, lease)
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
    known: Hold | None = None
    fired_at = 0
    for attempt in attempts:
        if attempt.epoch < 0 or attempt.by_id:
            return None
        locator = (attempt.key, attempt.kind, attempt.id)
        lease = applied.get(locator) if sure else None
        is_sure = lease is not None and lease.hold is known and fired_at == attempt.fired_at
        if lease is None or not is_sure or lease.entry.epoch != attempt.epoch:
            lease = held(ctx, manager, attempt)
            known, fired_at = lease.hold, attempt.fired_at
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


def _lost(ctx: Evaluation, manager: Manager, attempt: Attempt, lease: Lease | None) -> LeaseLost:
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
