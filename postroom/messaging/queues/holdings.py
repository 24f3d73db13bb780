"""The records that a proposal writes for queues: its holdings, their marks, counters and lists.

An evaluator leaves *notes* of what it does (:mod:`.manager`). At the end of a proposal they become,
for each queue, one record of counters, the lists of ended messages, and the marks of its holdings.
When the proposal is applied, they take effect in memory.

::

    claim ─▶ holding (a b c d)
             │ b is done, in a proposal that ends no other of them    holding, mark (b)
             │ c and d are rejected                                   holding, mark (b), mark (c d)
             │ a is done                                              nothing
             └ all are done at once                                   nothing

A lease may end while others of its holding go on. The request that ends it notes that among its
writes with a *flag*. The flag disappears if the request fails, and later requests see it. Once the
proposal holds all its requests, its flags become one mark for each holding, or the end of the
holding. No flag is ever stored. A request that ends all that is left of a holding at once, as
consumers do that settle batches, deletes the holding without flags.

A holding of which little is left is written again without the entries that are over. Thus the size
in the store and in memory is at most a few times that of the leased messages. This is true even if
one message of each claim is leased for days.

The proposal remembers its flags and extensions, not the queue. The manager therefore has to undo
only what was fired (:mod:`.manager`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from postroom.errors import StoreCorrupted, Unavailable
from postroom.kv import keys
from postroom.kv.engine import ValueReader, WriteSet
from postroom.limits import UPKEEP_BYTES
from postroom.messaging import counters
from postroom.messaging.counters import Change
from postroom.messaging.queues import records
from postroom.messaging.queues.leases import Lease, LeasedHolding
from postroom.messaging.queues.manager import Manager, Note
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.records import Ended, Holding, Locator, damaged, encode
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation

Marked: TypeAlias = tuple[LeasedHolding, bytes]
"""A holding, and the key of another mark behind it."""

_Key: TypeAlias = bytes

SPARSE: Final = 4
"""The divisor of sparse holdings: one is written again when ``1 / SPARSE`` of it is left."""
FEW_ENTRIES: Final = 8
"""The number of entries up to which a holding is never written again."""


@dataclass(slots=True)
class Changes:
    """The changes of one proposal to the leases of one queue, but for the ends of whole holdings.

    Attributes:
        flags: the leases that it has ended, by the keys of their flags among its writes.
        extended: the leases that it has extended, the latest last. Some may be of requests that
            have failed: only those count whose keys are written.
    """

    flags: dict[bytes, Lease] = field(default_factory=dict)
    extended: dict[Locator, list[Lease]] = field(default_factory=dict)


class Draft(ValueReader, Protocol):
    """A proposal in the making, as far as evaluators need it that end leases.

    Attributes:
        scratch, steps, bytes, notes: as in :class:`.Evaluation`.
    """

    scratch: dict[object, Any]
    steps: int
    bytes: int
    notes: list[Any]

    @property
    def timestamp(self) -> int:
        """Return the timestamp of the request under evaluation."""

    @property
    def writes(self) -> WriteSet:
        """Return the raw writes of the request under evaluation, or of all of them."""

    def is_deleted(self, key: _Key) -> bool:
        """Return whether the requests have deleted an engine key."""

    def is_written(self, key: _Key) -> bool:
        """Return whether the requests have written an engine key, and not deleted it since."""


def changes(ctx: Draft, manager: Manager) -> Changes | None:
    """Return the changes of the proposal under evaluation to a queue, or `None`."""
    of_queues: dict[Manager, Changes] | None = ctx.scratch.get(Changes)
    return None if of_queues is None else of_queues.get(manager)


def _changing(ctx: Draft, manager: Manager) -> Changes:
    of_queues: dict[Manager, Changes] = ctx.scratch.setdefault(Changes, {})
    found = of_queues.get(manager)
    if found is None:
        of_queues[manager] = found = Changes()
    return found


def give(ctx: Evaluation, manager: Manager, stored: Holding, deadline: float) -> LeasedHolding:
    """Write a holding for a claim, or for an extended lease; return it as leased."""
    layout = manager.layout
    key = layout.holding_key(stored.until, layout.seq(ctx.stamp, ctx.next_number()))
    ctx.writes[key] = packed = encode(stored)
    ctx.bytes += len(packed) + 2 * len(key) + WRITE_BYTES
    return LeasedHolding(key, stored, deadline)


def extend(ctx: Evaluation, manager: Manager, longer: Lease) -> None:
    """Note that the request extends a lease."""
    _changing(ctx, manager).extended.setdefault(longer.entry.locator, []).append(longer)


def extended(ctx: Draft, manager: Manager, locator: Locator) -> Lease | None:
    """Return the extended lease of a message, by this request and those before, or `None`."""
    changed = changes(ctx, manager)
    if changed is not None and changed.extended:
        for lease in reversed(changed.extended.get(locator, ())):
            if ctx.is_written(lease.holding.key):
                return lease
    return None


def is_over(ctx: Draft, manager: Manager, lease: Lease) -> bool:
    """Return whether this request or those before have ended a lease."""
    if ctx.is_deleted(lease.holding.key):
        return True
    changed = changes(ctx, manager)
    if changed is None or not changed.flags:
        return False
    flag = _flag(lease)
    return flag in changed.flags and ctx.is_written(flag)


def end(ctx: Draft, manager: Manager, leases: Iterable[Lease]) -> None:
    """End leases, none of which was over before."""
    by_holding: dict[LeasedHolding, list[Lease]] = {}
    for lease in leases:
        ending = by_holding.get(lease.holding)
        if ending is None:
            by_holding[lease.holding] = ending = []
        ending.append(lease)
    for holding, ending in by_holding.items():
        if len(ending) == holding.left:
            ctx.writes[holding.key] = None
            ctx.writes.update(dict.fromkeys(holding.marks))
            continue
        flags = _changing(ctx, manager).flags
        for lease in ending:
            flag = _flag(lease)
            ctx.writes[flag] = b""
            flags[flag] = lease
    ctx.bytes += len(by_holding) * 2 * WRITE_BYTES


def _mark(ctx: Evaluation, manager: Manager) -> tuple[list[Marked], list[LeasedHolding]]:
    """Turn the flags of a proposal that holds all its requests into marks, or ends of holdings.

    Returns:
        The holdings with new marks; and new ones with the rest of sparse ones, to be added.
    """
    changed = changes(ctx, manager)
    if changed is None:
        return [], []
    by_holding: dict[LeasedHolding, list[int]] = {}
    staged = ctx.staged
    for flag, lease in changed.flags.items():
        if staged.pop(flag, None) is not None:
            by_holding.setdefault(lease.holding, []).append(lease.number)
    marked: list[Marked] = []
    thinned: list[LeasedHolding] = []
    room = UPKEEP_BYTES
    for holding, numbers in by_holding.items():
        left = holding.left - len(numbers)
        if left and (not _is_sparse(holding, left) or room <= 0):
            mark = records.mark_key(holding.key, ctx.stamp)
            staged[mark] = encode(numbers)
            marked.append((holding, mark))
            continue
        if left:
            from_the_top = ~len(thinned)
            thin = _without(ctx, manager, holding, set(numbers), from_the_top)
            staged[thin.key] = packed = encode(thin.stored)
            room -= len(packed)
            thinned.append(thin)
        staged[holding.key] = None
        staged.update(dict.fromkeys(holding.marks))
    return marked, thinned


def _is_sparse(holding: LeasedHolding, left: int) -> bool:
    entries = len(holding.stored.entries)
    return entries > FEW_ENTRIES and left * SPARSE <= entries


def _without(
    ctx: Evaluation, manager: Manager, holding: LeasedHolding, over: set[int], ordinal: int
) -> LeasedHolding:
    """Return a holding of the rest of another, under an ordinal that no claim or extension has."""
    entries = [each.entry for each in manager.leases.of_holding(holding) if each.number not in over]
    stored = msgspec.structs.replace(holding.stored, entries=entries)
    layout = manager.layout
    key = layout.holding_key(stored.until, layout.seq(ctx.stamp, ordinal))
    return LeasedHolding(key, stored, holding.deadline)


def _flag(lease: Lease) -> bytes:
    return lease.holding.key + keys.u32(lease.number)


ENDED_LIST_LENGTH: Final = 1000
"""The number of ended messages in one list, which is purged as a whole."""
_FIRST_ORDINAL: Final = bytes(4)
"""The ordinal of the first list of a proposal of the root; no key has it."""


def sum_up(ctx: Evaluation) -> None:
    """Stage the counters, lists and marks of what a proposal does."""
    notes: list[Note] = ctx.notes
    if not notes:
        return
    changes: dict[Manager, dict[Change, int]] = {}
    ended: dict[tuple[Manager, bool], list[Ended]] = {}
    for manager, change, act, _, thing in notes:
        of_queue = changes.get(manager)
        if of_queue is None:
            changes[manager] = of_queue = {}
            manager.begin(ctx)
        number = len(thing) if act is Manager.run_added else 1
        of_queue[change] = of_queue.get(change, 0) + number
        if act is Manager.ended or act is Manager.archived:
            ended.setdefault((manager, act is Manager.archived), []).extend(thing)
    counted, marked = [], []
    thinned: list[tuple[Manager, LeasedHolding]] = []
    for manager, of_queue in changes.items():
        after = _add(manager, of_queue)
        ctx.staged[manager.layout.counters] = records.encode(after)
        more_marked, more_thinned = _mark(ctx, manager)
        marked += more_marked
        thinned += [(manager, holding) for holding in more_thinned]
        counted.append((manager, after))
    for (manager, is_archived), listed in ended.items():
        layout = manager.layout
        prefix = layout.archived if is_archived else layout.done
        for number in range(0, len(listed), ENDED_LIST_LENGTH):
            key = prefix + layout.seq(ctx.stamp, number).removesuffix(_FIRST_ORDINAL)
            ctx.staged[key] = records.encode(listed[number : number + ENDED_LIST_LENGTH])
    # Before the effects of the rider: a claim that is answered finds memory as it is stored.
    ctx.after.insert(0, lambda: _apply(notes, counted, marked, thinned))
    ctx.scratch[_Finished] = True


def _add(manager: Manager, changes: dict[Change, int]) -> QueueCounts:
    """Return the counters of a queue after changes.

    Raises:
        Unavailable: they cannot be true. The queue is set aside; the next proposal can do the rest
            without it.
    """
    try:
        return counters.add_changes(manager.name, manager.counted, changes)
    except StoreCorrupted as error:
        manager.steps.set_aside(damaged(manager.name, "its record of counters", error))
        raise Unavailable(
            f"the queue {manager.name!r} was found to be damaged, and is set aside; nothing was "
            "changed: try again"
        ) from error


class _Finished:
    """A mark in an evaluation's scratch: its notes are taken care of."""


def apply_bare(ctx: Evaluation) -> None:
    """Apply the notes of a proposal that writes nothing: what seemed due was not."""
    if _Finished not in ctx.scratch:
        ctx.scratch[_Finished] = True
        managers = dict.fromkeys(note[0] for note in ctx.notes)
        _apply(ctx.notes, [(manager, manager.counted) for manager in managers], [], [])


def _apply(
    notes: list[Note],
    counted: list[tuple[Manager, QueueCounts]],
    marked: list[Marked],
    thinned: list[tuple[Manager, LeasedHolding]],
) -> None:
    for holding, mark in marked:
        holding.marks.append(mark)
    for manager, _, act, one, other in notes:
        act(manager, one, other)
    for manager, holding in thinned:
        manager.leases.add(holding)
    for manager, after in counted:
        manager.applied(after)
