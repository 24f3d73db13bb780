"""The requests that carry messages, their answers, and the stored records of messages.

The *id* of a message, or of a deferred update, says where it comes from: commit timestamp of its
sender (8 bytes), sender range (8), ordinal in its transaction (4). It orders the inbox, and ends
the engine key.

The names of dead letters and of scheduled entries begin with the id of the range where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import msgspec

from postroom.limits import EVALUATED_AT_ONCE_MAX, PEEKED_MESSAGES_MAX, REASON_CHARACTERS_MAX
from postroom.ranges.checks import Headers, has_large_headers
from postroom.ranges.contract import (
    UNTIL_IT_HAPPENS,
    Concern,
    ConcernsKey,
    ConcernsRange,
    ConcernsRangesOfIds,
    ConcernsSpan,
    ConcernsStore,
    Maintenance,
    MayWait,
    Read,
    Request,
    Role,
    Touched,
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
    UpdateRequest,
)
from postroom.ranges.rights import Need, Verb

_astuple = msgspec.structs.astuple
_AFTER_DELIVERED: Final = 2

MESSAGE_ID_BYTES: Final = 20

MessageId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=MESSAGE_ID_BYTES, max_length=MESSAGE_ID_BYTES)
]

LETTER_ID_BYTES: Final = 28

LetterId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=LETTER_ID_BYTES, max_length=LETTER_ID_BYTES)
]
"""The name of a dead letter: its range (8 bytes), the id of the message or update (20)."""

SCHEDULED_ID_BYTES: Final = 37

ScheduledId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=SCHEDULED_ID_BYTES, max_length=SCHEDULED_ID_BYTES)
]
"""The name of a scheduled entry: range and due time (8 bytes each), id (20), outbox (1)."""

Reason: TypeAlias = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)]

Tries: TypeAlias = list[tuple[MessageId, Annotated[int, msgspec.Meta(ge=-1)]]]


# --- stored records -------------------------------------------------------------------------------


class Trial(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The attempts at a message that was tried.

    Attributes:
        attempts: the number of failed attempts.
        error: how the last of them ended.
        begun: whether another one was begun, whose end might not become known
            (``messaging.attempts``).
    """

    attempts: int
    error: str = ""
    begun: bool = False


