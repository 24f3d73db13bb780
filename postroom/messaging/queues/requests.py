"""The writes of transactions about the messages of queues.

::

    transaction ── Enqueue ──▶ scheduled ──▶ ready ──▶ leased ──▶ done (kept, archived, purged)
                                  ▲                      │
                                  └── rejected, expired ─┴──▶ dead ── replayed ──▶ ready

A message is named by its :class:`Locator`. A fired message has an *epoch*, the number of times it
was fired before. Locator, epoch and the timestamp of firing together name an attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias

import msgspec

from postroom.limits import (
    EVALUATED_AT_ONCE_MAX,
    GROUP_BYTES_MAX,
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
from postroom.ranges.contract import Concern, KeySet, NeedsQueue, Write
from postroom.ranges.requests import Count, Key, Payload, Seconds, TimestampNumber
from postroom.ranges.rights import Need, Verb

_replace: Final[Any] = msgspec.structs.replace
PRIORITY_MIN: Final = -128

QueueName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=QUEUE_NAME_BYTES_MAX)]
Kind: TypeAlias = Annotated[str, msgspec.Meta(max_length=KIND_BYTES_MAX)]
QueueMessageId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=1, max_length=QUEUE_ID_BYTES_MAX)
]
Group: TypeAlias = Annotated[str, msgspec.Meta(max_length=GROUP_BYTES_MAX)]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]
Reason: TypeAlias = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)]


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
