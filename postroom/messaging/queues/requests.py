"""The requests of queues, and what is answered and stored of their messages.

::

    transaction ── Enqueue ──▶ scheduled ──▶ ready ──▶ leased ──▶ done (kept, archived, purged)
                                  ▲                      │
                                  └── rejected, expired ─┴──▶ dead ── replayed ──▶ ready

Who holds a message is stored like all else: a claim is a write of the leaseholder. So attempts are
counted and limits kept whatever fails. ``ClaimQueue`` is asked as a read that may wait; all claims
that can be answered are answered by one proposal.

A message is named by its :class:`Locator`. Those that were fired have an *epoch*, the number of
times they were fired before; locator, epoch and the moment of firing together name an attempt.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from postroom.limits import (
    GROUP_BYTES_MAX,
    KIND_BYTES_MAX,
    PRIORITY_MAX,
    QUEUE_ID_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
    REASON_CHARACTERS_MAX,
)
from postroom.ranges.requests import (
    UNBOUNDED,
    Bound,
    Count,
    Key,
    Moment,
    Payload,
    Request,
    Seconds,
    TransactionId,
)

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
"""The client's id (8 bytes), then a number of that client's: when the client has gone, its
consumers have."""

# --- settings ---------------------------------------------------------------------------------


class QueueSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a queue is made with. Times are in seconds.

    Attributes:
        ack_wait: how long a consumer may hold a message before it is fired again.
        min_backoff, max_backoff: bounds of the wait before it is fired again (``None``: none).
        max_attempts: a message that failed so often is dead (``None``: never).
        purge_after: how long an acknowledged message is kept; 0: it is deleted at once.
        archive: acknowledged messages are archived instead, and never purged.
        batch_size: how many messages one answer hands to a consumer at most.
        cache_size: how many messages a manager keeps in memory.
        poller_interval: how often the stored state is looked at though no timer rang.
        max_rate: messages a second, fired by the whole queue (``None``: any number).
        max_concurrency: how many may be leased at a time, by the whole queue.
        group_max_rate, group_max_concurrency: the same of each group.
        order: ``"none"``, or ``"group"``: in a group one at a time, in order.
        on_duplicate: ``"ignore"``, ``"error"`` or ``"replace"``.
        dead_letter_queue: where the dead go, instead of this queue's own dead letters.
    """

    ack_wait: float = 30.0
    min_backoff: float | None = None
    max_backoff: float | None = None
    max_attempts: int | None = None
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
        number: under which its messages are stored; a queue that is made anew has another one.
        created_at: the timestamp of the commit that made it.
        paused: nothing is fired.
        dropped: its messages are being deleted, and nobody finds it any more.
    """

    name: str
    number: int
    created_at: int
    settings: QueueSettings
    paused: bool = False
    dropped: bool = False


class ToldQueue(QueueDefinition, frozen=True, array_like=True):
    """A queue as it is told of.

    Attributes:
        damaged: why it cannot be used; empty: it can. Of one whose definition cannot be read
            nothing else is known but its name.
    """

    damaged: str = ""


# --- writes, inside a transaction -------------------------------------------------------------


class CreateQueue(Request, frozen=True, array_like=True, tag="create_queue"):
    """Makes a queue; fails if there is one of that name with other settings."""

    name: QueueName
    settings: QueueSettings

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.name.encode()


class UpdateQueue(Request, frozen=True, array_like=True, tag="update_queue"):
    """Changes a queue: ``settings`` by name, checked as a whole; ``paused`` if it is given."""

    name: QueueName
    settings: dict[str, Any]
    paused: bool | None = None

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.name.encode()


class DropQueue(Request, frozen=True, array_like=True, tag="drop_queue"):
    """The queue is gone with the commit; its messages are deleted in steps."""

    name: QueueName

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.name.encode()


class Enqueue(Request, frozen=True, array_like=True, tag="enqueue"):
    """A message for a queue. Answers ``None`` if it was inserted; ``"ignored"`` or ``"replaced"``.

    Attributes:
        key: where it is stored; that of the message's id if the caller gave none.
        due: not fired before; 0: at once.
        is_unique: the id was made up: there can be no other one, and none is looked for.
    """

    queue: QueueName
    key: Key
    kind: Kind
    id: QueueMessageId
    payload: Payload
    headers: dict[str, Any] | None = None
    priority: Priority = 0
    due: Moment = 0
    group: Group = ""
    is_unique: bool = False


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message, and which of its attempts.

    Attributes:
        key: where it is stored (``b""`` with ``by_id``: not known to the caller).
        epoch: of the attempt; -1: the message, whoever holds it.
        by_id: named by its id, and by its kind if that is not empty.
        fired_at: when the attempt began, as its holder was told. An epoch may come again (the
            message was replayed, its id was used again), and this does not; 0: not told.
        of_kind: with ``by_id``: an empty kind is that kind too, and not any.
    """

    key: Key
    kind: Kind
    id: QueueMessageId
    epoch: int = -1
    by_id: bool = False
    fired_at: Moment = 0
    of_kind: bool = False


class Acknowledge(Request, frozen=True, array_like=True, tag="acknowledge"):
    """Ends messages: they are done. Answers how many were still to be ended.

    Fails with ``LeaseLost`` if an attempt that is named does not hold its message any more.
    """

    queue: QueueName
    attempts: list[Attempt]

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.attempts[0].key if self.attempts else self.queue.encode()


