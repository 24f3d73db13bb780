"""Staging, bulk loads and streams of chunks, as a client does them; in its asyncio form.

These are for programs that write in many processes and decide at the end, like the sinks of Spark.
:mod:`postroom.messaging.ingest` says what each call does in the store.

Every call may be repeated, and is, until the store answers (:func:`.commits.repeated`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from postroom.client import arguments
from postroom.client.commits import alone, repeat_one, repeated
from postroom.client.pages import LIST_BYTES_PER_PAGE
from postroom.client.sender import Sender
from postroom.errors import CommitUnknown, Error, Invalid, Retryable, shorten
from postroom.kv import keys
from postroom.limits import LOAD_CUTS_MAX, STAGED_COUNTED_MAX, STAGED_SECONDS_MAX
from postroom.messaging.ingest.requests import (
    AbortStaged,
    ApplyStaged,
    BeginLoad,
    EndLoad,
    ForgetQuery,
    LoadRows,
    PublishStaged,
    ReadStaging,
    StagedQuery,
    Staging,
    SweepStaged,
    Winner,
)
from postroom.messaging.requests import ListDeadLetters, StoredDeadLetter
from postroom.ranges.contract import RANGE_ID_BYTES
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.requests import Pairs, Scan
from postroom.ranges.split.requests import AwaitSplit, NewRangeId, PrepareSplit

UNDER_WAY_AT_ONCE: Final = 4
"""The number of chunks that are on their way to the store while the next one is made."""


class ChunkStream:
    """A stream of requests that are sent one after the other, several under way at a time.

    Only one task may use it.

    Args:
        sender: the client's sender.
        in_commits: whether each try of a request is a commit of its own.

    Attributes:
        is_late: whether the answer to a request was ``False``: the rows came too late to count.
    """

    def __init__(self, sender: Sender, *, in_commits: bool = False) -> None:
        self._sender = sender
        self._in_commits = in_commits
        self.is_late = False
        self._under_way: deque[tuple[Any, Awaitable[Any] | None]] = deque()

    async def send(self, request: Any) -> None:
        """Send a request; wait for the oldest one if too many are under way.

        Raises:
            Error: an earlier request has failed. Others may have happened.
        """
        self._under_way.append((request, self._sender.send(self._made(request))))
        while len(self._under_way) > UNDER_WAY_AT_ONCE:
            await self._answered()

    def _made(self, request: Any) -> Any:
        return alone(self._sender, request.anchor(), request) if self._in_commits else request

    async def flush(self) -> None:
        """Wait for all requests.

        Raises:
            Error: a request has failed.
        """
        while self._under_way:
            await self._answered()

    async def _answered(self) -> None:
        request, answer = self._under_way[0]
        self._under_way[0] = request, None  # if this is cancelled, the request is sent again
        try:
            reply = await self._outcome(partial(self._made, request), answer)
        except Exception:
            self._under_way.popleft()
            raise
        self._under_way.popleft()
        if self._in_commits and reply.answers:
            self._take(request, reply.answers[0])

    def _take(self, request: Any, answer: Any) -> None:
        """Take an answer; the last rows of a chunk may be for the next range."""
        if answer is False:
            self.is_late = True
        elif isinstance(request, LoadRows) and answer < len(request.keys):
            keys, values = request.keys[answer:], request.values[answer:]
            rest = msgspec.structs.replace(request, keys=keys, values=values)
            self._under_way.appendleft((rest, None))

    async def _outcome(self, make: Callable[[], Any], answer: Awaitable[Any] | None) -> Any:
        if answer is not None:
            with suppress(CommitUnknown, Retryable):
                return await answer
        return await repeated(self._sender, make)


def cut(
    pairs: Iterable[tuple[bytes, bytes]], bytes_max: int, rows_max: int
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Cut pairs into chunks of so many bytes and rows at most; yield the two lists of each.

    A chunk is larger only if it is a single pair.
    """
    names: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for name, value in pairs:
        more = len(name) + len(value)
        if names and (size + more > bytes_max or len(names) == rows_max):
            yield names, values
            names, values, size = [], [], 0
        names.append(name)
        values.append(value)
        size += more
    if names:
        yield names, values


