"""The evaluator of ``ScanRecords``: one loop for the records of all tables, and the walk of each.

A *walk* goes through the engine keys of a scan, in order, and yields each with its records, most
often one or none::

    walk                 engine keys                        table
    by key, versions     06 <key> 03, 04                    inbox, reaped
    by key               06 <key> 05                        accounting
                         06 <key> 03, 05 to 07, 09, 0A      beside
                         05 <key>                           inbox_index
                         05 <key>, 06 <key>                 image
    of the range         03 range 01, 02                    outbox
                         03 range 03                        dead_letters
                         03 range 05, 08                    counters
                         03 range 01 to 03, 08 queue        places
                         03 range 05                        slots
                         03 range                           range_image
                         03 range 06                        marks
                         03 range 0C                        trail, range_trail

``data`` and ``changes`` have no walk: :mod:`postroom.kv.columns` reads them in blocks.

A page ends where it is full, or where its turn is used up; so it may be empty and yet not the last.
The next one begins at its *cursor*: how many records of an entry are known, and the engine key of
that entry, without the id of the range. Cursors come back from clients, so a walk is confined to
the span of its request in any case.

An inbox as of a timestamp has the messages that are in it now and were there then, and those that
were reaped since (:meth:`.Peeks.peek_then`). An emptied inbox is in no index, so a walk over all
keys finds it. Outboxes, dead letters, counters and sums have no past. They are read in the snapshot
of the engine that was taken then (:mod:`postroom.ranges.protections`).

For an audit, ``counters`` and ``inbox_index`` are what the store claims, ``places`` and ``beside``
what it counts. All of it is read in one snapshot, so the writes of one write set are seen together.
Nothing here compares the two, and no record of these has the payload of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec

from postroom import limits
from postroom.errors import Invalid
from postroom.kv import columns, keys
from postroom.kv.engine import Reader
from postroom.limits import LIST_MAX, READ_BYTES_MAX
from postroom.messaging import counters, images, trail
from postroom.messaging.bulk_requests import (
    OF_ONE_RANGE,
    TABLES,
    ColumnKind,
    PackedColumn,
    RecordsPage,
    ScanRecords,
    pack,
)
from postroom.messaging.counters import read_counters
from postroom.messaging.image_entries import engine_key_of, name_of
from postroom.messaging.inbox_index import mail_entries
from postroom.messaging.queues import records
from postroom.messaging.queues.definitions import Definitions, no_such_queue
from postroom.messaging.queues.event_groups import outstanding
from postroom.messaging.queues.records import QueueLayout, index_in_use
from postroom.messaging.requests import Peek, Peeked
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import View
from postroom.ranges.ports import Registry
from postroom.ranges.protections import Protections
from postroom.ranges.state import APPLIED_RECORD

PAGE_BYTES = 1024 * 1024
"""The size of a page if the request does not say."""
_RECORD_BYTES = 32
"""The size of a record without the values whose sizes vary, about."""
_COUNT_BYTES = 4
_STAMP_BYTES = 8

RecordValues: TypeAlias = tuple[Any, ...]
"""The values of the columns of a table."""
Found: TypeAlias = "tuple[bytes, RecordValues | list[RecordValues] | None] | None"
"""An engine key and its record, records or none; `None`: the turn is used up in an entry."""
Walk: TypeAlias = "Callable[[ScanScope], Iterator[Found]]"

_BEHIND_MESSAGES: Final = keys.ACCOUNTING
_encode = msgspec.msgpack.encode
_taken = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])

_VERSIONED: Final = frozenset({"data", "changes", "inbox", "reaped"})
"""The tables that any protection of the timestamp is enough for; others need a snapshot."""
_OF_HISTORY: Final = frozenset({"changes", "reaped"})
"""The tables for which it goes back to the timestamp after which records are wanted."""


@dataclass(eq=False)
class RecordScans:
    """The scans of records of one range.

    Attributes:
        range_id: the id of the range.
        check_age: a function that refuses timestamps that cannot be read at.
        protections: the protections of the range, which have its snapshots.
        peek: a function that reads an inbox as of a timestamp.
    """

    range_id: int
    check_age: Callable[[View, int], None]
    protections: Protections
    peek: Callable[[View, Peek], Generator[None, None, Peeked]]

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[ScanRecords] = self.scan

    def scan(
        self, view: View, request: ScanRecords
    ) -> RecordsPage | Generator[None, None, RecordsPage]:
        """Evaluate ``ScanRecords``.

        Raises:
            Invalid: there is no such table, column or queue.
            SnapshotTooOld: the timestamp, or the one after which records are wanted, is collected;
                or it is not protected as a whole, for a table that needs that.
        """
        if request.table not in TABLES:
            raise Invalid(f"there is no table {request.table!r} of records: {', '.join(TABLES)}")
        for name in request.columns:
            if name not in TABLES[request.table]:
                raise Invalid(f"the table {request.table!r} has no column {name!r}")
        walk = _WALKS.get(request.table)
        if walk is None:
            self._reader(view, request)
            return self._blocks(view, request)
        return self._walk(view, request, walk)

    def _reader(self, view: View, request: ScanRecords) -> Reader:
        """Return the stored state to read, if the timestamp is protected as the table needs.

        Raises:
            SnapshotTooOld: it is not.
        """
        if request.table not in _VERSIONED:
            return self.protections.reader(view, request.timestamp)
        self.check_age(view, request.timestamp)
        if request.table in _OF_HISTORY:
            self.check_age(view, request.filter.after)
        return view

    def _blocks(self, view: View, request: ScanRecords) -> RecordsPage:
        """Return a page of versions, which are read in blocks.

        Its cursor is a key, and a timestamp: the changes of the key up to that are known.
        """
        cursor, after = request.cursor, keys.u64(request.filter.after)
        bounds = columns.ReadingBounds(
            max(request.start, cursor[_STAMP_BYTES:]),
            request.end,
            keys.u64(request.timestamp),
            after,
            max(after, cursor[:_STAMP_BYTES]),
        )
        room = columns.PageLimits(page_bytes(request.bytes_max), limits.TURN_STEPS_MAX)
        read = columns.changes if request.table == "changes" else columns.as_of
        found = read(view, bounds, room)
        view.steps += found.steps
        made = {
            "key": lambda: PackedColumn(*columns.packed(found.keys)),
            "value": lambda: PackedColumn(*columns.packed(found.payloads)),
            "timestamp": lambda: PackedColumn(b"".join(found.stamps)),
            "kind": lambda: PackedColumn(bytes(found.kinds)),
        }
        wanted = request.columns or made
        resume = None if found.resume is None else found.resume_after + found.resume
        packed = {name: made[name]() for name in made if name in wanted}
        return RecordsPage(self.range_id, len(found.keys), packed, resume)

    def _walk(
        self, view: View, request: ScanRecords, walk: Walk
    ) -> Generator[None, None, RecordsPage]:
        """Return a page of the records that a walk finds."""
        scope = ScanScope(
            self.range_id, self._reader(view, request), view, request,
            engine_key_of(request.cursor[_COUNT_BYTES:], self.range_id),
            page_bytes(request.bytes_max), self.peek,
        )  # fmt: skip
        if request.table in OF_ONE_RANGE and not scope.has_begun():
            return self._page(request, [], 0, None)
        vary = _VARYING[request.table]
        known, last = int.from_bytes(request.cursor[:_COUNT_BYTES], "big"), b""
        found: list[Any] = []  # the values of all records, one record after the other
        rows, left = 0, scope.bytes_left
        for each in walk(scope):
            if each is None:
                yield
                self._reader(view, request)
                continue
            raw, entry = each
            records: Sequence[RecordValues] = (entry,) if type(entry) is tuple else entry or ()
            number = 0
            if known and raw == scope.lower:
                number, records = known, records[known:]
            for record in records:
                if rows and (left <= 0 or rows >= LIST_MAX):
                    engine_key = raw if number else last + b"\x00"
                    return self._page(request, found, number, engine_key)
                found += record
                rows += 1
                number += 1
                left -= sum(map(len, vary(record) if vary else record), _RECORD_BYTES)
                scope.bytes_left = left
            last = raw
            view.steps += number or 1
            if view.is_used_up():
                return self._page(request, found, 0, last + b"\x00")
        return self._page(request, found, 0, None)

    def _page(
        self, request: ScanRecords, found: list[Any], known: int, engine_key: bytes | None
    ) -> RecordsPage:
        """Return a page; the next begins at ``engine_key``, where so many records are known."""
        kinds = TABLES[request.table]
        packed = {
            name: pack(kind, found[number :: len(kinds)])
            for number, (name, kind) in enumerate(kinds.items())
            if not request.columns or name in request.columns
        }
        resume = None if engine_key is None else keys.u32(known) + name_of(engine_key)
        range_id = self.protections.range_then(request.timestamp)
        return RecordsPage(range_id, len(found) // len(kinds), packed, resume)


def _varying(kinds: dict[str, ColumnKind]) -> Callable[[RecordValues], tuple[Any, ...]] | None:
    """Return a function that returns the values of a record whose sizes vary; `None`: all do."""
    indexes = [index for index, kind in enumerate(kinds.values()) if not kind.width]
    return None if len(indexes) == len(kinds) else itemgetter(*indexes)


_VARYING = {name: _varying(kinds) for name, kinds in TABLES.items()}


def page_bytes(asked: int) -> int:
    """Return about how many bytes a page has."""
    return min(asked or PAGE_BYTES, READ_BYTES_MAX)


@dataclass(slots=True)
class ScanScope:
    """The bounds of one page of a scan.

    Attributes:
        range_id: the range.
        reader: the stored state to read.
        view: the view of the request; it counts the steps.
        request: the request.
        lower: the engine key from which the page begins.
        bytes_left: how much room the page has.
        peek: a function that reads an inbox as of a timestamp.
    """

    range_id: int
    reader: Reader
    view: View
    request: ScanRecords
    lower: bytes
    bytes_left: int
    peek: Callable[[View, Peek], Generator[None, None, Peeked]]

    def has_begun(self) -> bool:
        """Return whether the range was there."""
        return images.has_begun(self.reader, self.range_id)

    def rest_of(self, span: keys.KeySpan) -> keys.KeySpan:
        """Return the part of a span of engine keys that the pages before have not read."""
        return keys.KeySpan(min(max(span.lower, self.lower), span.upper), span.upper)

    def of_keys(self) -> keys.KeySpan:
        """Return the rest of what lies at and beside the keys."""
        return self.rest_of(keys.data_span(self.request.start, self.request.end))

    def of_range(self, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rest of the metadata of the range of the kinds ``first`` to ``last``."""
        prefix = keys.range_prefix(self.range_id)
        span = keys.KeySpan(prefix + first, keys.after_prefix(prefix + last))
        return self.reader.iterate(*self.rest_of(span))


