"""The batch reader: the parts of a table, each read by one task, all at one timestamp.

A data source makes one for each plan. The pin is that of the source, so two plans of one data frame
read the same. Only the rows that filters leave are planned for and read.

A task turns pages of the store into Arrow batches. The next page is on its way while one is turned
into a batch (:mod:`postroom.client.bulk`). The task protects its timestamp for as long as it reads,
over the connection of its own process, even if others protect it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from postroom.client.bulk import Partition
from postroom.client.sync import CoreDatabase
from postroom.kv.versions import INTEGER, TOMBSTONE, VALUE
from postroom.messaging import bulk_requests
from postroom.messaging.bulk_requests import RecordFilter, RecordsPage, pack
from postroom.pipeline import connections
from postroom.pipeline.columns import (
    QUEUE_GETTERS,
    ROW_TABLES,
    Page,
    RowTable,
    batch,
    packed_page,
    records_page,
    with_values,
)
from postroom.pipeline.driver_service import DriverLink
from postroom.pipeline.filters import ReadSelection, Span, holds, narrowed, with_prefix
from postroom.pipeline.options import SourceOptions, StoreAddress
from postroom.pipeline.tables import SINCE, VALUES
from postroom.pipeline.typed_values import Decode, decode_for
from postroom.ranges.requests import CommittedChange

KEYS_PER_PART: Final = 1000
WHOLE_RANGE: Final = 1 << 60
"""The bytes of a part that is never cut."""
_ENDED: Final = ("done", "archived", "dead")
_LIVING: Final = frozenset({"scheduled", "ready", "leased"})


class TablePartition(InputPartition):
    """A part, as Spark hands it to a task; its ``value`` is a slice."""


@dataclass(eq=False)
class TableReader(DataSourceReader):
    """The reader of one plan of a data frame.

    Attributes:
        options: the options of the source.
        store: the store, as tasks reach it.
        at: the pinned timestamp.
        line: the line to the driver's service; ``None``: there is none.
        schema: the schema of the data frame.
    """

    options: SourceOptions
    store: StoreAddress
    at: int
    line: DriverLink | None
    schema: StructType

    def __post_init__(self) -> None:
        prefix = self.options.prefix
        self._selection = with_prefix(prefix) if prefix else ReadSelection()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the selection; Spark evaluates all filters again."""
        self._selection = narrowed(self._selection, filters, self.options.table)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the parts of the table."""
        options, line = self.options, self.line
        protected: AbstractContextManager[None] = nullcontext()
        if line is not None:
            protected = line.holding(self.store, self.at, options.protect_for)
        with protected:
            db = connections.database(self.store)
            return [
                TablePartition(table_slice)
                for table_slice in parts(db, options, self._selection, self.at)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the batches of a part, for a task."""
        if not isinstance(partition, TablePartition):
            return  # Spark's own, where there are no parts
        options, selection = self.options, self._selection
        since = options.since or 0
        schema = to_arrow_schema(self.schema, timezone="UTC")
        work = Work(
            options.table,
            self.at,
            max(selection.after, since),
            selection.until,
            schema,
            decode_for(options.format, schema, VALUES.get(options.table, ""), options.mode),
        )
        yield from read(connections.database(self.store), partition.value, work)


def parts(
    db: CoreDatabase, options: SourceOptions, selection: ReadSelection, at: int
) -> list[TableSlice]:
    """Return the parts of a table that have to be read.

    Raises:
        Invalid: there is no such queue.
    """
    if options.table in {"queue", "archive"}:
        return _queue_parts(db, options, selection)
    if options.table in {"outbox", "dead_letters", "counters"}:
        return [TableSlice()]
    if options.table == "places":
        return [
            TableSlice(),
            *(TableSlice(queue=each.queue) for each in counted_queues(db, at) if not each.dropped),
        ]
    if selection.keys is not None:
        return _key_parts(db, selection.spans, options)
    found = [
        each
        for start, end in selection.spans
        for each in db.partitions(start, end, part_bytes=options.part_bytes)
    ]
    return _of_tasks(found, options.part_bytes)


