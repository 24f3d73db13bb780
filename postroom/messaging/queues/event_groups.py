"""Event groups: a message that is enqueued when all messages of a group are done.

::

    enqueued   group g: 1, 2, 3 outstanding
    WhenDone   ............................ followers of g
    ended      2, 1, 0 ─▶ the followers are enqueued, in the write of the last end

A message of a group is outstanding from its enqueuing until it is acknowledged or cancelled. A dead
message holds its group up until it is replayed and done, or cancelled. A dead message that was
moved to another queue does not. If nothing is outstanding at the request, the follower is enqueued
at once. The number is stored, one record for each group with outstanding messages.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from postroom.errors import Invalid, ValueTooLarge
from postroom.limits import FOLLOWERS_BYTES_MAX, FOLLOWERS_MAX
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import damaged, decoded, encode
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.checks import check_headers
from postroom.ranges.evaluation import Evaluation


class Outstanding(msgspec.Struct, frozen=True, array_like=True):
    """The number of outstanding messages of a group, and its followers."""

    messages: int = 0
    followers: list[EnqueueInQueue] = []


_groups = msgspec.msgpack.Decoder(Outstanding)


def read_group(ctx: Evaluation, manager: Manager, group: str) -> Outstanding:
    """Return the outstanding messages and the followers of a group."""
    stored = ctx.get(manager.layout.group_key(group))
    if stored is None:
        return Outstanding()
    known = decoded(_groups, stored, manager.name)
    if known.messages < 1:
        raise damaged(manager.name, "a stored group", f"it counts {known.messages} messages")
    return known


def outstanding(stored: bytes) -> int:
    """Return how many messages of a group are outstanding, from its record."""
    return _groups.decode(stored).messages


def count_in_group(
    ctx: Evaluation, manager: Manager, group: str, number: int
) -> list[EnqueueInQueue]:
    """Add a number to the outstanding messages; return the followers if none is left."""
    known = read_group(ctx, manager, group)
    key = manager.layout.group_key(group)
    left = known.messages + number
    ctx.steps += 1
    ctx.grow(len(key) + 16)
    if left > 0:
        is_again = ctx.is_written(key)
        ctx.writes[key] = stored = encode(Outstanding(left, known.followers))
        if not is_again:
            ctx.grow(len(stored))
        return []
    ctx.writes[key] = None
    return known.followers


def when_done(
    ctx: Evaluation,
    manager: Manager,
    group: str,
    follower: EnqueueInQueue,
    enqueue: Callable[[Evaluation, EnqueueInQueue], object],
) -> None:
    """Evaluate ``WhenDone``.

    Raises:
        Invalid: the group has too many followers, or has no name; or the follower could not be
            enqueued.
        ValueTooLarge: its followers take more than ``FOLLOWERS_BYTES_MAX`` bytes.
    """
    if not group:
        raise Invalid("when_done needs a group: messages without one are in none")
    check_headers(follower.headers, follower.key)
    known = read_group(ctx, manager, group)
    if not known.messages:
        enqueue(ctx, follower)
        return
    if len(known.followers) >= FOLLOWERS_MAX:
        raise Invalid(
            f"the group {group[:48]!r} of the queue {manager.name!r} has {FOLLOWERS_MAX} followers "
            "already; nothing was changed: let one of them do the work of several"
        )
    stored = encode(Outstanding(known.messages, [*known.followers, follower]))
    if len(stored) > FOLLOWERS_BYTES_MAX:
        raise ValueTooLarge(
            f"the followers of the group {group[:48]!r} of the queue {manager.name!r} would take "
            f"{len(stored)} bytes, the limit is {FOLLOWERS_BYTES_MAX}; nothing was changed: let "
            "them name what they need, under keys"
        )
    ctx.writes[manager.layout.group_key(group)] = stored
    ctx.grow(len(stored))
