"""The requests of queues, and the messages in their answers.

::

    transaction ── Enqueue ──▶ scheduled ──▶ ready ──▶ leased ──▶ done (kept, archived, purged)
                                  ▲                      │
                                  └── rejected, expired ─┴──▶ dead ── replayed ──▶ ready

The lease of a message is stored like all else: a claim is a write of the leaseholder. Therefore
attempts are counted and limits kept whatever fails. ``ClaimQueue`` is sent as a read that may wait.
One proposal answers all claims that can be answered.

A message is named by its :class:`Locator`. A fired message has an *epoch*, the number of times it
was fired before. Locator, epoch and the timestamp of firing together name an attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias

import msgspec

from postroom.limits import (
    ATTEMPTS_MAX_DEFAULT,
    EVALUATED_AT_ONCE_MAX,
    GROUP_BYTES_MAX,
    IN_HAND_MAX,
    KIND_BYTES_MAX,
    PRIORITY_MAX,
    QUEUE_ID_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
    REASON_CHARACTERS_MAX,
    RESULT_BYTES_MAX,
    TRACEBACK_CHARACTERS_MAX,
)
from postroom.messaging.queues.homes import home_of
from postroom.ranges.checks import Headers, has_large_headers
from postroom.ranges.contract import (
    Concern,
    ConcernsRoot,
    KeySet,
    MayWait,
    NeedsQueue,
    Read,
    Role,
    Scope,
    Write,
)
from postroom.ranges.requests import (
    UNBOUNDED,
    Bound,
    Count,
    Key,
    Payload,
    Seconds,
    TimestampNumber,
    TransactionId,
)
from postroom.ranges.rights import Need, Verb

_replace: Final[Any] = msgspec.structs.replace
PRIORITY_MIN: Final = -128
CONSUMER_ID_BYTES: Final = 16

QueueName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=QUEUE_NAME_BYTES_MAX)]
Kind: TypeAlias = Annotated[str, msgspec.Meta(max_length=KIND_BYTES_MAX)]
QueueMessageId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=1, max_length=QUEUE_ID_BYTES_MAX)
]
Group: TypeAlias = Annotated[str, msgspec.Meta(max_length=GROUP_BYTES_MAX)]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]
Reason: TypeAlias = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)]
ConsumerId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=CONSUMER_ID_BYTES, max_length=CONSUMER_ID_BYTES)
]
"""The id of a consumer: its client's id (8 bytes), then a number that the client gave it.

When a client has gone, its consumers have gone.
"""
HomeSpan: TypeAlias = tuple[Bound, Bound | None]
"""The homes from a first one up to, but without, an end; ``None``: there is no end."""
EVERY_HOME: Final[HomeSpan] = (b"", None)

# --- settings -------------------------------------------------------------------------------------


class QueueSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The settings of a queue. Times are in seconds.

    Attributes:
        ack_wait: how long a consumer may hold a message before it is fired again.
        min_backoff: the shortest wait before it is fired again (``None``: no bound).
        max_backoff: the longest one (``None``: no bound).
        max_attempts: the number of failures after which a message is dead (``None``: no limit).
        purge_after: how long an acknowledged message is kept; 0: it is deleted at once.
        archive: acknowledged messages are archived instead, and never purged.
        batch_size: how many messages one answer gives to a consumer at most.
        cache_size: how many messages a manager keeps in memory.
        poller_interval: how often the stored state is read although no timer rang.
        max_rate: messages a second that the whole queue fires (``None``: any number).
        max_concurrency: how many messages of the whole queue may be leased at a time.
        order: ``"none"``, or ``"group"``: in a group one at a time, in order.
        on_duplicate: ``"ignore"``, ``"error"`` or ``"replace"``.
        dead_letter_queue: the queue for the dead messages, instead of this queue's own dead
            letters.
        group_max_rate: messages a second of each group (``None``: any number).
        group_max_concurrency: how many messages of each group may be leased at a time (``None``:
            any number).
    """

    ack_wait: float = 30.0
    min_backoff: float | None = None
    max_backoff: float | None = None
    max_attempts: int | None = ATTEMPTS_MAX_DEFAULT
    purge_after: float = 86400.0
    archive: bool = False
    batch_size: int = 10
    cache_size: int = 10_000
    poller_interval: float = 30.0
    max_rate: float | None = None
    max_concurrency: int | None = None
    order: str = "none"
    on_duplicate: str = "ignore"
    dead_letter_queue: str | None = None
    group_max_rate: float | None = None
    group_max_concurrency: int | None = None