def _of_tasks(partitions: Iterable[Partition], part_bytes: int) -> list[TableSlice]:
    """Return parts, each of as many ranges together as one task reads."""
    found: list[list[Partition]] = []
    size = part_bytes
    for each in partitions:
        if not found or size + each.size_bytes > part_bytes:
            found.append([])
            size = 0
        found[-1].append(each)
        size += each.size_bytes
    return [
        TableSlice(
            tuple((each.start, each.end) for each in few), tuple(each.range_id for each in few)
        )
        for few in found
    ]


def _key_parts(db: CoreDatabase, spans: list[Span], options: SourceOptions) -> list[TableSlice]:
    """Return parts of single keys, a number of them for each task, within one range each."""
    if not spans:
        return []
    found = []
    ranges = db.partitions(spans[0][0], spans[-1][1], part_bytes=options.part_bytes)
    for each in ranges:
        inside = [span for span in spans if holds((each.start, each.end), span[0])]
        for first in range(0, len(inside), KEYS_PER_PART):
            few = tuple(inside[first : first + KEYS_PER_PART])
            found.append(TableSlice(few, (each.range_id,) * len(few)))
    return found


def _queue_parts(
    db: CoreDatabase, options: SourceOptions, selection: ReadSelection
) -> list[TableSlice]:
    names = [options.queue] if options.queue else [each.name for each in db.queues()]
    if selection.queues is not None:
        names = [name for name in names if name in selection.queues]
    wanted = selection.states
    if options.table == "archive":
        states = ["archived"] if wanted is None or "archived" in wanted else []
    else:
        states = [state for state in _ENDED if wanted is None or state in wanted]
        if wanted is None or wanted & _LIVING:
            states.insert(0, "")
    if not names or not states:
        return []
    slices = _of_tasks(db.partitions(part_bytes=WHOLE_RANGE), options.part_bytes)
    return [
        replace(each, queue=name, state=state)
        for name in names
        for state in states
        for each in slices
    ]


# --- one part -------------------------------------------------------------------------------------


_VERSIONS: Final = frozenset({"data", "changes"})
_QUEUES: Final = frozenset({"queue", "archive"})
_BETWEEN: Final = SINCE | {"data"}


@dataclass(frozen=True)
class TableSlice:
    """The part of a table that one task reads.

    Attributes:
        spans: the spans of keys.
        range_ids: for each span, the range that held it when this was planned.
        queue, state: the queue of the messages, and their state.
    """

    spans: tuple[Span, ...] = ((b"", None),)
    range_ids: tuple[int, ...] = (0,)
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
    for (start, end), range_id in zip(table_slice.spans, table_slice.range_ids, strict=True):
        for page in db.bulk.scan(work.table, start, end, at=at, wanted=wanted, columns=columns):
            if work.table in _VERSIONS:
                # The range may have split since: a task that is repeated tells the same one.
                yield msgspec.structs.replace(page, range_id=range_id)
            else:
                yield page


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
    name, state = table_slice.queue, table_slice.state
    for span in table_slice.spans:
        for page in db.bulk.queue(name, state, at=work.at, start=start, end=end, homes=span):
            if page.messages:
                found = [(name, each) for each in page.messages]
                yield _batch(found, RowTable(QUEUE_GETTERS), work)


def counted_queues(db: CoreDatabase, at: int) -> list[Any]:
    """Return a record of the counters of each queue at a timestamp, of the first range that has it.

    A queue is dropped if it is so in any range.
    """
    found: dict[int, Any] = {}
    for page in db.bulk.records("counters", at=at):
        for each in page:
            if each.number and (each.dropped or each.number not in found):
                found[each.number] = each
    return list(found.values())


# --- recent changes -------------------------------------------------------------------------------


def recent(db: CoreDatabase, table_slice: TableSlice, work: Work) -> list[pa.RecordBatch] | None:
    """Return the changes of a part from the leaseholder's memory.

    The result is ``None`` if one answer does not contain all of them.
    """
    ((start, end),) = table_slice.spans
    answer = db.bulk.recent_changes(start, end, work.after, work.until)
    if answer.until < work.until:
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
    page = RecordsPage(table_slice.range_ids[0], len(found), columns, None)
    return [batch(packed_page(page, work.decode), work.schema)]


def _kind(change: CommittedChange) -> int:
    if change.value is None:
        return TOMBSTONE
    return INTEGER if change.integer else VALUE
