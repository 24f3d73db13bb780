"""The requests that carry messages, and what is stored of them.

A message's *id* is where it comes from: commit timestamp of its sender (8 bytes), sender range (8),
position in its transaction (4). It orders the inbox, and it is what the engine key ends with.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from postroom.limits import PEEKED_MESSAGES_MAX, REASON_CHARACTERS_MAX
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
    UpdateRequest,
)

MESSAGE_ID_BYTES: Final = 20

MessageId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=MESSAGE_ID_BYTES, max_length=MESSAGE_ID_BYTES)
]

SCHEDULED_ID_BYTES: Final = 21

ScheduledId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=SCHEDULED_ID_BYTES, max_length=SCHEDULED_ID_BYTES)
]
"""Due (8 bytes), commit timestamp (8), position (4), and which of the two outboxes (1)."""

Reason: TypeAlias = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)]

Tries: TypeAlias = list[tuple[MessageId, Annotated[int, msgspec.Meta(ge=-1)]]]

# --- writes, inside a transaction ------------------------------------------------------------


class EnqueueMessage(Request, frozen=True, array_like=True, tag="enqueue_message"):
    """Sends ``value`` to the inbox of ``key``; not before ``due``, if that is not 0."""

    key: Key
    value: Payload
    headers: dict[str, Any] | None = None
    due: Moment = 0


class EnqueueUpdate(Request, frozen=True, array_like=True, tag="enqueue_update"):
    """Has ``request`` carried out after the commit; not before ``due``, if that is not 0."""

    request: UpdateRequest
    due: Moment = 0


class ReapMessages(Request, frozen=True, array_like=True, tag="reap_messages"):
    """Consumes the messages ``ids`` from the inbox of ``key``: they are gone, exactly these.

    Attributes:
        tells_attempts: the commit fails if somebody else has tried one of them since it was handed
            out. (Clients of earlier versions do not tell.)
        tried: with it, those that had failed before, and how often.
    """

    key: Key
    ids: list[MessageId]
    tells_attempts: bool = False
    tried: Tries = msgspec.field(default_factory=list)


class PostponeMessages(Request, frozen=True, array_like=True, tag="postpone_messages"):
    """The messages were tried in vain: they leave the inbox of ``key``, and come back to their
    places in it. The last attempt makes dead letters of them.

    Attributes:
        tries: which, each with the attempts that it had failed at before (-1: however many). With
            another number there, somebody else has tried it meanwhile.
        seconds: until they come back; ``None``: by the back-off.
        hold: they hold up what is behind them.
        attempts_max: after so many they are dead; 0: never.
    """

    key: Key
    tries: Tries
    seconds: Seconds | None = None
    reason: Reason = ""
    hold: bool = False
    attempts_max: Count = 0


class BuryMessages(Request, frozen=True, array_like=True, tag="bury_messages"):
    """The messages leave the inbox of ``key`` for good, as dead letters."""

    key: Key
    tries: Tries
    reason: Reason = ""


class CheckInbox(Request, frozen=True, array_like=True, tag="check_inbox", gc=False):
    """Writes nothing: the commit fails unless the inbox of ``key`` is as its transaction saw it.

    Attributes:
        messages: how many it holds, and none is on its way; ``None``: that does not matter.
        ids: of the first of them, in order. Those that the transaction reaps itself are still
            there, so checks come before ``ReapMessages``.
    """

    key: Key
    messages: Count | None
    ids: Annotated[tuple[MessageId, ...], msgspec.Meta(max_length=PEEKED_MESSAGES_MAX)]


# --- reads ------------------------------------------------------------------------------------


class ReapQueue(Request, frozen=True, array_like=True, tag="reap_queue", gc=False):
    """The oldest messages that nobody else holds, locked for the transaction.

    The lock ends with the transaction, but after ``seconds_max`` at the latest. With ``wait``, is
    answered only once there is one. With ``attempts_max``, whoever vanishes with them for the last
    of so many times makes dead letters of them, and what was tried before comes alone.
    """

    key: Key
    messages_max: Count
    bytes_max: Count
    transaction_id: TransactionId
    seconds_max: Seconds
    wait: bool = False
    attempts_max: Count = 0


class Peek(Request, frozen=True, array_like=True, tag="peek", gc=False):
    """A page of the oldest messages of an inbox as of ``timestamp`` (0: now), those whose ids come
    after ``after``; nothing is consumed.
    """

    key: Key
    messages_max: Count
    timestamp: Moment = 0
    bytes_max: Count = UNBOUNDED
    after: MessageId | None = None


class ListInboxes(Request, frozen=True, array_like=True, tag="list_inboxes", gc=False):
    """The keys in ``[start, end)`` that have mail, those with the oldest message first.

    Attributes:
        ready: without those that are held up by a message that was postponed.
    """

    start: Bound
    end: Bound | None
    inboxes_max: Count
    ready: bool = False


class ListDeadLetters(Request, frozen=True, array_like=True, tag="list_dead_letters", gc=False):
    """A page of what could not be executed or delivered, oldest first: those whose ids come after
    ``after``.
    """

    letters_max: Count
    bytes_max: Count = UNBOUNDED
    after: bytes = b""


class ListScheduled(Request, frozen=True, array_like=True, tag="list_scheduled", gc=False):
    """A page of the messages and updates about keys in ``[start, end)`` that are not due yet, the
    first to be due first: those after the one named ``after`` (empty: from the first).
    """

    start: Bound
    end: Bound | None
    entries_max: Count
    bytes_max: Count = UNBOUNDED
    after: bytes = b""


class ReadCounters(Request, frozen=True, array_like=True, tag="read_counters", gc=False):
    """The conservation counters of the range."""


class AwaitQuiet(Request, frozen=True, array_like=True, tag="await_quiet", gc=False):
    """Is answered once no outbox entry is due (``drain``)."""


# --- upkeep -------------------------------------------------------------------------------------


class DeliverDue(Request, frozen=True, array_like=True, tag="deliver_due", gc=False):
    """Moves the due deliverable messages of the range to the inboxes in it."""

    messages_max: Count


class ExecuteDue(Request, frozen=True, array_like=True, tag="execute_due", gc=False):
    """Carries out the due executable messages of the range."""

    messages_max: Count


class BuryDue(Request, frozen=True, array_like=True, tag="bury_due", gc=False):
    """Makes the first due message, or update, a dead letter: it cannot be moved, alone either."""

    updates: bool
    reason: str


class NoteAttempts(Request, frozen=True, array_like=True, tag="note_attempts", gc=False):
    """Writes down what has become of attempts (``messaging.attempts``).

    Attributes:
        what: ``"lost"``: who had the messages has vanished; ``"begun"``: they are about to be
            handed out; ``"ended"``: that was told to have ended.
        holder: who holds them in memory until then; empty: nobody does any more.
    """

    key: Key
    ids: list[MessageId]
    what: Literal["lost", "begun", "ended"]
    reason: str
    attempts_max: Count
    holder: bytes


class ReplayDeadLetters(Request, frozen=True, array_like=True, tag="replay_dead_letters"):
    """Puts dead letters back into their outbox, due now; answers how many there were."""

    ids: list[bytes]


class DiscardDeadLetters(Request, frozen=True, array_like=True, tag="discard_dead_letters"):
    """Gives dead letters up for good; answers how many there were."""

    ids: list[bytes]


class CancelScheduled(Request, frozen=True, array_like=True, tag="cancel_scheduled"):
    """Has messages and updates that wait in their outbox not take place; answers how many of them
    were still there.
    """

    ids: list[ScheduledId]


# --- what is stored -----------------------------------------------------------------------------


class Trial(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of a message that was tried.

    Attributes:
        attempts: how many have failed.
        error: how the last of them ended.
        begun: another one was begun, whose end might not be heard of (``messaging.attempts``).
    """

    attempts: int
    error: str = ""
    begun: bool = False