class QueueDefinition(msgspec.Struct, frozen=True, array_like=True):
    """A queue as it is stored.

    Attributes:
        number: the number under which its messages are stored; a queue that is dropped and made
            again gets another one.
        created_at: the timestamp of the commit that made it.
        paused: whether nothing is fired.
        dropped: whether its messages are being deleted, and it cannot be found any more.
    """

    name: str
    number: int
    created_at: int
    settings: QueueSettings
    paused: bool = False
    dropped: bool = False


class DroppedQueue(QueueDefinition, frozen=True, array_like=True):
    """A dropped queue as it is stored.

    Attributes:
        version: the version of the definitions with which it was dropped, as long as ranges may not
            have learned that; 0: all have.
    """

    version: int = 0


class ToldQueue(QueueDefinition, frozen=True, array_like=True):
    """A queue in an answer.

    Attributes:
        damaged: why it cannot be used; empty: it can. If its definition cannot be read, only the
            name is known.
    """

    damaged: str = ""


# --- writes, inside a transaction -----------------------------------------------------------------


class ConcernsDefinition(ConcernsRoot):
    """A write of the definition of the queue ``name``."""

    __slots__ = ()
    verbs: ClassVar[tuple[Verb, ...]]

    @property
    def name(self) -> str:
        """Return the name of the queue."""
        raise NotImplementedError

    def dead_letter_queue(self) -> object:
        """Return the name of the queue that gets the dead messages from now on, or ``None``."""
        return None

    def needs(self) -> Iterator[Need]:
        """Yield the rights to the queue, and to enqueue in that for its dead messages."""
        for verb in self.verbs:
            yield Need(verb, queue=self.name)
        receiver = self.dead_letter_queue()
        if receiver:
            yield Need(Verb.ENQUEUE, queue=str(receiver))


class CreateQueue(ConcernsDefinition, Write, frozen=True, tag="create_queue"):
    """A request to make a queue; it fails if there is one of that name with other settings."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    name: QueueName
    settings: QueueSettings

    def dead_letter_queue(self) -> object:
        """Return the one of the settings."""
        return self.settings.dead_letter_queue


class UpdateQueue(ConcernsDefinition, Write, frozen=True, tag="update_queue"):
    """A request to change a queue: its ``settings`` by name, and ``paused`` if it is given.

    The changed settings are checked as a whole.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    name: QueueName
    settings: dict[str, bool | int | float | str | None]
    paused: bool | None = None

    def dead_letter_queue(self) -> object:
        """Return the one of the changed settings."""
        return self.settings.get("dead_letter_queue")


class DropQueue(ConcernsDefinition, Write, frozen=True, tag="drop_queue"):
    """A request to drop a queue: the commit removes it, and its messages are deleted in steps."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    name: QueueName


class EnqueueInQueue(NeedsQueue, Write, frozen=True, tag="enqueue"):
    """A message for a queue, to be enqueued.

    The answer is ``None`` if it was inserted, or ``"ignored"`` or ``"replaced"``.

    Attributes:
        key: its key; its id if the caller gave none.
        due: the time before which it is not fired; 0: at once.
        is_unique: whether the id was made up: there can be no other message of that id, and none is
            looked for.
    """

    answer: ClassVar = str | None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.ENQUEUE,)
    is_prepared: ClassVar = True
    is_carried_out_first: ClassVar = True

    queue: QueueName
    key: Key
    kind: Kind
    id: QueueMessageId
    payload: Payload
    headers: Headers = None
    priority: Priority = 0
    due: TimestampNumber = 0
    group: Group = ""
    is_unique: bool = False

    @property
    def home(self) -> bytes:
        """Return where the message is stored."""
        return home_of(self.key, self.group)

    def participates(self) -> bool:
        """Return whether the key that decides has to be in a range that takes part.

        The range of a given id tells whether it is new. The range of a group keeps its messages in
        the order of their commits, and counts them.
        """
        return not self.is_unique or bool(self.group)

    def concerns(self) -> Concern:
        """Return the key that decides: a given id, else the home of the message."""
        return KeySet((self.anchor(),))

    def works_at(self) -> Iterator[KeySet]:
        """Yield the home of the message."""
        yield KeySet((self.home,))

    def single_keys(self) -> Sequence[bytes] | None:
        """Return that key."""
        return (self.anchor(),)

    def anchor(self) -> bytes:
        """Return that key."""
        return home_of(self.key, self.group) if self.is_unique else self.id

    def is_long(self) -> bool:
        """Return whether checking its headers takes a while."""
        return has_large_headers(self)


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message, and one of its attempts.

    Attributes:
        home: where it is stored (``b""`` with ``by_id``: not known to the caller).
        epoch: the epoch of the attempt; -1: the message, whoever holds it.
        by_id: whether it is named by its id, and by its kind if that is not empty.
        fired_at: when the attempt began, as its holder was told; 0: not told. An epoch may come
            again (the message was replayed, its id was used again), and this does not.
        of_kind: with ``by_id``: an empty kind means the empty kind, and not any.
    """

    home: Key
    kind: Kind
    id: QueueMessageId
    epoch: int = -1
    by_id: bool = False
    fired_at: TimestampNumber = 0
    of_kind: bool = False


