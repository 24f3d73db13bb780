"""The counters and indexes of a range, and all that they count, at one timestamp, for an audit.

::

    claimed                                   to be counted
    03 range 05 "messages"       counters     03 range 01, 02, 03    outboxes, dead letters ┐ places
    03 range 05 "queue n"        counters     03 range 08 n 01..06   entries and lists      ┘
    05 <key>                     index        06 <key> 03, 09        inboxes, holds         ┐
    06 <key> 05                  sums         06 <key> 0A            what was posted        │ beside
    03 range 08 n 07 <group>     outstanding  06 <key> 06, 07        bodies, states         ┘

All of it is read in one snapshot of the engine (:mod:`postroom.ranges.protections`), so the writes
of one write set are seen together, whatever is committed meanwhile. Nothing here compares the two:
the client does (``postroom.pipeline.jobs.audit``). A page has as much as a turn, and an answer,
have room for. It leaves out the payloads of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from postroom.kv import columns, keys
from postroom.kv.engine import Reader
from postroom.limits import LIST_MAX
from postroom.messaging.counters import read_counters
from postroom.messaging.index import mail_entries
from postroom.messaging.queues import counters as of_queues
from postroom.messaging.queues import groups, records
from postroom.messaging.queues.definitions import Definitions, no_such_queue
from postroom.messaging.queues.records import Layout
from postroom.messaging.recount_requests import (
    Beside,
    BesidePage,
    CountersPage,
    InboxIndexPage,
    Indexed,
    Place,
    PlacesPage,
    QueueCounters,
    ScanBeside,
    ScanCounters,
    ScanInboxIndex,
    ScanPlaces,
)
from postroom.messaging.requests import InboxIndexEntry
from postroom.ranges.accounting import read_metrics
from postroom.ranges.bulk import page_bytes
from postroom.ranges.evaluation import View
from postroom.ranges.registry import Registry

QUEUES_PER_PAGE: Final = 1000
_LAST: Final = keys.after_prefix(keys.POSTED)

_IN_LISTS: Final = {
    records.DONE: "done",
    records.ARCHIVED: "archived",
    records.CANCELLED: "cancelled",
    records.MOVED: "moved",
}
_OUTSIDE_QUEUES: Final = {
    keys.DELIVERABLE: "message",
    keys.EXECUTABLE: "update",
    keys.DEAD_LETTER: "dead_letter",
}
_ENTRIES: Final = {keys.SCHEDULED: "scheduled", keys.READY: "ready", keys.DEAD: "dead"}
_IN_INBOXES: Final = {keys.INBOX: "message", keys.HOLD: "hold"}
_SUMS: Final = {keys.ACCOUNTING: "sum", keys.POSTED: "posted"}


class Recount:
    """The reads for an audit of one range.

    Args:
        range_id: the id of the range.
        reader: the stored state at a timestamp that is protected as a whole.
    """

    def __init__(self, range_id: int, reader: Callable[[Reader, int], Reader]) -> None:
        self._range_id = range_id
        self._reader = reader
        self._definitions = Definitions(range_id)

    def register(self, registry: Registry) -> None:
        """Register the reads."""
        registry.reads |= {
            ScanCounters: self.scan_counters,
            ScanInboxIndex: self.scan_inbox_index,
            ScanPlaces: self.scan_places,
            ScanBeside: self.scan_beside,
        }

    # --- counters and index

    def scan_counters(self, view: View, request: ScanCounters) -> CountersPage:
        """Evaluate ``ScanCounters``.

        Raises:
            SnapshotTooOld: the timestamp is not protected as a whole.
        """
        reader = self._reader(view, request.timestamp)
        counted = read_counters(reader, self._range_id)
        found = self._definitions.read_some(reader, request.after, QUEUES_PER_PAGE)
        view.steps += 2 * len(found)
        queues = []
        for each in found:
            record = reader.get(Layout(self._range_id, each.number).counters)
            claimed = of_queues.read(record)
            queues.append(QueueCounters(each.name, each.number, each.dropped, claimed))
        is_full = len(found) == QUEUES_PER_PAGE
        resume = self._definitions.position(found[-1]) if is_full else b""
        return CountersPage(self._range_id, counted, queues, resume)

    def scan_inbox_index(self, view: View, request: ScanInboxIndex) -> InboxIndexPage:
        """Evaluate ``ScanInboxIndex``.

        Raises:
            SnapshotTooOld: the timestamp is not protected as a whole.
        """
        reader = self._reader(view, request.timestamp)
        found: list[Indexed] = []
        room = _Room(view, request.bytes_max)
        mail: InboxIndexEntry
        for raw, mail in mail_entries(reader, request.start, request.end):
            key = keys.user_key(raw)
            if room.is_full(found):
                return InboxIndexPage(found, key)
            found.append(Indexed(key, mail.messages, mail.oldest, mail.held))
            room.take(len(raw) + 64)
        return InboxIndexPage(found, None)

    # --- places of messages

    def scan_places(self, view: View, request: ScanPlaces) -> PlacesPage:
        """Evaluate ``ScanPlaces``.

        Raises:
            Invalid: there was no such queue.
            SnapshotTooOld: the timestamp is not protected as a whole.
        """
        reader = self._reader(view, request.timestamp)
        number = 0
        if request.queue:
            definition = self._definitions.read(reader, request.queue)
            if definition is None:
                raise no_such_queue(request.queue)
            number = definition.number
        span, read = self._parts(reader, number)
        lower = span.lower
        if request.after:
            lower = max(lower, span.lower[:9] + request.after)
        found: list[Place] = []
        room = _Room(view, request.bytes_max)
        for raw, stored in reader.iterate(lower, span.upper):
            if room.is_full(found):
                return PlacesPage(self._range_id, number, found, raw[9:])
            for place in read(raw, stored):
                found.append(place)
                room.take(len(place.key) + len(place.id) + 64)
        return PlacesPage(self._range_id, number, found)

    def _parts(
        self, reader: Reader, number: int
    ) -> tuple[keys.KeySpan, Callable[[bytes, bytes], Iterator[Place]]]:
        """Return the span to read, and a function that turns its entries into places."""
        if not number:
            first = keys.outbox_prefix(self._range_id, keys.DELIVERABLE)
            return keys.KeySpan(first, keys.garbage_prefix(self._range_id)), _outside_queues
        layout = Layout(self._range_id, number)
        whole = len(layout.whole)

        def of_queue(raw: bytes, stored: bytes) -> Iterator[Place]:
            return _of_queue(reader, raw, whole, stored)

        return keys.KeySpan(layout.scheduled, layout.ticks), of_queue

    # --- records beside keys

    def scan_beside(self, view: View, request: ScanBeside) -> Generator[None, None, BesidePage]:
        """Evaluate ``ScanBeside``, over as many turns as it takes.

        Raises:
            SnapshotTooOld: the timestamp is not protected as a whole.
        """
        span = keys.data_span(request.start, request.end)
        lower: bytes | None = max(span.lower, keys.DATA + request.after)
        found: list[Beside] = []
        room = _Room(view, request.bytes_max)
        while lower is not None:
            reader = self._reader(view, request.timestamp)
            first, lower = keys.KeySpan(lower, span.upper), None
            for raw, end, stored in columns.beside(reader, first, keys.INBOX, _LAST):
                if room.is_full(found):
                    return BesidePage(self._range_id, found, raw[1:])
                view.steps += 1
                record = None if stored is None else _beside(raw, end, stored)
                if record is not None:
                    found.append(record)
                    room.take(len(raw) + 32 + 16 * len(record.sums))
                elif view.is_used_up():
                    lower = raw + b"\x00"
                    break
            if lower is not None:
                yield
        return BesidePage(self._range_id, found)


class _Room:
    """The room that is left in a page, and in a turn."""

    def __init__(self, view: View, asked: int) -> None:
        self._view = view
        self._left = page_bytes(asked)

    def is_full(self, found: list[Any]) -> bool:
        """Return whether the page ends here; if so, it has something, and the next one goes on."""
        if not found:
            return False
        return self._left <= 0 or len(found) >= LIST_MAX or self._view.is_used_up()

    def take(self, size: int) -> None:
        """Take room for one more entry."""
        self._left -= size
        self._view.steps += 1


def _outside_queues(raw: bytes, _: bytes) -> Iterator[Place]:
    """Iterate over the places of an entry of an outbox, or of a dead letter."""
    part = _OUTSIDE_QUEUES.get(raw[9:10])
    if part is not None:
        yield Place(part, b"", "", raw[10:])


def _of_queue(reader: Reader, raw: bytes, whole: int, stored: bytes) -> Iterator[Place]:
    """Iterate over the places that one record of a queue stands for.

    ``whole`` is the length of the prefix of all its keys. A mark has no places of its own.
    """
    where = raw[whole:]
    part = where[:1]
    if part in _ENTRIES:
        entry = records.entries.decode(stored)
        yield Place(_ENTRIES[part], *entry.locator, entry.seq, entry.group)
    elif part == keys.LEASED:
        if not records.is_mark(where):
            for entry in records.still_held(reader, raw, stored):
                yield Place("leased", *entry.locator, entry.seq, entry.group)
    elif part == keys.GROUPS:
        group = keys.unescape(where[1 : -len(keys.END_OF_KEY)]).decode()
        yield Place("group", b"", "", b"", b"", group, groups.outstanding(stored))
    else:
        for each in records.ended_lists.decode(stored):
            said = "archived" if part == keys.ARCHIVED else _IN_LISTS.get(each.status, "unknown")
            yield Place(said, each.key, each.kind, each.id, each.seq)


def _beside(raw: bytes, end: int, stored: bytes) -> Beside | None:
    """Return a record beside a key, or `None` if it does not count."""
    key, suffix, rest = keys.unescape(raw[1:end]), raw[end + 2 : end + 3], raw[end + 3 :]
    if suffix in _IN_INBOXES:
        return Beside(_IN_INBOXES[suffix], key, id=rest)
    if suffix in _SUMS:
        return Beside(_SUMS[suffix], key, sums=read_metrics(stored))
    if suffix not in {keys.QUEUE_BODY, keys.QUEUE_STATE}:
        return None
    kind, _, id_ = rest[4:].partition(keys.END_OF_KEY)
    name, queue = keys.unescape(kind).decode(), int.from_bytes(rest[:4], "big")
    if suffix == keys.QUEUE_BODY:
        return Beside("body", key, queue, name, id_, records.bodies.decode(stored).seq)
    state = records.states.decode(stored)
    return Beside("state", key, queue, name, id_, state.seq, state.status)
