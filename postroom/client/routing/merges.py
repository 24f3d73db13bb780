"""The answers of several ranges to one request, made into one answer.

A page of a list is merged in the order of the list. A range that has more tells where its page
ends. Entries of other ranges behind that come with a later page, so no page leaves anything out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from postroom.messaging import due
from postroom.messaging.requests import (
    AwaitQuiet,
    Counters,
    ListDeadLetters,
    ListScheduled,
    ReadCounters,
    SchedulePage,
    StoredDeadLetter,
)
from postroom.ranges.contract import RANGE_ID_BYTES, Request
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.requests import Now, ReleaseLocks
from postroom.ranges.transactions.requests import Refresh

_DUE_END: Final = RANGE_ID_BYTES + 8
_LetterOrder: TypeAlias = tuple[bytes, bytes]
_ScheduleOrder: TypeAlias = tuple[int, bytes, bytes]


def _in_order(answers: Iterable[list[RangeInfo]]) -> list[RangeInfo]:
    """Return the listed ranges in the order of their keys, each once."""
    by_id = {each.id: each for answer in answers for each in answer}
    return sorted(by_id.values(), key=lambda each: each.start)


def _nothing(_: Iterable[None]) -> None:
    """Return the answer to a request that has none."""


def summed(every: Iterable[Counters]) -> Counters:
    """Return the sums of the counters of ranges."""
    return Counters(*map(sum, zip(*map(msgspec.structs.astuple, every), strict=True)))


def _letters(pages: list[list[StoredDeadLetter]]) -> list[StoredDeadLetter]:
    """Return a page of dead letters, in the order of the ids of their messages and updates."""
    ends = [_letter_order(page[-1].id) for page in pages if page and page[-1].more]
    every = sorted(
        (each for page in pages for each in page), key=lambda each: _letter_order(each.id)
    )
    found = [
        msgspec.structs.replace(each, more=False)
        for each in every
        if not ends or _letter_order(each.id) <= min(ends)
    ]
    found[-1:] = [msgspec.structs.replace(each, more=bool(ends)) for each in found[-1:]]
    return found


def _letter_order(name: bytes) -> _LetterOrder:
    return name[RANGE_ID_BYTES:], name[:RANGE_ID_BYTES]


def _schedule(pages: list[SchedulePage]) -> SchedulePage:
    """Return a page of scheduled entries, in the order in which they are due."""
    ends = [page.resume for page in pages if page.resume is not None]
    resume = min(ends, key=_schedule_order, default=None)
    every = sorted(
        (each for page in pages for each in page.entries), key=lambda each: _schedule_order(each.id)
    )
    return SchedulePage(
        [
            each
            for each in every
            if resume is None or _schedule_order(each.id) <= _schedule_order(resume)
        ],
        resume,
    )


def _schedule_order(name: bytes) -> _ScheduleOrder:
    when = due.shown(int.from_bytes(name[RANGE_ID_BYTES:_DUE_END], "big"))
    return when, name[_DUE_END:], name[:RANGE_ID_BYTES]


MERGES: Final[Mapping[type[Request], Callable[[list[Any]], Any]]] = {
    AwaitQuiet: _nothing,
    ListDeadLetters: _letters,
    ListRanges: _in_order,
    ListScheduled: _schedule,
    Now: max,
    ReadCounters: summed,
    Refresh: max,
    ReleaseLocks: _nothing,
}
"""The requests that may go to several ranges, each with the function that merges their answers."""
