"""The stream of changes: offsets, the limits of a batch, and the reading tasks.

A batch is the changes after one timestamp and up to another, in all ranges (:mod:`.offsets`). The
end is chosen once, when the batch is made: Spark keeps it in its log. A batch that is repeated
after a crash therefore reads the same changes.

The process that asks for offsets protects the position at which the next batch begins, over its
connection. It does so from before the batch is planned until the next one is asked for. (Spark
tells late, or never, that a batch is done: nothing here waits for that.) While no process runs, no
connection protects the position, and after ``gc_ttl`` the history may be gone. The store therefore
keeps the position of a stream that has a name (``db.keep_position``), for a day by default.

A batch ends at a commit: all changes of a transaction are in one batch.

**Small batches go to Spark with their plan.** The process that finds the end of a small batch has
seen its changes. A task in Python would cost Spark about 50 ms, and ask the store once more for
what is known here. They are kept until the next offset is asked for::

    latestOffset ── changes ──▶ end of the batch
         └─────────── kept ──▶ partitions ──▶ JVM, which keeps the rows as a block of its own
                                                └── lost, or a restart ──▶ read() in a task

Spark offers that for sources without partitions (``SimpleDataSourceStreamReader``), which however
know no limits. Its wrapper around them asks for rows in ``getCache``. :func:`change_reader` makes
such a wrapper, which plans and reads like any other reader. It sends the rows that a task would
read, since changes between two offsets never change. A batch that is repeated after a restart,
without the kept rows, has equal rows.

The wrapper is no public class: if PySpark lacks it, all batches are read in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from postroom.client.bulk import Partition
from postroom.client.sync import CoreDatabase
from postroom.errors import AccessDenied, SnapshotTooOld
from postroom.kv.clock import LOGICAL_BITS, from_seconds
from postroom.limits import CHANGES_BYTES_MAX, PREFETCHED_BYTES_MAX
from postroom.pipeline import connections, offsets, tables
from postroom.pipeline.filters import holds, with_prefix
from postroom.pipeline.offsets import RangeStep
from postroom.pipeline.options import SourceOptions, StoreAddress
from postroom.pipeline.table_reader import (
    WHOLE_RANGE,
    TableSlice,
    Work,
    of_changes,
    read,
    recent,
)
from postroom.pipeline.typed_values import decode_for
from postroom.ranges.feed import size_of
from postroom.ranges.requests import CommittedChange, CommittedChanges

QUIET_SECONDS: Final = 30.0
"""The time between empty batches of a stream without changes; it is less than history is kept."""


class SeenChanges(NamedTuple):
    """The changes of a span after a timestamp, and the timestamp up to which they are complete."""

    after: int
    until: int
    changes: list[CommittedChange]


class StepPart(InputPartition):
    """The part of a batch that one task reads; its ``value`` is a tuple of steps."""


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream of changes: see the module.

    Args:
        options: of the source.
        store: as it is reached.
        schema: of the stream.
    """

    def __init__(self, options: SourceOptions, store: StoreAddress, schema: StructType) -> None:
        self._options = options
        self._store = store
        self._schema = schema
        self._target: int | None = None
        self._complete = 0  # the timestamp up to which the last answer was complete
        self._protected: dict[int, ExitStack] = {}
        self._kept: int | None = None  # the position that the store keeps, if it is known
        self._seen: SeenChanges | None = None  # the changes of the batch that is being made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_protected": {}, "_seen": None}

    @property
    def _db(self) -> CoreDatabase:
        return connections.database(self._store)

    def _ranges(self) -> list[Partition]:
        span = with_prefix(self._options.prefix)
        return self._db.partitions(span.start, span.end, part_bytes=WHOLE_RANGE)

    # --- offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        """Return the offset at which a new query begins."""
        wanted, ranges = self._options.start, self._ranges()
        match wanted:
            case "now":
                position = int(self._db.now())
            case "earliest":
                position = max(each.readable_from for each in ranges)
            case _:
                position = int(wanted)
        offset = offsets.everywhere(ranges, position)
        self._protect(offset)
        return offset

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; ``start``: there is nothing to read."""
        self._seen = None
        self._protect(start)
        position = offsets.position_of(start)
        until = self._cut(position, limit) or self._beyond_quiet(position)
        if until is None:
            return start
        end = offsets.everywhere(self._ranges(), until)
        return {**end, "small": self._has_seen(position, until), **self._lag(until)}

    def _lag(self, position: int) -> dict[str, Any]:
        """Return how far a batch that ends at ``position`` is behind the newest change.

        The number is for people: Spark shows the end of a batch in ``lastProgress``. It asks a
        source that hands it rows (:func:`change_reader`) for nothing else. Rows are counted within
        one answer of the store.
        """
        if position >= self._complete:  # seen complete a moment ago
            return {"rows_behind": 0, "seconds_behind": 0.0}
        found = self._first_changes(position)
        seconds = 0.0
        if found.changes:
            oldest = int(found.changes[0].timestamp)
            seconds = max((int(self._db.now()) - oldest) >> LOGICAL_BITS, 0) / 1000
        return {"rows_behind": len(found.changes), "seconds_behind": seconds}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch reads at most."""
        if self._options.max_rows:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: later commits are not read."""
        self._target = int(self._db.now())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the parts of the batch between two offsets."""
        self._protect(start)
        return [StepPart(steps) for steps in offsets.parts(start, end)]

    def prefetched(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a batch of one task, if they were seen when the batch was made."""
        seen, parts = self._seen, offsets.parts(start, end)
        can_be_sent = not self._options.format and tables.is_plain(self._schema, "changes")
        if seen is None or len(parts) != 1 or not can_be_sent:
            return None
        (steps,) = parts
        if not all(self._has_seen(step.after, step.until) for step in steps):
            return None
        return chain.from_iterable(self._rows_in(step, seen.changes) for step in steps)

    def _has_seen(self, after: int, until: int) -> bool:
        """Return whether all changes after one timestamp, and up to another, have been seen."""
        seen = self._seen
        return seen is not None and seen.after == after and until <= seen.until

    def _rows_in(self, step: RangeStep, changes: list[CommittedChange]) -> list[pa.RecordBatch]:
        inside = [each for each in changes if holds(step.span, each.key)]
        return of_changes(inside, *self._task(step, step.after))

    def stop(self) -> None:
        """Give the protections back. Spark may never call it."""
        self._release(None)

    # --- the contents of a batch

    def _cut(self, position: int, limit: ReadLimit) -> int | None:
        """Return the end of the next batch; ``None``: nothing was changed."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        if isinstance(limit, ReadMaxRows):
            bytes_max = self._options.max_bytes
        if not (rows_max or bytes_max):
            return self._newest(position)
        size = 0
        whole: int | None = None  # the last commit all of whose changes have been seen
        commit: int | None = None
        for rows, change in enumerate(self._changes(position), 1):
            if self._target is not None and change.timestamp > self._target:
                break
            if change.timestamp != commit:
                whole, commit = commit, change.timestamp
            size += len(change.key) + len(change.value or b"")
            full = (rows_max and rows > rows_max) or (bytes_max and size > bytes_max)
            if full and whole is not None:
                return whole
        return commit

    def _newest(self, position: int) -> int | None:
        """Return the end of a batch without limits; ``None``: nothing was changed.

        If one answer contains all changes, the batch ends with it. Tasks then also get it from the
        leaseholder's memory, and need not walk over the span.
        """
        found = self._first_changes(position)
        if not found.changes:
            return None
        size = sum(map(size_of, found.changes))
        newest = found.until if size <= CHANGES_BYTES_MAX else int(self._db.now())
        if self._target is None:
            return newest
        return min(newest, self._target) if found.changes[0].timestamp <= self._target else None

    def _beyond_quiet(self, position: int) -> int | None:
        """Return where a stream without changes goes on, with an empty batch.

        Without it, the stream would hold back garbage collection as long as it runs. A new run
        would be told that changes are collected, although there were none.
        """
        until = self._complete if self._target is None else min(self._complete, self._target)
        return until if until - position > from_seconds(QUIET_SECONDS) else None

    def _changes(self, after: int) -> Iterator[CommittedChange]:
        """Yield all changes, commit by commit."""
        while True:
            found = self._first_changes(after)
            yield from found.changes
            if not found.changes or found.until <= after:
                return
            after = found.until

    def _first_changes(self, after: int) -> CommittedChanges:
        """Return as many changes as one answer contains, and until when they are complete."""
        span = with_prefix(self._options.prefix)
        while True:
            try:
                found = self._db.bulk.recent_changes(span.start, span.end, after)
            except SnapshotTooOld as error:
                after = self._beyond_loss(error)
            else:
                self._complete = found.until
                self._remember(after, found)
                return found

    def _remember(self, after: int, found: CommittedChanges) -> None:
        """Keep the first changes of a batch: the whole commits that a small batch can have.

        By its own limits, a small batch may have fewer changes than one answer.
        """
        if self._seen is not None:
            return
        size, until = 0, found.until
        for change in found.changes:  # the changes are in the order of commits
            size += size_of(change)
            if size > PREFETCHED_BYTES_MAX:
                until = change.timestamp - 1
                break
        kept = [each for each in found.changes if each.timestamp <= until]
        self._seen = SeenChanges(after, until, kept)

    # --- the history that it needs

    def _protect(self, offset: dict[str, Any]) -> None:
        """Protect the history after an offset, and let go of the history before it."""
        position = max(offsets.position_of(offset), 1)
        if position not in self._protected:
            stack = ExitStack()
            try:
                stack.enter_context(self._db.hold(position))
            except SnapshotTooOld as error:
                self._beyond_loss(error)
                return
            self._protected[position] = stack
        self._keep(position)
        self._release(position)

    def _keep(self, position: int) -> None:
        """Let the store keep a position, which is held, if the stream has a name."""
        name, seconds = self._options.name, self._options.position_for
        if not name or position == self._kept:
            return
        try:
            if seconds:
                self._db.keep_position(name, position, seconds=seconds)
            elif self._kept is None:
                self._db.forget_position(name)
        except AccessDenied as error:
            raise AccessDenied(
                f"the position of the stream {name!r} cannot be kept: {error}. Or give "
                "protect_for=0: then nothing is kept while the stream does not run"
            ) from error
        self._kept = position

    def _release(self, but: int | None) -> None:
        for position in [each for each in self._protected if each != but]:
            self._protected.pop(position).close()

    def _beyond_loss(self, error: SnapshotTooOld) -> int:
        """Return the first readable position, if the stream may leave the rest out.

        Raises:
            SnapshotTooOld: it may not.
        """
        if self._options.fail_on_data_loss:
            raise SnapshotTooOld(
                f"changes that this stream has not read are collected: {error}. Nothing was read: "
                "start a new query that reads the table data first, or set fail_on_data_loss=false "
                "to go on with the changes that are left"
            )
        return max(each.readable_from for each in self._ranges())

    # --- a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a part, step by step."""
        if isinstance(partition, StepPart):
            for step in partition.value:
                yield from self._read(step)

    def _read(self, step: RangeStep) -> Iterator[pa.RecordBatch]:
        db, after = self._db, step.after
        while True:
            part, work = self._task(step, after)
            try:
                with db.hold(max(after, 1)):
                    found = recent(db, part, work)
                    yield from read(db, part, work) if found is None else found
                return
            except SnapshotTooOld as error:
                before, after = after, self._beyond_loss(error)
                if after <= before:  # rows of before the step are not its own
                    raise

    def _task(self, step: RangeStep, after: int) -> tuple[TableSlice, Work]:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        decode = decode_for(self._options.format, schema, "value", self._options.mode)
        return (
            TableSlice((step.span,), (step.range_id,)),
            Work("changes", step.until, after, step.until, schema, decode),
        )


# --- small batches without a task -----------------------------------------------------------------


_Wrapper = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)


def change_reader(options: SourceOptions, store: StoreAddress, schema: StructType) -> ChangeReader:
    """Return a reader; its small batches need no task in Python, if PySpark can do that."""
    return (ChangeReader if _Wrapper is None else _PrefetchingReader)(options, store, schema)


class _PrefetchingReader(ChangeReader, _Wrapper or object):  # type: ignore[misc]
    """A reader that PySpark takes for its wrapper: see the module."""

    @property
    def simple_reader(self) -> ChangeReader:
        """Return the reader whose batches end by ``prepareForTriggerAvailableNow``: this one."""
        return self

    def getCache(  # noqa: N802
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a batch, if they are known."""
        return self.prefetched(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the next offset tells that a batch is done."""
