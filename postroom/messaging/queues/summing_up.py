"""What a proposal comes to for the queues: its notes, added up, and applied.

An evaluator leaves *notes* of what it does (:mod:`.manager`). At the end of a proposal they become
one record of counters, one list of what was ended, and the marks of its holdings, for each queue.
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
"""Of what a proposal has ended, so many in one list: a list is purged as a whole."""


def sum_up(ctx: Evaluation) -> None:
    """The counters and lists of what a proposal does."""
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
    # Before what the rider has left behind: who is answered finds memory as it is stored.
    ctx.after.insert(0, lambda: _apply(notes, counted, marked, thinned))
    ctx.scratch[_Finished] = True


def _add(manager: Manager, changes: dict[Change, int]) -> Counted:
    """The counters of a queue after changes.

    Raises:
        Unavailable: they cannot be so. The queue is set aside: what else the proposal holds can be
            done without it, by the next one.
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
    """In an evaluation's scratch: its notes are taken care of."""


def apply_bare(ctx: Evaluation) -> None:
    """The notes of a proposal that writes nothing: what was thought to be due is not."""
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
