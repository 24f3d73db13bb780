"""Staging and bulk loads, as a client does them; in its asyncio form.

These are for programs that write in many processes and decide at the end, like the sinks of Spark.
:mod:`postroom.messaging.ingest` says what each call does in the store.

Every call may be repeated, and is, until the store answers (:mod:`postroom.client.chunks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from postroom.client import arguments
from postroom.client.chunks import ChunkStream, repeated
from postroom.client.commits import anchor_of
from postroom.client.sender import Sender
from postroom.errors import CommitUnknown, Error, Invalid, shorten
from postroom.limits import STAGED_SECONDS_MAX, TRANSACTION_SECONDS_MAX
from postroom.messaging.ingest.requests import (
    AbortStaged,
    ApplyStaged,
    BeginLoad,
    EndLoad,
    ForgetQuery,
    LoadRows,
    PublishStaged,
    ReadStaging,
    StageRows,
    Staging,
    SweepStaged,
    Winner,
)
from postroom.ranges.requests import CommitTransaction

_encode = msgspec.msgpack.encode


class StagingCalls:
    """The staging and bulk loads of one store: ``db.staging``."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def stream(self) -> ChunkStream:
        """Return a stream for many chunks."""
        return ChunkStream(self._sender, partial(_alone, self._sender), _answer_in)

    async def publish(
        self,
        query: bytes,
        batch: int,
        job: bytes,
        winners: Iterable[tuple[bytes, int]],
        *,
        once: bool = False,
    ) -> bool:
        """Make the staged chunks of these attempts the batch, and carry the batch out to the end.

        The rest of the batch before is finished first.

        Args:
            query: the query of the batch; always the same.
            batch: its number.
            job: the job that has staged it.
            winners: attempts, and how many chunks each has staged.
            once: whether the query has only this batch.

        Returns:
            Whether it was not published before.

        Raises:
            Invalid: the job was aborted, or its staged chunks are gone. Nothing was published.
            CommitUnknown, Unavailable: the store did not answer; call again.
            Error: it is published, but could not be carried out to the end yet; the message says
                this.
        """
        await self.finish(query)
        won = [Winner(task_attempt, chunks) for task_attempt, chunks in winners]
        request = PublishStaged(query, batch, job, won, once)
        new, more = await repeat(self._sender, request)
        if more:
            try:
                await self.finish(query)
            except Error as error:
                raise _half_way(query, batch, error) from error
        return bool(new)

    async def finish(self, query: bytes) -> None:
        """Carry out the rest of the last batch of a query. Any client may do this."""
        while await repeat(self._sender, ApplyStaged(query)):
            pass

    async def abort(
        self, query: bytes, batch: int, job: bytes = b"\x00" * 24, sink: bytes = b""
    ) -> bool:
        """Refuse late tasks of a job, and delete its staged chunks.

        Args:
            query, batch, job: which job.
            sink: all jobs of this sink and batch instead.

        Returns:
            Whether it is not published, and never will be.
        """
        return bool(await repeat(self._sender, AbortStaged(query, batch, job, sink)))

    async def sweep(self, seconds: float = STAGED_SECONDS_MAX) -> None:
        """Delete staged chunks that are of no use any more, and finish published batches.

        Chunks that were staged longer than ``seconds`` ago by jobs that never ended are deleted,
        too.

        Raises:
            Invalid: this was not possible for one query. Everything else was done.
        """
        stuck = await self._finish_all()
        begin = await repeat(self._sender, SweepStaged(seconds, b""))
        while begin:
            begin = await repeat(self._sender, SweepStaged(seconds, begin))
        if stuck is not None:
            raise stuck

    async def sweep_some(self, *, finish: bool = False) -> None:
        """Do one step of a sweep; the next step, by any client, goes on where this one stopped.

        Args:
            finish: whether to finish the batches of other queries, too; those that cannot go on are
                ignored.
        """
        if finish:
            await self._finish_all()
        await repeat(self._sender, SweepStaged(STAGED_SECONDS_MAX))

    async def _finish_all(self) -> Invalid | None:
        """Finish the batches of all queries; return why one of them cannot go on, or ``None``."""
        stuck: Invalid | None = None
        begin = b""
        while True:
            wanted = partial(ReadStaging, unfinished=True, begin=begin)
            found: Staging = await repeated(self._sender, wanted)
            for query in found.queries:
                try:
                    await self.finish(query.query)
                except Invalid as error:
                    stuck = stuck or error
            if not found.queries:
                return stuck
            begin = found.queries[-1].query + b"\x00"

    async def forget(self, query: bytes) -> bool:
        """Forget the last batch of a query that never comes back; return whether there was one."""
        return bool(await repeat(self._sender, ForgetQuery(query)))

    async def read(self, begin: bytes = b"") -> Staging:
        """Return what is staged, and by which jobs.

        Args:
            begin: the name of the first query; the answer has at most 10,000 of them.
        """
        found: Staging = await repeated(self._sender, partial(ReadStaging, begin=begin))
        return found

    # --- bulk loads

    async def begin_load(self, name: bytes, run: bytes, start: bytes, end: bytes | None) -> bool:
        """Begin a bulk load, or another run of it; return whether it was finished already.

        Raises:
            Invalid: the span is not empty.
        """
        start, end = arguments.span(start, end)
        return bool(await repeat(self._sender, BeginLoad(name, run, start, end)))

    async def end_load(self, name: bytes, run: bytes, *, done: bool, keep: bool) -> bool:
        """End a bulk load, or this run of it; return whether this was the present one."""
        return bool(await repeat(self._sender, EndLoad(name, run, done, keep)))


def _half_way(query: bytes, batch: int, error: Error) -> Error:
    kind = Invalid if isinstance(error, Invalid) else CommitUnknown
    return kind(
        f"batch {batch} of {shorten(query)} is published, and some of its rows are not carried out "
        f"yet: {error}. Do not write it again: call db.staging.sweep() when that is mended, which "
        "carries out the rest"
    )


async def repeat(sender: Sender, write: Any) -> Any:
    """Return the answer to a write that may be repeated.

    Raises:
        CommitUnknown, Unavailable, TransactionConflict: it could not be done for a minute.
        Error: nothing was changed.
    """
    return _answer_in(await repeated(sender, lambda: _alone(sender, write)))


def _answer_in(reply: Any) -> Any:
    return reply.answers[0] if reply.answers else None


def _alone(sender: Sender, write: Any) -> CommitTransaction[Any]:
    return CommitTransaction(
        sender.next_id(), sender.reading(), TRANSACTION_SECONDS_MAX, 0, anchor_of([write]), [], [],
        [write],
    )  # fmt: skip


def packed(rows: list[Any]) -> bytes:
    """Return rows in the form of a chunk."""
    return _encode(rows)


class StagingOfDatabase:
    """The calls of a database for programs that write in many processes, in the asyncio form."""

    _sender: Sender

    @property
    def staging(self) -> StagingCalls:
        """Return the calls for staged batches and bulk loads.

        For layers on top.
        """
        return StagingCalls(self._sender)


__all__ = ["LoadRows", "StageRows", "StagingCalls", "StagingOfDatabase", "packed"]
