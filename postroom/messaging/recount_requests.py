"""The requests of an audit: for counters and the index, and for all that they count.

All are answered in pages, at one timestamp that is protected as a whole (``Protect``), or as of now
(0). No page has the payloads of messages. :mod:`.recount` answers them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from postroom.limits import QUEUE_NAME_BYTES_MAX
from postroom.messaging.queues.counters import Counted
from postroom.messaging.requests import Counters
from postroom.ranges.contract import ConcernsSpan, ConcernsStore, Read
from postroom.ranges.requests import Bound, Count, Moment

# --- answers --------------------------------------------------------------------------------------


class QueueCounters(msgspec.Struct, frozen=True, array_like=True):
    """The counters of one queue.

    Attributes:
        number: the number of the queue.
        dropped: whether it is being emptied, so that its counters mean nothing.
    """

    name: str
    number: int
    dropped: bool
    counted: Counted


class CountersPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanCounters``; ``resume``: where the next page goes on (empty: nowhere)."""

    range_id: int
    counters: Counters
    queues: list[QueueCounters]
    resume: bytes = b""


class Indexed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of the index, like ``Mail``, with the key of the inbox."""

    key: bytes
    messages: int
    oldest: bytes
    held: bytes


class InboxIndexPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanInboxIndex``.

    ``resume``: the ``start`` of the next page, if there is one.
    """

    entries: list[Indexed]
    resume: bytes | None


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place of one message, or the number of outstanding messages of a group.

    Attributes:
        part: ``message``, ``update`` (of the outboxes) or ``dead_letter``. The parts of a queue are
            ``scheduled``, ``ready``, ``leased``, ``dead``, ``done``, ``cancelled``, ``moved``,
            ``archived`` and ``group``.
        key, kind, id, seq: those of a queue's message; other messages have only the id.
        group: its group.
        number: the number of outstanding messages of a group; else 1.
    """

    part: str
    key: bytes
    kind: str
    id: bytes
    seq: bytes = b""
    group: str = ""
    number: int = 1


class PlacesPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanPlaces``; ``resume``: where the next page goes on (empty: nowhere)."""

    range_id: int
    queue: int
    places: list[Place]
    resume: bytes = b""


class Beside(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record beside a key.

    Attributes:
        what: ``message`` (in its inbox), ``hold``, ``sum``, ``posted`` (the part of the sums that
            was added to this very key), ``body`` or ``state`` (of a queue's message).
        queue, kind: those of a queue's message.
        id: the id of a message.
        seq, status: those of a queue's message, as in its records.
        sums: the metrics.
    """

    what: str
    key: bytes
    queue: int = 0
    kind: str = ""
    id: bytes = b""
    seq: bytes = b""
    status: int = 0
    sums: dict[str, int] = {}


class BesidePage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanBeside``; ``resume``: where the next page goes on (empty: nowhere)."""

    range_id: int
    records: list[Beside]
    resume: bytes = b""


# --- requests -------------------------------------------------------------------------------------


class ScanCounters(ConcernsStore, Read, frozen=True, tag="scan_counters"):
    """A request for the counters of the range, and a page of those of its queues.

    Attributes:
        after: the ``resume`` of the page before; empty: from the first queue.
    """

    answer: ClassVar = CountersPage
    since: ClassVar = 1

    timestamp: Moment
    after: bytes = b""


class ScanInboxIndex(ConcernsSpan, Read, frozen=True, tag="scan_inbox_index"):
    """A request for a page of the index of inboxes of ``[start, end)``."""

    answer: ClassVar = InboxIndexPage
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    timestamp: Moment
    bytes_max: Count = 0


class ScanPlaces(ConcernsStore, Read, frozen=True, tag="scan_places"):
    """A request for a page of the places of messages.

    These are the messages of a queue, or (``""``) those in outboxes and dead letters.

    Attributes:
        after: the ``resume`` of the page before; empty: from the first.
    """

    answer: ClassVar = PlacesPage
    since: ClassVar = 1

    queue: Annotated[str, msgspec.Meta(max_length=QUEUE_NAME_BYTES_MAX)]
    timestamp: Moment
    after: bytes = b""
    bytes_max: Count = 0


class ScanBeside(ConcernsSpan, Read, frozen=True, tag="scan_beside"):
    """A request for a page of the records beside the keys of ``[start, end)``: messages, sums.

    Attributes:
        after: the ``resume`` of the page before; empty: from the first.
    """

    answer: ClassVar = BesidePage
    since: ClassVar = 1

    start: Bound
    end: Bound | None
    timestamp: Moment
    after: bytes = b""
    bytes_max: Count = 0