def _place(attempt: Attempt) -> bytes:
    """Return where a message, or the place of its id, is found."""
    return attempt.id if attempt.by_id else attempt.home


class ConcernsAttempts(NeedsQueue):
    """A write about messages: they are told by their homes, or by their ids."""

    __slots__ = ()

    @property
    def queue(self) -> str:
        """Return the name of the queue."""
        raise NotImplementedError

    @property
    def attempts(self) -> list[Attempt]:
        """Return the messages."""
        raise NotImplementedError

    def concerns(self) -> Concern:
        """Return where the messages, or the places of their ids, are found."""
        return KeySet(tuple(map(_place, self.attempts)))

    def anchor(self) -> bytes:
        """Return where the first message, or the place of its id, is found."""
        return _place(self.attempts[0]) if self.attempts else self.queue.encode()

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about messages at some places."""
        places = {*concern.keys}
        attempts = [each for each in self.attempts if _place(each) in places]
        narrowed: Self = _replace(self, attempts=attempts)
        return narrowed

    def is_long(self) -> bool:
        """Return whether it names many messages."""
        return len(self.attempts) > EVALUATED_AT_ONCE_MAX


class Acknowledge(ConcernsAttempts, Write, frozen=True, tag="acknowledge"):
    """A request to acknowledge messages: they are done. The answer is how many it ended.

    It fails with ``LeaseLost`` if an attempt that is named does not hold its message any more.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WORK,)
    is_prepared: ClassVar = True
    is_carried_out_first: ClassVar = True
    adds_up: ClassVar = True
    frees_room: ClassVar = True

    queue: QueueName
    attempts: list[Attempt]


class RejectMessages(ConcernsAttempts, Write, frozen=True, tag="reject"):
    """A request to give messages back, to be fired again.

    Attributes:
        delay: seconds until then; ``None``: by the queue's back-off; 0: at once.
        dead: whether they are rejected for good and become dead letters.
        uncounted: whether the attempts do not count (the consumer ends, and has not processed
            them).
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WORK,)
    is_prepared: ClassVar = True
    is_carried_out_first: ClassVar = True
    adds_up: ClassVar = True
    frees_room: ClassVar = True

    queue: QueueName
    attempts: list[Attempt]
    delay: Seconds | None = None
    dead: bool = False
    reason: Reason = ""
    uncounted: bool = False


class TaskFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The exception that ended the last attempt at a message.

    Attributes:
        type: the name of its type; empty: no exception has ended it.
        traceback: the end of its traceback, as text.
    """

    type: Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)]
    reason: Reason
    traceback: Annotated[str, msgspec.Meta(max_length=TRACEBACK_CHARACTERS_MAX)] = ""


class KeepResult(NeedsQueue, Write, frozen=True, tag="keep_result"):
    """A request to keep what an attempt has returned, in the transaction that ends the attempt.

    It comes before the request that acknowledges or rejects the message. It fails with
    ``LeaseLost`` if the attempt does not hold its message any more.

    Attributes:
        seconds: how long the result is kept.
        value: what was returned, packed; ``None``: nothing.
        failure: the failure, if the message dies with this attempt.
    """

    answer: ClassVar = None
    since: ClassVar = 2
    verbs: ClassVar = (Verb.WORK,)
    is_prepared: ClassVar = True
    is_carried_out_first: ClassVar = True

    queue: QueueName
    attempt: Attempt
    seconds: Seconds
    value: Annotated[bytes, msgspec.Meta(max_length=RESULT_BYTES_MAX)] | None = None
    failure: TaskFailure | None = None

    def concerns(self) -> Concern:
        """Return where the message is stored."""
        return KeySet((self.attempt.home,))

    def anchor(self) -> bytes:
        """Return the home of the message."""
        return self.attempt.home


