"""The requests of clients that read all messages (:mod:`postroom.ranges.bulk_requests`)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from postroom.messaging.requests import MessageId, ScheduledEntry, StoredDeadLetter
from postroom.ranges.contract import ConcernsSpan, ConcernsStore, Read
from postroom.ranges.requests import Bound, Count, Moment

# --- answers --------------------------------------------------------------------------------------


class InboxesPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanInboxes``.

    Attributes:
        inboxes: the key of each inbox, and its messages as (id, stored ``Delivered``), oldest
            first.
        resume: the ``start`` of the next page; ``None``: this was the last one.
        resume_after: the ``after`` of the next page.
    """

    inboxes: list[tuple[bytes, list[tuple[bytes, bytes]]]]
    resume: bytes | None
    resume_after: bytes | None = None


class ReapedPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanReaped``.

    Attributes:
        records: for each record the key, when the messages left the inbox, whether they were
            consumed (or postponed, or buried), and the messages as (id, stored ``Delivered``).
        resume: where the next page goes on; ``None``: this was the last one.
    """

    records: list[tuple[bytes, int, bool, list[tuple[bytes, bytes]]]]
    resume: bytes | None


class OutboxPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanOutbox``, messages first.

    ``resume``: the name to go on after, or ``None``.
    """

    entries: list[ScheduledEntry]
    resume: bytes | None


class LettersPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanDeadLetters``.

    ``resume``: the id to go on after (``None``: that was all).
    """

    letters: list[StoredDeadLetter]
    resume: bytes | None


# --- requests -------------------------------------------------------------------------------------


class ScanInboxes(ConcernsSpan, Read, frozen=True, tag="scan_inboxes"):
    """A request for a page of the messages in the inboxes of ``[start, end)`` as of a timestamp.

    Attributes:
        after: the id of the last message known of the inbox of ``start``.
    """

    answer: ClassVar = InboxesPage
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    timestamp: Moment
    after: MessageId | None = None
    bytes_max: Count = 0


class ScanReaped(ConcernsSpan, Read, frozen=True, tag="scan_reaped"):
    """A request for a page of the messages that left the inboxes of ``[start, end)``.

    They left after one timestamp and up to another.

    Attributes:
        timestamp: the timestamp up to which they left.
        after: the timestamp after which they left; earlier ones may be collected.
        resume: the ``resume`` of the page before; empty: from the first.
    """

    answer: ClassVar = ReapedPage
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    timestamp: Moment
    after: Moment
    resume: bytes = b""
    bytes_max: Count = 0


class ScanOutbox(ConcernsStore, Read, frozen=True, tag="scan_outbox"):
    """A request for a page of the entries of both outboxes, due or not, as of a timestamp.

    The timestamp is protected as a whole (``Protect``); 0: now.

    Attributes:
        after: the name of the last entry of the page before; empty: from the first.
    """

    answer: ClassVar = OutboxPage
    since: ClassVar = 1

    timestamp: Moment
    after: bytes = b""
    bytes_max: Count = 0


class ScanDeadLetters(ConcernsStore, Read, frozen=True, tag="scan_dead_letters"):
    """A request for a page of dead letters as of a timestamp that is protected as a whole; 0: now.

    Attributes:
        after: the id of the last one of the page before; empty: from the first.
    """

    answer: ClassVar = LettersPage
    since: ClassVar = 1

    timestamp: Moment
    after: bytes = b""
    bytes_max: Count = 0
