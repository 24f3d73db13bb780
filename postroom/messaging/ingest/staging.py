"""The stored records of staged batches: their keys, what is told of them, and their end.

They lie in the keyspace ``03 range 09`` (:mod:`postroom.kv.keys`)::

    query ─▶ QueryRecord  last batch; while it is applied: of which job, and how far
          ─▶ Winners      attempts to be applied, in order
    job   ─▶ Ingest       a try to write a batch
          ─▶ task attempt ─▶ TaskAttemptRecord   how many chunks
                     ─▶ number ─▶ a chunk: MessagePack, an array of rows
    swept                 where the next step of sweeping begins

Rows that nobody publishes belong to jobs that were aborted, are late, or silent. A step of
*sweeping* looks at ``STAGED_SWEPT_AT_ONCE_MAX`` records of queries, jobs and bulk loads, in the
order of their keys, and deletes those that are of no use any more. The next step goes on where it
stopped, and after the last record with the first. The cursor is stored, for clients that send a
step now and then; a client that wants to come to the end sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.limits import STAGED_COUNTED_MAX
from postroom.messaging.ingest.machine import (
    Ingest,
    IngestEvent,
    Ingests,
    IngestState,
    StagedBatch,
    encode,
    ingests,
)
from postroom.messaging.ingest.requests import (
    AbortStaged,
    ReadStaging,
    StagedQuery,
    StagedRow,
    Staging,
    SweepStaged,
    Winner,
)
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation, View
from postroom.ranges.ports import Registry


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


UNFINISHED_AT_ONCE: Final = 100
_SUBSPACES: Final = (keys.STAGED_QUERY, keys.STAGED_JOB, keys.STAGED_LOAD)

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
        def prefix(subspace: bytes) -> bytes:
            return keys.staging_prefix(range_id, subspace)

        self.subspace = prefix
        self.jobs = Ingests(prefix(keys.STAGED_JOB), StagedBatch)
        self.queries = prefix(keys.STAGED_QUERY)
        self.publications = prefix(keys.STAGED_WINNERS)
        self.task_attempts = prefix(keys.STAGED_TASK_ATTEMPT)
        self._chunks = prefix(keys.STAGED_CHUNK)
        self.loads = prefix(keys.STAGED_LOAD)
        self.swept = prefix(keys.STAGED_SWEPT)

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[ReadStaging] = self.read_staging

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

    def read_staging(self, view: View, request: ReadStaging) -> Generator[None, None, Staging]:
        """Evaluate ``ReadStaging``, over as many turns as it takes."""
        if request.unfinished:
            return self._unfinished(view, request.begin)
        found: list[StagedQuery] = []

        def told(query: bytes, stored: bytes) -> None:
            record = queries.decode(stored)
            found.append(StagedQuery(query, record.batch, record.cursor is not None, record.dead))

        yield from _looked_at(view, self.queries, request.begin, told)
        counts = []
        for prefix in (self.jobs.prefix, self.task_attempts, self.loads):
            number = yield from _looked_at(view, prefix, b"", lambda _, __: None)
            counts.append(number)
        return Staging(found, *counts)

    def _unfinished(self, view: View, begin: bytes) -> Staging:
        """Return the queries that are being applied: only these have stored winners."""
        prefix, found = self.publications, []
        for engine_key, stored in first(view, prefix, UNFINISHED_AT_ONCE, begin):
            query = engine_key[len(prefix) :]
            known = self.query(view, query)
            assert known is not None, "a publication has no record of its query"
            found.append(StagedQuery(query, known.batch, unfinished=True, dead=known.dead))
            view.steps += 1 + len(stored) // 64
        return Staging(found, 0, 0, 0)


def _looked_at(
    view: View, prefix: bytes, begin: bytes, look: Callable[[bytes, bytes], None]
) -> Generator[None, None, int]:
    """Look at the first records under a prefix; return how many there are."""
    number, start = 0, begin
    while True:
        for engine_key, stored in first(view, prefix, STAGED_COUNTED_MAX - number, start):
            look(engine_key[len(prefix) :], stored)
            number += 1
            view.steps += 1
            if view.is_used_up():
                start = engine_key[len(prefix) :] + b"\x00"
                break
        else:
            return number
        yield


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


class Sweeping:
    """The evaluators that fence jobs, and delete what is of no use any more.

    Args:
        records: the records of the range.
    """

    def __init__(self, records: StagedRecords) -> None:
        self._at = records

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        registry.writes[AbortStaged] = self.abort
        registry.writes[SweepStaged] = self.sweep

    def abort(self, ctx: Evaluation, request: AbortStaged) -> Generator[None, None, bool]:
        """Evaluate ``AbortStaged``."""
        if not request.sink:
            batch = StagedBatch(request.query, request.batch, b"")
            return self._fence(ctx, request.job, batch)
        held = True
        for job, known in self._all_jobs(ctx):
            batch = batch_of(known)
            if (batch.sink, batch.number) == (request.sink, request.batch):
                held = self._fence(ctx, job, batch) and held
            if ctx.is_used_up():
                yield
        return held

    def _fence(self, ctx: Evaluation, job: bytes, batch: StagedBatch) -> bool:
        """Fence a job; return whether it is not published, and never will be."""
        known = self._at.jobs.read(ctx, job)
        if known is None:
            if batch.query and self._at.is_over(ctx, batch.query, batch.number):
                return False
            known = Ingest(IngestState.NONE, batch)
        if known.state is IngestState.APPLYING:
            return False
        if known.state is not IngestState.CLOSED:
            self._at.jobs.move(ctx, job, known, IngestEvent.ABORT)
        self._at.drop(ctx, job, StepRoom(ctx))
        return True

    def sweep(self, ctx: Evaluation, request: SweepStaged) -> Generator[None, None, bytes]:
        """Evaluate ``SweepStaged``."""
        begin = request.begin
        stored = None if begin is not None else ctx.get(self._at.swept)
        before = ctx.timestamp - from_seconds(request.seconds)
        end: bytes = yield from self._sweep(ctx, begin or stored or b"", before)
        if begin is None and end != (stored or b""):
            ctx.writes[self._at.swept] = end or None
        return end

    def _sweep(self, ctx: Evaluation, begin: bytes, before: int) -> Generator[None, None, bytes]:
        """Sweep one step, from a subspace and a name on; return the next ones; empty: the end."""
        room, looks = StepRoom(ctx), limits.STAGED_SWEPT_AT_ONCE_MAX
        for subspace in _SUBSPACES:
            if begin[:1] > subspace:
                continue
            start = begin[1:] if begin[:1] == subspace else b""
            prefix = self._at.subspace(subspace)
            for engine_key, stored in list(first(ctx, prefix, looks + 1, start)):
                name = engine_key[len(prefix) :]
                if not (
                    looks
                    and room.deletions
                    and self._look(ctx, subspace, name, stored, before, room)
                ):
                    return subspace + name
                looks -= 1
                ctx.steps += 1
                if ctx.is_used_up():
                    yield
        return b""

    def _look(
        self,
        ctx: Evaluation,
        subspace: bytes,
        name: bytes,
        stored: bytes,
        before: int,
        room: StepRoom,
    ) -> bool:
        """Delete what is of no use of one record; return whether that was all."""
        if subspace == keys.STAGED_JOB:
            return self._look_at_job(ctx, name, ingests.decode(stored), before, room)
        if subspace == keys.STAGED_QUERY:
            # Queries with one batch, and loads, are forgotten after a time.
            query = queries.decode(stored)
            is_old = query.once and query.cursor is None and query.at < before
        else:
            load = ingests.decode(stored)
            # A load that is named like its only run has no name by which another run could go on.
            is_done = load.state is IngestState.DONE
            is_old = (is_done or name == load.run) and load.at < before
        if is_old:
            ctx.writes[self._at.subspace(subspace) + name] = None
            room.deletions -= 1
        return True

    def _look_at_job(
        self, ctx: Evaluation, job: bytes, known: Ingest, before: int, room: StepRoom
    ) -> bool:
        batch = batch_of(known)
        is_over = known.at < before or self._at.is_over(ctx, batch.query, batch.number)
        is_fenced = known.state is IngestState.CLOSED
        if known.state is IngestState.APPLYING or not (is_over or is_fenced):
            return True
        if not is_fenced:
            known = self._at.jobs.move(ctx, job, known, IngestEvent.ABORT, at=known.at)
        if not self._at.drop(ctx, job, room):
            return False
        if is_over:
            self._at.jobs.move(ctx, job, known, IngestEvent.LAST)
        return True

    def _all_jobs(self, ctx: Evaluation) -> Iterator[tuple[bytes, Ingest]]:
        prefix, start = self._at.jobs.prefix, b""
        while True:
            found = list(first(ctx, prefix, limits.STAGED_SWEPT_AT_ONCE_MAX, start))
            for engine_key, stored in found:
                ctx.steps += 1
                yield engine_key[len(prefix) :], ingests.decode(stored)
            if len(found) < limits.STAGED_SWEPT_AT_ONCE_MAX:
                return
            start = found[-1][0][len(prefix) :] + b"\x00"
