"""The requests of those who read all messages (:mod:`postroom.ranges.bulk_requests`)."""

from __future__ import annotations

import msgspec

from postroom.messaging.requests import DeadLetter, MessageId, Scheduled
from postroom.ranges.requests import Bound, Count, Moment, Request


class ScanInboxes(Request, frozen=True, array_like=True, tag="scan_inboxes", gc=False):
    """A page of the messages in the inboxes of ``[start, end)`` as of a timestamp.

    Attributes:
        after: of the inbox of ``start``: those up to this message are known.
    """

    start: Bound
    end: Bound | None
    timestamp: Moment
    after: MessageId | None = None
    bytes_max: Count = 0


class ScanReaped(Request, frozen=True, array_like=True, tag="scan_reaped", gc=False):
    """A page of the messages that left the inboxes of ``[start, end)`` after one timestamp and up
    to another.

    Attributes:
        timestamp: up to when.
        after: from when on; what left earlier may be collected.
        resume: the ``resume`` of the page before; empty: from the first.
    """

    start: Bound
    end: Bound | None
    timestamp: Moment
    after: Moment
    resume: bytes = b""
    bytes_max: Count = 0


class ScanOutbox(Request, frozen=True, array_like=True, tag="scan_outbox", gc=False):
    """A page of what waits in both outboxes, due or not, as of a timestamp that is protected as a
    whole (``Protect``); 0: now.

    Attributes:
        after: the name of the last entry of the page before; empty: from the first.
    """

    timestamp: Moment
    after: bytes = b""
    bytes_max: Count = 0


class ScanDeadLetters(Request, frozen=True, array_like=True, tag="scan_dead_letters", gc=False):
    """A page of the dead letters as of a timestamp that is protected as a whole; 0: now.

    Attributes:
        after: the id of the last one of the page before; empty: from the first.
    """

    timestamp: Moment
    after: bytes = b""
    bytes_max: Count = 0


# --- answers --------------------------------------------------------------------------------------


class InboxesPage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanInboxes``.

    Attributes:
        inboxes: of each its key, and messages as (id, stored ``Delivered``), oldest first.
        resume: the ``start``, and ``resume_after``: the ``after`` of the next page; ``None``: this
            was the last one.
    """

    inboxes: list[tuple[bytes, list[tuple[bytes, bytes]]]]
    resume: bytes | None
    resume_after: bytes | None = None


class ReapedPage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanReaped``.

    Attributes:
        records: of each its key, when the messages left the inbox, whether they were consumed (or
            postponed, or buried), and messages as (id, stored ``Delivered``).
        resume: where the next page goes on; ``None``: this was the last one.
    """

    records: list[tuple[bytes, int, bool, list[tuple[bytes, bytes]]]]
    resume: bytes | None


class OutboxPage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanOutbox``, messages first; and after which name to go on (``None``: nowhere)."""

    entries: list[Scheduled]
    resume: bytes | None


class LettersPage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanDeadLetters``, and after which id to go on (``None``: that was all)."""

    letters: list[DeadLetter]
    resume: bytes | None
