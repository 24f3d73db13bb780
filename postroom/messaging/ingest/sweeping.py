"""The end of staged rows that nobody publishes: jobs that were aborted, are late, or silent.

A step of *sweeping* looks at ``STAGED_SWEPT_AT_ONCE_MAX`` records of queries, jobs and bulk loads,
in the order of their keys, and deletes those that are of no use any more. The next step goes on
where it stopped, and after the last record with the first. The cursor is stored, for clients that
send a step now and then; a client that wants to come to the end sends it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from postroom import limits
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.messaging.ingest.machine import (
    Ingest,
    IngestEvent,
    IngestState,
    StagedBatch,
    ingests,
)
from postroom.messaging.ingest.records import StagedRecords, StepRoom, batch_of, first, queries
from postroom.messaging.staging_requests import AbortStaged, SweepStaged
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry

_PARTS: Final = (keys.STAGED_QUERY, keys.STAGED_JOB, keys.STAGED_LOAD)


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
        """Sweep one step, from a part and a name on; return the next ones; empty: that was all."""
        room, looks = StepRoom(ctx), limits.STAGED_SWEPT_AT_ONCE_MAX
        for part in _PARTS:
            if begin[:1] > part:
                continue
            start = begin[1:] if begin[:1] == part else b""
            prefix = self._at.part(part)
            for engine_key, stored in list(first(ctx, prefix, looks + 1, start)):
                name = engine_key[len(prefix) :]
                if not (
                    looks and room.deletions and self._look(ctx, part, name, stored, before, room)
                ):
                    return part + name
                looks -= 1
                ctx.steps += 1
                if ctx.is_used_up():
                    yield
        return b""

    def _look(
        self, ctx: Evaluation, part: bytes, name: bytes, stored: bytes, before: int, room: StepRoom
    ) -> bool:
        """Delete what is of no use of one record; return whether that was all."""
        if part == keys.STAGED_JOB:
            return self._look_at_job(ctx, name, ingests.decode(stored), before, room)
        if part == keys.STAGED_QUERY:
            # Queries with one batch, and loads, are forgotten after a time.
            query = queries.decode(stored)
            is_old = query.once and query.cursor is None and query.at < before
        else:
            load = ingests.decode(stored)
            # A load that is named like its only run has no name by which another run could go on.
            is_done = load.state is IngestState.DONE
            is_old = (is_done or name == load.run) and load.at < before
        if is_old:
            ctx.writes[self._at.part(part) + name] = None
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
