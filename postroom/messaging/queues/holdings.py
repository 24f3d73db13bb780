"""What is written when leases are given and end.

::

    claim ─▶ holding (a b c d)
             │ b is done, in a proposal that ends no other of them    holding, mark (b)
             │ c and d are rejected                                   holding, mark (b), mark (c d)
             │ a is done                                              nothing
             └ all are done at once                                   nothing

A lease that ends, while others of its holding go on, is noted among the writes of the request that
ends it: a *flag*, which goes if the request fails, and tells the requests after it. Once the
proposal holds all its requests, its flags become one mark for each holding, or the end of the
holding (``sum_up``). No flag is ever stored. Who ends all that is left of a holding at once, as
consumers do that settle batches, deletes it without any.

A holding of which little is left is written anew, without what is over: what is stored and kept in
memory is a few times what is held, also if of each claim one message is held for days.

What a proposal has flagged and extended is remembered with the proposal, not with the queue: what
the manager takes back (:mod:`.manager`) is only what was fired.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.limits import UPKEEP_BYTES
from postroom.messaging.queues import records
from postroom.messaging.queues.leases import Hold, Lease
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import Holding, Locator, encode
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation

Marked: TypeAlias = tuple[Hold, bytes]
"""A hold, and the key of another mark behind it."""

SPARSE: Final = 4
"""A holding is written anew when so small a part of it is left, ``1 / SPARSE``."""
FEW_ENTRIES: Final = 8
"""One that has no more is left as it is."""
_LAST_NAME: Final = 0xFFFF_FFFF


class Changes:
    """What one proposal does to the leases of one queue, but for the ends of whole holdings.

    Attributes:
        flags: the leases that it has ended, by the keys that say so among its writes.
        extended: those that it has given another end, the last one last. Some may be of requests
            that have failed: what counts is what is written.
    """

    __slots__ = ("extended", "flags")

    def __init__(self) -> None:
        self.flags: dict[bytes, Lease] = {}
        self.extended: dict[Locator, list[Lease]] = {}


def changes(ctx: Evaluation, manager: Manager) -> Changes | None:
    """What the proposal in the making does to a queue; ``None``: nothing yet."""
    of_queues: dict[Manager, Changes] | None = ctx.scratch.get(Changes)
    return None if of_queues is None else of_queues.get(manager)


def _changing(ctx: Evaluation, manager: Manager) -> Changes:
    of_queues: dict[Manager, Changes] = ctx.scratch.setdefault(Changes, {})
    found = of_queues.get(manager)
    if found is None:
        of_queues[manager] = found = Changes()
    return found


def give(ctx: Evaluation, manager: Manager, stored: Holding, deadline: float) -> Hold:
    """A claim is given messages, or a lease becomes one of its own that lasts longer."""
    key = manager.layout.holding_key(stored.until, ctx.stamp + ctx.next_ordinal())
    ctx.writes[key] = packed = encode(stored)
    ctx.bytes += len(packed) + 2 * len(key) + WRITE_BYTES
    return Hold(key, stored, deadline)


def extend(ctx: Evaluation, manager: Manager, longer: Lease) -> None:
    """The request gives a message that is held another end."""
    _changing(ctx, manager).extended.setdefault(longer.entry.locator, []).append(longer)


def extended(ctx: Evaluation, manager: Manager, locator: Locator) -> Lease | None:
    """Who will hold a message for longer, by what the requests before, and this one, have left."""
    changed = changes(ctx, manager)
    if changed is not None and changed.extended:
        for lease in reversed(changed.extended.get(locator, ())):
            if ctx.is_written(lease.hold.key):
                return lease
    return None


def is_over(ctx: Evaluation, manager: Manager, lease: Lease) -> bool:
    """Whether the requests before, or this one, have ended a lease."""
    if ctx.is_deleted(lease.hold.key):
        return True
    changed = changes(ctx, manager)
    if changed is None or not changed.flags:
        return False
    flag = _flag(lease)
    return flag in changed.flags and ctx.is_written(flag)


def end(ctx: Evaluation, manager: Manager, leases: Iterable[Lease]) -> None:
    """These are over; each of them was not before."""
    of_holds: dict[Hold, list[Lease]] = {}
    for lease in leases:
        ending = of_holds.get(lease.hold)
        if ending is None:
            of_holds[lease.hold] = ending = []
        ending.append(lease)
    for hold, ending in of_holds.items():
        if len(ending) == hold.left:
            ctx.writes[hold.key] = None
            ctx.writes.update(dict.fromkeys(hold.marks))
            continue
        flags = _changing(ctx, manager).flags
        for lease in ending:
            flag = _flag(lease)
            ctx.writes[flag] = b""
            flags[flag] = lease
    ctx.bytes += len(of_holds) * 2 * WRITE_BYTES


def sum_up(ctx: Evaluation, manager: Manager) -> tuple[list[Marked], list[Hold]]:
    """The flags of a proposal that holds all its requests become marks, or ends of holdings.

    Returns:
        What was marked; and holds with what is left of sparse ones, to be added.
    """
    changed = changes(ctx, manager)
    if changed is None:
        return [], []
    of_holds: dict[Hold, list[int]] = {}
    staged = ctx.staged
    for flag, lease in changed.flags.items():
        if staged.pop(flag, None) is not None:
            of_holds.setdefault(lease.hold, []).append(lease.number)
    marked: list[Marked] = []
    thinned: list[Hold] = []
    room = UPKEEP_BYTES
    for hold, numbers in of_holds.items():
        left = hold.left - len(numbers)
        if left and (not _is_sparse(hold, left) or room <= 0):
            mark = records.mark_key(hold.key, ctx.stamp)
            staged[mark] = encode(numbers)
            marked.append((hold, mark))
            continue
        if left:
            thin = _without(ctx, manager, hold, set(numbers), _LAST_NAME - len(thinned))
            staged[thin.key] = packed = encode(thin.stored)
            room -= len(packed)
            thinned.append(thin)
        staged[hold.key] = None
        staged.update(dict.fromkeys(hold.marks))
    return marked, thinned


def _is_sparse(hold: Hold, left: int) -> bool:
    entries = len(hold.stored.entries)
    return entries > FEW_ENTRIES and left * SPARSE <= entries


def _without(ctx: Evaluation, manager: Manager, hold: Hold, over: set[int], name: int) -> Hold:
    """What is left of a hold, under a name that no claim and no extension has."""
    entries = [each.entry for each in manager.leases.of_hold(hold) if each.number not in over]
    stored = msgspec.structs.replace(hold.stored, entries=entries)
    key = manager.layout.holding_key(stored.until, ctx.stamp + keys.u32(name))
    return Hold(key, stored, hold.deadline)


def _flag(lease: Lease) -> bytes:
    return lease.hold.key + keys.u32(lease.number)