class Extend(ConcernsAttempts, Write, frozen=True, tag="extend"):
    """A request to extend leases to ``seconds`` from now.

    The answer is the timestamp of their end.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WORK,)
    is_prepared: ClassVar = True
    is_carried_out_first: ClassVar = True
    frees_room: ClassVar = True

    queue: QueueName
    attempts: list[Attempt]
    seconds: Seconds


class Reschedule(ConcernsAttempts, Write, frozen=True, tag="reschedule"):
    """A request to fire messages that are not leased at another time.

    The answer is how many it found.

    Attributes:
        due: the new time; 0: at once.
        epoch: the new epoch of the messages; ``None``: it stays.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    queue: QueueName
    attempts: list[Attempt]
    due: TimestampNumber = 0
    epoch: Count | None = None


class CancelMessages(ConcernsAttempts, Write, frozen=True, tag="cancel_messages"):
    """A request to delete messages that are not done, whoever holds them.

    The answer is how many it found.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    is_prepared: ClassVar = True
    is_carried_out_first: ClassVar = True
    adds_up: ClassVar = True
    frees_room: ClassVar = True

    queue: QueueName
    attempts: list[Attempt]


class ReplayMessages(ConcernsAttempts, Write, frozen=True, tag="replay_messages"):
    """A request to fire dead messages again, as if for the first time.

    The answer is how many it found.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    queue: QueueName
    attempts: list[Attempt]


class TrimArchive(NeedsQueue, Write, frozen=True, tag="trim_archive"):
    """A request to delete archived messages acknowledged up to a timestamp: one step of that.

    The answer says how many it has deleted, and whether there are more that may go
    (:mod:`.advance`).

    Attributes:
        created_at: when the queue that is meant was made; a later queue of this name is not meant.
        until: the timestamp of the acknowledgements up to which messages are deleted.
        near: a key of the range whose messages are deleted.
    """

    answer: ClassVar = list[int]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    queue: QueueName
    created_at: TimestampNumber
    until: TimestampNumber
    near: Key = b""

    def concerns(self) -> Concern:
        """Return the key of the range."""
        return KeySet((self.near,))


class WhenDone(Write, frozen=True, tag="when_done"):
    """A request to enqueue a message once, in the write that ends the last message of a group."""

    answer: ClassVar = list[int]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.ENQUEUE,)
    is_prepared: ClassVar = True
    is_carried_out_first: ClassVar = True

    queue: QueueName
    group: Group
    enqueue: EnqueueInQueue

    def concerns(self) -> Concern:
        """Return the home of the group."""
        return KeySet((self.anchor(),))

    def needs(self) -> Iterator[Need]:
        """Yield the right to enqueue in both queues."""
        yield Need(Verb.ENQUEUE, queue=self.queue)
        yield from self.enqueue.needs()

    def anchor(self) -> bytes:
        """Return the home of the group."""
        return self.group.encode()


