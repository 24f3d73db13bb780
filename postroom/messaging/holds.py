"""The postponed messages that hold up the inbox to which they will come back.

The messages behind such a message (with larger ids) are given to nobody until it is there again.
There is a record for each, which says where it waits in the outbox. The index of inboxes names the
first of them. A record has no effect if its message no longer waits there.
"""

from __future__ import annotations

from collections.abc import Iterable

from postroom.kv import keys
from postroom.ranges.evaluation import Evaluation


def hold(ctx: Evaluation, key: bytes, id_: bytes, waits_at: bytes) -> None:
    """Let the message ``id_`` hold up the inbox of ``key`` while it waits at an engine key."""
    lower, _ = keys.hold_span(key)
    ctx.writes[lower + id_] = waits_at
    ctx.grow(len(lower) + len(id_) + len(waits_at))


def first_left(ctx: Evaluation, key: bytes, first: bytes, back: Iterable[bytes]) -> bytes:
    """Return the first message that holds up the inbox, after some do not wait any more.

    Args:
        key: the key of the inbox.
        first: the first one until now.
        back: the messages that have come back, or will not.

    Returns:
        Its id; empty: none does.
    """
    lower, upper = keys.hold_span(key)
    for id_ in back:
        if ctx.get(lower + id_) is not None:
            ctx.writes[lower + id_] = None
    for record, waits_at in ctx.iterate(lower + first, upper):
        ctx.steps += 1
        if ctx.get(waits_at) is not None:
            return record[len(lower) :]
        ctx.writes[record] = None
    return b""
