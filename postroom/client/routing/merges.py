"""The requests that several ranges answer: the parts of each, and one answer of their answers.

::

    get_many a, n, b ── cut ─┬─▶ range 1: a, b ─▶ values of a, b ─┬─ merged ─▶ values of a, n, b
                             └─▶ range 2: n ────▶ value of n ─────┘

A scan asks only the first range that it concerns. Its page ends at the end of that range, if not
before, and the client asks for the next one. Locks are asked for in the order of the ranges, one
range after the other, so that transactions which lock in this way form no circle. All other parts
are asked for at once.

The changes of a span come in one order (:mod:`.changes`). A few ranges are asked at a time, and
their answers are merged at once: later ranges are asked only for what still fits.

A claim that does not wait asks one range, and one that waits goes another way (:mod:`.claims`).

A page of a list is merged in the order of the list. A range that has more tells where its page
ends. Entries of other ranges behind that come with a later page, so no page leaves anything out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from postroom.client.routing.changes import asked_until, complete_until, in_one_order
from postroom.client.routing.claims import asks_one_range, joined_answers, mixed
from postroom.client.routing.queue_merges import (
    joined_pages,
    known_result,
    shared_page,
    summed_stats,
)
from postroom.client.routing.range_cache import Piece, RangeCache
from postroom.limits import STAGED_COUNTED_MAX, STAGED_UNFINISHED_MAX
from postroom.messaging import due
from postroom.messaging.bulk_requests import RecordsPage, ScanRecords, cursor_at
from postroom.messaging.history_requests import FindCommits, TraceMessage
from postroom.messaging.ingest.requests import (
    WRONG_TOLD,
    CheckImage,
    Counted,
    ReadStaging,
    Staging,
)
from postroom.messaging.queues.claim_requests import EVERY_HOME, ClaimQueue
from postroom.messaging.queues.queries import (
    FindHomes,
    FindRangeStarts,
    ListQueueMessages,
    ReadQueueStats,
    ReadResult,
)
from postroom.messaging.requests import (
    AwaitQuiet,
    Counters,
    Inbox,
    ListDeadLetters,
    ListInboxes,
    ListScheduled,
    ReadCounters,
    SchedulePage,
    StoredDeadLetter,
)
from postroom.ranges.contract import RANGE_ID_BYTES, KeySet, Request
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.partitions import RangePartition, ReadPartitions
from postroom.ranges.requests import (
    UNBOUNDED,
    GetMany,
    Lock,
    Now,
    Pairs,
    ReleaseLocks,
    ReverseScan,
    Scan,
    ScanChanges,
    Values,
)
from postroom.ranges.transactions.requests import Refresh
from postroom.ranges.whole_protections import BeStill, ProtectWhole, ReleaseWhole

_PAGES: Final = frozenset({GetMany, ListDeadLetters, ListScheduled})
"""The requests for pages of which all parts are asked for, and have a share of the bytes each."""
PAGES_BY_RANGE: Final = frozenset({ReverseScan, Scan, ScanRecords})
"""The requests for pages of which each lies in one range."""
_DUE_END: Final = RANGE_ID_BYTES + 8
_LetterOrder: TypeAlias = tuple[bytes, bytes]
_ScheduleOrder: TypeAlias = tuple[int, bytes, bytes]


class AnsweredPart(NamedTuple):
    """A part of a request, and its answer."""

    request: Any
    answer: Any


def cut(request: Any, concern: KeySet, cache: RangeCache, rotation: int = 0) -> list[Any]:
    """Return the parts of a request that are to be asked for, in the order of their ranges.

    Args:
        request: the request.
        concern: the keys and spans that it concerns.
        cache: the known ranges.
        rotation: a number that changes, so that claims begin with other ranges.
    """
    if concern.spans and asks_one_at_a_time(request):
        piece = _asked_first(request, *concern.spans[0], cache, rotation)
        return (
            [] if piece is None else [request.narrowed(KeySet(spans=((piece.start, piece.end),)))]
        )
    parts = cache.cut(concern)
    return [shared(request.narrowed(each), len(parts)) for each in parts]


def asks_one_at_a_time(request: Any) -> bool:
    """Return whether ranges are asked one after the other, each after the answer of another."""
    if type(request) is ClaimQueue:
        return asks_one_range(request)
    return type(request) in PAGES_BY_RANGE


def _asked_first(
    request: Any, start: bytes, end: bytes | None, cache: RangeCache, rotation: int
) -> Piece | None:
    """Return the piece of a span that is asked first; ``None``: the span has no keys."""
    if type(request) is ReverseScan:
        return cache.last_piece(start, end)
    if type(request) is ClaimQueue and request.homes == EVERY_HOME:
        return cache.piece_from(mixed(rotation))
    return next(cache.pieces(start, end), None)


def shared(request: Any, parts: int) -> Any:
    """Return a request for one of several ranges, whose answers together are one page."""
    if type(request) is ListQueueMessages:
        return shared_page(request, parts)
    if type(request) not in _PAGES or request.bytes_max == UNBOUNDED:
        return request
    return msgspec.structs.replace(request, bytes_max=max(request.bytes_max // parts, 1))


def merged(request: Any, answered: list[AnsweredPart]) -> Any:
    """Return the answer to a request, of the answers to its parts."""
    kind = type(request)
    if kind is Scan or kind is ReverseScan:
        return _page(request, *answered[0])
    if kind is ScanRecords:
        return _records(request, *answered[0])
    if kind in _MERGES_BY_REQUEST:
        return _MERGES_BY_REQUEST[kind](request, answered)
    return MERGES[kind]([each.answer for each in answered])


def merged_so_far(answered: list[AnsweredPart]) -> list[AnsweredPart]:
    """Return the answers of by now, as one if that is smaller."""
    if not answered or type(answered[0].request) is not ScanChanges:
        return answered
    return [AnsweredPart(answered[0].request, in_one_order(each.answer for each in answered))]


def following(request: Any, answered: list[AnsweredPart]) -> Any:
    """Return the request for a part, after the answers to some others."""
    if type(request) is not ScanChanges or not answered:
        return request
    return asked_until(request, complete_until(each.answer for each in answered))


def _values(request: GetMany, answered: list[AnsweredPart]) -> Values:
    """Return the values of the first keys, up to one that no range has answered."""
    found: dict[bytes, bytes | None] = {}
    integers: set[bytes] = set()
    for part, answer in answered:
        found.update(zip(part.keys, answer.values, strict=False))
        integers.update([part.keys[index] for index in answer.integers])
    first = list(itertools.takewhile(found.__contains__, request.keys))
    return Values(
        [found[key] for key in first],
        request.timestamp,
        tuple([index for index, key in enumerate(first) if key in integers]),
    )


def _page(request: Scan | ReverseScan, part: Scan | ReverseScan, page: Pairs) -> Pairs:
    """Return the page of one range, which tells where the next range begins or ends."""
    if page.resume is not None:
        return page
    if type(request) is Scan:
        resume = None if part.end == request.end else part.end
    else:
        resume = None if part.start == request.start else part.start
    return msgspec.structs.replace(page, resume=resume)


def _records(request: ScanRecords, part: ScanRecords, page: RecordsPage) -> RecordsPage:
    """Return the page of one range; the last one tells where the next range begins."""
    if page.resume is not None or part.end is None or part.end == request.end:
        return page
    return msgspec.structs.replace(page, resume=cursor_at(request.table, part.end))


def _inboxes(request: ListInboxes, answered: list[AnsweredPart]) -> list[Inbox]:
    """Return the first inboxes of all parts, in the order that was asked for."""
    found: list[Inbox] = [each for part in answered for each in part.answer]
    found.sort(key=attrgetter("key") if request.by_key else attrgetter("oldest"))
    return found[: request.inboxes_max]


def _staging(request: ReadStaging, answered: list[AnsweredPart]) -> Staging:
    """Return the first queries of all ranges, which are in the order of their keys, and sums."""
    every: list[Staging] = [part.answer for part in answered]
    queries = sorted((query for each in every for query in each.queries), key=attrgetter("query"))
    most = STAGED_UNFINISHED_MAX if request.unfinished else STAGED_COUNTED_MAX
    counts = (
        min(sum(map(attrgetter(name), every)), STAGED_COUNTED_MAX)
        for name in ("jobs", "attempts", "loads")
    )
    return Staging(queries[:most], *counts)


def _in_order(answers: Iterable[list[RangeInfo]]) -> list[RangeInfo]:
    """Return the listed ranges in the order of their keys, each once."""
    by_id = {each.id: each for answer in answers for each in answer}
    return sorted(by_id.values(), key=lambda each: each.start)


def _joined(answers: list[list[Any]]) -> list[Any]:
    """Return what all ranges have found."""
    return [*itertools.chain(*answers)]


def _parts_in_order(answers: Iterable[list[RangePartition]]) -> list[RangePartition]:
    """Return the parts of all ranges, in the order of their keys."""
    return sorted(_joined([*answers]), key=lambda each: each.start)


def _counted(every: Sequence[Counted]) -> Counted:
    """Return the numbers of entries of all ranges, and the first differences."""
    tables: Counter[str] = Counter()
    for each in every:
        tables.update(each.tables)
    return Counted(dict(tables), _joined([each.wrong for each in every])[:WRONG_TOLD])


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
    BeStill: max,
    CheckImage: _counted,
    FindCommits: _joined,
    FindHomes: _joined,
    FindRangeStarts: _joined,
    ListDeadLetters: _letters,
    ListQueueMessages: joined_pages,
    ListRanges: _in_order,
    ListScheduled: _schedule,
    Lock: _nothing,
    Now: max,
    ProtectWhole: max,
    ReadCounters: summed,
    ReadPartitions: _parts_in_order,
    ReadQueueStats: summed_stats,
    ReadResult: known_result,
    Refresh: max,
    ReleaseLocks: _nothing,
    ReleaseWhole: _nothing,
    ScanChanges: in_one_order,
    TraceMessage: _joined,
}
"""The functions that make one answer of several, if it takes nothing but the answers."""

_MERGES_BY_REQUEST: Final[Mapping[type[Request], Callable[[Any, list[AnsweredPart]], Any]]] = {
    ClaimQueue: joined_answers,
    GetMany: _values,
    ListInboxes: _inboxes,
    ReadStaging: _staging,
}
"""The functions that make one answer of several, for a request."""

WINDOWS: Final[Mapping[type[Request], int]] = {Lock: 1, ScanChanges: 32}
"""The number of parts that are under way at a time, in the order of their ranges; else all are."""

AT_ONCE: Final[frozenset[type[Request]]] = frozenset({BeStill, ProtectWhole})
"""The requests whose parts an embedded store, too, sends before it awaits the first answer."""

DIVISIBLE: Final[frozenset[type[Request]]] = frozenset(
    {*MERGES, *_MERGES_BY_REQUEST, ReverseScan, Scan, ScanRecords}
)
"""The requests that may go to several ranges."""


def is_divisible(request: Any) -> bool:
    """Return whether a request may go to several ranges."""
    return type(request) in DIVISIBLE and (type(request) is not ScanRecords or request.goes_on())
