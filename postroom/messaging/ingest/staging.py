"""The stored records of staged batches: their keys, what is told of them, and their end.

They lie in the keyspace ``07`` (:mod:`postroom.kv.keys`), under the name of their query as under a
user key. Thus they belong to the range of that key, and a split moves none of them::

    query ─▶ QueryRecord  last batch; while it is applied: of which job, and how far
          ─▶ Winners      attempts to be applied, in order
          ─▶ job ─▶ Ingest       a try to write a batch
                 ─▶ task attempt ─▶ TaskAttemptRecord   how many chunks
                        ─▶ number ─▶ a chunk: MessagePack, an array of rows
    swept                 where the next step of sweeping begins, in each range

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
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.limits import STAGED_COUNTED_MAX, STAGED_UNFINISHED_MAX
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
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation, View
from postroom.ranges.ports import Registry


class AppliedUpTo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The cursor up to which a publication is applied.

    Attributes:
        job: the job.
        winner, chunk, row: up to where its rows are carried out, counted from 0.
        sent_at: a timestamp by which all rows for other ranges were sent; 0: not all are.
    """

    job: bytes
    winner: int = 0
    chunk: int = 0
    row: int = 0
    sent_at: int = 0


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


_SUBSPACES: Final = (keys.STAGED_QUERY, keys.STAGED_JOB, keys.STAGED_LOAD)

queries: Final = msgspec.msgpack.Decoder(QueryRecord)
winners: Final = msgspec.msgpack.Decoder(list[Winner])
task_attempts: Final = msgspec.msgpack.Decoder(TaskAttemptRecord)
rows: Final = msgspec.msgpack.Decoder(list[StagedRow])


class StepRoom:
    """The room that is left in one step.

    Attributes:
        rows: how many rows it may still carry out.
        done: how many it has carried out.
        dead: how many rows it has made dead letters.
        deletions: how many keys it may still delete.
    """

    def __init__(self, ctx: Evaluation) -> None:
        self.rows = limits.STAGED_STEP_ROWS_MAX
        self.done = 0
        self.dead = 0
        self.deletions = limits.STAGED_DELETED_AT_ONCE_MAX
        self._ctx = ctx
        self._bytes_end = ctx.bytes + ctx.moved + limits.STAGED_STEP_BYTES_MAX

    def is_left(self) -> bool:
        """Return whether there is room for another row."""
        return self.done < self.rows and self._ctx.bytes + self._ctx.moved < self._bytes_end


