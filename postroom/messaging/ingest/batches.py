"""The staging of rows: they wait in the store, unseen, until their batch is published.

It is for clients that write in many parallel tasks, and decide at the end which of them count (a
sink of Spark). A *query* writes one *batch* after the other. Each try to write a batch is a *job*,
each try of a task a *task attempt*. Attempts stage their rows as chunks of up to 1 MiB. One chunk
is one key of the engine, so that a staged row costs the store next to nothing. ::

    StageRows (many tasks) ──▶ chunks, under job and attempt ── AbortStaged ──▶ fenced, deleted
                                      │ PublishStaged: these attempts are batch N of query Q
                                      ▼
      one transaction:  last batch of Q := N, which attempts, cursor   ◀── the decision, for good
                        and the first step
                                      │ ApplyStaged, as often as it takes, by any client
                                      ▼
      each step:        some rows ─▶ puts, deletes, messages, ...    and: cursor moves on
                                      ▼
      last steps:       chunks of all attempts of the job deleted; cursor: none

*Atomicity.* The decision is atomic. The rows of one step take effect at once: 8,192 of them,
or 4 MiB with what they overwrite. A batch that is no larger is one transaction. Readers may see a
part of a larger one. Each row takes effect exactly once, since a step writes rows and cursor
together.

*Ranges.* All of a query lies in the range of its name. A step carries out the rows for keys of that
range, and sends the others: they become outgoing entries (:mod:`..handover`), in the same write. A
batch is applied when these have arrived, too. If too much is on its way, a step ends early.

The outbox stays when a query goes to the right half of a split. Therefore the split waits until
what its publication has sent has arrived, and no step sends anything meanwhile. Else a later row of
a key could overtake an earlier one.

Invariants:

* a query's last batch never sinks, and a batch is published at most once;
* the next batch waits until a published one is applied as a whole;
* a job is open, then published or fenced, never both; fenced jobs refuse rows. A published batch
  refuses them too, without an error: thus a batch that is run again after a restart comes to its
  end.

A row that cannot be carried out (an increment of something that is no integer) becomes a dead
letter, like a deferred update. A row for a queue that no longer exists stops the publication until
the queue exists again: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.errors import Error, Invalid, OutboxFull, Unavailable, shorten
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.limits import STAGED_UNFINISHED_MAX
from postroom.messaging.ingest.machine import (
    TRANSITIONS,
    Ingest,
    IngestEvent,
    IngestState,
    StagedBatch,
    refused,
)
from postroom.messaging.ingest.requests import (
    ApplyStaged,
    ForgetQuery,
    PublishStaged,
    StageRows,
    Winner,
)
from postroom.messaging.ingest.staging import (
    AppliedUpTo,
    QueryRecord,
    StagedRecords,
    StepRoom,
    TaskAttemptRecord,
    attempt_key,
    batch_of,
    chunk_key,
    job_name,
    query_key,
    rows,
    winners,
    winners_key,
)
from postroom.messaging.outbox import LOOKED_FOR_AT_ONCE, Outboxes
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage, Executable
from postroom.messaging.undelivered import DeadLetters
from postroom.ranges.checks import check_headers
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation
from postroom.ranges.ports import Registry, WriteEvaluator
from postroom.ranges.transactions.intents import IntentTable, MeetsIntent

_ROOM_PART: Final = 2
_PARTS_LOOKED_AT: Final = 20
"""The parts of outboxes that a split looks through; it waits while there are more."""
_TOUCHED_SECONDS: Final = 60.0
"""The age in seconds at which the time in a job's record is written again."""

Steps = Generator[None, None, Any]


