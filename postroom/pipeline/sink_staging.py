"""The writers of batches and streams: tasks stage, the commit publishes.

::

    task:    write(rows) ──▶ StageRows, chunk by chunk, under a task attempt's id that it makes up
                 └──▶ Staged(query, batch, job, attempt, chunks): the message to the commit
    driver:  commit(messages) ──▶ publish: these attempts are the batch
             abort(messages)  ──▶ late tasks are refused, what was staged is deleted

The names of a task:

=======  ===============================================  ========================================
name     of a stream                                      of a batch
=======  ===============================================  ========================================
query    the id of the query: the same after a restart    the job, or the option ``query``
batch    Spark's number of the batch                      0, or the option ``batch``
job      the id of this run of the query, and the batch   made up by the driver with the writer
attempt  made up by each call of ``write``                made up by each call of ``write``
=======  ===============================================  ========================================

The number of a partition is no part of them: after a restart, or with adaptive execution, it may
have other rows. Only the commit knows which attempts make up a batch, by their messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from postroom.client.staging import packed
from postroom.counted import counted
from postroom.errors import Invalid
from postroom.limits import STAGED_CHUNK_BYTES_MAX
from postroom.messaging.ingest.requests import StagedQuery, StageRows
from postroom.pipeline import connections
from postroom.pipeline.options import SinkOptions, StoreAddress
from postroom.pipeline.sink_rows import RowMaker

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The message of a task that has staged rows; the commit gets it from Spark.

    Attributes:
        query, batch, job, task_attempt: the names of the task.
        chunks: the number of chunks; 0: the task had no rows.
        rows: the number of rows.
        late: whether the batch was published before: the task had nothing to do.
    """

    query: bytes
    batch: int
    job: bytes
    task_attempt: bytes
    chunks: int
    rows: int
    late: bool = False


@dataclass(frozen=True)
class SparkTask:
    """A task, as Spark describes it.

    Attributes:
        partition: the number of its partition, which is for people only.
        query, batch, run: those of a stream; ``None``: there is none.
    """

    partition: int
    query: str | None = None
    batch: int | None = None
    run: str | None = None


def current_task() -> SparkTask:
    """Return the task that runs here."""
    context = TaskContext.get()
    if context is None:
        return SparkTask(0)
    batch = context.getLocalProperty("streaming.sql.batchId")
    return SparkTask(
        context.partitionId(),
        context.getLocalProperty("sql.streaming.queryId"),
        None if batch is None else int(batch),
        context.getLocalProperty("spark.jobGroup.id"),
    )


def stage(
    store: StoreAddress,
    options: SinkOptions,
    name: tuple[bytes, int, bytes],
    partition: int,
    batches: Iterator[pa.RecordBatch],
) -> Staged:
    """Stage all rows of a task.

    Args:
        store: the store.
        options: the options of the sink.
        name: query, batch and job.
        partition: the number of the partition of the task.
        batches: the rows of the task.

    Raises:
        Invalid: a row cannot be written; or the task is late, and its job was aborted.
    """
    query, batch, job = name
    task_attempt = uuid.uuid4().bytes
    maker = RowMaker(options, _made_up_id, partition)
    stream, number = connections.database(store).staging.stream(), 0
    for number, chunk in enumerate(_chunks(maker, batches), 1):
        stream.send(StageRows(query, batch, job, options.sink, task_attempt, number - 1, chunk))
        if stream.is_late:
            break
    stream.flush()
    return Staged(query, batch, job, task_attempt, number, maker.rows, stream.is_late)


def _made_up_id() -> bytes:
    return uuid.uuid4().hex.encode()


