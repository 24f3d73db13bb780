"""The stored records of staged batches, in the keyspace ``03 range 09`` (:mod:`postroom.kv.keys`).

::

    query ─▶ QueryRecord  last batch; while it is applied: of which job, and how far
          ─▶ Winners      attempts to be applied, in order
    job   ─▶ Ingest       a try to write a batch
          ─▶ task attempt ─▶ TaskAttemptRecord   how many chunks
                     ─▶ number ─▶ a chunk: MessagePack, an array of rows
    swept                 where the next step of sweeping begins
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.kv import keys
from postroom.messaging.ingest.machine import Ingest, Ingests, StagedBatch, encode
from postroom.messaging.staging_requests import StagedRow, Winner
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation, View


class AppliedUpTo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The cursor up to which a publication is applied: winner, chunk and row, counted from 0."""

    job: bytes
    winner: int = 0
    chunk: int = 0
    row: int = 0


class QueryRecord(msgspec.Struct, frozen=True, array_like=True):
    """The last batch of a query.

    Attributes:
        batch: its number.
        at: when it was published.
        once: whether the query has only this one; the record may be deleted some time after it.
        cursor: the cursor while it is being applied; ``None``: all of it is.
        dead: how many of its rows could not be carried out, and became dead letters.
    """

    batch: int
    at: int
    once: bool
    cursor: AppliedUpTo | None
    dead: int = 0


class TaskAttemptRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The number of chunks of a task attempt, and the number after the last of them."""

    chunks: int
    end: int


queries: Final = msgspec.msgpack.Decoder(QueryRecord)
winners: Final = msgspec.msgpack.Decoder(list[Winner])
task_attempts: Final = msgspec.msgpack.Decoder(TaskAttemptRecord)
rows: Final = msgspec.msgpack.Decoder(list[StagedRow])


class StepRoom:
    """The room that is left in one step.

    Attributes:
        rows: how many rows it may still carry out.
        dead: how many rows it has made dead letters.
        deletions: how many keys it may still delete.
    """

    def __init__(self, ctx: Evaluation) -> None:
        self.rows = limits.STAGED_STEP_ROWS_MAX
        self.dead = 0
        self.deletions = limits.STAGED_DELETED_AT_ONCE_MAX
        self._ctx = ctx
        self._bytes_end = ctx.bytes + ctx.moved + limits.STAGED_STEP_BYTES_MAX

    def is_left(self) -> bool:
        """Return whether there is room for another row."""
        return self.rows > 0 and self._ctx.bytes + self._ctx.moved < self._bytes_end


class StagedRecords:
    """The records of the staged batches of a range, and their engine keys.

    Attributes:
        jobs: the tries to write a batch.
        queries, task_attempts, loads: the prefixes of the keys of other records.
        swept: the key of the record that tells where sweeping goes on.
    """

    def __init__(self, range_id: int) -> None:
        def prefix(part: bytes) -> bytes:
            return keys.staging_prefix(range_id, part)

        self.part = prefix
        self.jobs = Ingests(prefix(keys.STAGED_JOB), StagedBatch)
        self.queries = prefix(keys.STAGED_QUERY)
        self.publications = prefix(keys.STAGED_WINNERS)
        self.task_attempts = prefix(keys.STAGED_TASK_ATTEMPT)
        self._chunks = prefix(keys.STAGED_CHUNK)
        self.loads = prefix(keys.STAGED_LOAD)
        self.swept = prefix(keys.STAGED_SWEPT)

    def chunk(self, job: bytes, task_attempt: bytes, number: int) -> bytes:
        """Return the key of a chunk."""
        return self._chunks + job + task_attempt + keys.u32(number)

    def query(self, reader: Evaluation | View, query: bytes) -> QueryRecord | None:
        """Return the record of a query; `None`: it has published nothing."""
        stored = reader.get(self.queries + query)
        return None if stored is None else queries.decode(stored)

    def task_attempt(self, ctx: Evaluation, job: bytes, task_attempt: bytes) -> TaskAttemptRecord:
        """Return the record of a task attempt."""
        stored = ctx.get(self.task_attempts + job + task_attempt)
        return TaskAttemptRecord(0, 0) if stored is None else task_attempts.decode(stored)

    def is_over(self, ctx: Evaluation, query: bytes, batch: int) -> bool:
        """Return whether the batch is published; late tasks of it have no record of their job."""
        record = self.query(ctx, query)
        return record is not None and batch <= record.batch

    def put(self, ctx: Evaluation, engine_key: bytes, record: Any) -> None:
        """Write a record."""
        ctx.writes[engine_key] = stored = encode(record)
        ctx.grow(len(engine_key) + len(stored) + WRITE_BYTES)

    def drop(self, ctx: Evaluation, job: bytes, room: StepRoom) -> bool:
        """Delete the chunks of a job, as far as there is room; return whether that was all."""
        prefix = self.task_attempts + job
        for engine_key, stored in list(first(ctx, prefix, room.deletions + 1)):
            record, task_attempt = task_attempts.decode(stored), engine_key[len(prefix) :]
            end = max(record.end - room.deletions, 0)
            for number in range(end, record.end):
                ctx.writes[self.chunk(job, task_attempt, number)] = None
            room.deletions -= record.end - end
            ctx.steps += record.end - end
            ctx.grow((record.end - end) * len(engine_key))
            if end or not room.deletions:
                self.put(ctx, engine_key, TaskAttemptRecord(0, end))
                return False
            room.deletions -= 1
            ctx.writes[engine_key] = None
        return True


def batch_of(job: Ingest) -> StagedBatch:
    """Return the batch that a job writes."""
    assert isinstance(job.source, StagedBatch)
    return job.source


def first(
    reader: Evaluation | View, prefix: bytes, most: int, start: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the first pairs under a prefix, from the key on that ends with ``start``."""
    found: Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]] = reader.iterate
    for number, pair in enumerate(found(prefix + start, keys.after_prefix(prefix))):
        if number == most:
            return
        yield pair