class Reject(Request, frozen=True, array_like=True, tag="reject"):
    """Gives messages back, to be fired again.

    Attributes:
        delay: seconds until then; ``None``: by the queue's back-off; 0: at once.
        dead: for good: they become dead letters.
        uncounted: as if they had not been fired (the consumer ends, and has not looked at them).
    """

    queue: QueueName
    attempts: list[Attempt]
    delay: Seconds | None = None
    dead: bool = False
    reason: Reason = ""
    uncounted: bool = False

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.attempts[0].key if self.attempts else self.queue.encode()


class Extend(Request, frozen=True, array_like=True, tag="extend"):
    """The attempts go on holding their messages for ``seconds`` from now; answers until when."""

    queue: QueueName
    attempts: list[Attempt]
    seconds: Seconds

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.attempts[0].key if self.attempts else self.queue.encode()


class Reschedule(Request, frozen=True, array_like=True, tag="reschedule"):
    """Messages that are not leased are fired at another time; answers how many were found.

    Attributes:
        due: 0: at once.
        epoch: what their epoch becomes; ``None``: it stays.
    """

    queue: QueueName
    attempts: list[Attempt]
    due: Moment = 0
    epoch: Count | None = None

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.attempts[0].key if self.attempts else self.queue.encode()


class CancelMessages(Request, frozen=True, array_like=True, tag="cancel_messages"):
    """Deletes messages that are not done, whoever holds them; answers how many were found."""

    queue: QueueName
    attempts: list[Attempt]

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.attempts[0].key if self.attempts else self.queue.encode()


class ReplayMessages(Request, frozen=True, array_like=True, tag="replay_messages"):
    """Dead messages are fired again, as if for the first time; answers how many were found."""

    queue: QueueName
    attempts: list[Attempt]

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.attempts[0].key if self.attempts else self.queue.encode()


class TrimArchive(Request, frozen=True, array_like=True, tag="trim_archive"):
    """Deletes archived messages that were acknowledged up to a timestamp: a step of it.

    Answers how many it has deleted, and whether there are more that may go
    (:mod:`.trimming`).

    Attributes:
        created_at: of the queue that is meant: one that was made anew under this name is not.
    """

    queue: QueueName
    created_at: Moment
    until: Moment

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.queue.encode()


class WhenDone(Request, frozen=True, array_like=True, tag="when_done"):
    """When all messages of a group are done, ``enqueue`` is, in the same write; once."""

    queue: QueueName
    group: Group
    enqueue: Enqueue

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.enqueue.key


class SetSchedule(Request, frozen=True, array_like=True, tag="set_schedule"):
    """Enqueues ``payload`` at each tick of ``cron``; ``cron=None`` ends the schedule."""

    queue: QueueName
    name: QueueName
    cron: str | None
    timezone: str = "UTC"
    kind: Kind = ""
    payload: Payload = b""
    headers: dict[str, Any] | None = None
    priority: Priority = 0
    group: Group = ""

    @property
    def key(self) -> bytes:
        """By which the transaction is anchored."""
        return self.name.encode()


# --- claims -----------------------------------------------------------------------------------


class Selection(msgspec.Struct, frozen=True, array_like=True):
    """Which messages a consumer takes.

    Attributes:
        kinds: ``None``: every kind.
        where: header names and values that a message must have, all of them.
    """

    start: Bound = b""
    end: Bound | None = None
    kinds: tuple[Kind, ...] | None = None
    where: dict[str, Any] | None = None


class ClaimQueue(Request, frozen=True, array_like=True, tag="claim_queue"):
    """Messages that are ready, leased to a consumer; with ``wait``, once there is one.

    Attributes:
        messages_max: the credit: how many the consumer takes now.
        bytes_max: no more payload than that, but one message at least.
        seconds: of the lease; 0: the queue's ``ack_wait``.
        transaction_id: for ``tx.claim``: the leases end with the transaction; else ``None``.
        number: of this claim among those of its consumer; 0: it is never sent again.
        again: it may have been answered before. What it got then, and holds yet, it gets; with
            ``messages_max=0`` nothing else.
    """

    queue: QueueName
    consumer: ConsumerId
    messages_max: Count
    selection: Selection
    wait: bool = False
    bytes_max: Count = UNBOUNDED
    seconds: Seconds = 0.0
    transaction_id: TransactionId | None = None
    number: Count = 0
    again: bool = False


class QueueMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as it is answered.

    Attributes:
        state: ``scheduled``, ``ready``, ``leased``, ``done``, ``archived`` or ``dead``.
        scheduled: the timestamp at which it was, or will be, fired; ``first_scheduled``: at first.
        epoch: how many times it was fired before.
        leased_until: a timestamp; 0: nobody holds it.
        done_at: the timestamp of its acknowledgement, or death; 0: it lives.
        fired_at: the timestamp at which its holder was given it, or who acknowledged it; 0: nobody,
            or it was ended by a node that did not keep that.
    """

    key: bytes
    kind: str
    id: bytes
    payload: bytes
    headers: dict[str, Any] | None
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


class Claimed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a consumer holds now."""

    messages: list[QueueMessage]


# --- upkeep -----------------------------------------------------------------------------------


class AdvanceQueues(Request, frozen=True, array_like=True, tag="advance_queues", gc=False):
    """Does what is due in all queues of the range: fires, expires leases, schedules ticks, purges.

    Answers ``Moved``, as the dispatcher's and the executor's requests do.
    """

    messages_max: Count