class Deliverable(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An outbox entry: a message on its way, or on its way back (then it has a ``trial``)."""

    key: bytes
    value: bytes
    headers: dict[str, Any] | None
    transaction_id: bytes
    source: bytes
    trial: Trial | None = None


class Executable(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An outbox entry: an update to be carried out.

    Attributes:
        position: of a ``DeleteRange`` that is carried out in steps: where the next one goes on.
        began: the timestamp (8 bytes) of the first of them: what is newer stays.
    """

    request: UpdateRequest
    transaction_id: bytes
    source: bytes
    position: bytes = b""
    began: bytes = b""


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An inbox entry."""

    delivered_at: int
    value: bytes
    headers: dict[str, Any] | None
    trial: Trial | None = None


class Mail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry in the index of inboxes: how many messages wait, and the id of the first.

    Attributes:
        held: the id of the first message that was postponed and holds up what is behind it; empty:
            there is none. There may be no message but that.
    """

    messages: int
    oldest: bytes
    held: bytes = b""


class DeadLetterRecord(msgspec.Struct, frozen=True, array_like=True):
    """What could not be done, and why."""

    reason: str
    message: Deliverable | None
    update: Executable | None


# --- answers --------------------------------------------------------------------------------------


class Reaped(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ReapQueue``.

    Attributes:
        messages: (id, stored ``Delivered``).
        more: whether others wait that nobody holds.
        drained: if none was free, and no other transaction holds any: how many there are, which
            this one holds itself. ``None`` otherwise.
    """

    messages: list[tuple[bytes, bytes]]
    more: bool
    drained: int | None = None


class Peeked(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``Peek``: the same, and the timestamp at which the inbox was read: a page that goes
    on after the last of these, at it, is of the same view. (0: the node is too old to tell.)
    """

    messages: list[tuple[bytes, bytes]]
    more: bool
    timestamp: int = 0


class Inbox(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Answers ``ListInboxes``, one a key; ``held_up``: by a message that was postponed."""

    key: bytes
    messages: int
    oldest: int
    held_up: bool = False


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ListDeadLetters``, one each; ``more``: it is the last of its page, and others
    follow.
    """

    id: bytes
    record: DeadLetterRecord
    more: bool = False


class Scheduled(msgspec.Struct, frozen=True, array_like=True):
    """What waits for its time: a message or an update."""

    id: bytes
    message: Deliverable | None
    update: Executable | None


class SchedulePage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ListScheduled``: what was found, and after which name to go on (``None``: that was
    all). There may be nothing on a page, and more after it.
    """

    entries: list[Scheduled]
    resume: bytes | None


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Answers ``DeliverDue`` and ``ExecuteDue``: how many, whether more are due now, and when the
    next one will be (0: none is waiting).
    """

    messages: int
    more: bool
    next_due: int
