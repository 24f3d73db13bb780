"""The requests of ingests: staging, bulk loads, and restores of *images*.

All may be repeated: nothing is done twice. Rows are staged, and wait in the store until their batch
is published (:mod:`.batches`). The requests of staging and of loads but ``ReadStaging`` are writes
inside a transaction.

An image is everything that a store has at one timestamp, entry by entry. It is read as two tables
(:mod:`postroom.messaging.bulk_requests`). It is put back in chunks into an empty store
(``BeginRestore`` to ``EndRestore``; :mod:`.restores`). The entries and their names are described in
:mod:`postroom.messaging.image_entries`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from postroom.limits import (
    IMAGE_NAME_BYTES_MAX,
    RESTORED_CHUNK_ROWS_MAX,
    RESTORED_PARTS_MAX,
    STAGED_CHUNK_BYTES_MAX,
    STAGED_CHUNKS_MAX,
    STAGED_CURSOR_BYTES_MAX,
    STAGED_QUERY_BYTES_MAX,
    STAGED_WINNERS_MAX,
    TRANSACTION_BYTES_MAX,
)
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import AlwaysLong, EnqueueMessage
from postroom.ranges.contract import (
    Command,
    Concern,
    ConcernsRoot,
    ConcernsSpan,
    ConcernsStore,
    KeySet,
    NeedsEverything,
    Read,
    Role,
    Touched,
    Write,
)
from postroom.ranges.requests import (
    Bound,
    Count,
    Delete,
    Increment,
    Key,
    Payload,
    Put,
    Seconds,
    TimestampNumber,
)
from postroom.ranges.rights import Verb

JOB_BYTES: Final = 24
TASK_ATTEMPT_BYTES: Final = 16

Query: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=STAGED_QUERY_BYTES_MAX)]
Job: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=JOB_BYTES, max_length=JOB_BYTES)]
TaskAttemptId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=TASK_ATTEMPT_BYTES, max_length=TASK_ATTEMPT_BYTES)
]

StagedRow: TypeAlias = Put | Delete | Increment | EnqueueMessage | EnqueueInQueue
"""The requests that a row may be."""


class Winner(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task attempt whose rows are to be published, and how many chunks it has staged."""

    task_attempt: TaskAttemptId
    chunks: Annotated[int, msgspec.Meta(ge=1, le=STAGED_CHUNKS_MAX)]


class StageRows(NeedsEverything, Write, frozen=True, tag="stage_rows"):
    """A request to stage a chunk of the rows of a task attempt, not to be seen yet.

    The answer is ``False``, and nothing is staged, if the batch is published already.

    Attributes:
        query: the query of the batch; it stays the same after a restart.
        batch: its number, higher than that of the batch published last.
        job: the present try to write this batch; another one after a restart.
        sink: the name by which an abort finds jobs of which it knows nothing else; may be empty.
        task_attempt: the id of the task attempt, made up by it.
        number: the number of the chunk, from 0 on.
        rows: MessagePack: an array of ``StagedRow``.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE, Verb.SEND, Verb.ENQUEUE)

    query: Query
    batch: Count
    job: Job
    sink: Annotated[bytes, msgspec.Meta(max_length=32)]
    task_attempt: TaskAttemptId
    number: Annotated[int, msgspec.Meta(ge=0, lt=STAGED_CHUNKS_MAX)]
    rows: Annotated[bytes, msgspec.Meta(max_length=STAGED_CHUNK_BYTES_MAX)]

    def concerns(self) -> Concern:
        """Return the name of the query, where all of it is staged."""
        return KeySet((self.query,))


class PublishStaged(NeedsEverything, AlwaysLong, Write, frozen=True, tag="publish_staged"):
    """A request to publish these task attempts as the batch; the answer is ``[new, more]``.

    ``new``: it was not published before. ``more``: ``ApplyStaged`` is needed. ``once``: the query
    has this one batch; its record is deleted some time after it.
    """

    answer: ClassVar = list[bool]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    query: Query
    batch: Count
    job: Job
    winners: Annotated[list[Winner], msgspec.Meta(max_length=STAGED_WINNERS_MAX)]
    once: bool = False

    def concerns(self) -> Concern:
        """Return the name of the query."""
        return KeySet((self.query,))


class ApplyStaged(NeedsEverything, AlwaysLong, Write, frozen=True, tag="apply_staged"):
    """A request for the next step of a query's publication.

    The answer is whether there are more.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    query: Query

    def concerns(self) -> Concern:
        """Return the name of the query."""
        return KeySet((self.query,))


