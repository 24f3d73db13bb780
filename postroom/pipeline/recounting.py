"""The tables that audits are made of, as records: what is counted, and what it counts.

Each is read page by page, at a timestamp that is held as a whole, and says nothing of what messages
say (:mod:`postroom.messaging.recount`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec

from postroom.client.sync import Database
from postroom.pipeline.columns import Getter
from postroom.pipeline.filters import Span

Read = Callable[[Database, Sequence[Span], str, int], Iterator[list[Any]]]
"""Reads spans, or a queue, at a timestamp: the records of a page, and of the next one."""


def _counters(db: Database, _: Sequence[Span], __: str, at: int) -> Iterator[list[Any]]:
    for page in db.bulk.counters(at=at):
        of_range = msgspec.structs.asdict(page.counters)
        found = [(page.range_id, "", 0, *each) for each in of_range.items()]
        for queue in page.queues:
            if queue.dropped:
                continue
            about = (page.range_id, queue.name, queue.number)
            found += [(*about, *each) for each in msgspec.structs.asdict(queue.counted).items()]
        yield found


def _inbox_index(db: Database, spans: Sequence[Span], _: str, at: int) -> Iterator[list[Any]]:
    for start, end in spans:
        for page in db.bulk.inbox_index(start, end, at=at):
            yield page.entries


def _places(db: Database, _: Sequence[Span], queue: str, at: int) -> Iterator[list[Any]]:
    for page in db.bulk.places(queue, at=at):
        yield [(page.range_id, queue, page.queue, each) for each in page.places]


def _beside(db: Database, spans: Sequence[Span], _: str, at: int) -> Iterator[list[Any]]:
    for start, end in spans:
        for page in db.bulk.beside(start, end, at=at):
            yield [
                (page.range_id, metric, value, each)
                for each in page.records
                for metric, value in (each.sums.items() or _NO_SUMS)
            ]


_NO_SUMS: Final = [(None, None)]


def _of(place: int, *names: str, **renamed: str) -> dict[str, Getter]:
    """Attributes of what is at a place of a record."""

    def getter(name: str) -> Getter:
        return lambda record: getattr(record[place], name)

    found = {name: getter(name) for name in names}
    return found | {column: getter(name) for column, name in renamed.items()}


def _numbered(*names: str) -> dict[str, Getter]:
    return {name: itemgetter(place) for place, name in enumerate(names)}


RECOUNTED: Final[Mapping[str, tuple[Read, Mapping[str, Getter]]]] = {
    "counters": (_counters, _numbered("range", "queue", "number", "counter", "value")),
    "inbox_index": (
        _inbox_index,
        {name: attrgetter(name) for name in ("key", "messages", "oldest", "held")},
    ),
    "places": (
        _places,
        _numbered("range", "queue", "number")
        | _of(3, "part", "key", "kind", "id", "seq", "group", outstanding="number"),
    ),
    "beside": (
        _beside,
        _numbered("range", "metric", "value")
        | _of(3, "what", "key", "kind", "id", "seq", "status", number="queue"),
    ),
}
"""By table: what reads it, and its columns."""

__all__ = ["RECOUNTED"]