def _chunks(maker: RowMaker, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    chunks = RowChunks()
    for batch in batches:
        yield from chunks.add(maker.writes(batch), batch.nbytes)
    yield from chunks.rest()


class BatchWriter(DataSourceArrowWriter):
    """The writer of a data frame, exactly once. The driver makes it, and tasks get it pickled.

    A data frame that is called batch N of a query (options ``query`` and ``batch``) is written once
    by any number of writers. All but the first change nothing.

    Args:
        store: the store, as tasks reach it.
        options: the options of the sink.
    """

    def __init__(self, store: StoreAddress, options: SinkOptions) -> None:
        self._store = store
        self._options = options
        self._job = uuid.uuid4().bytes + bytes(8)
        self._query = options.query or self._job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        name = (self._query, self._options.batch, self._job)
        return stage(self._store, self._options, name, current_task().partition, iterator)

    def commit(self, messages: list[Staged | None]) -> None:
        """Finish the batches that other writers have left, and publish the attempts that won.

        The batches of others come first: people would repeat a commit that fails after it took
        effect.
        """
        staging = connections.database(self._store).staging
        won = winners(messages)
        staging.sweep_some(finish=True)
        named, batch = bool(self._options.query), self._options.batch
        if any(message is not None and message.late for message in messages):
            staging.finish(self._query)  # another writer has published it
        else:  # the next commit sweeps the rows of other writers
            staging.publish(self._query, batch, self._job, won, once=not named)
        last = staging.last(self._query)
        if named and last is not None and last.batch > batch:
            raise Invalid(
                f"batch {batch} of the query {self._options.query.decode()!r} is older than its "
                f"last one, {last.batch}; nothing was written: batches rise. Give a query of "
                "another name, or, if the batches before are to be written again, forget this one: "
                f"db.staging.forget({self._options.query!r})"
            )
        warn_of_dead_rows(last, batch)

    def abort(self, messages: list[Staged | None]) -> None:
        """Fence late tasks; change nothing if the commit took effect after all."""
        staging = connections.database(self._store).staging
        staging.abort(self._query, self._options.batch, self._job)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of the batches of a stream, each exactly once, over any restarts.

    Spark makes one for the tasks and another one for the commit: they share nothing but options.

    Args:
        store: the store, as tasks reach it.
        options: the options of the sink.
    """

    def __init__(self, store: StoreAddress, options: SinkOptions) -> None:
        self._store = store
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        task = current_task()
        if task.query is None or task.batch is None:
            raise Invalid(
                "this task belongs to no streaming query, which its rows could be published for; "
                "nothing was written: write a data frame that does not stream with df.write"
            )
        # Without a run of its own, a batch that was aborted could not be told from its next try.
        run = uuid.uuid5(uuid.NAMESPACE_OID, task.run or uuid.uuid4().hex).bytes
        name = (task.query.encode(), task.batch, run + task.batch.to_bytes(8, "big"))
        return stage(self._store, self._options, name, task.partition, iterator)

    def commit(self, messages: list[Staged | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the attempts that won; do nothing if the batch is published already."""
        staged = [message for message in messages if message is not None]
        if not staged:
            return  # a batch without partitions
        first = staged[0]
        if {(each.query, each.batch, each.job) for each in staged} != {
            (first.query, batchId, first.job)
        }:
            raise Invalid(
                f"the tasks of batch {batchId} do not agree on which batch it is; nothing was "
                "written: start the query anew"
            )
        staging = connections.database(self._store).staging
        if any(each.late for each in staged):
            staging.finish(first.query)  # an earlier run has published it
        else:
            staging.publish(first.query, batchId, first.job, winners(messages))
        warn_of_dead_rows(staging.last(first.query), batchId)
        staging.sweep_some()

    def abort(self, messages: list[Staged | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Fence late tasks; change nothing if the commit took effect after all.

        If no task has come to its end, there is no message that names the query. Then the jobs are
        found by the sink's name, if it has one. Other jobs go by their age.
        """
        staging = connections.database(self._store).staging
        staged = next((message for message in messages if message is not None), None)
        if staged is not None:
            staging.abort(staged.query, staged.batch, staged.job)
        elif self._options.sink:
            staging.abort(b"", batchId, sink=self._options.sink)


def warn_of_dead_rows(last: StagedQuery | None, batch: int) -> None:
    """Log how many rows of a batch could not be carried out, if there are any."""
    if last is not None and last.batch == batch and last.dead:
        _log.warning(
            "batch %d has %s: a key contains no integer, or a sum is too large ('postroom "
            "dead-letters' tells which)",
            batch, counted(last.dead, "row that is a dead letter", "rows that are dead letters"),
        )  # fmt: skip


def winners(messages: list[Staged | None]) -> list[tuple[bytes, int]]:
    """Return the attempts of a batch that had rows.

    Raises:
        Invalid: a task has left no message.
    """
    if any(message is None for message in messages):
        raise Invalid("a task of the batch has left no message; nothing was written: run it again")
    return [
        (each.task_attempt, each.chunks) for each in messages if each is not None and each.chunks
    ]


# --- chunks of writes -----------------------------------------------------------------------------


CHUNK_BYTES: Final = 256 * 1024
"""The size of a chunk, about."""


class RowChunks:
    """Chunks of rows, in their order."""

    def __init__(self) -> None:
        self._rows: list[Any] = []
        self._bytes = 0

    def add(self, rows: list[Any], size: int) -> Iterator[bytes]:
        """Add rows of about ``size`` bytes together; yield the chunks that are full."""
        if not rows:
            return
        each = max(size // len(rows), 1)
        first = 0
        while first < len(rows):
            room = max((CHUNK_BYTES - self._bytes) // each, 1)
            taken = rows[first : first + room]
            first += len(taken)
            self._rows += taken
            self._bytes += each * len(taken)
            if self._bytes + each > CHUNK_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[bytes]:
        """Yield the rows that are in no chunk yet."""
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            yield from _cut(rows)


def _cut(rows: list[Any]) -> Iterator[bytes]:
    """Cut rows in halves until each chunk is small enough: their sizes were estimates."""
    chunk = packed(rows)
    if len(chunk) <= STAGED_CHUNK_BYTES_MAX or len(rows) == 1:
        yield chunk
        return
    half = len(rows) // 2
    yield from _cut(rows[:half])
    yield from _cut(rows[half:])