def _beside_keys(
    scope: ScanScope, span: keys.KeySpan, suffix: bytes, beyond: bytes
) -> Iterator[columns.SuffixEntry]:
    """Iterate over the records beside keys under some suffixes (:func:`.columns.entries_beside`).

    An entry of another suffix comes only if the turn is used up with it.
    """
    view = scope.view
    for found in columns.entries_beside(scope.reader, span, suffix, beyond):
        if found[2] is None:
            view.steps += 1
            if not view.is_used_up():
                continue
        yield found


def _inbox(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the messages that were in inboxes."""
    first, upper = scope.of_keys()
    bound: bytes | None = first
    while bound is not None:
        lower, bound = bound, None
        span = keys.KeySpan(lower, upper)
        for raw, end, stored in _beside_keys(scope, span, keys.INBOX, _BEHIND_MESSAGES):
            if stored is None:
                yield raw, None
                continue
            of_key = raw[: end + 2]
            yield from _messages(scope, of_key + keys.INBOX, lower)
            bound = of_key + _BEHIND_MESSAGES
            break


def _messages(scope: ScanScope, prefix: bytes, lower: bytes) -> Iterator[Found]:
    """Iterate over the messages that were in one inbox, from an engine key on."""
    key = keys.user_key(prefix)
    # A page ends behind an entry, so ``lower`` is the key of a message and a zero.
    after: bytes | None = lower[len(prefix) : -1] if lower.startswith(prefix) else None
    more = True
    while more:
        room = max(scope.bytes_left, 1)
        request = Peek(key, LIST_MAX, scope.request.timestamp, room, after or None)
        page = yield from scope.peek(scope.view, request)
        for id_, stored in page.messages:
            yield prefix + id_, (key, id_, stored)
            after = id_
        more = page.more


def _reaped(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the records of messages that left inboxes in time."""
    for raw, end, stored in _beside_keys(scope, scope.of_keys(), keys.REAPED, _BEHIND_MESSAGES):
        found = None
        if stored is not None:
            stamp, consumed = keys.reaped_in(raw, end)
            when = int.from_bytes(stamp, "big")
            if scope.request.filter.after < when <= scope.request.timestamp:
                key = keys.user_key(raw)
                found = [(key, *pair, when, consumed) for pair in _taken.decode(stored)]
        yield raw, found


def _outbox(scope: ScanScope) -> Iterator[Found]:
    """Iterate over both outboxes, messages first, due or not."""
    for raw, stored in scope.of_range(keys.DELIVERABLE, keys.EXECUTABLE):
        range_id, kind, place = raw[1:9], raw[9:10], raw[11:]
        entry = (stored, b"") if kind == keys.DELIVERABLE else (b"", stored)
        yield raw, (range_id + place + kind, *entry)


def _dead_letters(scope: ScanScope) -> Iterator[Found]:
    for raw, stored in scope.of_range(keys.DEAD_LETTER, keys.DEAD_LETTER):
        yield raw, (raw[1:9] + raw[10:], stored)


def _accounting(scope: ScanScope) -> Iterator[Found]:
    for raw, end, stored in _beside_keys(scope, scope.of_keys(), keys.ACCOUNTING, keys.QUEUE_BODY):
        yield raw, None if stored is None else (keys.unescape(raw[1:end]), stored)


# --- the claims ----------------------------------------------------------------------------------


def _counters(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the counters of the range, and those of its queues."""
    reader, range_id = scope.reader, scope.range_id
    place = keys.record_key(range_id, APPLIED_RECORD)
    if scope.lower <= place:
        yield place, ("", 0, False, _encode(read_counters(reader, range_id)), b"")
    index = index_in_use(reader, range_id)
    for raw, each in Definitions(range_id).iterate(reader, scope.lower):
        place = keys.queue_counters_key(range_id, each.number, index)
        claimed = counters.read_queue_counts(reader.get(place))
        scope.view.steps += 1
        yield raw, (each.name, each.number, each.dropped, b"", _encode(claimed))


def _inbox_index(scope: ScanScope) -> Iterator[Found]:
    span = keys.mail_span(scope.request.start, scope.request.end)
    for raw, mail in mail_entries(scope.reader, scope.rest_of(span)):
        yield raw, (keys.user_key(raw), mail.messages, mail.oldest, mail.held)


# --- the counts ----------------------------------------------------------------------------------

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
_IN_INBOXES: Final = {keys.INBOX: "message", keys.HOLD_UP: "hold"}
_SUMS: Final = {keys.ACCOUNTING: "sum", keys.POSTED: "posted"}
_BEHIND_POSTED: Final = keys.after_prefix(keys.POSTED)


def _places(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the places of messages: outside of queues, or in the queue that is asked for.

    Raises:
        Invalid: there was no such queue, by the root.
    """
    reader, queue = scope.reader, scope.request.filter.queue
    if not queue:
        for raw, _ in scope.of_range(keys.DELIVERABLE, keys.DEAD_LETTER):
            yield raw, ("", 0, _OUTSIDE_QUEUES[raw[9:10]], b"", "", raw[10:], b"", "", 1)
        return
    definition = Definitions(scope.range_id).read(reader, queue)
    if definition is None:
        if scope.range_id != ROOT_ID:
            return  # it has not learned of the queue, or has forgotten it
        raise no_such_queue(queue)
    number = definition.number
    layout = QueueLayout(scope.range_id, number, index_in_use(reader, scope.range_id))
    for raw, stored in reader.iterate(*scope.rest_of(keys.KeySpan(layout.scheduled, layout.ticks))):
        places = _places_in_queue(reader, raw, len(layout.whole), stored)
        yield raw, [(queue, number, *place) for place in places]


def _places_in_queue(
    reader: Reader, raw: bytes, whole: int, stored: bytes
) -> Iterator[tuple[Any, ...]]:
    """Iterate over the places that one record of a queue stands for.

    ``whole`` is the length of the prefix of all its keys. A mark has no places of its own.
    """
    where = raw[whole:]
    subspace = where[:1]
    if subspace in _ENTRIES:
        entry = records.entries.decode(stored)
        yield _ENTRIES[subspace], *entry.locator, entry.seq, entry.group, 1
    elif subspace == keys.LEASED:
        if not records.is_mark(where):
            for entry in records.still_held(reader, raw, stored):
                yield "leased", *entry.locator, entry.seq, entry.group, 1
    elif subspace == keys.GROUPS:
        group = keys.unescape(where[1 : -len(keys.END_OF_KEY)]).decode()
        yield "group", b"", "", b"", b"", group, outstanding(stored)
    else:
        for each in records.ended_lists.decode(stored):
            said = (
                "archived" if subspace == keys.ARCHIVED else _IN_LISTS.get(each.status, "unknown")
            )
            yield said, each.home, each.kind, each.id, each.seq, "", 1


def _beside(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the records beside keys: messages without their contents, and sums."""
    for raw, end, stored in _beside_keys(scope, scope.of_keys(), keys.INBOX, _BEHIND_POSTED):
        yield raw, None if stored is None else _record_beside(raw, end, stored)


def _record_beside(raw: bytes, end: int, stored: bytes) -> tuple[Any, ...] | None:
    """Return a record beside a key, or `None` if it does not count."""
    key, suffix, rest = keys.unescape(raw[1:end]), raw[end + 2 : end + 3], raw[end + 3 :]
    if suffix in _IN_INBOXES:
        return _IN_INBOXES[suffix], key, 0, "", rest, b"", 0, b""
    if suffix in _SUMS:
        return _SUMS[suffix], key, 0, "", b"", b"", 0, stored
    if suffix not in {keys.QUEUE_BODY, keys.QUEUE_STATE}:
        return None
    kind, _, id_ = rest[4:].partition(keys.END_OF_KEY)
    name, queue = keys.unescape(kind).decode(), int.from_bytes(rest[:4], "big")
    if suffix == keys.QUEUE_BODY:
        return "body", key, queue, name, id_, records.bodies.decode(stored).seq, 0, b""
    state = records.states.decode(stored)
    return "state", key, queue, name, id_, state.seq, state.status, b""


def _image(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the entries of an image: those of the keys, or those of no key."""
    request = scope.request
    spans = (
        images.spans_of_keys(request.start, request.end)
        if request.table == "image"
        else images.spans_of_range(scope.range_id)
    )
    for span in spans:
        yield from images.walk(scope.reader, scope.rest_of(span))


def _slots(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the records of slots, and of their pools at the root."""
    for record in ("pool ", "slots "):
        prefix = keys.record_key(scope.range_id, record)
        span = scope.rest_of(keys.KeySpan(prefix, keys.after_prefix(prefix)))
        for raw, stored in scope.reader.iterate(*span):
            yield raw, (raw[len(prefix) - len(record) :], stored)


def _marks(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the marks of the channels to the range."""
    prefix = keys.marks_prefix(scope.range_id)
    span = scope.rest_of(keys.KeySpan(prefix, keys.after_prefix(prefix)))
    for raw, stored in scope.reader.iterate(*span):
        yield raw, (name_of(raw), stored)


def _trail(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the entries of the trail: those of the keys, or those of no key."""
    request, prefix = scope.request, len(keys.trail_prefix(scope.range_id))
    names = [keys.KeySpan(keys.RANGE, keys.TRANSACTION)]
    if request.table == "trail":
        names = images.spans_of_keys(request.start, request.end)
    for each in names:
        span = scope.rest_of(trail.span_of(scope.range_id, each))
        for raw, stored in scope.reader.iterate(*span):
            yield raw, (raw[prefix:], stored)


_WALKS: Final[dict[str, Walk]] = {
    "inbox": _inbox,
    "reaped": _reaped,
    "outbox": _outbox,
    "dead_letters": _dead_letters,
    "accounting": _accounting,
    "counters": _counters,
    "inbox_index": _inbox_index,
    "places": _places,
    "beside": _beside,
    "slots": _slots,
    "image": _image,
    "range_image": _image,
    "marks": _marks,
    "trail": _trail,
    "range_trail": _trail,
}
