"""The requests that carry messages, their answers, and the stored records of messages.

The *id* of a message says where it comes from: commit timestamp of its sender (8 bytes), sender
range (8), position in its transaction (4). It orders the inbox, and ends the engine key.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import msgspec

from postroom.limits import PEEKED_MESSAGES_MAX, REASON_CHARACTERS_MAX
from postroom.ranges.headers import Headers
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
"""The name of a scheduled entry: due (8 bytes), commit timestamp (8), position (4), outbox (1)."""

Reason: TypeAlias = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)]

Tries: TypeAlias = list[tuple[MessageId, Annotated[int, msgspec.Meta(ge=-1)]]]

# --- writes, inside a transaction ------------------------------------------------------------


class EnqueueMessage(Request, frozen=True, array_like=True, tag="enqueue_message"):
    """A request to send ``value`` to the inbox of ``key``, not before ``due`` if that is not 0."""

    key: Key
    value: Payload
    headers: Headers = None
    due: Moment = 0


class EnqueueUpdate(Request, frozen=True, array_like=True, tag="enqueue_update"):
    """A request to carry out ``request`` after the commit, not before ``due`` if that is not 0."""

    request: UpdateRequest
    due: Moment = 0


class ReapMessages(Request, frozen=True, array_like=True, tag="reap_messages"):
    """A request to consume exactly the messages ``ids`` from the inbox of ``key``.

    Attributes:
        tells_attempts: whether the commit fails if somebody else has tried one of them since it was
            given to the transaction. (Clients of earlier versions do not say.)
        tried: with it, the messages that had failed before, and how often.
    """

    frees_room: ClassVar[bool] = True

    key: Key
    ids: list[MessageId]
    tells_attempts: bool = False
    tried: Tries = msgspec.field(default_factory=list)


class PostponeMessages(Request, frozen=True, array_like=True, tag="postpone_messages"):
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

    frees_room: ClassVar[bool] = True

    key: Key
    tries: Tries
    seconds: Seconds | None = None
    reason: Reason = ""
    hold: bool = False
    attempts_max: Count = 0


class BuryMessages(Request, frozen=True, array_like=True, tag="bury_messages"):
    """A request to take messages out of the inbox of ``key`` for good, as dead letters."""

    frees_room: ClassVar[bool] = True

    key: Key
    tries: Tries
    reason: Reason = ""


class CheckInbox(Request, frozen=True, array_like=True, tag="check_inbox", gc=False):
    """A request that fails the commit unless the inbox of ``key`` is as its transaction saw it.

    It writes nothing.

    Attributes:
        messages: the number of its messages, and none is on its way; ``None``: it does not matter.
        ids: the ids of the first of them, in order. Those that the transaction reaps itself are
            still there, so checks come before ``ReapMessages``.
    """

    frees_room: ClassVar[bool] = True

    key: Key
    messages: Count | None
    ids: Annotated[tuple[MessageId, ...], msgspec.Meta(max_length=PEEKED_MESSAGES_MAX)]


# --- reads ------------------------------------------------------------------------------------


class ReapQueue(Request, frozen=True, array_like=True, tag="reap_queue", gc=False):
    """A request for the oldest messages that nobody else holds, locked for the transaction.

    The lock ends with the transaction, but after ``seconds_max`` at the latest. With ``wait``, the
    answer comes once there is a message. With ``attempts_max``, messages become dead letters when
    their holder vanishes for the last of that many times. A message that was tried before then
    comes alone.
    """

    key: Key
    messages_max: Count
    bytes_max: Count
    transaction_id: TransactionId
    seconds_max: Seconds
    wait: bool = False
    attempts_max: Count = 0


class Peek(Request, frozen=True, array_like=True, tag="peek", gc=False):
    """A request for a page of the oldest messages of an inbox as of ``timestamp`` (0: now).

    The page has those whose ids come after ``after``. Nothing is consumed.
    """

    key: Key
    messages_max: Count
    timestamp: Moment = 0
    bytes_max: Count = UNBOUNDED
    after: MessageId | None = None


class ListInboxes(Request, frozen=True, array_like=True, tag="list_inboxes", gc=False):
    """A request for the keys in ``[start, end)`` with mail, those with the oldest message first.

    Attributes:
        ready: whether inboxes are left out that a postponed message holds up.
        by_key: whether the first ones in the order of their keys are listed instead. No others are
            looked at.
    """

    start: Bound
    end: Bound | None
    inboxes_max: Count
    ready: bool = False
    by_key: bool = False


class ListDeadLetters(Request, frozen=True, array_like=True, tag="list_dead_letters", gc=False):
    """A request for a page of dead letters, oldest first: those whose ids come after ``after``."""

    letters_max: Count
    bytes_max: Count = UNBOUNDED
    after: bytes = b""


class ListScheduled(Request, frozen=True, array_like=True, tag="list_scheduled", gc=False):
    """A request for a page of the entries about keys in ``[start, end)`` that are not due yet.

    The messages and updates that are due first come first; those after the one named ``after``
    (empty: from the first).
    """

    start: Bound
    end: Bound | None
    entries_max: Count
    bytes_max: Count = UNBOUNDED
    after: bytes = b""


class ReadCounters(Request, frozen=True, array_like=True, tag="read_counters", gc=False):
    """A request for the conservation counters of the range."""


class AwaitQuiet(Request, frozen=True, array_like=True, tag="await_quiet", gc=False):
    """A request that is answered once no outbox entry is due (``drain``)."""


# --- upkeep -------------------------------------------------------------------------------------


class DeliverDue(Request, frozen=True, array_like=True, tag="deliver_due", gc=False):
    """A request to move the due deliverable messages of the range to its inboxes."""

    messages_max: Count


class ExecuteDue(Request, frozen=True, array_like=True, tag="execute_due", gc=False):
    """A request to carry out the due updates of the range."""

    messages_max: Count


class BuryDue(Request, frozen=True, array_like=True, tag="bury_due", gc=False):
    """A request to bury the first due message, or update, which cannot be moved alone either."""

    updates: bool
    reason: str


class NoteAttempts(Request, frozen=True, array_like=True, tag="note_attempts", gc=False):
    """A request to write down what has become of attempts (``messaging.attempts``).

    Attributes:
        what: ``"lost"``: their holder has vanished; ``"begun"``: the messages are about to be given
            to a reaper; ``"ended"``: such an attempt has ended.
        holder: the transaction that holds the messages in memory until then; empty: none does.
    """

    frees_room: ClassVar[bool] = True

    key: Key
    ids: list[MessageId]
    what: Literal["lost", "begun", "ended"]
    reason: str
    attempts_max: Count
    holder: bytes


class ReplayDeadLetters(Request, frozen=True, array_like=True, tag="replay_dead_letters"):
    """A request to put dead letters back into their outbox; the answer is how many it found."""

    ids: list[bytes]


class DiscardDeadLetters(Request, frozen=True, array_like=True, tag="discard_dead_letters"):
    """A request to discard dead letters for good; the answer is how many it found."""

    frees_room: ClassVar[bool] = True

    ids: list[bytes]


class CancelScheduled(Request, frozen=True, array_like=True, tag="cancel_scheduled"):
    """A request to cancel messages and updates that wait in their outbox.

    The answer is how many it found.
    """

    frees_room: ClassVar[bool] = True

    ids: list[ScheduledId]


# --- stored records -----------------------------------------------------------------------------


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
    """An outbox entry of a message on its way, or on its way back (then it has a ``trial``)."""

    key: bytes
    value: bytes
    headers: Headers
    transaction_id: bytes
    source: bytes
    trial: Trial | None = None


class Executable(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An outbox entry of an update to be carried out.

    Attributes:
        position: where the next step of a ``DeleteRange`` goes on, which is carried out in steps.
        began: the timestamp (8 bytes) of its first step: newer versions stay.
    """

    request: UpdateRequest
    transaction_id: bytes
    source: bytes
    position: bytes = b""
    began: bytes = b""


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An inbox entry: a message that was delivered."""

    delivered_at: int
    value: bytes
    headers: Headers
    trial: Trial | None = None


class Mail(msgspec.Struct, frozen=True, array_like=True, gc=False):
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


class Reaped(msgspec.Struct, frozen=True, array_like=True):
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

    A later page at this timestamp, after the last of these messages, shows the same view. (0: the
    node is too old to tell.)
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


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter in the answer of ``ListDeadLetters``.

    ``more``: others follow on the next page.
    """

    id: bytes
    record: DeadLetterRecord
    more: bool = False


class Scheduled(msgspec.Struct, frozen=True, array_like=True):
    """A message or an update that waits until it is due."""

    id: bytes
    message: Deliverable | None
    update: Executable | None


class SchedulePage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ListScheduled``.

    ``resume``: the name to go on after (``None``: none is left).

    A page may be empty although there are more after it.
    """

    entries: list[Scheduled]
    resume: bytes | None


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of ``DeliverDue`` and ``ExecuteDue``.

    It has the number moved, whether more are due now, and when the next one will be (0: none
    waits).
    """

    messages: int
    more: bool
    next_due: int