class AbortStaged(NeedsEverything, AlwaysLong, Write, frozen=True, tag="abort_staged"):
    """A request that fences a job, so that it will not be published.

    The answer is whether that is so; it is not if the job was published already. With ``sink``, it
    fences all jobs of that sink that have staged for the batch in the range of ``query``.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    query: Bound
    batch: Count
    job: Job
    sink: Annotated[bytes, msgspec.Meta(max_length=32)] = b""

    def concerns(self) -> Concern:
        """Return the name of the query."""
        return KeySet((self.query,))


class SweepStaged(NeedsEverything, AlwaysLong, Write, frozen=True, tag="sweep_staged"):
    """A request to delete some records that are of no use any more, in the range of ``at``.

    These are rows staged for aborted jobs and for published batches, and records older than
    ``seconds``. The answer is where to go on; empty: that was all.

    Attributes:
        begin: the answer of the step before; ``None``: where the last step with ``None`` stopped.
    """

    answer: ClassVar = bytes
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    seconds: Seconds
    begin: Annotated[bytes, msgspec.Meta(max_length=STAGED_CURSOR_BYTES_MAX)] | None = None
    at: Bound = b""

    def concerns(self) -> Concern:
        """Return a key of the range."""
        return KeySet((self.at,))


class ForgetQuery(NeedsEverything, Write, frozen=True, tag="forget_query"):
    """A request to forget a query that will never come back; the answer is whether it was known."""

    answer: ClassVar = bool
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    query: Query

    def concerns(self) -> Concern:
        """Return the name of the query."""
        return KeySet((self.query,))


class BeginLoad(NeedsEverything, AlwaysLong, Write, frozen=True, tag="begin_load"):
    """A request to begin a bulk load into ``[start, end)``, in the range of ``at``.

    The part of the span in this range is empty, or the load was begun there under the same name.
    The answer is whether the load was finished already, which the range of ``start`` tells. From
    now on only ``run`` may add to it.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    name: Query
    run: TaskAttemptId
    start: Key
    end: Key | None
    at: Bound

    def concerns(self) -> Concern:
        """Return a key of the range."""
        return KeySet((self.at,))


class LoadRows(NeedsEverything, AlwaysLong, Write, frozen=True, tag="load_rows"):
    """A request to load values of keys that do not exist yet, in rising order.

    A key that has the same value is left alone; one with another value fails all. The answer is how
    many rows were loaded: those before the end of the range of the first key.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    name: Query
    run: TaskAttemptId
    keys: list[Key]
    values: list[Payload]

    def concerns(self) -> Concern:
        """Return the first key."""
        return KeySet((self.keys[0] if self.keys else self.name,))

    def touches(self) -> Touched:
        """Return the span of the keys."""
        return (self.keys[0], self.keys[-1] + b"\x00") if self.keys else None


class EndLoad(NeedsEverything, Write, frozen=True, tag="end_load"):
    """A request to finish a load in the range of ``at``.

    If it is not ``done``, only this run ends, and another may follow.

    The answer is whether this run was the present one. Without ``keep`` the load is forgotten:
    nobody will repeat it under this name.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    name: Query
    run: TaskAttemptId
    done: bool
    keep: bool
    at: Bound

    def concerns(self) -> Concern:
        """Return a key of the range."""
        return KeySet((self.at,))


class StagedQuery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A query that has published: its last batch, and whether that is still being applied.

    Attributes:
        dead: how many rows of that batch became dead letters so far, in the range of the query.
        at: when it was published.
    """

    query: bytes
    batch: int
    unfinished: bool
    dead: int = 0
    at: int = 0


class Staging(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ReadStaging``: queries; how many jobs, task attempts, bulk loads.

    At most 10,000 of each are counted.
    """

    queries: list[StagedQuery]
    jobs: Count
    attempts: Count
    loads: Count