class StagedRecords:
    """The records of the staged batches of a range, and their engine keys.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.

    Attributes:
        jobs: the tries to write a batch, by the names that :meth:`job_name` returns.
        swept: the key of the record that tells where sweeping goes on.
    """

    def __init__(self, range_id: int, bounds: Bounds) -> None:
        self._range_id = range_id
        self._bounds = bounds
        self.jobs = Ingests(keys.STAGED + keys.STAGED_JOB, StagedBatch)
        self.swept = keys.staging_prefix(range_id, keys.STAGED_SWEPT)

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[ReadStaging] = self.read_staging

    def prefix(self, subspace: bytes) -> bytes:
        """Return the key prefix of a subspace; the name of a query, a job or a load follows."""
        if subspace == keys.STAGED_LOAD:
            return keys.staging_prefix(self._range_id, subspace)
        return keys.STAGED + subspace

    def span(self, subspace: bytes) -> keys.KeySpan:
        """Return the span of the records of the range in a subspace."""
        if subspace == keys.STAGED_LOAD:
            prefix = self.prefix(subspace)
            return keys.KeySpan(prefix, keys.after_prefix(prefix))
        return keys.staged_span(subspace, self._bounds.start, self._bounds.end)

    def unfinished_from(self, ctx: Evaluation, query: bytes) -> set[bytes]:
        """Return the first queries from ``query`` on whose last batch is being applied."""
        span = self.span(keys.STAGED_WINNERS)._replace(lower=winners_key(query))
        return {query_of(each) for each, _ in first(ctx, span, STAGED_UNFINISHED_MAX)}

    def query(self, reader: Evaluation | View, query: bytes) -> QueryRecord | None:
        """Return the record of a query; `None`: it has published nothing."""
        stored = reader.get(query_key(query))
        return None if stored is None else queries.decode(stored)

    def task_attempt(self, ctx: Evaluation, engine_key: bytes) -> TaskAttemptRecord:
        """Return the record of a task attempt."""
        stored = ctx.get(engine_key)
        return TaskAttemptRecord(0, 0) if stored is None else task_attempts.decode(stored)

    def is_over(self, ctx: Evaluation, query: bytes, batch: int) -> bool:
        """Return whether the batch is published; late tasks of it have no record of their job."""
        record = self.query(ctx, query)
        return record is not None and batch <= record.batch

    def put(self, ctx: Evaluation, engine_key: bytes, record: Any) -> None:
        """Write a record."""
        ctx.writes[engine_key] = stored = encode(record)
        ctx.grow(len(engine_key) + len(stored) + WRITE_BYTES)

    def drop(self, ctx: Evaluation, name: bytes, room: StepRoom) -> bool:
        """Delete the chunks of a job, as far as there is room; return whether that was all."""
        prefix = keys.STAGED + keys.STAGED_TASK_ATTEMPT + name
        span = keys.KeySpan(prefix, keys.after_prefix(prefix))
        for engine_key, stored in list(first(ctx, span, room.deletions + 1)):
            record = task_attempts.decode(stored)
            end = max(record.end - room.deletions, 0)
            for number in range(end, record.end):
                ctx.writes[chunk_key(engine_key, number)] = None
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

        def told(engine_key: bytes, stored: bytes) -> None:
            found.append(_told(query_of(engine_key), queries.decode(stored)))

        span = self.span(keys.STAGED_QUERY)
        lower = max(query_key(request.begin), span.lower)
        yield from _looked_at(view, keys.KeySpan(lower, span.upper), told)
        counts = []
        for subspace in (keys.STAGED_JOB, keys.STAGED_TASK_ATTEMPT, keys.STAGED_LOAD):
            number = yield from _looked_at(view, self.span(subspace), lambda _, __: None)
            counts.append(number)
        return Staging(found, *counts)

    def _unfinished(self, view: View, begin: bytes) -> Staging:
        """Return the queries that are being applied: only these have stored winners."""
        span, found = self.span(keys.STAGED_WINNERS), []
        lower = max(winners_key(begin), span.lower)
        for engine_key, stored in first(
            view, keys.KeySpan(lower, span.upper), STAGED_UNFINISHED_MAX
        ):
            query = query_of(engine_key)
            known = self.query(view, query)
            assert known is not None, "a publication has no record of its query"
            found.append(_told(query, known))
            view.steps += 1 + len(stored) // 64
        return Staging(found, 0, 0, 0)


def _told(query: bytes, record: QueryRecord) -> StagedQuery:
    return StagedQuery(query, record.batch, record.cursor is not None, record.dead, record.at)


def query_key(query: bytes) -> bytes:
    """Return the key of the record of a query."""
    return keys.staged_prefix(keys.STAGED_QUERY, query)


def winners_key(query: bytes) -> bytes:
    """Return the key of the attempts that a query is applying."""
    return keys.staged_prefix(keys.STAGED_WINNERS, query)


def query_of(engine_key: bytes) -> bytes:
    """Return the query in the key of its record, or of its attempts."""
    return keys.unescape(engine_key[2 : -len(keys.END_OF_KEY)])


def job_name(query: bytes, job: bytes) -> bytes:
    """Return the name of a job, which follows the subspace in the keys of all that it has."""
    return keys.escape(query) + job


def attempt_key(query: bytes, job: bytes, task_attempt: bytes) -> bytes:
    """Return the key of the record of a task attempt."""
    return keys.staged_prefix(keys.STAGED_TASK_ATTEMPT, query) + job + task_attempt


def chunk_key(of_attempt: bytes, number: int) -> bytes:
    """Return the key of a chunk of a task attempt, of which the record has a key."""
    return keys.STAGED + keys.STAGED_CHUNK + of_attempt[2:] + keys.u32(number)


