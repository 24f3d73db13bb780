"""The requests of those who recount: what counters and the index claim, and what it is about.

All are answered at one timestamp that is protected as a whole (``Protect``), or as of now (0), in
pages; none of them tells what a message says. :mod:`.recount` answers them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from postroom.limits import QUEUE_NAME_BYTES_MAX
from postroom.messaging.counters import Counters
from postroom.messaging.queues.counters import Counted
from postroom.ranges.requests import Bound, Count, Moment, Request


class ScanCounters(Request, frozen=True, array_like=True, tag="scan_counters", gc=False):
    """The counters of the range, and a page of those of its queues.

    Attributes:
        after: the ``resume`` of the page before; empty: from the first queue.
    """

    timestamp: Moment
    after: bytes = b""


class ScanInboxIndex(Request, frozen=True, array_like=True, tag="scan_inbox_index", gc=False):
    """A page of the index of inboxes of ``[start, end)``."""

    start: Bound
    end: Bound | None
    timestamp: Moment
    bytes_max: Count = 0


class ScanPlaces(Request, frozen=True, array_like=True, tag="scan_places", gc=False):
    """A page of where messages are: those of a queue, or (``""``) what is in outboxes, or dead.

    Attributes:
        after: the ``resume`` of the page before; empty: from the first.
    """

    queue: Annotated[str, msgspec.Meta(max_length=QUEUE_NAME_BYTES_MAX)]
    timestamp: Moment
    after: bytes = b""
    bytes_max: Count = 0


class ScanBeside(Request, frozen=True, array_like=True, tag="scan_beside", gc=False):
    """A page of what lies beside the keys of ``[start, end)``: messages, sums.

    Attributes:
        after: the ``resume`` of the page before; empty: from the first.
    """

    start: Bound
    end: Bound | None
    timestamp: Moment
    after: bytes = b""
    bytes_max: Count = 0


# --- answers --------------------------------------------------------------------------------------


class QueueCounters(msgspec.Struct, frozen=True, array_like=True):
    """Of one queue.

    Attributes:
        number: of the queue.
        dropped: it is being emptied, and nothing is claimed of it.
    """

    name: str
    number: int
    dropped: bool
    counted: Counted


class CountersPage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanCounters``; ``resume``: where the next page goes on (empty: there is none)."""

    range_id: int
    counters: Counters
    queues: list[QueueCounters]
    resume: bytes = b""


class Indexed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of the index: as ``Mail``, and whose inbox it is about."""

    key: bytes
    messages: int
    oldest: bytes
    held: bytes


class InboxIndexPage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanInboxIndex``; ``resume``: the ``start`` of the next page, if there is one."""

    entries: list[Indexed]
    resume: bytes | None


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one message is, or how much of a group is outstanding.

    Attributes:
        part: ``message``, ``update`` (of the outboxes), ``dead_letter``; of a queue ``scheduled``,
            ``ready``, ``leased``, ``dead``, ``done``, ``cancelled``, ``moved``, ``archived``, or
            ``group``.
        key, kind, id, seq: of a message of a queue; of others there is only the id.
        group: its group.
        number: of messages outstanding in a group; else 1.
    """

    part: str
    key: bytes
    kind: str
    id: bytes
    seq: bytes = b""
    group: str = ""
    number: int = 1


class PlacesPage(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``ScanPlaces``; ``resume``: where the next page goes on (empty: there is none)."""

    range_id: int
    queue: int
    places: list[Place]
    resume: bytes = b""


class Beside(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record beside a key.

    Attributes:
        what: ``message`` (in its inbox), ``hold``, ``sum``, ``posted`` (the part of the sums that
            was added to this very key), ``body`` or ``state`` (of a message of a queue).
        queue, kind: of a message of a queue.
        id: of a message.
        seq, status: of a message of a queue, as in its records. Of sums the status is 1 if they
            follow from what was posted; 0: an earlier version began them, and noted nothing.
        sums: metrics.
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
    """Answers ``ScanBeside``; ``resume``: where the next page goes on (empty: there is none)."""

    range_id: int
    records: list[Beside]
    resume: bytes = b""
