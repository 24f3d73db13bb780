"""The emptying of a queue that was dropped, a step at a time, until it is forgotten.

::

    its index: the messages of an entry, or a list, are deleted, and the entry with them
        │ all could be read                     │ some could not: others may be left
        ▼                                       ▼
    empty ◀── what is left of its index ◀── all keys are looked through for its messages

Records of the index that cannot be read stay until the end. Thus a leaseholder that takes over in
between finds them again, and looks through the keys anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.messaging.queues import records
from postroom.messaging.queues.enqueueing import remove
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import UNDECODABLE, Locator
from postroom.ranges.evaluation import Evaluation

PASSED_AT_ONCE: Final = 8
"""The number of keys of others that are read in a row before they are skipped."""
LOOKED_AT_ONCE: Final = 2000
"""The number of keys that a step looks at."""
_REST: Final = keys.DATA_END
"""The cursor behind all keys: the rest of the index is next."""


def empty(ctx: Evaluation, manager: Manager, messages_max: int, bytes_max: int) -> bool:
    """Delete some of a queue that was dropped; return whether there is anything left.

    Args:
        messages_max: the number of messages that are deleted at most.
        bytes_max: the size of the proposal at which the rest is left to the next step.
    """
    if manager.empty_from < keys.DATA:
        if _empty_index(ctx, manager, messages_max, bytes_max):
            return True
        if manager.names_all:
            ctx.writes[manager.layout.counters] = None
            return False
        return _go_on(ctx, manager, keys.DATA)
    if manager.empty_from < _REST:
        return _go_on(ctx, manager, _look_through(ctx, manager, messages_max))
    return _delete_rest(ctx, manager, messages_max)


def _go_on(ctx: Evaluation, manager: Manager, cursor: bytes) -> bool:
    ctx.after.append(partial(_emptied, manager, cursor))
    return True


def _emptied(manager: Manager, cursor: bytes) -> None:
    manager.empty_from = cursor


# --- the index ------------------------------------------------------------------------------------


def _empty_index(ctx: Evaluation, manager: Manager, messages_max: int, bytes_max: int) -> bool:
    """Delete the messages that the index names; return whether there is more to look at."""
    layout = manager.layout
    deleted = 0
    for key, packed in ctx.iterate(manager.empty_from, keys.after_prefix(layout.whole)):
        if deleted >= messages_max or ctx.bytes >= bytes_max:
            return _go_on(ctx, manager, key)
        deleted += 1
        ctx.steps += 1
        try:
            named = list(_said_by(layout, key, packed))
        except UNDECODABLE:
            manager.names_all = False
            continue
        while named:
            if ctx.bytes >= bytes_max:  # one at least is deleted, so this record names several
                ctx.writes[key] = left = _first_of(layout, key, packed, len(named))
                ctx.grow(len(left))
                return _go_on(ctx, manager, key)
            remove(ctx, manager, named.pop())
            ctx.steps += 2
            deleted += 1
        ctx.writes[key] = None
        ctx.grow(len(key))
    return False


def _said_by(layout: records.QueueLayout, key: bytes, packed: bytes) -> Iterator[Locator]:
    """Iterate over the messages that a stored entry, holding or list names."""
    part = key[: len(layout.scheduled)]
    if layout.is_list(key):
        for ended in records.ended_lists.decode(packed):
            yield ended.key, ended.kind, ended.id
    elif part in {layout.scheduled, layout.ready, layout.dead}:
        yield records.entries.decode(packed).locator
    elif part == layout.leased and not layout.is_mark(key):
        yield from (each.locator for each in records.holdings.decode(packed).entries)


def _first_of(layout: records.QueueLayout, key: bytes, packed: bytes, number: int) -> bytes:
    """Return a stored list, or holding, with its first messages only."""
    if layout.is_list(key):
        return records.encode(records.ended_lists.decode(packed)[:number])
    holding = records.holdings.decode(packed)
    return records.encode(msgspec.structs.replace(holding, entries=holding.entries[:number]))


# --- messages outside of the index ----------------------------------------------------------------


def _look_through(ctx: Evaluation, manager: Manager, messages_max: int) -> bytes:
    """Delete bodies, states and pointers of the queue under any key; return where to go on."""
    queue, deleted, looked_at = manager.layout.number, 0, 0
    onward: bytes | None = manager.empty_from
    while onward is not None:
        cursor, onward, passed = onward, None, 0
        for key, _ in ctx.iterate(cursor, keys.DATA_END):
            if deleted >= messages_max or looked_at >= LOOKED_AT_ONCE:
                return key
            looked_at += 1
            ctx.steps += 1
            prefix = key[: key.index(keys.END_OF_KEY, 1) + 2]
            if key[len(prefix) : len(prefix) + 5] in _own(queue):
                ctx.writes[key] = None
                ctx.grow(len(key))
                deleted += 1
                passed = 0
                continue
            passed += 1
            if passed > PASSED_AT_ONCE:
                onward = min(
                    (prefix + own for own in _own(queue) if prefix + own > key),
                    default=prefix + keys.SUFFIX_END,
                )
                break
    return _REST


def _own(queue: bytes) -> tuple[bytes, ...]:
    """Return the infixes of the keys of a queue behind the user key, in their order."""
    return keys.QUEUE_BODY + queue, keys.QUEUE_STATE + queue, keys.QUEUE_POINTER + queue


def _delete_rest(ctx: Evaluation, manager: Manager, keys_max: int) -> bool:
    """Delete the records that could not be read; return whether there are more."""
    layout = manager.layout
    for number, (key, _) in enumerate(ctx.iterate(layout.whole, keys.after_prefix(layout.whole))):
        if number >= keys_max:
            return True
        ctx.writes[key] = None
        ctx.grow(len(key))
        ctx.steps += 1
    ctx.writes[layout.counters] = None
    return False