class SetSchedule(NeedsQueue, ConcernsRoot, Write, frozen=True, tag="set_schedule"):
    """A request to enqueue ``payload`` at each tick of ``cron``.

    ``cron=None`` ends the schedule.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    queue: QueueName
    name: QueueName
    cron: str | None
    timezone: str = "UTC"
    kind: Kind = ""
    payload: Payload = b""
    headers: Headers = None
    priority: Priority = 0
    group: Group = ""


# --- claims ---------------------------------------------------------------------------------------


class ClaimSelection(msgspec.Struct, frozen=True, array_like=True):
    """The messages that a consumer takes.

    Attributes:
        start, end: the bounds of the keys; ``end=None``: no upper bound.
        kinds: the kinds; ``None``: every kind.
        where: header names and values that a message must have, all of them.
    """

    start: Bound = b""
    end: Bound | None = None
    kinds: tuple[Kind, ...] | None = None
    where: Headers = None


class StoredQueueMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in an answer.

    Attributes:
        state: ``scheduled``, ``ready``, ``leased``, ``done``, ``archived`` or ``dead``.
        first_scheduled: the timestamp for which it was scheduled first.
        scheduled: the timestamp at which it was, or will be, fired.
        epoch: how many times it was fired before.
        leased_until: a timestamp; 0: nobody holds it.
        done_at: the timestamp of its acknowledgement, or death; 0: it is live.
        fired_at: the timestamp at which it was fired for its holder, or for the attempt that ended
            it; 0: there was none.
        lasts: for how many milliseconds a claimed message is leased, from the answer on. With it,
            no client need compare a timestamp with its own clock.
    """

    key: bytes
    kind: str
    id: bytes
    payload: bytes
    headers: Headers
    priority: int
    group: str
    created_at: int
    first_scheduled: int
    scheduled: int
    epoch: int
    leased_until: int
    last_error: str
    state: str
    done_at: int = 0
    fired_at: int = 0
    lasts: int = 0

    @property
    def locator(self) -> tuple[bytes, str, bytes]:
        """Return its home, its kind and its id."""
        home = home_of(self.key, self.group) if self.group else self.key
        return home, self.kind, self.id


class Claimed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of a claim.

    Attributes:
        messages: the messages that were leased to the consumer.
        over: the attempts it named that are over, by their indexes in ``in_hand``.
        asked: the span of homes that was asked, noted by a client that asked one of several ranges,
            or by a node that has asked all of its ranges; ``None``: all.
        without: spans of homes of other ranges of the node that have nothing for the claim either.
    """

    messages: list[StoredQueueMessage]
    over: list[int] = []
    asked: HomeSpan | None = None
    without: list[HomeSpan] = []


class ClaimQueue(NeedsQueue, MayWait, Read, frozen=True, tag="claim_queue"):
    """A claim of ready messages, leased to a consumer; with ``wait``, as soon as there is one.

    Attributes:
        messages_max: the credit: how many messages the consumer takes now.
        bytes_max: the bytes of payload at most; one message may have more.
        seconds: the duration of the leases; 0: the queue's ``ack_wait``.
        transaction_id: for ``tx.claim``: the leases end with the transaction; else ``None``.
        number: the number of this claim of its consumer; 0: it is never sent again.
        again: whether it may have been answered before. Then it gets the messages that it got
            before and still holds; with ``messages_max=0`` nothing else.
        in_hand: attempts of this consumer, which has no credit left. The answer says which of them
            are over; with ``wait``, as soon as one is. No message is leased.
        homes: the span of homes that is asked, which lies in one range. The selection is by keys,
            and a message with a group lies elsewhere.
        at_node: whether it waits for a message of any range that the node leads, however long that
            is. The answer tells the span of the range. ``homes``, ``again`` and ``in_hand`` say
            nothing then.
    """

    answer: ClassVar = Claimed
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WORK,)
    role: ClassVar = Role.WRITE
    locks: ClassVar = True
    changes_holdings: ClassVar = True
    own_ids: ClassVar = ("consumer", "transaction_id")

    queue: QueueName
    consumer: ConsumerId
    messages_max: Count
    selection: ClaimSelection
    wait: bool = False
    bytes_max: Count = UNBOUNDED
    seconds: Seconds = 0.0
    transaction_id: TransactionId | None = None
    number: Count = 0
    again: bool = False
    in_hand: Annotated[list[Attempt], msgspec.Meta(max_length=IN_HAND_MAX)] | None = None
    homes: HomeSpan = EVERY_HOME
    at_node: bool = False

    def concerns(self) -> Concern:
        """Return the homes of the messages in hand, else the span of homes that is asked."""
        if self.at_node:
            return Scope.NODE
        if self.in_hand is None:
            return KeySet(spans=(self.homes,))
        return KeySet(tuple(each.home for each in self.in_hand))

    def waits_for_intents(self) -> bool:
        """Return false: a message that a transaction is about to change is not fired meanwhile."""
        return False

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about a piece of the span, or some of the messages in hand."""
        if self.in_hand is None:
            (homes,) = concern.spans
            return msgspec.structs.replace(self, homes=homes)
        homes_of, in_hand = {*concern.keys}, self.in_hand
        return msgspec.structs.replace(
            self, in_hand=[each for each in in_hand if each.home in homes_of]
        )
