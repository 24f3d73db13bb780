"""The requests of staging: rows that wait in the store until their batch is published.

All of them are writes inside a transaction, and all may be repeated: what was done is not done
again. How they work together is told in :mod:`postroom.messaging.staging`.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from postroom.limits import (
    STAGED_CHUNK_BYTES_MAX,
    STAGED_CHUNKS_MAX,
    STAGED_QUERY_BYTES_MAX,
    STAGED_WINNERS_MAX,
)
from postroom.messaging.queues.requests import Enqueue
from postroom.messaging.requests import EnqueueMessage
from postroom.ranges.requests import (
    Count,
    Delete,
    Increment,
    Key,
    Moment,
    Payload,
    Put,
    Request,
    Seconds,
)

JOB_BYTES: Final = 24
ATTEMPT_BYTES: Final = 16

Query: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=STAGED_QUERY_BYTES_MAX)]
Job: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=JOB_BYTES, max_length=JOB_BYTES)]
AttemptId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=ATTEMPT_BYTES, max_length=ATTEMPT_BYTES)
]

StagedRow: TypeAlias = Put | Delete | Increment | EnqueueMessage | Enqueue
"""What a row may come to."""


class Winner(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt whose rows are to be published, and how many chunks it has staged."""

    attempt: AttemptId
    chunks: Annotated[int, msgspec.Meta(ge=1, le=STAGED_CHUNKS_MAX)]


class StageRows(Request, frozen=True, array_like=True, tag="stage_rows", gc=False):
    """A chunk of the rows that an attempt of a task has made, not to be seen yet.

    Answers ``False``, and stages nothing, if the batch is published already.

    Attributes:
        query: whose batch it is, for good: the same after a restart.
        batch: its number; what was published last has a lower one.
        job: the present try to write this batch; another one after a restart.
        sink: by what an abort finds a job of which it knows nothing else; may be empty.
        attempt: of a task, made up by it.
        number: of the chunk; from 0 on.
        rows: MessagePack: an array of ``StagedRow``.
    """

    query: Query
    batch: Moment
    job: Job
    sink: Annotated[bytes, msgspec.Meta(max_length=32)]
    attempt: AttemptId
    number: Annotated[int, msgspec.Meta(ge=0, lt=STAGED_CHUNKS_MAX)]
    rows: Annotated[bytes, msgspec.Meta(max_length=STAGED_CHUNK_BYTES_MAX)]

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.query


class PublishStaged(Request, frozen=True, array_like=True, tag="publish_staged"):
    """From now on the rows of these attempts are the batch; answers ``[new, more]``.

    ``new``: it was not published before. ``more``: ``ApplyStaged`` is wanted. ``once``: the query
    has this one batch; its record goes some time after it.
    """

    query: Query
    batch: Moment
    job: Job
    winners: Annotated[list[Winner], msgspec.Meta(max_length=STAGED_WINNERS_MAX)]
    once: bool = False

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.query


class ApplyStaged(Request, frozen=True, array_like=True, tag="apply_staged", gc=False):
    """The next step of the publication of a query; answers whether there are more."""

    query: Query

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.query


class AbortStaged(Request, frozen=True, array_like=True, tag="abort_staged", gc=False):
    """The job will not be published; answers whether that holds (not, if it was already).

    With ``sink``: all jobs of that sink that have staged for the batch, whatever ``job`` and
    ``query`` say.
    """

    query: Annotated[bytes, msgspec.Meta(max_length=STAGED_QUERY_BYTES_MAX)]
    batch: Moment
    job: Job
    sink: Annotated[bytes, msgspec.Meta(max_length=32)] = b""

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.job


class SweepStaged(Request, frozen=True, array_like=True, tag="sweep_staged", gc=False):
    """Deletes some of what is of no use any more; answers where to go on; empty: that was all.

    That is: what was staged for aborted jobs and for batches that are published, and whatever is
    older than ``seconds``.

    Attributes:
        begin: as answered before; ``None``: where the last one stopped that said so, too.
    """

    seconds: Seconds
    begin: Annotated[bytes, msgspec.Meta(max_length=STAGED_QUERY_BYTES_MAX + 2)] | None = None

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return b""


class ForgetQuery(Request, frozen=True, array_like=True, tag="forget_query", gc=False):
    """The query will never come back: its last batch need not be known. Answers whether it was."""

    query: Query

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.query


class BeginLoad(Request, frozen=True, array_like=True, tag="begin_load", gc=False):
    """A bulk load into ``[start, end)``, which is empty, or was begun under the same name.

    Answers whether it was finished already. From now on only ``run`` may add to it.
    """

    name: Query
    run: AttemptId
    start: Key
    end: Key | None

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.name


class LoadRows(Request, frozen=True, array_like=True, tag="load_rows"):
    """Values of keys that are not there yet, in rising order.

    One that is there with the same value is left alone; one with another value fails all.
    """

    name: Query
    run: AttemptId
    keys: list[Key]
    values: list[Payload]

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.keys[0] if self.keys else self.name


class EndLoad(Request, frozen=True, array_like=True, tag="end_load", gc=False):
    """The load is finished; or, if not ``done``, this run of it is over, and another may follow.

    Answers whether this run was the present one. Without ``keep`` the load is forgotten: nobody
    will repeat it under this name.
    """

    name: Query
    run: AttemptId
    done: bool
    keep: bool

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.name


class ReadStaging(Request, frozen=True, array_like=True, tag="read_staging", gc=False):
    """What is staged: answers ``Staging``.

    Attributes:
        unfinished: only queries whose last batch is still being applied, a hundred at a time.
        begin: of the queries, the name of the first.
    """

    unfinished: bool = False
    begin: Annotated[bytes, msgspec.Meta(max_length=STAGED_QUERY_BYTES_MAX + 1)] = b""


class StagedQuery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A query that has published: the last batch, and whether that is still being applied."""

    query: bytes
    batch: int
    unfinished: bool


class Staging(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ReadStaging``: queries; how many jobs, attempts and bulk loads are known; at most
    10,000 of each are counted.
    """

    queries: list[StagedQuery]
    jobs: Count
    attempts: Count
    loads: Count
