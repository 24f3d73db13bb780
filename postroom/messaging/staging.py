"""The staging of rows: they wait in the store, unseen, until their batch is published.

It is for clients that write in many parallel tasks, and decide at the end which of them count (a
sink of Spark). A *query* writes one *batch* after the other. Each try to write a batch is a *job*,
each try of a task an *attempt*. Attempts stage their rows as chunks of up to 1 MiB. One chunk is
one key of the engine, so that a staged row costs the store next to nothing. ::

    StageRows (many tasks) ──▶ chunks, under job and attempt ── AbortStaged ──▶ fenced, deleted
                                      │ PublishStaged: these attempts are batch N of query Q
                                      ▼
      one transaction:  last batch of Q := N, which attempts, position   ◀── the decision, for good
                        and the first step
                                      │ ApplyStaged, as often as it takes, by any client
                                      ▼
      each step:        some rows ─▶ puts, deletes, messages, ...    and: position moves on
                                      ▼
      last steps:       chunks of all attempts of the job deleted; position: none

*Atomicity.* The decision is atomic. The rows of one step take effect at once: 8,192 of them,
or 4 MiB with what they overwrite. A batch that is no larger is one transaction. Readers may see a
part of a larger one. Each row takes effect exactly once, since a step writes rows and position
together.

Invariants:

* a query's last batch never sinks, and a batch is published at most once;
* the next batch waits until a published one is applied as a whole;
* a job is open, then published or fenced, never both; fenced jobs refuse rows. A published batch
  refuses them too, without an error: thus a batch that is run again after a restart comes to its
  end.

A row that cannot be carried out (an increment of something that is no integer) becomes a dead
letter, like a deferred update. A row for a queue that no longer exists stops the publication until
the queue exists again: nothing is lost.

*Left out.* More ranges: each would stage rows of its own keys, and the decision would be one
record, in the range of the query, that the others read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import msgspec

from postroom.errors import Error, Invalid, shorten
from postroom.kv.clock import from_seconds
from postroom.messaging.dead_letters import DeadLetters
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage, Executable
from postroom.messaging.staging_leftovers import Leftovers
from postroom.messaging.staging_records import (
    OPEN,
    PUBLISHED,
    AttemptRecord,
    JobRecord,
    Position,
    QueryRecord,
    attempts,
    encode,
    rows,
    winners,
)
from postroom.messaging.staging_requests import (
    AbortStaged,
    ApplyStaged,
    ForgetQuery,
    PublishStaged,
    ReadStaging,
    StageRows,
    SweepStaged,
    Winner,
)
from postroom.messaging.staging_steps import (
    Room,
    check_chunks,
    check_rows,
    read,
)
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation
from postroom.ranges.registry import Registry, WriteEvaluator

_TOUCHED_SECONDS: Final = 60.0
"""The age in seconds at which the time in a job's record is written again."""

Steps = Generator[None, None, Any]