class StagingCalls:
    """The staging and bulk loads of one store: ``db.staging``."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def stream(self) -> ChunkStream:
        """Return a stream for many chunks."""
        return ChunkStream(self._sender, in_commits=True)

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
        new, more = await repeat_one(self._sender, request)
        if more:
            try:
                await self.finish(query)
            except Error as error:
                raise _half_way(query, batch, error) from error
        return bool(new)

    async def finish(self, query: bytes) -> None:
        """Carry out the rest of the last batch of a query. Any client may do this."""
        while await repeat_one(self._sender, ApplyStaged(query)):
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
        if not sink:
            return bool(await repeat_one(self._sender, AbortStaged(query, batch, job)))
        held = [
            await repeat_one(self._sender, AbortStaged(at, batch, job, sink))
            async for at in self._each_range()
        ]
        return all(held)

    async def sweep(self, seconds: float = STAGED_SECONDS_MAX) -> None:
        """Delete staged chunks that are of no use any more, and finish published batches.

        Chunks that were staged longer than ``seconds`` ago by jobs that never ended are deleted,
        too.

        Raises:
            Invalid: this was not possible for one query. Everything else was done.
        """
        stuck = await self._finish_all()
        async for at in self._each_range():
            begin = await repeat_one(self._sender, SweepStaged(seconds, b"", at))
            while begin:
                begin = await repeat_one(self._sender, SweepStaged(seconds, begin, at))
        if stuck is not None:
            raise stuck

    async def sweep_some(self, *, finish: bool = False) -> None:
        """Do one step of a sweep of any range.

        The next step there, by any client, goes on where this one stopped.

        Args:
            finish: whether to finish the batches of other queries, too; those that cannot go on are
                ignored.
        """
        if finish:
            await self._finish_all()
        ranges = await self._ranges(b"", None)
        at = self._sender.random.choice(ranges).start
        await repeat_one(self._sender, SweepStaged(STAGED_SECONDS_MAX, at=at))

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
        return bool(await repeat_one(self._sender, ForgetQuery(query)))

    async def read(self, begin: bytes = b"") -> Staging:
        """Return what is staged, and by which jobs.

        Args:
            begin: the name of the first query; the answer has at most 10,000 of them.
        """
        found: Staging = await repeated(self._sender, partial(ReadStaging, begin=begin))
        return found

    async def last(self, query: bytes) -> StagedQuery | None:
        """Return the last batch of a query, with its dead rows; ``None``: it has published none.

        Rows of other ranges are counted while they are dead letters. Only the first
        ``STAGED_COUNTED_MAX`` letters since the batch was published are looked at.
        """
        found = (await self.read(query)).queries[:1]
        if not found or found[0].query != query:
            return None
        dead = await self._letters(query, found[0].at)
        return msgspec.structs.replace(found[0], dead=max(found[0].dead, dead))

    async def _letters(self, query: bytes, since: int) -> int:
        """Return how many dead letters are from a query, sent from a timestamp on."""
        after, left, number = bytes(RANGE_ID_BYTES) + keys.u64(since), STAGED_COUNTED_MAX, 0
        while left > 0:
            wanted = partial(ListDeadLetters, left, LIST_BYTES_PER_PAGE, after)
            page: list[StoredDeadLetter] = await repeated(self._sender, wanted)
            updates = [each.record.update for each in page]
            number += sum(each is not None and each.source == query for each in updates)
            if not page or not page[-1].more:
                break
            left, after = left - len(page), page[-1].id
        return number

    # --- bulk loads

    async def prepare_load(self, start: bytes, end: bytes | None, cuts: Iterable[bytes]) -> int:
        """Split an empty span, so that several nodes share a bulk load into it.

        It needs the rights of an administrator. It may be repeated, also after rows were loaded.

        Args:
            start, end: the span.
            cuts: the keys at which ranges are to begin, 256 at most.

        Returns:
            How many ranges have begun. Those that were there before do not count.

        Raises:
            Invalid: there are too many cuts, or one lies outside of the span. Or the span is not
                empty. Nothing was changed.
            CommitUnknown, Unavailable: a range could not be split now. Call again: others were.
        """
        start, end = arguments.span(start, end)
        wanted = sorted({arguments.key(cut) for cut in cuts})
        _check_cuts(wanted, start, end)
        known = {each.start for each in await self._ranges(start, end)}
        left = [cut for cut in wanted if cut not in known]
        if left:
            await self._check_empty(start, end)
        for cut in left:
            await self._split(cut)
        return len(left)

    async def _check_empty(self, start: bytes, end: bytes | None) -> None:
        at: bytes | None = start
        while at is not None:
            page: Pairs = await repeated(self._sender, partial(Scan, at, end, 0, 1, 1))
            if page.pairs:
                raise Invalid(
                    f"the span is not empty: {shorten(page.pairs[0][0])} has a value; nothing was "
                    "changed: db.split splits ranges that have data"
                )
            at = page.resume

    async def _split(self, key: bytes) -> None:
        """Let a range begin at a key, unless one does meanwhile."""
        range_id: int = await repeated(self._sender, NewRangeId)
        try:
            await repeated(self._sender, partial(PrepareSplit, key, range_id))
        except Invalid:
            (owner,) = await self._ranges(key, key + b"\x00")
            if owner.start != key:
                raise
        await repeated(self._sender, partial(AwaitSplit, key))

    async def begin_load(self, name: bytes, run: bytes, start: bytes, end: bytes | None) -> bool:
        """Begin a bulk load, or another run of it; return whether it was finished already.

        Raises:
            Invalid: the span is not empty.
        """
        start, end = arguments.span(start, end)
        async for at in self._each_range(start, end):
            if await repeat_one(self._sender, BeginLoad(name, run, start, end, at)):
                return True
        return False

    async def end_load(
        self, name: bytes, run: bytes, start: bytes, end: bytes | None, *, done: bool, keep: bool
    ) -> bool:
        """End a bulk load, or this run of it; return whether this was the present one."""
        start, end = arguments.span(start, end)

        async def ended(at: bytes) -> bool:
            return bool(await repeat_one(self._sender, EndLoad(name, run, done, keep, at)))

        second = end
        async for at in self._each_range(start, end):
            if at != start:
                await ended(at)
                second = at if second == end else second
        was_present = await ended(start)  # the first range tells whether the load is done
        async for at in self._each_range(start, second):  # it may have been split meanwhile
            if at != start:
                await ended(at)
        return was_present

    # --- ranges

    async def _each_range(
        self, start: bytes = b"", end: bytes | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Iterate over the first keys of a span in each range.

        The caller uses a key before the store is asked where its range ends. The right half of a
        range that splits meanwhile is thus found, too.
        """
        at: bytes | None = start
        while at is not None and (end is None or at < end):
            yield at
            (found,) = await self._ranges(at, at + b"\x00")
            at = found.end

    async def _ranges(self, start: bytes, end: bytes | None) -> list[RangeInfo]:
        found: list[RangeInfo] = await repeated(self._sender, partial(ListRanges, start, end))
        return found


def _check_cuts(cuts: list[bytes], start: bytes, end: bytes | None) -> None:
    if len(cuts) > LOAD_CUTS_MAX:
        raise Invalid(
            f"{len(cuts)} cuts are too many, the limit is {LOAD_CUTS_MAX}; nothing was changed: a "
            "few ranges for each node are enough"
        )
    if cuts and (cuts[0] <= start or (end is not None and cuts[-1] >= end)):
        out = cuts[0] if cuts[0] <= start else cuts[-1]
        raise Invalid(f"the cut {shorten(out)} is not within the span; nothing was changed")


def _half_way(query: bytes, batch: int, error: Error) -> Error:
    kind = Invalid if isinstance(error, Invalid) else CommitUnknown
    return kind(
        f"batch {batch} of {shorten(query)} is published, and some of its rows are not carried out "
        f"yet: {error}. Do not write it again: call db.staging.sweep() when that is mended, which "
        "carries out the rest"
    )


def packed(rows: list[Any]) -> bytes:
    """Return rows in the form of a chunk."""
    return msgspec.msgpack.encode(rows)
