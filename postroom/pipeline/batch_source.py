"""The batch reader: the parts of a table, each read by one task, all at one timestamp.

A data source makes one for each plan. The pin is that of the source, so two plans of one data frame
read the same. Only the rows that filters leave are planned for and read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from postroom.client.bulk import Partition
from postroom.client.sync import CoreDatabase
from postroom.pipeline import connections
from postroom.pipeline.decoding import decode_for
from postroom.pipeline.driver_service import DriverLink
from postroom.pipeline.filters import ReadSelection, Span, narrowed, with_prefix
from postroom.pipeline.options import SourceOptions, StoreAddress
from postroom.pipeline.reading import TableSlice, Work, counted_queues, read
from postroom.pipeline.tables import VALUES

KEYS_PER_PART: Final = 1000
_ENDED: Final = ("done", "archived", "dead")
_LIVING: Final = frozenset({"scheduled", "ready", "leased"})


class TablePartition(InputPartition):
    """A part, as Spark hands it to a task."""

    def __init__(self, table_slice: TableSlice) -> None:
        super().__init__(table_slice)
        self.table_slice = table_slice


class TableReader(DataSourceReader):
    """The reader of one plan of a data frame.

    Args:
        options: the options of the source.
        store: the store, as tasks reach it.
        at: the pinned timestamp.
        line: the line to the driver's service; ``None``: there is none.
        schema: the schema of the data frame.
    """

    def __init__(
        self,
        options: SourceOptions,
        store: StoreAddress,
        at: int,
        line: DriverLink | None,
        schema: StructType,
    ) -> None:
        self._options = options
        self._store = store
        self._at = at
        self._line = line
        self._schema = schema
        self._selection = with_prefix(options.prefix) if options.prefix else ReadSelection()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the selection; Spark evaluates all filters again."""
        self._selection = narrowed(self._selection, filters, self._options.table)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the parts of the table."""
        options, line = self._options, self._line
        protected: AbstractContextManager[None] = nullcontext()
        if line is not None:
            protected = line.holding(self._store, self._at, options.protect_for)
        with protected:
            db = connections.database(self._store)
            return [
                TablePartition(table_slice)
                for table_slice in parts(db, options, self._selection, self._at)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the batches of a part, for a task."""
        if not isinstance(partition, TablePartition):
            return  # Spark's own, where there are no parts
        options, selection = self._options, self._selection
        since = options.since or 0
        schema = to_arrow_schema(self._schema, timezone="UTC")
        work = Work(
            options.table,
            self._at,
            max(selection.after, since),
            selection.until,
            schema,
            decode_for(options.format, schema, VALUES.get(options.table, ""), options.mode),
        )
        yield from read(connections.database(self._store), partition.table_slice, work)


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
    return [
        TableSlice(((each.start, each.end),), each.range_id, each.generation)
        for start, end in selection.spans
        for each in db.partitions(start, end, part_bytes=options.part_bytes)
    ]


def _key_parts(db: CoreDatabase, spans: list[Span], options: SourceOptions) -> list[TableSlice]:
    """Return parts of single keys, a number of them for each task, within one range each."""
    if not spans:
        return []
    found = []
    ranges = db.partitions(spans[0][0], spans[-1][1], part_bytes=options.part_bytes)
    for each in ranges:
        inside = [span for span in spans if _begins_in(span, each)]
        for first in range(0, len(inside), KEYS_PER_PART):
            few = tuple(inside[first : first + KEYS_PER_PART])
            found.append(TableSlice(few, each.range_id, each.generation))
    return found


def _begins_in(span: Span, table_slice: Partition) -> bool:
    return table_slice.start <= span[0] and (table_slice.end is None or span[0] < table_slice.end)


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
    return [TableSlice(queue=name, state=state) for name in names for state in states]