class Deliverable(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An outbox entry of a message on its way, or on its way back (then it has a ``trial``).

    Attributes:
        is_of_queue: whether it is no message for an inbox, but a change of a queue, packed
            (:mod:`.queues.crossing`).
    """

    key: bytes
    value: bytes
    headers: Headers
    transaction_id: bytes
    source: bytes
    trial: Trial | None = None
    is_of_queue: bool = False


class Executable(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An outbox entry of an update to be carried out.

    Attributes:
        cursor: where the next step of a ``DeleteRange`` goes on, which is carried out in steps.
        began: the timestamp (8 bytes) of its first step: newer versions stay.
        is_received: whether a range has handed it over to the one in whose outbox it waits.
        due: when it was due, in an outgoing entry that has waited; 0: when it was committed.
    """

    request: UpdateRequest
    transaction_id: bytes
    source: bytes
    cursor: bytes = b""
    began: bytes = b""
    is_received: bool = False
    due: int = 0


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An inbox entry: a message that was delivered."""

    delivered_at: int
    value: bytes
    headers: Headers
    trial: Trial | None = None


class InboxIndexEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry in the index of inboxes: the number of messages, and the id of the first.

    Attributes:
        held: the id of the first postponed message that holds up those behind it; empty: there is
            none. There may be no message but that.
    """

    messages: int
    oldest: bytes
    held: bytes = b""


class DeadLetterRecord(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter as it is stored: a message or an update, and the reason."""

    reason: str
    message: Deliverable | None
    update: Executable | None


# --- answers --------------------------------------------------------------------------------------


class ReapedMessages(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ReapQueue``.

    Attributes:
        messages: (id, stored ``Delivered``).
        more: whether there are others that nobody holds.
        drained: the number of messages that this transaction holds itself, if none was free and no
            other transaction holds any; ``None`` otherwise.
    """

    messages: list[tuple[bytes, bytes]]
    more: bool
    drained: int | None = None


class Peeked(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``Peek``: messages, whether there are more, and the timestamp of the read.

    A later page at this timestamp, after the last of these messages, shows the same view.
    """

    messages: list[tuple[bytes, bytes]]
    more: bool
    timestamp: int = 0


class Inbox(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An inbox in the answer of ``ListInboxes``; ``held_up``: by a postponed message."""

    key: bytes
    messages: int
    oldest: int
    held_up: bool = False


class StoredDeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter in the answer of ``ListDeadLetters``.

    ``more``: others follow on the next page.
    """

    id: bytes
    record: DeadLetterRecord
    more: bool = False


class ScheduledEntry(msgspec.Struct, frozen=True, array_like=True):
    """A message or an update that waits until it is due."""

    id: bytes
    message: Deliverable | None
    update: Executable | None


class SchedulePage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ListScheduled``.

    ``resume``: the name to go on after (``None``: none is left).

    A page may be empty although there are more after it.
    """

    entries: list[ScheduledEntry]
    resume: bytes | None


class Counters(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The numbers of messages that a range has seen, by what became of them.

    Attributes:
        enqueued: committed with a transaction; deliverable and executable together. A further part
            of an update over several ranges counts, too, where it is taken.
        delivered: reached their inbox, less those that left it to wait or as dead letters. Those
            may have reached it before a split, in another range: the number may be below zero.
        executed: carried out.
        pending_messages: deliverable ones still in the outbox; scheduled ones included.
        pending_updates: executable ones still in the outbox; scheduled ones included.
        dead: became dead letters, less those replayed since.
        discarded: the dead ones that were given up for good.
        reaped: the delivered ones that were consumed.
        cancelled: the discarded ones that were cancelled before their time.
        received: taken from other ranges.
        handed: taken by other ranges.
        outgoing_messages: deliverable ones on their way to other ranges.
        outgoing_updates: executable ones on their way to other ranges.
        outgoing_bytes: the size of those that are on their way.
    """

    enqueued: int = 0
    delivered: int = 0
    executed: int = 0
    pending_messages: int = 0
    pending_updates: int = 0
    dead: int = 0
    discarded: int = 0
    reaped: int = 0
    cancelled: int = 0
    received: int = 0
    handed: int = 0
    outgoing_messages: int = 0
    outgoing_updates: int = 0
    outgoing_bytes: int = 0

    @property
    def pending(self) -> int:
        """Return the number of all entries that are still in an outbox."""
        return self.pending_messages + self.pending_updates + self.outgoing

    @property
    def outgoing(self) -> int:
        """Return the number of entries that are on their way to other ranges."""
        return self.outgoing_messages + self.outgoing_updates

    @property
    def dead_letters(self) -> int:
        """Return the number of dead letters that wait to be replayed or discarded."""
        return self.dead - self.discarded

    def conserved(self) -> bool:
        """Return whether no message is lost or made up."""
        return (
            self.enqueued + self.received == self.delivered + self.executed + self.dead
            + self.handed + self.pending_messages + self.pending_updates
            + self.outgoing_messages + self.outgoing_updates
            and self.enqueued >= 0 and min(_astuple(self)[_AFTER_DELIVERED:]) >= 0
        )  # fmt: skip


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of ``DeliverDue`` and ``ExecuteDue``.

    It has the number moved, whether more are due now, and when the next one will be (0: none
    waits).
    """

    messages: int
    more: bool
    next_due: int


# --- writes, inside a transaction -----------------------------------------------------------------


class AlwaysLong:
    """A write that may take more than its share of a turn: what it names may be large."""

    __slots__ = ()

    def is_long(self) -> bool:
        """Return ``True``."""
        return True


class EnqueueMessage(ConcernsKey, Write, frozen=True, tag="enqueue_message"):
    """A request to send ``value`` to the inbox of ``key``, not before ``due`` if that is not 0."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.SEND,)
    is_sent: ClassVar = True

    key: Key
    value: Payload
    headers: Headers = None
    due: TimestampNumber = 0

    def is_long(self) -> bool:
        """Return whether checking its headers takes a while."""
        return has_large_headers(self)


class EnqueueUpdate(Write, frozen=True, tag="enqueue_update"):
    """A request to carry out ``request`` after the commit, not before ``due`` if that is not 0."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    is_sent: ClassVar = True

    request: UpdateRequest
    due: TimestampNumber = 0

    def concerns(self) -> Concern:
        """Return what the update concerns."""
        return self.request.concerns()

    def needs(self) -> Iterator[Need]:
        """Yield the right to write what the update writes: its answer goes nowhere."""
        return (each for each in self.request.needs() if each.verb is Verb.WRITE)

    def anchor(self) -> bytes:
        """Return the key that anchors the update."""
        return self.request.anchor()

    def contained(self) -> Iterator[Request]:
        """Yield the request, and the update."""
        yield self
        yield self.request

    def touches(self) -> Touched:
        """Return what the update writes, if it is carried out with its commit."""
        return None if self.due else self.request.touches()


class ReapMessages(ConcernsKey, Write, frozen=True, tag="reap_messages"):
    """A request to consume exactly the messages ``ids`` from the inbox of ``key``.

    Attributes:
        tells_attempts: whether the commit fails if somebody else has tried one of them since it was
            given to the transaction.
        tried: with it, the messages that had failed before, and how often.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.REAP,)
    is_prepared: ClassVar = True
    is_of_inbox: ClassVar = True
    frees_room: ClassVar = True

    key: Key
    ids: list[MessageId]
    tells_attempts: bool = False
    tried: Tries = msgspec.field(default_factory=list)

    def is_long(self) -> bool:
        """Return whether it names many messages."""
        return len(self.ids) > EVALUATED_AT_ONCE_MAX


class PostponeMessages(ConcernsKey, Write, frozen=True, tag="postpone_messages"):
    """A request to postpone messages that were tried in vain.

    They leave the inbox of ``key``, and come back to their places in it. The last attempt makes
    dead letters of them.

    Attributes:
        tries: the messages, each with the number of its failed attempts before this one (-1: any
            number). If the number differs, somebody else has tried the message meanwhile.
        seconds: the time until they come back; ``None``: by the back-off.
        hold: whether they hold up the messages behind them.
        attempts_max: the number of attempts after which they are dead; 0: any number.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.REAP,)
    is_prepared: ClassVar = True
    is_of_inbox: ClassVar = True
    frees_room: ClassVar = True

    key: Key
    tries: Tries
    seconds: Seconds | None = None
    reason: Reason = ""
    hold: bool = False
    attempts_max: Count = 0

    def is_long(self) -> bool:
        """Return whether it names many messages."""
        return len(self.tries) > EVALUATED_AT_ONCE_MAX


class BuryMessages(ConcernsKey, Write, frozen=True, tag="bury_messages"):
    """A request to take messages out of the inbox of ``key`` for good, as dead letters."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.REAP,)
    is_prepared: ClassVar = True
    is_of_inbox: ClassVar = True
    frees_room: ClassVar = True

    key: Key
    tries: Tries
    reason: Reason = ""

    def is_long(self) -> bool:
        """Return whether it names many messages."""
        return len(self.tries) > EVALUATED_AT_ONCE_MAX


class CheckInbox(ConcernsKey, Write, frozen=True, tag="check_inbox"):
    """A request that fails the commit unless the inbox of ``key`` is as its transaction saw it.

    It writes nothing.

    Attributes:
        messages: the number of its messages, and none is on its way; ``None``: it does not matter.
        ids: the ids of the first of them, in order. Those that the transaction reaps itself are
            still there, so checks come before ``ReapMessages``.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ | Verb.REAP,)
    is_prepared: ClassVar = True
    is_of_inbox: ClassVar = True
    only_checks: ClassVar = True
    frees_room: ClassVar = True

    key: Key
    messages: Count | None
    ids: Annotated[tuple[MessageId, ...], msgspec.Meta(max_length=PEEKED_MESSAGES_MAX)]

    def is_long(self) -> bool:
        """Return whether it names many messages."""
        return len(self.ids) > EVALUATED_AT_ONCE_MAX


# --- reads ----------------------------------------------------------------------------------------


class ReapQueue(MayWait, ConcernsKey, Read, frozen=True, tag="reap_queue"):
    """A request for the oldest messages that nobody else holds, locked for the transaction.

    The lock ends with the transaction, but after ``seconds_max`` at the latest. With ``wait``, the
    answer comes once there is a message. With ``attempts_max``, messages become dead letters when
    their holder vanishes for the last of that many times. A message that was tried before then
    comes alone.
    """

    answer: ClassVar = ReapedMessages
    since: ClassVar = 1
    verbs: ClassVar = (Verb.REAP,)
    role: ClassVar = Role.WRITE
    locks: ClassVar = True
    changes_holdings: ClassVar = True
    own_ids: ClassVar = ("transaction_id",)

    key: Key
    messages_max: Count
    bytes_max: Count
    transaction_id: TransactionId
    seconds_max: Seconds
    wait: bool = False
    attempts_max: Count = 0


class Peek(ConcernsKey, Read, frozen=True, tag="peek"):
    """A request for a page of the oldest messages of an inbox as of ``timestamp`` (0: now).

    The page has those whose ids come after ``after``. Nothing is consumed.
    """

    answer: ClassVar = Peeked
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ | Verb.REAP,)

    key: Key
    messages_max: Count
    timestamp: TimestampNumber = 0
    bytes_max: Count = UNBOUNDED
    after: MessageId | None = None


class ListInboxes(ConcernsSpan, Read, frozen=True, tag="list_inboxes"):
    """A request for the keys in ``[start, end)`` with mail, those with the oldest message first.

    Attributes:
        ready: whether inboxes are left out that a postponed message holds up.
        by_key: whether the first ones in the order of their keys are listed instead. No others are
            looked at.
    """

    answer: ClassVar = list[Inbox]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ | Verb.REAP,)

    start: Bound
    end: Bound | None
    inboxes_max: Count
    ready: bool = False
    by_key: bool = False