@dataclass(eq=False)
class StagedBatches:
    """The staged rows of one range, and their publication.

    Attributes:
        records: the records of the range.
        dead_letters: the dead letters, for rows that cannot be carried out.
        writes: the evaluators that carry out rows.
        enqueue: carries out a row for a queue.
        outboxes: the outboxes of the range.
        intents: the transactions that are prepared here, for which rows wait.
        paused: the first query that goes right in a split for which steps wait, and since when.
    """

    records: StagedRecords
    dead_letters: DeadLetters
    writes: dict[type, WriteEvaluator]
    enqueue: Callable[[Evaluation, EnqueueInQueue], None]
    outboxes: Outboxes
    intents: IntentTable
    paused: tuple[bytes, int] | None = None

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        evaluators: dict[type, WriteEvaluator] = {
            StageRows: self.stage,
            PublishStaged: self.publish,
            ApplyStaged: self.apply,
            ForgetQuery: self.forget,
        }
        registry.writes.update(evaluators)

    # --- staging

    def stage(self, ctx: Evaluation, request: StageRows) -> bool | None:
        """Evaluate ``StageRows``.

        Raises:
            Invalid: the job was aborted, or these are no rows.
        """
        if self.records.is_over(ctx, request.query, request.batch):
            return False
        self._check_open(ctx, request)
        of_attempt = attempt_key(request.query, request.job, request.task_attempt)
        engine_key = chunk_key(of_attempt, request.number)
        if ctx.get(engine_key) is not None:
            return None  # sent again
        check_rows(request.rows)
        known = self.records.task_attempt(ctx, of_attempt)
        ctx.writes[engine_key] = request.rows
        ctx.grow(len(request.rows) + len(engine_key) + 3 * WRITE_BYTES)
        more = TaskAttemptRecord(known.chunks + 1, max(known.end, request.number + 1))
        self.records.put(ctx, of_attempt, more)
        ctx.steps += 4
        return None

    def _check_open(self, ctx: Evaluation, request: StageRows) -> None:
        """Check that the job may stage; create its record if there is none."""
        batch = StagedBatch(request.query, request.batch, request.sink)
        name = job_name(request.query, request.job)
        known = self.records.jobs.read(ctx, name) or Ingest(IngestState.NONE, batch)
        if IngestEvent.ADD not in TRANSITIONS[StagedBatch][known.state]:
            raise refused(request.job, batch, IngestEvent.ADD)
        if not _is_of(known, request):
            raise Invalid("this job writes another batch; nothing was staged: make up a new job")
        is_new = known.state is IngestState.NONE
        if is_new or ctx.timestamp - known.at > from_seconds(_TOUCHED_SECONDS):
            self.records.jobs.move(ctx, name, known, IngestEvent.ADD)

    # --- publishing

    def publish(self, ctx: Evaluation, request: PublishStaged) -> Generator[None, None, list[bool]]:
        """Evaluate ``PublishStaged``.

        Raises:
            Invalid: the job was aborted, or something is missing; or the batch before is not
                applied yet.
        """
        query = self.records.query(ctx, request.query)
        if query is not None:
            if request.batch <= query.batch:
                return [False, query.cursor is not None]
            if query.cursor is not None:
                raise Invalid(
                    f"batch {query.batch} of {shorten(request.query)} is not applied yet; nothing "
                    "was published: finish that first (db.staging.finish)"
                )
        batch = StagedBatch(request.query, request.batch, b"")
        name = job_name(request.query, request.job)
        job = self.records.jobs.read(ctx, name) or Ingest(IngestState.NONE, batch)
        _check_names(request, job)
        self.records.jobs.move(ctx, name, job, IngestEvent.END, source=batch)
        yield from self._check_complete(ctx, request)
        record = QueryRecord(request.batch, ctx.timestamp, request.once, AppliedUpTo(request.job))
        self.records.put(ctx, query_key(request.query), record)
        self.records.put(ctx, winners_key(request.query), request.winners)
        more = yield from self._step(ctx, request.query, record, request.winners)
        return [True, more]

    def _check_complete(self, ctx: Evaluation, request: PublishStaged) -> Steps:
        """Check that all chunks of all attempts are there."""
        for winner in request.winners:
            of_attempt = attempt_key(request.query, request.job, winner.task_attempt)
            check_chunks(request, winner, self.records.task_attempt(ctx, of_attempt))
            ctx.steps += 1
            if ctx.is_used_up():
                yield

    def apply(self, ctx: Evaluation, request: ApplyStaged) -> Generator[None, None, bool]:
        """Evaluate ``ApplyStaged``; return whether there is more to apply."""
        record = self.records.query(ctx, request.query)
        if record is None or record.cursor is None:
            return False
        stored = ctx.get(winners_key(request.query))
        won = [] if stored is None else winners.decode(stored)
        more: bool = yield from self._step(ctx, request.query, record, won)
        return more

    def _step(
        self, ctx: Evaluation, query: bytes, record: QueryRecord, won: list[Winner]
    ) -> Generator[None, None, bool]:
        """Apply some rows; if there are none left, delete some of the staged records.

        Raises:
            OutboxFull, Unavailable, MeetsIntent: no row can be carried out now.
        """
        cursor = record.cursor
        assert cursor is not None
        self._check_pause(query)
        room, name = StepRoom(ctx), job_name(query, cursor.job)
        while cursor.winner < len(won) and room.is_left():
            cursor = yield from self._apply_chunk(ctx, query, won[cursor.winner], cursor, room)
        if cursor.winner == len(won) and self.records.drop(ctx, name, room):
            has_arrived = yield from self._has_arrived(ctx, query, cursor)
            if has_arrived:
                self._end(ctx, query, name)
                self._remember(ctx, query, record, None, room.dead)
                return False
            if cursor.sent_at:
                raise Unavailable(
                    f"batch {record.batch} of {shorten(query)} has rows on their way to other "
                    "ranges; nothing was changed: try again"
                )
            if not room.done:  # else this proposal has yet to send its messages
                cursor = msgspec.structs.replace(cursor, sent_at=ctx.timestamp)
        self._remember(ctx, query, record, cursor, room.dead)
        return True

    def _has_arrived(
        self, ctx: Evaluation, query: bytes, cursor: AppliedUpTo
    ) -> Generator[None, None, bool]:
        """Return whether all that it has sent to other ranges has arrived."""
        if not self.outboxes.may_send():
            return True
        if not cursor.sent_at:
            return False
        for is_left in self.outboxes.look_for(ctx, {query}, cursor.sent_at):
            if is_left:
                return False
            ctx.steps += LOOKED_FOR_AT_ONCE // 16
            if ctx.is_used_up():
                yield
        return True

    def _end(self, ctx: Evaluation, query: bytes, name: bytes) -> None:
        """Delete the records of a publication, and of its job."""
        ctx.writes[winners_key(query)] = None
        job = self.records.jobs.read(ctx, name)
        if job is not None:
            self.records.jobs.move(ctx, name, job, IngestEvent.LAST)

    def _remember(
        self,
        ctx: Evaluation,
        query: bytes,
        record: QueryRecord,
        cursor: AppliedUpTo | None,
        died: int,
    ) -> None:
        changed = msgspec.structs.replace(record, cursor=cursor, dead=record.dead + died)
        self.records.put(ctx, query_key(query), changed)

    def _apply_chunk(
        self, ctx: Evaluation, query: bytes, winner: Winner, cursor: AppliedUpTo, room: StepRoom
    ) -> Generator[None, None, AppliedUpTo]:
        """Apply as many rows of a chunk as there is room for; return where to go on."""
        of_attempt = attempt_key(query, cursor.job, winner.task_attempt)
        engine_key = chunk_key(of_attempt, cursor.chunk)
        stored = ctx.get(engine_key)
        assert stored is not None, "a chunk of a published task attempt is gone"
        requests, number = rows.decode(stored), cursor.row
        while number < len(requests):
            if not room.is_left():
                return msgspec.structs.replace(cursor, row=number)
            try:
                room.dead += self._carry_out(ctx, requests[number])
            except (OutboxFull, MeetsIntent):
                if not room.done:
                    raise
                room.rows = room.done  # the next step begins with this row
                continue
            room.done += 1
            number += 1
            if ctx.is_used_up():
                yield
        ctx.writes[engine_key] = None
        ctx.grow(len(engine_key))
        if cursor.chunk + 1 < winner.chunks:
            return AppliedUpTo(cursor.job, cursor.winner, cursor.chunk + 1)
        ctx.writes[of_attempt] = None
        return AppliedUpTo(cursor.job, cursor.winner + 1)

    def _carry_out(self, ctx: Evaluation, request: Any) -> bool:
        """Carry out a row; return whether it became a dead letter.

        Evaluators fail before they write anything, so there is nothing to undo.
        """
        if self.intents.by_transaction and request.participates():
            self.intents.check_writer(request.concerns())
        self._check_room(request)
        outgoing = self.outboxes.executable.outgoing
        try:
            if isinstance(request, EnqueueInQueue):
                self.enqueue(ctx, request)
            elif not isinstance(request, EnqueueMessage) and (
                outgoing.may_go_out() and outgoing.update_goes_out(ctx.scratch, request)
            ):
                self._send(ctx, request)
            else:
                self.writes[type(request)](ctx, request)
            return False
        except Error as error:
            if isinstance(request, EnqueueMessage | EnqueueInQueue) or not isinstance(
                error, Invalid
            ):
                raise
            entry = Executable(request, ctx.transaction_id, ctx.source)
            self.dead_letters.bury(
                ctx, self._new_id(ctx), entry, f"{type(error).__name__}: {error}"
            )
            # Counters are conserved: a dead row counts as sent, like a deferred update.
            ctx.count("enqueued")
            return True

    def _send(self, ctx: Evaluation, request: Any) -> None:
        """Send a row to the range of its key."""
        entry = Executable(request, ctx.transaction_id, ctx.source)
        self.outboxes.executable.outgoing.store(ctx, self._new_id(ctx), entry)
        ctx.count("enqueued")
        ctx.steps += 1

    def _check_room(self, request: Any) -> None:
        """Check that the outboxes have room for a row, if it goes out: most is left to others.

        Raises:
            OutboxFull: too much is on its way already.
        """
        if not self.outboxes.may_send():
            return
        outgoing = self.outboxes.deliverable.outgoing
        is_of_queue = isinstance(request, EnqueueInQueue)
        concerned = (request.home, request.id) if is_of_queue else (request.key,)
        if any(map(outgoing.goes_out, concerned)):
            outgoing.check_room(_ROOM_PART, limits.STAGED_OUTGOING_MAX)

    def _new_id(self, ctx: Evaluation) -> bytes:
        return ctx.stamp + keys.u64(ctx.range_id) + ctx.next_ordinal()

    # --- splits

    def must_wait(self, ctx: Evaluation, key: bytes) -> bool:
        """Return whether a split has to wait for what queries from ``key`` on have sent.

        They send nothing more then. If something else holds the split up, they go on, also
        if others have sent too much to a range that takes nothing.
        """
        at = ctx.timestamp if self.paused is None else self.paused[1]
        queries = self.records.unfinished_from(ctx, key)
        is_left = bool(queries) and self._has_sent(ctx, queries, at)
        self.paused = (key, at) if is_left else None
        return is_left is not False

    def _has_sent(self, ctx: Evaluation, queries: set[bytes], timestamp: int) -> bool | None:
        """Return whether something from queries is on its way; ``None``: too much is to tell."""
        sources = queries if len(queries) < STAGED_UNFINISHED_MAX else None
        for number, is_left in enumerate(self.outboxes.look_for(ctx, sources, timestamp)):
            if is_left:
                return True
            if number == _PARTS_LOOKED_AT:
                return None
        return False

    def _check_pause(self, query: bytes) -> None:
        if self.paused is not None and query >= self.paused[0]:
            raise Unavailable(
                f"the range of {shorten(query)} is about to split; nothing was changed: try again"
            )

    def forget(self, ctx: Evaluation, request: ForgetQuery) -> bool:
        """Evaluate ``ForgetQuery``.

        Raises:
            Invalid: its last batch is not applied yet.
        """
        record = self.records.query(ctx, request.query)
        if record is None:
            return False
        if record.cursor is not None:
            raise Invalid(
                f"batch {record.batch} of {shorten(request.query)} is not applied yet; nothing was "
                "forgotten: finish that first (db.staging.finish)"
            )
        ctx.writes[query_key(request.query)] = None
        return True


