"""The read requests of queues: definitions, messages, statistics.

All of them are reads, answered by the leaseholder from the applied state; messages also as of a
timestamp. The requests that change something are in :mod:`.requests`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

import msgspec

from postroom.limits import QUEUE_IDS_MAX
from postroom.messaging.queues.claim_requests import HomeSpan, StoredQueueMessage
from postroom.messaging.queues.definition_requests import SetSchedule, ToldQueue
from postroom.messaging.queues.homes import home_of
from postroom.messaging.queues.requests import Group, Kind, QueueMessageId, QueueName, TaskFailure
from postroom.ranges.contract import (
    Concern,
    ConcernsRoot,
    ConcernsStore,
    KeySet,
    MayWait,
    NeedsQueue,
    Read,
    Scope,
)
from postroom.ranges.requests import UNBOUNDED, Count, Key, TimestampNumber
from postroom.ranges.rights import EVERY_QUEUE, Need, Verb

# --- answers --------------------------------------------------------------------------------------


class QueuePage(msgspec.Struct, frozen=True, array_like=True):
    """A page of messages; ``next``: where the next page goes on (``b""``: there is none).

    Attributes:
        tokens: the places of the messages in the list, if they were asked for.
    """

    messages: list[StoredQueueMessage]
    next: bytes = b""
    tokens: list[bytes] = []


class FoundHome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that was found by its id, and its home."""

    home: Key
    kind: Kind
    id: QueueMessageId


class ToldResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer about the result of a message.

    Attributes:
        outcome: ``unknown`` (there is no such message, and no result), ``pending`` (it is not
            over), ``returned``, ``failed``, or ``none`` (it is done, and no result is kept).
        value: what was returned, packed; ``None``: nothing.
        failure: why it failed.
        seq: of a result whose message is gone, that of the message.
    """

    outcome: Literal["unknown", "pending", "returned", "failed", "none"]
    value: bytes | None = None
    failure: TaskFailure | None = None
    seq: bytes = b""


class GroupResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a message of a group; ``value`` as in :class:`ToldResult`."""

    kind: str
    id: bytes
    value: bytes | None


class ResultPage(msgspec.Struct, frozen=True, array_like=True):
    """A page of results; ``next``: where the next page goes on (``b""``: there is none)."""

    results: list[GroupResult]
    next: bytes = b""


class HeldMessage(msgspec.Struct, frozen=True, array_like=True):
    """A leased message and its holder.

    Attributes:
        id: the id as text; bytes that are no UTF-8 are escaped.
        consumer: the id of the client, in hexadecimal, and the number of its consumer.
        since: the timestamp at which it was fired.
        seconds: how long ago that is.
    """

    id: str
    kind: str
    consumer: str
    since: int
    seconds: float


class QueueTotals(msgspec.Struct, frozen=True, array_like=True):
    """The counters of a queue that its statistics tell; see :class:`QueueStats`."""

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    done: int = 0
    archived: int = 0
    enqueued: int = 0
    fired: int = 0
    acknowledged: int = 0
    rejected: int = 0
    expired: int = 0
    buried: int = 0
    replayed: int = 0
    cancelled: int = 0
    purged: int = 0


class QueueCounts(QueueTotals, frozen=True, array_like=True, gc=False):
    """The stored part of ``QueueStats``, and the messages ``moved`` to another queue."""

    moved: int = 0
    retried: int = 0
    results: int = 0

    @property
    def live(self) -> int:
        """Return the number of messages that are not done and not dead."""
        return self.ready + self.scheduled + self.leased

    def conserved(self) -> bool:
        """Return whether no message is lost or made up."""
        ended = self.dead + self.acknowledged + self.cancelled + self.moved
        return self.enqueued == self.live + ended and min(msgspec.structs.astuple(self)) >= 0