class StagedBatches(Leftovers):
    """The staged rows of one range, and their publication.

    Args:
        range_id: the id of the range.
        dead_letters: the dead letters, for rows that cannot be carried out.
        writes: the evaluators that carry out rows.
    """

    def __init__(
        self, range_id: int, dead_letters: DeadLetters, writes: dict[type, WriteEvaluator]
    ) -> None:
        super().__init__(range_id)
        self._dead_letters = dead_letters
        self._writes = writes

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        evaluators: dict[type, WriteEvaluator] = {
            StageRows: self.stage,
            PublishStaged: self.publish,
            ApplyStaged: self.apply,
            AbortStaged: self.abort,
            SweepStaged: self.sweep,
            ForgetQuery: self.forget,
        }
        registry.writes.update(evaluators)
        registry.reads[ReadStaging] = lambda view, request: read(view, self._at, request)

    # --- staging

    def stage(self, ctx: Evaluation, request: StageRows) -> bool | None:
        """Evaluate ``StageRows``.

        Raises:
            Invalid: the job was aborted, or these are no rows.
        """
        if self._is_over(ctx, request.query, request.batch):
            return False
        self._check_open(ctx, request)
        place = self._at.chunk(request.job, request.attempt, request.number)
        if ctx.get(place) is not None:
            return None  # sent again
        check_rows(request.rows)
        counted = self._at.attempt(request.job, request.attempt)
        stored = ctx.get(counted)
        known = AttemptRecord(0, 0) if stored is None else attempts.decode(stored)
        ctx.writes[place] = request.rows
        ctx.writes[counted] = encode(
            AttemptRecord(known.chunks + 1, max(known.end, request.number + 1))
        )
        ctx.steps += 4
        ctx.grow(len(request.rows) + len(place) + len(counted) + 4 * WRITE_BYTES)
        return None

    def _check_open(self, ctx: Evaluation, request: StageRows) -> None:
        """Check that the job may stage; create its record if there is none."""
        job = self._job(ctx, request.job)
        if job is not None and job.state != OPEN:
            raise Invalid(
                f"the job that this task belongs to (batch {request.batch} of "
                f"{shorten(request.query)}) was aborted; nothing was staged: this task is late"
            )
        if job is not None and (job.query, job.batch) != (request.query, request.batch):
            raise Invalid("this job writes another batch; nothing was staged: make up a new job")
        if job is None or ctx.timestamp - job.at > from_seconds(_TOUCHED_SECONDS):
            made = JobRecord(OPEN, ctx.timestamp, request.query, request.batch, request.sink)
            self._put(ctx, self._at.job(request.job), made)

    # --- publishing

    def publish(self, ctx: Evaluation, request: PublishStaged) -> Generator[None, None, list[bool]]:
        """Evaluate ``PublishStaged``.

        Raises:
            Invalid: the job was aborted, or something is missing; or the batch before is not
                applied yet.
        """
        query = self._query(ctx, request.query)
        if query is not None:
            if request.batch <= query.batch:
                return [False, query.position is not None]
            if query.position is not None:
                raise Invalid(
                    f"batch {query.batch} of {shorten(request.query)} is not applied yet; nothing "
                    "was published: finish that first (db.staging.finish)"
                )
        yield from self._check_complete(ctx, request)
        position = Position(request.job)
        record = QueryRecord(request.batch, ctx.timestamp, request.once, position)
        self._put(ctx, self._at.query(request.query), record)
        self._put(ctx, self._at.winners(request.query), request.winners)
        self._put(
            ctx, self._at.job(request.job),
            JobRecord(PUBLISHED, ctx.timestamp, request.query, request.batch, b""),
        )  # fmt: skip
        more = yield from self._step(ctx, request.query, record, request.winners)
        return [True, more]

    def _check_complete(self, ctx: Evaluation, request: PublishStaged) -> Steps:
        """Check that all attempts are there, each once, and of this batch."""
        job = self._job(ctx, request.job)
        if job is not None and (job.query, job.batch) != (request.query, request.batch):
            raise Invalid("this job writes another batch; nothing was published: name its own job")
        if len({winner.attempt for winner in request.winners}) != len(request.winners):
            raise Invalid("an attempt can be published once; nothing was changed: name each once")
        if job is not None and job.state != OPEN:
            raise Invalid(
                f"the job was aborted before its batch {request.batch} of "
                f"{shorten(request.query)} was published; nothing was changed: run it again"
            )
        for winner in request.winners:
            stored = ctx.get(self._at.attempt(request.job, winner.attempt))
            check_chunks(request, winner, stored)
            ctx.steps += 1
            if ctx.is_used_up():
                yield

    def apply(self, ctx: Evaluation, request: ApplyStaged) -> Generator[None, None, bool]:
        """Evaluate ``ApplyStaged``; return whether there is more to apply."""
        record = self._query(ctx, request.query)
        if record is None or record.position is None:
            return False
        stored = ctx.get(self._at.winners(request.query))
        won = [] if stored is None else winners.decode(stored)
        more: bool = yield from self._step(ctx, request.query, record, won)
        return more

    def _step(
        self, ctx: Evaluation, query: bytes, record: QueryRecord, won: list[Winner]
    ) -> Generator[None, None, bool]:
        """Apply some rows; if there are none left, delete some of the staged records."""
        position = record.position
        assert position is not None
        room = Room(ctx)
        while position.winner < len(won) and room.is_left():
            position = yield from self._apply_chunk(ctx, won[position.winner], position, room)
        if position.winner == len(won) and self._drop(ctx, position.job, room):
            ctx.writes[self._at.winners(query)] = None
            ctx.writes[self._at.job(position.job)] = None
            self._remember(ctx, query, record, None, room.dead)
            return False
        self._remember(ctx, query, record, position, room.dead)
        return True

    def _remember(
        self,
        ctx: Evaluation,
        query: bytes,
        record: QueryRecord,
        position: Position | None,
        died: int,
    ) -> None:
        changed = msgspec.structs.replace(record, position=position, dead=record.dead + died)
        self._put(ctx, self._at.query(query), changed)

    def _apply_chunk(
        self, ctx: Evaluation, winner: Winner, position: Position, room: Room
    ) -> Generator[None, None, Position]:
        """Apply as many rows of a chunk as there is room for; return where to go on."""
        place = self._at.chunk(position.job, winner.attempt, position.chunk)
        stored = ctx.get(place)
        assert stored is not None, "a chunk of a published attempt is gone"
        requests, number = rows.decode(stored), position.row
        while number < len(requests):
            if not room.is_left():
                return msgspec.structs.replace(position, row=number)
            room.dead += self._carry_out(ctx, requests[number])
            room.rows -= 1
            number += 1
            if ctx.is_used_up():
                yield
        ctx.writes[place] = None
        ctx.grow(len(place))
        if position.chunk + 1 < winner.chunks:
            return Position(position.job, position.winner, position.chunk + 1)
        ctx.writes[self._at.attempt(position.job, winner.attempt)] = None
        return Position(position.job, position.winner + 1)

    def _carry_out(self, ctx: Evaluation, request: Any) -> bool:
        """Carry out a row; return whether it became a dead letter.

        Evaluators fail before they write anything, so there is nothing to undo.
        """
        try:
            self._writes[type(request)](ctx, request)
            return False
        except Error as error:
            if isinstance(request, EnqueueMessage | EnqueueInQueue) or not isinstance(
                error, Invalid
            ):
                raise
            entry = Executable(request, ctx.transaction_id, ctx.source)
            id_ = ctx.stamp + ctx.next_ordinal()
            self._dead_letters.bury(ctx, id_, entry, f"{type(error).__name__}: {error}")
            # Counters are conserved: a dead row counts as sent, like a deferred update.
            ctx.count("enqueued")
            return True

    def forget(self, ctx: Evaluation, request: ForgetQuery) -> bool:
        """Evaluate ``ForgetQuery``.

        Raises:
            Invalid: its last batch is not applied yet.
        """
        record = self._query(ctx, request.query)
        if record is None:
            return False
        if record.position is not None:
            raise Invalid(
                f"batch {record.batch} of {shorten(request.query)} is not applied yet; nothing was "
                "forgotten: finish that first (db.staging.finish)"
            )
        ctx.writes[self._at.query(request.query)] = None
        return True