def _check_names(request: PublishStaged, job: Ingest) -> None:
    """Check that the attempts are of this batch, and named once each.

    Raises:
        Invalid: they are not.
    """
    if not _is_of(job, request):
        raise Invalid("this job writes another batch; nothing was published: name its own job")
    if len({winner.task_attempt for winner in request.winners}) != len(request.winners):
        raise Invalid("an attempt can be published once; nothing was changed: name each once")


def _is_of(job: Ingest, request: StageRows | PublishStaged) -> bool:
    """Return whether a job writes the batch of a request."""
    batch = batch_of(job)
    return (batch.query, batch.number) == (request.query, request.batch)


def check_rows(packed: bytes) -> None:
    """Check that these are rows, and that they can be carried out.

    Raises:
        Invalid, ValueTooLarge: they are not, or cannot.
    """
    try:
        decoded = rows.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"these are no rows: {error}; nothing was staged") from error
    for row in decoded:
        if isinstance(row, EnqueueMessage | EnqueueInQueue):
            check_headers(row.headers, row.key)


def check_chunks(request: PublishStaged, winner: Winner, known: TaskAttemptRecord) -> None:
    """Check that all chunks of a task attempt are there, by its record, numbered without gaps.

    Raises:
        Invalid: some are missing.
    """
    if known.chunks != winner.chunks:
        raise Invalid(
            f"{known.chunks} of the {winner.chunks} chunks that a task has staged for batch "
            f"{request.batch} of {shorten(request.query)} are there: the others were too old, and "
            "deleted; nothing was changed: run the job again"
        )
    if known.end != known.chunks:
        raise Invalid(
            f"the {known.chunks} chunks of a task have gaps in their numbers; nothing was changed: "
            "number them from 0 on, and run the job again"
        )
