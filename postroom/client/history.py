"""The time line of a message, put together from what the ranges still have of it.

::

    sent ─▶ due ─▶ delivered ─▶ attempt 1 failed ─▶ ... ─▶ consumed, dead, or where it is now

Nothing is guessed. COMMIT records and the records of what has left an inbox are collected a good
minute after they were written. After that, a time line says in ``unknown`` what it lacks.

A message that has left its inbox carries its attempts up to then, and the reason of the last one.
The reason of an attempt is therefore found at the message's next place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from postroom.client import arguments
from postroom.client.queues.messages import shown_id
from postroom.client.queues.placing import stored_by_id
from postroom.client.sender import Sender
from postroom.counted import counted
from postroom.errors import Invalid
from postroom.kv.clock import Timestamp
from postroom.limits import TRACED_QUEUES_MAX
from postroom.messaging.history_requests import FindCommits, FoundCommit, TraceMessage, TraceRecord
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.requests import LETTER_ID_BYTES, MESSAGE_ID_BYTES, SCHEDULED_ID_BYTES
from postroom.ranges.contract import RANGE_ID_BYTES
from postroom.ranges.transactions.one_range import RECORD_SECONDS


class TraceEvent(NamedTuple):
    """An event of a time line.

    Attributes:
        what: the event, such as ``sent`` or ``attempt 1 failed``.
        at: when it was, or will be; ``None``: that is not stored.
        transaction_id: the transaction that did it; empty: it is not known, or there was none.
        detail: more about it, such as the reason of a failure.
    """

    what: str
    at: Timestamp | None = None
    transaction_id: bytes = b""
    detail: str = ""


class MessageTrace(NamedTuple):
    """The time line of one message, or of a deferred update.

    Attributes:
        id: its id.
        state: where it is. Of a queue: a state of its messages, or ``cancelled``. Else
            ``scheduled``, ``outgoing``, ``postponed``, ``inbox``, ``claimed``, ``consumed``,
            ``dead``, or ``unknown``.
        key: the recipient, or the key beside which a queue has it; empty: it is not known.
        queue: the queue; empty: it is none of a queue.
        kind: the kind of a message of a queue.
        is_update: whether it is a deferred update.
        events: its events, in their order.
        unknown: what is not known any more, or never was.
    """

    id: str | bytes
    state: str
    key: bytes
    queue: str
    kind: str
    is_update: bool
    events: list[TraceEvent]
    unknown: list[str]


async def traces_of(
    sender: Sender, given: str | bytes, key: bytes | None, queue: str | None
) -> list[MessageTrace]:
    """Return the time lines of the messages with an id; empty: none is known."""
    message_id = message_id_in(given) if queue is None else None
    if message_id is not None:
        found = await _of_message(sender, message_id, key)
        if found is not None:
            return [found]
    id_ = arguments.message_id(given)
    return [
        await _of_queue_message(sender, name, each)
        for name in await _queues(sender, queue)
        for each in await stored_by_id(sender, name, id_, None, gone=True)
    ]


def message_id_in(given: str | bytes) -> bytes | None:
    """Return the id of a message of an inbox, also of one that is scheduled or dead."""
    try:
        id_ = bytes.fromhex(given) if isinstance(given, str) else b""
    except ValueError:
        return None
    match len(id_):
        case size if size == MESSAGE_ID_BYTES:
            return id_
        case size if size == LETTER_ID_BYTES:
            return id_[RANGE_ID_BYTES:]
        case size if size == SCHEDULED_ID_BYTES:
            return id_[2 * RANGE_ID_BYTES : -1]
    return None


# --- commits --------------------------------------------------------------------------------------


class Commits:
    """The COMMIT records that are still there, by their timestamps."""

    def __init__(self, found: Iterable[FoundCommit]) -> None:
        self._found: dict[int, dict[int, bytes]] = {}
        for each in found:
            self._found.setdefault(each.timestamp, {})[each.range_id] = each.transaction_id

    def at(self, timestamp: int, range_id: int = 0) -> bytes:
        """Return the transaction that committed then, in a range if it can be told; else empty."""
        here = self._found.get(timestamp, {})
        if range_id in here:
            return here[range_id]
        return next(iter(here.values())) if len(here) == 1 else b""


async def _commits(sender: Sender, *timestamps: int) -> Commits:
    wanted = [each for each in timestamps if each]
    return Commits(await sender.send(FindCommits(wanted)))


def _is_unknown(which: str) -> str:
    return (
        f"the transaction {which}: no COMMIT record tells it; these are kept for "
        f"{RECORD_SECONDS:g} s"
    )


# --- messages of inboxes --------------------------------------------------------------------------

_NOWHERE: Final = TraceRecord("unknown", 0, 0, b"")
_ORDER: Final = ("dead", "inbox", "outgoing", "waits", "consumed")
"""The places of a message, the last one that it can be at first."""


async def _of_message(sender: Sender, id_: bytes, key: bytes | None) -> MessageTrace | None:
    found: list[TraceRecord] = await sender.send(TraceMessage(id_, key))
    seen = {each.where: each for each in found}
    now = next((seen[each] for each in _ORDER if each in seen), _NOWHERE)
    left = sorted((each for each in found if each.where == "left"), key=lambda each: each.at)
    sent_at, ended_at = int.from_bytes(id_[:8], "big"), now.at if now.where == "consumed" else 0
    commits = await _commits(sender, sent_at, ended_at)
    sender_range = int.from_bytes(id_[8:16], "big")
    sent_by = _sender_in(found) or commits.at(sent_at, sender_range)
    if not (found or sent_by):
        return None
    line = _TimeLine(now, left)
    detail = f"by range {sender_range}, number {int.from_bytes(id_[16:], 'big')} of its transaction"
    line.add("sent", sent_at, sent_by, detail)
    if not sent_by:
        line.unknown.append(_is_unknown("that sent it"))
    line.tell_way(commits)
    if now is _NOWHERE:
        line.unknown.append(_whereabouts(key))
    where = next((each.key for each in (now, *left) if each.key), key or b"")
    return MessageTrace(
        id_.hex(), line.state, where, "", "", now.is_update, line.events, line.unknown
    )


def _sender_in(found: list[TraceRecord]) -> bytes:
    """Return the sender by an entry of an outbox, or by a letter; empty: none tells it."""
    told = (each.transaction_id for each in found if each.where in {"waits", "outgoing", "dead"})
    return next((each for each in told if each), b"")


def _whereabouts(key: bytes | None) -> str:
    if key is not None:
        return "its present place: it is in no outbox, not in this inbox, and no dead letter"
    return (
        "its present place: it is in no outbox, no inbox, and no dead letter. It was consumed, "
        "carried out, cancelled or discarded; with the key of its inbox older records can be found"
    )


class _TimeLine:
    """A time line of a message of an inbox in the making."""

    def __init__(self, now: TraceRecord, left: list[TraceRecord]) -> None:
        self._now = now
        self._left = left
        self.state = _STATES.get(now.where, now.where)
        self.events: list[TraceEvent] = []
        self.unknown: list[str] = []

    def add(self, what: str, at: int = 0, transaction_id: bytes = b"", detail: str = "") -> None:
        """Add an event."""
        self.events.append(TraceEvent(what, Timestamp(at) if at else None, transaction_id, detail))

    def tell_way(self, commits: Commits) -> None:
        """Add the events after it was sent, and its state."""
        now = self._now
        first = next((each.delivered_at for each in (*self._left, now) if each.delivered_at), 0)
        if first:
            self.add("delivered", first)
        self._tell_failures()
        match now.where:
            case "inbox":
                self._tell_inbox(first)
            case "waits" if now.attempts:
                self.state = "postponed"
                self.add("due again", now.at)
            case "waits":
                self.add("due", now.at)
            case "outgoing":
                self.add("on its way to another range")
            case "consumed":
                consumer = commits.at(now.at, now.range_id)
                self.add("consumed", now.at, consumer)
                if not consumer:
                    self.unknown.append(_is_unknown("that consumed it"))
            case "dead":
                self.add("dead", self._died_at(), b"", now.error)

    def _tell_inbox(self, first: int) -> None:
        now = self._now
        if now.at != first:
            self.add("delivered again" if now.attempts else "delivered", now.at)
        if now.transaction_id:
            self.state = "claimed"
            self.add("claimed", 0, now.transaction_id, "by a transaction that is open")

    def _tell_failures(self) -> None:
        """Add the attempts that have failed, with their times and reasons where they are stored."""
        seen = [*self._left, self._now]
        reasons = {each.attempts: each.error for each in seen if each.attempts}
        times = {each.attempts + 1: each.at for each in self._left}
        last = self._now.attempts or max(reasons, default=0)
        numbers = sorted(each for each in {*reasons, *times} if each <= last)
        for number in numbers:
            reason = reasons.get(number, "")
            self.add(f"attempt {number} failed", times.get(number, 0), b"", reason)
        missing = last - len(numbers)
        if missing:
            self.unknown.append(
                f"times and reasons of {counted(missing, 'earlier attempt')}: the last reason is "
                "kept, and the others for about a minute"
            )

    def _died_at(self) -> int:
        """Return when it left its inbox for good."""
        return self._left[-1].at if self._left else 0


_STATES: Final = {"waits": "scheduled"}

# --- messages of queues ---------------------------------------------------------------------------


async def _queues(sender: Sender, queue: str | None) -> list[str]:
    """Return the names of the queues to look in.

    Raises:
        Invalid: there are too many.
    """
    if queue is not None:
        return [arguments.queue_name(queue)]
    found: list[QueueDefinition] = await sender.send(ReadQueues())
    names = [each.name for each in found if not each.dropped]
    if len(names) > TRACED_QUEUES_MAX:
        raise Invalid(
            f"the store has {len(names)} queues, and a message is looked for in "
            f"{TRACED_QUEUES_MAX} at most: name its queue"
        )
    return names


async def _of_queue_message(sender: Sender, queue: str, stored: StoredQueueMessage) -> MessageTrace:
    commits = await _commits(sender, stored.created_at, stored.done_at)
    events, unknown = _way_in_queue(stored, commits)
    return MessageTrace(
        shown_id(stored.id), stored.state, stored.key, queue, stored.kind, False, events, unknown
    )


def _way_in_queue(
    stored: StoredQueueMessage, commits: Commits
) -> tuple[list[TraceEvent], list[str]]:
    """Return the events of a message of a queue, and what is not known."""
    unknown = []
    sent_by, ended_by = commits.at(stored.created_at), commits.at(stored.done_at)
    events = [TraceEvent("enqueued", Timestamp(stored.created_at), sent_by)]
    if not sent_by:
        unknown.append(_is_unknown("that enqueued it"))
    if stored.first_scheduled > stored.created_at:
        events.append(TraceEvent("due", Timestamp(stored.first_scheduled)))
    if stored.epoch:
        what = f"{counted(stored.epoch, 'attempt')} failed"
        events.append(TraceEvent(what, detail=stored.last_error))
        unknown.append("the times of attempts, and the reasons of all but the last: none is stored")
    if stored.fired_at:
        lease = f"until {Timestamp(stored.leased_until).datetime}" if stored.leased_until else ""
        events.append(TraceEvent("claimed", Timestamp(stored.fired_at), detail=lease))
    if stored.done_at:
        detail = stored.last_error if stored.state == "dead" else ""
        events.append(TraceEvent(_ENDS[stored.state], Timestamp(stored.done_at), ended_by, detail))
        if not ended_by:
            unknown.append(_is_unknown("that ended it"))
    elif stored.state in {"scheduled", "ready"} and stored.epoch:
        events.append(TraceEvent("due again", Timestamp(stored.scheduled)))
    return events, unknown


_ENDS: Final = {
    "done": "acknowledged",
    "archived": "acknowledged, and archived",
    "dead": "dead",
    "cancelled": "cancelled",
}