class QueueStats(QueueTotals, frozen=True, array_like=True):
    """The statistics of one queue.

    The counters are stored, and change with what they count; ``fired`` and other totals only grow.
    ``consumers`` and lateness are what the leaseholder has seen. Several ranges' counters are added
    up; of their consumers, ages and lateness the greatest count.

    Attributes:
        ready: how many messages wait for a consumer.
        scheduled: how many wait for their time.
        leased: how many are held by consumers.
        dead: how many dead letters there are.
        done: how many acknowledged messages are kept.
        archived: how many are archived.
        enqueued: how many were ever enqueued.
        fired: how many times one was handed to a consumer.
        acknowledged: how many were acknowledged.
        rejected: how many times one was rejected.
        expired: how many times a lease ended before its message was settled.
        buried: how many became dead letters.
        replayed: how many dead letters were replayed.
        cancelled: how many were cancelled.
        purged: how many kept messages were deleted.
        consumers: how many consumers are known.
        oldest: the timestamp at which the oldest message that is ready or leased became due; 0:
            there is none. Ready messages that are not in memory are left out.
        lateness_p50: seconds from due to fired, the median of the last messages; ``None``: there
            are none.
        lateness_p99: the seconds that 99 of 100 of them did not exceed; ``None``: there are none.
        oldest_age: how many seconds ago ``oldest`` was (``None``: there is none).
        retried: how many of the fired messages had been fired before, and failed.
        failures: how often firing, or other work of the store for this queue, has failed since it
            was sound.
        trouble: why it failed last.
        longest_held: the message that is leased for longest, and its holder; ``None``: none is
            leased. A consumer that hangs goes on to extend its lease.
        results: how many results of tasks are kept.
    """

    consumers: int = 0
    oldest: int = 0
    lateness_p50: float | None = None
    lateness_p99: float | None = None
    oldest_age: float | None = None
    retried: int = 0
    failures: int = 0
    trouble: str = ""
    longest_held: HeldMessage | None = None
    results: int = 0


# --- requests -------------------------------------------------------------------------------------


class ReadQueues(ConcernsRoot, Read, frozen=True, tag="read_queues"):
    """A request for the definitions of the queue ``name``, or of all queues (``""``).

    Attributes:
        name: the name of one queue; empty: all queues, in the order of their names.
        after: the queues behind this name.
        queues_max: how many of them; 0: all.
    """

    answer: ClassVar = list[ToldQueue]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ | Verb.WRITE | Verb.ENQUEUE | Verb.WORK,)

    name: str = ""
    after: str = ""
    queues_max: Count = 0

    def needs(self) -> Iterator[Need]:
        """Yield the right to the queue, or to all of them."""
        for verb in self.verbs:
            yield Need(verb, queue=self.name or EVERY_QUEUE)


class ReadQueueMessage(NeedsQueue, Read, frozen=True, tag="read_queue_message"):
    """A request for the messages with an id, of any kind (``None``) or of one.

    With ``gone`` also for those that exist only for readers of the past: cancelled ones, and done
    ones that are to be purged. The answer is a ``list[StoredQueueMessage]``.

    Attributes:
        home: their home; ``None``: the range of the id finds those that lie there.
    """

    answer: ClassVar = list[StoredQueueMessage]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    queue: QueueName
    id: QueueMessageId
    kind: Kind | None = None
    gone: bool = False
    home: Key | None = None

    def concerns(self) -> Concern:
        """Return the home, or the id, beside which the homes of its messages are found."""
        return KeySet((self.id if self.home is None else self.home,))


