"""The reader of one part of one table: pages of the store, turned into Arrow batches.

The next page is on its way while one is turned into a batch (:mod:`postroom.client.bulk`). The
reader protects its timestamp for as long as it reads, over the connection of its own process, even
if others protect it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from postroom.client.sync import CoreDatabase
from postroom.kv.versions import INTEGER, TOMBSTONE, VALUE
from postroom.messaging import bulk_requests
from postroom.messaging.bulk_requests import RecordFilter, RecordsPage, pack
from postroom.pipeline.columns import (
    Page,
    batch,
    packed_page,
    records_page,
    with_values,
)
from postroom.pipeline.decoding import Decode
from postroom.pipeline.filters import Span
from postroom.pipeline.record_columns import QUEUE_GETTERS, ROW_TABLES, RowTable
from postroom.pipeline.tables import SINCE, VALUES
from postroom.ranges.requests import CommittedChange

_VERSIONS: Final = frozenset({"data", "changes"})
_QUEUES: Final = frozenset({"queue", "archive"})
_BETWEEN: Final = SINCE | {"data"}


@dataclass(frozen=True)
class TableSlice:
    """The part of a table that one task reads.

    Attributes:
        spans: the spans of keys.
        range_id, generation: those of the range that held them when this was planned.
        queue, state: the queue of the messages, and their state.
    """

    spans: tuple[Span, ...] = ((b"", None),)
    range_id: int = 0
    generation: int = 0
    queue: str = ""
    state: str = ""


@dataclass(frozen=True)
class Work:
    """The way in which parts of a table are read.

    Attributes:
        table: the name of the table.
        at: the timestamp to read at.
        after, until: only records of later than ``after``, and not later than ``until``.
        schema: the schema of the batches.
        decode: unpacks values.
    """

    table: str
    at: int
    after: int
    until: int
    schema: pa.Schema
    decode: Decode | None


def read(db: CoreDatabase, table_slice: TableSlice, work: Work) -> Iterator[pa.RecordBatch]:
    """Return the batches of a part, none of them empty.

    Raises:
        SnapshotTooOld: the timestamp cannot be read any more.
    """
    if work.table in _BETWEEN and min(work.at, work.until) <= work.after:
        return  # nothing is between them, and perhaps they are collected, or in the future
    first = max(work.after, 1) if work.table in SINCE else work.at
    with db.hold(first):
        if work.table in _QUEUES:
            yield from _queue(db, table_slice, work)
            return
        for page in _pages(db, table_slice, work):
            if not page.rows:
                continue
            if work.table in _VERSIONS:
                yield batch(packed_page(page, work.decode), work.schema)
            else:
                yield from _rows(page, ROW_TABLES[work.table], work)


def _pages(db: CoreDatabase, table_slice: TableSlice, work: Work) -> Iterator[RecordsPage]:
    """Return the pages of a part."""
    at = min(work.at, work.until) if work.table in SINCE else work.at
    wanted = RecordFilter(work.after if work.table in _BETWEEN else 0, table_slice.queue)
    without_values = work.table in _VERSIONS and "value" not in work.schema.names
    columns = ("key", "timestamp", "kind") if without_values else ()
    for start, end in table_slice.spans:
        yield from db.bulk.scan(work.table, start, end, at=at, wanted=wanted, columns=columns)


def _rows(page: RecordsPage, table: RowTable, work: Work) -> Iterator[pa.RecordBatch]:
    """Return the batch of a page of records, if it has a row."""
    found = bulk_requests.records(work.table, page)
    if table.expand is not None:
        found = table.expand(page.range_id, found)
    if found:
        yield _batch(found, table, work)


def _batch(found: list[Any], table: RowTable, work: Work) -> pa.RecordBatch:
    getters, name = table.getters, VALUES.get(work.table, "")
    page: Page = records_page(found, getters)
    if name:
        page = with_values(page, name, map(getters["key"], found), work.decode)
    return batch(page, work.schema)


def _queue(db: CoreDatabase, table_slice: TableSlice, work: Work) -> Iterator[pa.RecordBatch]:
    until = 0 if work.until >= (1 << 63) - 1 else work.until + 1
    ended = table_slice.state in {"done", "archived", "dead"}
    start, end = (work.after, until) if ended else (0, 0)
    for page in db.bulk.queue(
        table_slice.queue, table_slice.state, at=work.at, start=start, end=end
    ):
        if page.messages:
            found = [(table_slice.queue, each) for each in page.messages]
            yield _batch(found, RowTable(QUEUE_GETTERS), work)


def counted_queues(db: CoreDatabase, at: int) -> list[Any]:
    """Return the records of the counters of all queues at a timestamp."""
    return [each for page in db.bulk.records("counters", at=at) for each in page if each.number]


# --- recent changes -------------------------------------------------------------------------------


def recent(db: CoreDatabase, table_slice: TableSlice, work: Work) -> list[pa.RecordBatch] | None:
    """Return the changes of a part from the leaseholder's memory.

    The result is ``None`` if one answer does not hold all of them.
    """
    ((start, end),) = table_slice.spans
    answer = db.bulk.recent_changes(start, end, work.after)
    if answer.until < work.until and answer.changes:
        return None
    return of_changes(answer.changes, table_slice, work)


def of_changes(
    changes: list[CommittedChange], table_slice: TableSlice, work: Work
) -> list[pa.RecordBatch]:
    """Return the batches of the changes of a part that were committed up to ``work.until``."""
    found = [each for each in changes if each.timestamp <= work.until]
    if not found:
        return []
    kinds = bulk_requests.TABLES["changes"]
    values = {
        "key": (each.key for each in found),
        "value": (each.value or b"" for each in found),
        "timestamp": (each.timestamp for each in found),
        "kind": (_kind(each) for each in found),
    }
    columns = {name: pack(kinds[name], column) for name, column in values.items()}
    page = RecordsPage(table_slice.range_id, len(found), columns, None)
    return [batch(packed_page(page, work.decode), work.schema)]


def _kind(change: CommittedChange) -> int:
    if change.value is None:
        return TOMBSTONE
    return INTEGER if change.integer else VALUE


__all__ = ["TableSlice", "Work", "counted_queues", "of_changes", "read", "recent"]