def _looked_at(
    view: View, span: keys.KeySpan, look: Callable[[bytes, bytes], None]
) -> Generator[None, None, int]:
    """Look at the first records of a span; return how many there are."""
    number, lower = 0, span.lower
    while True:
        rest = keys.KeySpan(lower, span.upper)
        for engine_key, stored in first(view, rest, STAGED_COUNTED_MAX - number):
            look(engine_key, stored)
            number += 1
            view.steps += 1
            if view.is_used_up():
                lower = engine_key + b"\x00"
                break
        else:
            return number
        yield


def batch_of(job: Ingest) -> StagedBatch:
    """Return the batch that a job writes."""
    assert isinstance(job.source, StagedBatch)
    return job.source


def first(
    reader: Evaluation | View, span: keys.KeySpan, most: int
) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the first pairs of a span."""
    found: Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]] = reader.iterate
    if span.lower >= span.upper:
        return
    for number, pair in enumerate(found(*span)):
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
        """Evaluate ``AbortStaged``.

        Raises:
            Invalid: there can be no query of this name.
        """
        if not request.sink:
            if not 0 < len(request.query) <= limits.STAGED_QUERY_BYTES_MAX:
                raise Invalid(
                    f"a query has a name of 1 to {limits.STAGED_QUERY_BYTES_MAX} bytes, not of "
                    f"{len(request.query)}; nothing was changed"
                )
            batch = StagedBatch(request.query, request.batch, b"")
            return self._fence(ctx, job_name(request.query, request.job), batch)
        held = True
        for name, known in self._all_jobs(ctx):
            batch = batch_of(known)
            if (batch.sink, batch.number) == (request.sink, request.batch):
                held = self._fence(ctx, name, batch) and held
            if ctx.is_used_up():
                yield
        return held

    def _fence(self, ctx: Evaluation, name: bytes, batch: StagedBatch) -> bool:
        """Fence a job; return whether it is not published, and never will be."""
        known = self._at.jobs.read(ctx, name)
        if known is None:
            if self._at.is_over(ctx, batch.query, batch.number):
                return False
            known = Ingest(IngestState.NONE, batch)
        if known.state is IngestState.APPLYING:
            return False
        if known.state is not IngestState.CLOSED:
            self._at.jobs.move(ctx, name, known, IngestEvent.ABORT)
        self._at.drop(ctx, name, StepRoom(ctx))
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
            prefix, span = self._at.prefix(subspace), self._at.span(subspace)
            if begin[:1] == subspace:
                span = span._replace(lower=max(prefix + begin[1:], span.lower))
            for engine_key, stored in list(first(ctx, span, looks + 1)):
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
            ctx.writes[self._at.prefix(subspace) + name] = None
            room.deletions -= 1
        return True

    def _look_at_job(
        self, ctx: Evaluation, name: bytes, known: Ingest, before: int, room: StepRoom
    ) -> bool:
        batch = batch_of(known)
        is_over = known.at < before or self._at.is_over(ctx, batch.query, batch.number)
        is_fenced = known.state is IngestState.CLOSED
        if known.state is IngestState.APPLYING or not (is_over or is_fenced):
            return True
        if not is_fenced:
            known = self._at.jobs.move(ctx, name, known, IngestEvent.ABORT, at=known.at)
        if not self._at.drop(ctx, name, room):
            return False
        if is_over:
            self._at.jobs.move(ctx, name, known, IngestEvent.LAST)
        return True

    def _all_jobs(self, ctx: Evaluation) -> Iterator[tuple[bytes, Ingest]]:
        prefix, span = self._at.jobs.prefix, self._at.span(keys.STAGED_JOB)
        while True:
            found = list(first(ctx, span, limits.STAGED_SWEPT_AT_ONCE_MAX))
            for engine_key, stored in found:
                ctx.steps += 1
                yield engine_key[len(prefix) :], ingests.decode(stored)
            if len(found) < limits.STAGED_SWEPT_AT_ONCE_MAX:
                return
            span = span._replace(lower=found[-1][0] + b"\x00")
