"""The cut of a record of queues at a key: what stays, and what goes to the right half of a range.

::

    scheduled, ready, dead      an entry           goes with the home of its message
    leased                      a holding          becomes two, without the messages that are over
    done, archived              a list             becomes two
    group                       with followers     goes with the name of the group, its home
    result                      and its entries    go with the home of the message
    periodic schedule                              stays: the root begins at the first key

A record that nobody can read stays. The right half has counters of what goes to it. All else that
was counted, like the attempts that have failed, stays with the left half, so that sums over both
remain the same.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import sub
from typing import Final, NamedTuple, TypeVar

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.queues import records
from postroom.messaging.queues.homes import home_of
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.records import UNDECODABLE, encode

T = TypeVar("T")

HEAD_BYTES: Final = len(keys.queue_prefix(0, 0))
"""The length of the part of an engine key before its subspace."""
_HOLDING_BYTES: Final = HEAD_BYTES + len(keys.LEASED) + 8 + records.SEQ_BYTES


class Halves(NamedTuple):
    """A record as each half of the range has it; ``None``: it has none.

    Attributes:
        counter, number: what the right half counts of it.
    """

    left: bytes | None
    right: bytes | None
    counter: str = ""
    number: int = 0


NOTHING: Final = Halves(None, None)


def is_undivided(raw: bytes) -> bool:
    """Return whether the record at an engine key stays, or goes, as it is."""
    return raw[HEAD_BYTES : HEAD_BYTES + 1] not in _DIVIDED


def goes_right(raw: bytes, stored: bytes, key: bytes) -> bool:
    """Return whether an undivided record goes to the right half, which begins at ``key``."""
    find = _HOMES.get(raw[HEAD_BYTES : HEAD_BYTES + 1])
    if find is None:
        return False
    try:
        return find(raw, stored) >= key
    except UNDECODABLE:
        return False


def unit_of(raw: bytes) -> bytes:
    """Return the engine key of the record that is cut as a whole: of a mark, its holding's."""
    if raw[HEAD_BYTES : HEAD_BYTES + 1] == keys.LEASED:
        return raw[:_HOLDING_BYTES]
    return raw


def cut(reader: Reader, raw: bytes, stored: bytes | None, key: bytes) -> Halves:
    """Return the halves of a record.

    Args:
        reader: the stored state; the marks of a holding are read there.
        raw: its engine key (:func:`unit_of`).
        stored: the record; ``None``: there is none.
        key: the first key of the right half.
    """
    if stored is None:
        return NOTHING
    subspace = raw[HEAD_BYTES : HEAD_BYTES + 1]
    try:
        if subspace == keys.LEASED:
            return _cut_holding(reader, raw, stored, key)
        if subspace in _LISTS:
            return _cut_list(_LISTS[subspace], stored, key)
    except UNDECODABLE:
        return Halves(stored, None)
    if goes_right(raw, stored, key):
        return Halves(None, stored, COUNTERS.get(subspace, ""), 1)
    return Halves(stored, None)


def _cut_holding(reader: Reader, raw: bytes, stored: bytes, key: bytes) -> Halves:
    holding = records.holdings.decode(stored)
    held = records.still_held(reader, raw, stored)
    goes = [each for each in held if each.locator[0] >= key]
    stays = [each for each in held if each.locator[0] < key]

    def half(entries: list[records.Entry]) -> bytes | None:
        return encode(msgspec.structs.replace(holding, entries=entries)) if entries else None

    return Halves(half(stays), half(goes), "leased", len(goes))


def _cut_list(counted: int, stored: bytes, key: bytes) -> Halves:
    ended = records.ended_lists.decode(stored)
    goes = [each for each in ended if each.home >= key]
    stays = [each for each in ended if each.home < key]
    number = sum(each.status == counted for each in goes)
    counter = "archived" if counted == records.ARCHIVED else "done"
    return Halves(_unless_empty(stays), _unless_empty(goes), counter, number)


def _unless_empty(ended: list[records.Ended]) -> bytes | None:
    return encode(ended) if ended else None


# --- homes, by the engine key, and the record


def _of_entry(_: bytes, stored: bytes) -> bytes:
    entry = records.entries.decode(stored)
    return home_of(entry.key, entry.group)


def _of_group(raw: bytes, _: bytes) -> bytes:
    name = raw[HEAD_BYTES + 1 :]
    return keys.unescape(name[: name.index(keys.END_OF_KEY)])


def _of_result(_: bytes, stored: bytes) -> bytes:
    return records.results.decode(stored).home


def _of_name(_: bytes, stored: bytes) -> bytes:
    return records.result_names.decode(stored).home


_HOMES: Final[dict[bytes, Callable[[bytes, bytes], bytes]]] = {
    keys.SCHEDULED: _of_entry,
    keys.READY: _of_entry,
    keys.DEAD: _of_entry,
    keys.GROUPS: _of_group,
    keys.EXPIRING: _of_name,
    keys.RESULTS: _of_result,
    keys.GROUP_RESULTS: _of_group,
}
_LISTS: Final = {keys.DONE: records.DONE, keys.ARCHIVED: records.ARCHIVED}
"""The status of messages in the lists of a subspace that its counter counts."""
_DIVIDED: Final = frozenset((keys.LEASED, *_LISTS))
COUNTERS: Final = {
    keys.SCHEDULED: "scheduled",
    keys.READY: "ready",
    keys.DEAD: "dead",
    keys.EXPIRING: "results",
}
"""The counters of undivided records, by subspace."""


# --- counters


def grown(counted: QueueCounts, more: dict[str, int]) -> QueueCounts:
    """Return the counters of a right half with more, or fewer, records there.

    Its messages count as enqueued there, and as acknowledged if they are kept.
    """
    totals = {counter: getattr(counted, counter) + number for counter, number in more.items()}
    after = msgspec.structs.replace(counted, **totals)
    acknowledged = after.done + after.archived
    enqueued = after.live + after.dead + acknowledged
    return msgspec.structs.replace(after, enqueued=enqueued, acknowledged=acknowledged)


def less(whole: QueueCounts, right: QueueCounts) -> QueueCounts:
    """Return the counters of the left half: those of the whole without those of the right half."""
    astuple = msgspec.structs.astuple
    return QueueCounts(*map(sub, astuple(whole), astuple(right)))
