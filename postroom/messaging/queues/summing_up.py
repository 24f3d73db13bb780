"""The sum of the notes of a proposal: its records for the queues, and its effects in memory.

An evaluator leaves *notes* of what it does (:mod:`.manager`). At the end of a proposal they become,
for each queue, one record of counters, the lists of ended messages, and the marks of its holdings.
When the proposal is applied, they take effect in memory.
"""

from __future__ import annotations

from typing import Final

from postroom.errors import StoreCorrupted, Unavailable
from postroom.kv import keys
from postroom.messaging.queues import counters, holdings, records
from postroom.messaging.queues.counters import Change, Counted
from postroom.messaging.queues.damage import damaged
from postroom.messaging.queues.holdings import Marked
from postroom.messaging.queues.leases import Hold
from postroom.messaging.queues.manager import Manager, Note
from postroom.messaging.queues.records import Ended
from postroom.ranges.evaluation import Evaluation

ENDED_LIST_LENGTH: Final = 1000
"""The number of ended messages in one list, which is purged as a whole."""


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
        of_queue[change] = of_queue.get(change, 0) + 1
        if act is Manager.ended or act is Manager.archived:
            ended.setdefault((manager, act is Manager.archived), []).extend(thing)
    counted, marked = [], []
    thinned: list[tuple[Manager, Hold]] = []
    for manager, of_queue in changes.items():
        after = _add(manager, of_queue)
        ctx.staged[manager.layout.counters] = records.encode(after)
        more_marked, more_thinned = holdings.sum_up(ctx, manager)
        marked += more_marked
        thinned += [(manager, hold) for hold in more_thinned]
        counted.append((manager, after))
    for (manager, is_archived), listed in ended.items():
        prefix = manager.layout.archived if is_archived else manager.layout.done
        for number in range(0, len(listed), ENDED_LIST_LENGTH):
            key = prefix + ctx.stamp + (keys.u32(number) if number else b"")
            ctx.staged[key] = records.encode(listed[number : number + ENDED_LIST_LENGTH])
    # Before the effects of the rider: a claim that is answered finds memory as it is stored.
    ctx.after.insert(0, lambda: _apply(notes, counted, marked, thinned))
    ctx.scratch[_Finished] = True


def _add(manager: Manager, changes: dict[Change, int]) -> Counted:
    """Return the counters of a queue after changes.

    Raises:
        Unavailable: they cannot be true. The queue is set aside; the next proposal can do the rest
            without it.
    """
    try:
        return counters.add(manager.name, manager.counted, changes)
    except StoreCorrupted as error:
        manager.around.set_aside(damaged(manager.name, "its record of counters", error))
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
    counted: list[tuple[Manager, Counted]],
    marked: list[Marked],
    thinned: list[tuple[Manager, Hold]],
) -> None:
    for hold, mark in marked:
        hold.marks.append(mark)
    for manager, _, act, one, other in notes:
        act(manager, one, other)
    for manager, hold in thinned:
        manager.leases.add(hold)
    for manager, after in counted:
        manager.applied(after)