class ListDeadLetters(ConcernsStore, Read, frozen=True, tag="list_dead_letters"):
    """A request for a page of dead letters, oldest first: those after the one named ``after``.

    Dead letters of several ranges are in the order of the ids of their messages and updates, then
    of their ranges: ``after`` may name one of another range.
    """

    answer: ClassVar = list[StoredDeadLetter]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    awaits_earlier: ClassVar = True

    letters_max: Count
    bytes_max: Count = UNBOUNDED
    after: bytes = b""


class ListScheduled(ConcernsStore, Read, frozen=True, tag="list_scheduled"):
    """A request for a page of the entries about keys in ``[start, end)`` that are not due yet.

    The messages and updates that are due first come first; those after the one named ``after``
    (empty: from the first).
    """

    answer: ClassVar = SchedulePage
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    awaits_earlier: ClassVar = True

    start: Bound
    end: Bound | None
    entries_max: Count
    bytes_max: Count = UNBOUNDED
    after: bytes = b""


class ReadCounters(ConcernsStore, Read, frozen=True, tag="read_counters"):
    """A request for the conservation counters of the range."""

    answer: ClassVar = Counters
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    awaits_earlier: ClassVar = True
    is_served_in_restore: ClassVar = True


class AwaitQuiet(ConcernsStore, Read, frozen=True, tag="await_quiet"):
    """A request that is answered once no outbox entry is due (``drain``)."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    awaits_earlier: ClassVar = True
    wait_seconds_max: ClassVar = UNTIL_IT_HAPPENS


# --- maintenance, and writes of administrators ----------------------------------------------------


class DeliverDue(ConcernsRange, Maintenance, frozen=True, tag="deliver_due"):
    """A request to move the due deliverable messages of the range to its inboxes."""

    answer: ClassVar = Moved
    since: ClassVar = 1
    is_served_in_restore: ClassVar = False

    messages_max: Count


class ExecuteDue(ConcernsRange, Maintenance, frozen=True, tag="execute_due"):
    """A request to carry out the due updates of the range."""

    answer: ClassVar = Moved
    since: ClassVar = 1
    is_served_in_restore: ClassVar = False

    messages_max: Count


class BuryDue(ConcernsRange, Maintenance, frozen=True, tag="bury_due"):
    """A request to bury the first due message, or update, which cannot be moved alone either."""

    answer: ClassVar = bool
    since: ClassVar = 1
    is_served_in_restore: ClassVar = False

    updates: bool
    reason: str


class NoteAttempts(ConcernsKey, Maintenance, frozen=True, tag="note_attempts"):
    """A request to write down what has become of attempts (``messaging.attempts``).

    Attributes:
        what: ``"lost"``: their holder has vanished; ``"begun"``: the messages are about to be given
            to a reaper; ``"ended"``: such an attempt has ended.
        holder: the transaction that holds the messages in memory until then; empty: none does.
    """

    answer: ClassVar = list[tuple[bytes, bytes]]
    since: ClassVar = 1
    frees_room: ClassVar = True
    is_served_in_restore: ClassVar = False

    key: Key
    ids: list[MessageId]
    what: Literal["lost", "begun", "ended"]
    reason: str
    attempts_max: Count
    holder: bytes


class ReplayDeadLetters(
    AlwaysLong, ConcernsRangesOfIds, Write, frozen=True, tag="replay_dead_letters"
):
    """A request to put dead letters back into their outbox; the answer is how many it found."""

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    ids: list[LetterId]


class DiscardDeadLetters(
    AlwaysLong, ConcernsRangesOfIds, Write, frozen=True, tag="discard_dead_letters"
):
    """A request to discard dead letters for good; the answer is how many it found."""

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    ids: list[LetterId]


class CancelScheduled(ConcernsRangesOfIds, Write, frozen=True, tag="cancel_scheduled"):
    """A request to cancel messages and updates that wait in their outbox.

    The answer is how many it found.
    """

    answer: ClassVar = int
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    ids: list[ScheduledId]

    def is_long(self) -> bool:
        """Return whether it names many messages."""
        return len(self.ids) > EVALUATED_AT_ONCE_MAX