class FindHomes(NeedsQueue, Read, frozen=True, tag="find_homes"):
    """A request for the homes of the messages with some ids, of any kind (``None``) or of one.

    Each range tells those of its own ids. A message that is found may be gone, or on its way.

    Attributes:
        found: the messages that were found. Instead of others, those of them are told that have
            arrived at their homes.
    """

    answer: ClassVar = list[FoundHome]
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ | Verb.WRITE | Verb.WORK,)

    queue: QueueName
    ids: Annotated[list[QueueMessageId], msgspec.Meta(max_length=QUEUE_IDS_MAX)]
    kind: Kind | None = None
    found: Annotated[tuple[FoundHome, ...], msgspec.Meta(max_length=QUEUE_IDS_MAX)] = ()

    def concerns(self) -> Concern:
        """Return the ids, beside which the homes are found, and the homes."""
        return KeySet((*self.ids, *(each.home for each in self.found)))

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about some of the ids and homes."""
        within = {*concern.keys}
        return msgspec.structs.replace(
            self,
            ids=[each for each in self.ids if each in within],
            found=tuple(each for each in self.found if each.home in within),
        )


class FindRangeStarts(NeedsQueue, ConcernsStore, Read, frozen=True, tag="find_range_starts"):
    """A request for the first keys of all ranges: each of them has messages of the queue."""

    answer: ClassVar = list[bytes]
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ | Verb.WRITE | Verb.WORK,)

    queue: QueueName


class ListQueueMessages(NeedsQueue, Read, frozen=True, tag="list_queue_messages"):
    """A request for a page of a queue's messages, by state.

    Attributes:
        state: a state of ``StoredQueueMessage``; ``""``: all live messages (not done, not dead).
        after: the ``next`` of the page before; ``b""``: from the start.
        start, end: bounds of ``done_at`` (``done``, ``archived``, ``dead``), else of ``scheduled``:
            timestamps, ``end=0`` is unbounded.
        timestamp: as of when; 0: now.
        with_tokens: whether the answer tells the places of its messages in the list. Those of
            several ranges are merged by them.
        homes: only the messages in a span of homes; ``None``: all. A read of the past that names a
            span waits for what is about to be committed there.
    """

    answer: ClassVar = QueuePage
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    queue: QueueName
    state: str = ""
    after: bytes = b""
    start: TimestampNumber = 0
    end: TimestampNumber = 0
    messages_max: Count = 100
    bytes_max: Count = UNBOUNDED
    timestamp: TimestampNumber = 0
    with_tokens: bool = False
    homes: HomeSpan | None = None

    def concerns(self) -> Concern:
        """Return the span of homes, or the whole store."""
        return Scope.WHOLE_STORE if self.homes is None else KeySet(spans=(self.homes,))

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about a piece of the span."""
        (homes,) = concern.spans
        return msgspec.structs.replace(self, homes=homes)


class ReadSchedules(NeedsQueue, ConcernsRoot, Read, frozen=True, tag="read_schedules"):
    """A request for the periodic schedules of a queue; the answer is a ``list[SetSchedule]``."""

    answer: ClassVar = list[SetSchedule]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    queue: QueueName


class ReadQueueStats(NeedsQueue, ConcernsStore, Read, frozen=True, tag="read_queue_stats"):
    """A request for the statistics of a queue; the answer is a ``QueueStats``."""

    answer: ClassVar = QueueStats
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    queue: QueueName


class ReadResult(NeedsQueue, MayWait, Read, frozen=True, tag="read_result"):
    """A request for what the task of a message has returned; with ``wait``, once it is over.

    Attributes:
        home: the home of the message; ``None``: the range of the id finds it.
        everywhere: whether all ranges are asked: the result may be kept for longer than its
            message, by the range in which that lay.
    """

    answer: ClassVar = ToldResult
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ,)

    queue: QueueName
    id: QueueMessageId
    kind: Kind = ""
    wait: bool = False
    home: Key | None = None
    everywhere: bool = False

    def concerns(self) -> Concern:
        """Return the home of the message, or the id, beside which it is found."""
        if self.everywhere:
            return Scope.WHOLE_STORE
        return KeySet((self.id if self.home is None else self.home,))


class ListGroupResults(NeedsQueue, Read, frozen=True, tag="list_group_results"):
    """A request for a page of the results of a group, in the order in which it was enqueued.

    Attributes:
        after: the ``next`` of the page before; ``b""``: from the start.
    """

    answer: ClassVar = ResultPage
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ,)

    queue: QueueName
    group: Group
    after: bytes = b""
    results_max: Count = 100

    def concerns(self) -> Concern:
        """Return the home of the messages of the group."""
        return KeySet((home_of(b"", self.group),))
