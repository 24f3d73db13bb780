"""The leftovers of staging, and their deletion: jobs that were aborted, are late, or silent.

A step of *sweeping* looks at ``STAGED_SWEPT_AT_ONCE_MAX`` records of queries, jobs and bulk loads,
in the order of their keys, and deletes those that are of no use any more. The next step goes on
where it stopped, and after the last record with the first. The position is stored, for clients that
send a step now and then; a client that wants to come to the end sends it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.messaging.staging_records import (
    FENCED,
    OPEN,
    PUBLISHED,
    AttemptRecord,
    JobRecord,
    Places,
    QueryRecord,
    attempts,
    encode,
    jobs,
    loads,
    queries,
)
from postroom.messaging.staging_requests import AbortStaged, SweepStaged
from postroom.messaging.staging_steps import Room, first
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation

_PARTS: Final = (keys.STAGED_QUERY, keys.STAGED_JOB, keys.STAGED_LOAD)


class Leftovers:
    """The records of staging in one range, and their end; the superclass of ``StagedBatches``.

    Args:
        range_id: the id of the range.
    """

    def __init__(self, range_id: int) -> None:
        self._at = Places(range_id)

    def abort(self, ctx: Evaluation, request: AbortStaged) -> Generator[None, None, bool]:
        """Evaluate ``AbortStaged``."""
        if not request.sink:
            return self._fence(ctx, request.query, request.batch, request.job)
        held = True
        for job, record in self._all_jobs(ctx):
            if record.sink == request.sink and record.batch == request.batch:
                held = self._fence(ctx, record.query, record.batch, job) and held
            if ctx.is_used_up():
                yield
        return held

    def _fence(self, ctx: Evaluation, query: bytes, batch: int, job: bytes) -> bool:
        """Fence a job; return whether it is not published, and never will be."""
        record = self._job(ctx, job)
        if record is None:
            if query and self._is_over(ctx, query, batch):
                return False
            record = JobRecord(OPEN, 0, query, batch, b"")
        if record.state == PUBLISHED:
            return False
        if record.state == OPEN:
            fenced = msgspec.structs.replace(record, state=FENCED, at=ctx.timestamp)
            self._put(ctx, self._at.job(job), fenced)
        self._drop(ctx, job, Room(ctx))
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
        room, looks = Room(ctx), limits.STAGED_SWEPT_AT_ONCE_MAX
        for part in _PARTS:
            if begin[:1] > part:
                continue
            start = begin[1:] if begin[:1] == part else b""
            prefix = self._at.part(part)
            for place, stored in list(first(ctx, prefix, looks + 1, start)):
                name = place[len(prefix) :]
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
        self, ctx: Evaluation, part: bytes, name: bytes, stored: bytes, before: int, room: Room
    ) -> bool:
        """Delete what is of no use of one record; return whether that was all."""
        if part == keys.STAGED_JOB:
            return self._look_at_job(ctx, name, jobs.decode(stored), before, room)
        if part == keys.STAGED_QUERY:
            # Queries with one batch, and loads, are forgotten after a time.
            query = queries.decode(stored)
            is_old = query.once and query.position is None and query.at < before
        else:
            load = loads.decode(stored)
            # A load that is named like its only run has no name by which another run could go on.
            is_old = (load.done or name == load.run) and load.at < before
        if is_old:
            ctx.writes[self._at.part(part) + name] = None
            room.deletions -= 1
        return True

    def _look_at_job(
        self, ctx: Evaluation, job: bytes, record: JobRecord, before: int, room: Room
    ) -> bool:
        is_over = record.at < before or self._is_over(ctx, record.query, record.batch)
        if record.state == PUBLISHED or not (is_over or record.state == FENCED):
            return True
        if record.state == OPEN:
            fenced = msgspec.structs.replace(record, state=FENCED)
            self._put(ctx, self._at.job(job), fenced)
        if not self._drop(ctx, job, room):
            return False
        if is_over:
            ctx.writes[self._at.job(job)] = None
        return True

    def _is_over(self, ctx: Evaluation, query: bytes, batch: int) -> bool:
        """Return whether the batch is published.

        Late tasks are refused by that, without the job's record.
        """
        record = self._query(ctx, query)
        return record is not None and batch <= record.batch

    def _drop(self, ctx: Evaluation, job: bytes, room: Room) -> bool:
        """Delete the chunks of a job, as far as there is room; return whether that was all."""
        prefix = self._at.attempt(job, b"")
        for place, stored in list(first(ctx, prefix, room.deletions + 1)):
            record, attempt = attempts.decode(stored), place[len(prefix) :]
            end = max(record.end - room.deletions, 0)
            for number in range(end, record.end):
                ctx.writes[self._at.chunk(job, attempt, number)] = None
            room.deletions -= record.end - end
            ctx.steps += record.end - end
            ctx.grow((record.end - end) * len(place))
            if end or not room.deletions:
                self._put(ctx, place, AttemptRecord(0, end))
                return False
            room.deletions -= 1
            ctx.writes[place] = None
        return True

    # --- records

    def _query(self, ctx: Evaluation, query: bytes) -> QueryRecord | None:
        stored = ctx.get(self._at.query(query))
        return None if stored is None else queries.decode(stored)

    def _job(self, ctx: Evaluation, job: bytes) -> JobRecord | None:
        stored = ctx.get(self._at.job(job))
        return None if stored is None else jobs.decode(stored)

    def _all_jobs(self, ctx: Evaluation) -> Iterator[tuple[bytes, JobRecord]]:
        prefix, start = self._at.jobs, b""
        while True:
            found = list(first(ctx, prefix, limits.STAGED_SWEPT_AT_ONCE_MAX, start))
            for place, stored in found:
                ctx.steps += 1
                yield place[len(prefix) :], jobs.decode(stored)
            if len(found) < limits.STAGED_SWEPT_AT_ONCE_MAX:
                return
            start = found[-1][0][len(prefix) :] + b"\x00"

    def _put(self, ctx: Evaluation, place: bytes, record: Any) -> None:
        ctx.writes[place] = stored = encode(record)
        ctx.grow(len(place) + len(stored) + WRITE_BYTES)
