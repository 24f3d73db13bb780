"""Staging and bulk loads, as a client does them; in its asyncio form.

For programs that write in many processes and decide at the end, as the sinks of Spark do. What
each call does in the store is told in :mod:`postroom.messaging.staging` and
:mod:`postroom.messaging.bulk_loads`.

Every call may be repeated, and is, until the store answers (:mod:`postroom.client.chunks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from postroom.client import arguments
from postroom.client.chunks import Chunks, repeated
from postroom.client.commits import anchor_of
from postroom.client.sender import Sender
from postroom.errors import CommitUnknown, Error, Invalid, shorten
from postroom.limits import STAGED_SECONDS_MAX, TRANSACTION_SECONDS_MAX
from postroom.messaging.staging_requests import (
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


class Stream:
    """Writes that are sent one after the other, several under way at a time. Not for several tasks.

    Args:
        sender: of the client.

    Attributes:
        is_late: the batch that a chunk was staged for is published already.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.is_late = False
        self._chunks = Chunks(sender, self._told)

    async def send(self, write: Any) -> None:
        """Sends one; waits for the oldest if too many are under way.

        Raises:
            Error: what became of an earlier one. Others may have happened.
        """
        await self._chunks.send(lambda: _alone(self._sender, write))

    async def flush(self) -> None:
        """Waits for all of them.

        Raises:
            Error: what became of one.
        """
        await self._chunks.flush()

    def _told(self, reply: Any) -> None:
        if _answer_in(reply) is False:
            self.is_late = True


class StagingCalls:
    """Staging and bulk loads of one store. ``db.staging``."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def stream(self) -> Stream:
        """For many chunks."""
        return Stream(self._sender)

    async def publish(
        self,
        query: bytes,
        batch: int,
        job: bytes,
        winners: Iterable[tuple[bytes, int]],
        *,
        once: bool = False,
    ) -> bool:
        """Makes what these attempts have staged the batch, and carries it out to the end.

        What is left of the batch before is finished first.

        Args:
            query: whose batch; the same for ever.
            batch: its number.
            job: under which it was staged.
            winners: attempts, and how many chunks each has staged.
            once: the query has only this batch.

        Returns:
            Whether it was not published before.

        Raises:
            Invalid: the job was aborted, or what it staged is gone. Nothing was published.
            CommitUnknown, Unavailable: the store did not answer; call again.
            Error: it is published, and could not be carried out to the end yet; this is said.
        """
        await self.finish(query)
        won = [Winner(attempt, chunks) for attempt, chunks in winners]
        request = PublishStaged(query, batch, job, won, once)
        new, more = await repeat(self._sender, request)
        if more:
            try:
                await self.finish(query)
            except Error as error:
                raise _half_way(query, batch, error) from error
        return bool(new)

    async def finish(self, query: bytes) -> None:
        """Carries out what is left of the last batch of a query. Anybody may do so."""
        while await repeat(self._sender, ApplyStaged(query)):
            pass

    async def abort(
        self, query: bytes, batch: int, job: bytes = b"\x00" * 24, sink: bytes = b""
    ) -> bool:
        """Has late tasks of a job refused, and deletes what it has staged.

        Args:
            query, batch, job: which.
            sink: all jobs of this sink and batch instead.

        Returns:
            Whether it is not published, and never will be.
        """
        return bool(await repeat(self._sender, AbortStaged(query, batch, job, sink)))

    async def sweep(self, seconds: float = STAGED_SECONDS_MAX) -> None:
        """Deletes what is of no use any more, and what was staged longer than ``seconds`` ago by
        jobs that never ended; finishes what was published and not carried out to the end.

        Raises:
            Invalid: of one query, that could not be done. All else was.
        """
        stuck = await self._finish_all()
        begin = await repeat(self._sender, SweepStaged(seconds, b""))
        while begin:
            begin = await repeat(self._sender, SweepStaged(seconds, begin))
        if stuck is not None:
            raise stuck

    async def sweep_some(self, *, finish: bool = False) -> None:
        """A step of that; the next one, whoever makes it, goes on where this one stopped.

        Args:
            finish: carries out what is left of other queries, too, of which some cannot go on.
        """
        if finish:
            await self._finish_all()
        await repeat(self._sender, SweepStaged(STAGED_SECONDS_MAX))

    async def _finish_all(self) -> Invalid | None:
        """Answers why one of them cannot go on."""
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
        """Forgets the last batch of a query that never comes back; whether there was one."""
        return bool(await repeat(self._sender, ForgetQuery(query)))

    async def read(self, begin: bytes = b"") -> Staging:
        """What is staged, and by whom.

        Args:
            begin: of queries, the name of the first; 10,000 of them are told at most.
        """
        found: Staging = await repeated(self._sender, partial(ReadStaging, begin=begin))
        return found

    # --- bulk loads

    async def begin_load(self, name: bytes, run: bytes, start: bytes, end: bytes | None) -> bool:
        """Begins a bulk load, or another run of it; whether it was finished already.

        Raises:
            Invalid: the span is not empty.
        """
        start, end = arguments.span(start, end)
        return bool(await repeat(self._sender, BeginLoad(name, run, start, end)))

    async def end_load(self, name: bytes, run: bytes, *, done: bool, keep: bool) -> bool:
        """Ends a bulk load, or this run of it; whether this was the present one."""
        return bool(await repeat(self._sender, EndLoad(name, run, done, keep)))


def _half_way(query: bytes, batch: int, error: Error) -> Error:
    kind = Invalid if isinstance(error, Invalid) else CommitUnknown
    return kind(
        f"batch {batch} of {shorten(query)} is published, and some of its rows are not carried out "
        f"yet: {error}. Do not write it again: call db.staging.sweep() when that is mended, which "
        "carries out the rest"
    )


async def repeat(sender: Sender, write: Any) -> Any:
    """What a write answers that may be repeated.

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
    """Rows as a chunk has them."""
    return _encode(rows)


class StagingOfDatabase:
    """What a database offers to those who write in many processes, in the asyncio form."""

    _sender: Sender

    @property
    def staging(self) -> StagingCalls:
        """Staged batches and bulk loads."""
        return StagingCalls(self._sender)


__all__ = ["LoadRows", "StageRows", "StagingCalls", "StagingOfDatabase", "Stream", "packed"]
