"""Messages that were postponed, and hold up the inbox that they will come back to.

Those behind one (with larger ids) are given to nobody until it is there again. There is a record
for each, which tells where it waits in the outbox, and the index of inboxes names the first of
them. A record whose message does not wait there any more means nothing: a node of an earlier
version, which knows of no records, may have moved it.
"""

from __future__ import annotations

from collections.abc import Iterable

from postroom.kv import keys
from postroom.ranges.evaluation import Evaluation


def hold(ctx: Evaluation, key: bytes, id_: bytes, waits_at: bytes) -> None:
    """The message ``id_`` of ``key`` holds up the inbox, while the engine key is there at which it
    waits.
    """
    lower, _ = keys.hold_span(key)
    ctx.writes[lower + id_] = waits_at
    ctx.grow(len(lower) + len(id_) + len(waits_at))


def first_left(ctx: Evaluation, key: bytes, first: bytes, back: Iterable[bytes]) -> bytes:
    """Some messages do not wait any more; which one is the first that holds up the inbox now.

    Args:
        key: whose inbox.
        first: the first until now.
        back: those that have come back, or will not.

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