class ReadStaging(ConcernsStore, Read, frozen=True, tag="read_staging"):
    """A request for what is staged; the answer is ``Staging``.

    Attributes:
        unfinished: only queries whose last batch is still being applied, a hundred at a time.
        begin: the name of the query to begin with.
    """

    answer: ClassVar = Staging
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    unfinished: bool = False
    begin: Annotated[bytes, msgspec.Meta(max_length=STAGED_QUERY_BYTES_MAX + 1)] = b""


RUN_BYTES = 16

Run: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=RUN_BYTES, max_length=RUN_BYTES)]
ImageId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
Name: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=IMAGE_NAME_BYTES_MAX)]
Stored: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=TRANSACTION_BYTES_MAX)]
Part: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=RESTORED_PARTS_MAX)]
Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


# --- answers --------------------------------------------------------------------------------------


# the states of a restore
OPENING: Final = "opening"
RESTORING: Final = "restoring"
ABANDONING: Final = "abandoning"
DONE: Final = "done"


class Restoration(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ReadRestore``.

    Attributes:
        state: empty (never restored), ``opening``, ``restoring``, ``abandoning``, ``done``.
        image, timestamp: the image that is, or was, restored.
        parts: the complete parts of the restore under way, with the number of entries of each.
    """

    state: str = ""
    image: bytes = b""
    timestamp: int = 0
    parts: dict[int, int] = {}


WRONG_TOLD: Final = 100


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``CheckImage``.

    Attributes:
        tables: the number of entries of each table.
        wrong: the first errors that were found, in words.
    """

    tables: dict[str, int]
    wrong: list[str]


# --- requests -------------------------------------------------------------------------------------


class BeginRestore(ConcernsRoot, Command, frozen=True, tag="begin_restore"):
    """A request to restore an image; the store is closed to everybody else until that is done.

    The answer is one of ``OPENING``, ``RESTORING`` and ``DONE``. If it is ``OPENING``, send the
    request again.

    Attributes:
        run: this try; earlier ones add nothing any more.
        image: the id of the image.
        timestamp: the timestamp of the image.
    """

    answer: ClassVar = str
    since: ClassVar = 1
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN

    run: Run
    image: ImageId
    timestamp: TimestampNumber


class RestoreEntries(ConcernsRoot, Command, frozen=True, tag="restore_entries"):
    """A request to restore a chunk of the image: entries, in rising order of their names.

    An entry that is there with the same value is left alone; one with another value fails all.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN

    run: Run
    names: Annotated[list[Name], msgspec.Meta(max_length=RESTORED_CHUNK_ROWS_MAX)]
    stored: Annotated[list[Stored], msgspec.Meta(max_length=RESTORED_CHUNK_ROWS_MAX)]


class EndPart(ConcernsRoot, Command, frozen=True, tag="end_restored_part"):
    """A request that marks a part of the image as complete, with its number of entries."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN

    run: Run
    part: Part
    rows: Rows


class EndRestore(ConcernsRoot, Command, frozen=True, tag="end_restore"):
    """A request that ends the restore: the store serves everybody from now on.

    Attributes:
        parts, rows: how many there must be.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN

    run: Run
    parts: Count
    rows: Rows


class AbandonRestore(ConcernsRoot, Command, frozen=True, tag="abandon_restore"):
    """A request to abandon a restore and empty the store again.

    The answer is whether there is more to be removed: send the request again then.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    frees_room: ClassVar = True


class ReadRestore(ConcernsRoot, Read, frozen=True, tag="read_restore"):
    """A request for the state of the restore; the answer is ``Restoration``."""

    answer: ClassVar = Restoration
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    is_served_in_restore: ClassVar = True


class CheckImage(NeedsEverything, ConcernsSpan, Read, frozen=True, tag="check_image"):
    """A request to count the entries, and to check the counters and indexes against them.

    Attributes:
        timestamp: a timestamp that is protected as a whole; 0: now.
        start, end: the span of keys. The range that begins with it also counts what belongs to no
            key. Each range compares its own counters.
    """

    answer: ClassVar = Counted
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    is_served_in_restore: ClassVar = True

    timestamp: TimestampNumber = 0
    start: Bound = b""
    end: Bound | None = None
