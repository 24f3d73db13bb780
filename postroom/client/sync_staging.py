"""The synchronous form of :mod:`postroom.client.staging`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from postroom.client import staging as asynchronous
from postroom.client.sender import BlockingSender
from postroom.limits import STAGED_SECONDS_MAX
from postroom.messaging.staging_requests import Staging


class Stream:
    """Writes that are sent one after the other, several under way at a time."""

    def __init__(self, sender: BlockingSender) -> None:
        self._sender = sender
        self._core = asynchronous.Stream(sender)

    @property
    def is_late(self) -> bool:
        """Whether the batch that a chunk was staged for is published already."""
        return self._core.is_late

    def send(self, write: Any) -> None:
        """Sends one; waits for the oldest if too many are under way.

        Raises:
            Error: what became of an earlier one. Others may have happened.
        """
        self._sender.run(self._core.send(write))

    def flush(self) -> None:
        """Waits for all of them.

        Raises:
            Error: what became of one.
        """
        self._sender.run(self._core.flush())


class StagingCalls:
    """Staging and bulk loads of one store. ``db.staging``."""

    def __init__(self, sender: BlockingSender) -> None:
        self._sender = sender
        self._core = asynchronous.StagingCalls(sender)

    def stream(self) -> Stream:
        """For many chunks."""
        return Stream(self._sender)

    def publish(
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
        return self._sender.run(self._core.publish(query, batch, job, winners, once=once))

    def finish(self, query: bytes) -> None:
        """Carries out what is left of the last batch of a query. Anybody may do so."""
        self._sender.run(self._core.finish(query))

    def abort(self, query: bytes, batch: int, job: bytes = b"\x00" * 24, sink: bytes = b"") -> bool:
        """Has late tasks of a job refused, and deletes what it has staged.

        Args:
            query, batch, job: which.
            sink: all jobs of this sink and batch instead.

        Returns:
            Whether it is not published, and never will be.
        """
        return self._sender.run(self._core.abort(query, batch, job, sink))

    def sweep(self, seconds: float = STAGED_SECONDS_MAX) -> None:
        """Deletes what is of no use any more, and what was staged longer than ``seconds`` ago by
        jobs that never ended; finishes what was published and not carried out to the end.

        Raises:
            Invalid: of one query, that could not be done. All else was.
        """
        self._sender.run(self._core.sweep(seconds))

    def sweep_some(self, *, finish: bool = False) -> None:
        """A step of that; the next one, whoever makes it, goes on where this one stopped.

        Args:
            finish: carries out what is left of other queries, too, of which some cannot go on.
        """
        self._sender.run(self._core.sweep_some(finish=finish))

    def forget(self, query: bytes) -> bool:
        """Forgets the last batch of a query that never comes back; whether there was one."""
        return self._sender.run(self._core.forget(query))

    def read(self, begin: bytes = b"") -> Staging:
        """What is staged, and by whom.

        Args:
            begin: of queries, the name of the first; 10,000 of them are told at most.
        """
        return self._sender.run(self._core.read(begin))

    def begin_load(self, name: bytes, run: bytes, start: bytes, end: bytes | None) -> bool:
        """Begins a bulk load, or another run of it; whether it was finished already.

        Raises:
            Invalid: the span is not empty.
        """
        return self._sender.run(self._core.begin_load(name, run, start, end))

    def end_load(self, name: bytes, run: bytes, *, done: bool, keep: bool) -> bool:
        """Ends a bulk load, or this run of it; whether this was the present one."""
        return self._sender.run(self._core.end_load(name, run, done=done, keep=keep))


class StagingOfDatabase:
    """What a database offers to those who write in many processes."""

    def __init__(self, sender: BlockingSender) -> None:
        self._staging_sender = sender

    @property
    def staging(self) -> StagingCalls:
        """Staged batches and bulk loads."""
        return StagingCalls(self._staging_sender)
