"""The tables of records of a range: which engine keys each has, and the records of an entry.

A table is a *walk* and the protection that it needs. A walk goes through the engine keys of a scan,
in order, and yields each with its records, most often one or none::

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
                         03 range                           range_image

``data`` and ``changes`` have no walk: :mod:`postroom.kv.columns` reads them in blocks.

An inbox as of a timestamp has the messages that are in it now and were there then, and those that
were reaped since (:meth:`.Inboxes.peek_then`). An emptied inbox is in no index, so a walk over all
keys finds it. Outboxes, dead letters, counters and sums have no past. They are read in the snapshot
of the engine that was taken then (:mod:`postroom.ranges.protections`).

For an audit, ``counters`` and ``inbox_index`` are what the store claims, ``places`` and ``beside``
what it counts. All of it is read in one snapshot, so the writes of one write set are seen together.
Nothing here compares the two, and no record of these has the payload of a message.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from postroom.kv import columns, keys
from postroom.kv.engine import Reader
from postroom.limits import LIST_MAX
from postroom.messaging import images
from postroom.messaging.counters import read_counters
from postroom.messaging.index import mail_entries
from postroom.messaging.queues import counters as queue_counters
from postroom.messaging.queues import groups, records
from postroom.messaging.queues.definitions import Definitions, no_such_queue
from postroom.messaging.queues.records import QueueLayout
from postroom.messaging.requests import Peek, Peeked
from postroom.ranges.evaluation import View
from postroom.ranges.state import APPLIED_RECORD

RecordValues: TypeAlias = tuple[Any, ...]
"""The values of the columns of a table."""
Found: TypeAlias = "tuple[bytes, RecordValues | list[RecordValues] | None] | None"
"""An engine key, and its record, or records, or none.

`None`: the turn is used up within an entry.
"""
Walk: TypeAlias = "Callable[[ScanScope], Iterator[Found]]"

_BEHIND_MESSAGES: Final = keys.ACCOUNTING
_encode = msgspec.msgpack.encode
_taken = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


class Needs(enum.Enum):
    """The protection that a table needs for its timestamp.

    * ``VERSIONS``: any protection; the table has versions.
    * ``HISTORY``: any protection that goes back to the timestamp after which records are wanted.
    * ``SNAPSHOT``: that of a snapshot of the engine (*as a whole*).
    """

    VERSIONS = enum.auto()
    HISTORY = enum.auto()
    SNAPSHOT = enum.auto()


@dataclass(slots=True)
class ScanScope:
    """The bounds of one page of a scan.

    Attributes:
        range_id: the range.
        reader: the stored state to read.
        view: the view of the request; it counts the steps.
        start, end: the span of keys.
        lower: the engine key from which the page begins.
        after, timestamp: the timestamps between which records count, where the table has them.
        queue: the queue of which records are wanted.
        bytes_left: how much room the page has.
        peek: a function that reads an inbox as of a timestamp.
    """

    range_id: int
    reader: Reader
    view: View
    start: bytes
    end: bytes | None
    lower: bytes
    after: int
    timestamp: int
    queue: str
    bytes_left: int
    peek: Callable[[View, Peek], Generator[None, None, Peeked]]

    def rest_of(self, span: keys.KeySpan) -> keys.KeySpan:
        """Return the part of a span of engine keys that the pages before have not read."""
        return keys.KeySpan(min(max(span.lower, self.lower), span.upper), span.upper)

    def of_keys(self) -> keys.KeySpan:
        """Return the rest of what lies at and beside the keys."""
        return self.rest_of(keys.data_span(self.start, self.end))

    def of_range(self, first: bytes, last: bytes) -> keys.KeySpan:
        """Return the rest of the metadata of the range of the kinds from ``first`` to ``last``."""
        prefix = keys.range_prefix(self.range_id)
        return self.rest_of(keys.KeySpan(prefix + first, keys.after_prefix(prefix + last)))


class RecordTable(NamedTuple):
    """A table; a table without a walk is read in blocks."""

    needs: Needs
    walk: Walk | None


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


# --- messages -------------------------------------------------------------------------------------


def _inbox(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the messages that were in inboxes."""
    bound: bytes | None = scope.of_keys().lower
    upper = scope.of_keys().upper
    while bound is not None:
        lower, bound = bound, None
        for raw, end, stored in _beside_keys(
            scope, keys.KeySpan(lower, upper), keys.INBOX, _BEHIND_MESSAGES
        ):
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
        request = Peek(key, LIST_MAX, scope.timestamp, room, after or None)
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
            if scope.after < when <= scope.timestamp:
                key = keys.user_key(raw)
                found = [(key, *pair, when, consumed) for pair in _taken.decode(stored)]
        yield raw, found


def _outbox(scope: ScanScope) -> Iterator[Found]:
    """Iterate over both outboxes, messages first, due or not."""
    for raw, stored in scope.reader.iterate(*scope.of_range(keys.DELIVERABLE, keys.EXECUTABLE)):
        id_, kind = raw[10:], raw[9:10]
        entry = (stored, b"") if kind == keys.DELIVERABLE else (b"", stored)
        yield raw, (id_ + kind, *entry)


def _dead_letters(scope: ScanScope) -> Iterator[Found]:
    for raw, stored in scope.reader.iterate(*scope.of_range(keys.DEAD_LETTER, keys.DEAD_LETTER)):
        yield raw, (raw[10:], stored)


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
    definitions = Definitions(range_id)
    for raw, each in definitions.iterate(reader, scope.lower):
        claimed = queue_counters.read(reader.get(QueueLayout(range_id, each.number).counters))
        scope.view.steps += 1
        yield raw, (each.name, each.number, each.dropped, b"", _encode(claimed))


def _inbox_index(scope: ScanScope) -> Iterator[Found]:
    span = scope.rest_of(keys.mail_span(scope.start, scope.end))
    for raw, mail in mail_entries(scope.reader, span):
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
        Invalid: there was no such queue.
    """
    reader = scope.reader
    if not scope.queue:
        for raw, _ in reader.iterate(*scope.of_range(keys.DELIVERABLE, keys.DEAD_LETTER)):
            yield raw, ("", 0, _OUTSIDE_QUEUES[raw[9:10]], b"", "", raw[10:], b"", "", 1)
        return
    definition = Definitions(scope.range_id).read(reader, scope.queue)
    if definition is None:
        raise no_such_queue(scope.queue)
    number = definition.number
    layout = QueueLayout(scope.range_id, number)
    span = scope.rest_of(keys.KeySpan(layout.scheduled, layout.ticks))
    for raw, stored in reader.iterate(*span):
        found = _places_in_queue(reader, raw, len(layout.whole), stored)
        yield raw, [(scope.queue, number, *place) for place in found]


def _places_in_queue(
    reader: Reader, raw: bytes, whole: int, stored: bytes
) -> Iterator[tuple[Any, ...]]:
    """Iterate over the places that one record of a queue stands for.

    ``whole`` is the length of the prefix of all its keys. A mark has no places of its own.
    """
    where = raw[whole:]
    part = where[:1]
    if part in _ENTRIES:
        entry = records.entries.decode(stored)
        yield _ENTRIES[part], *entry.locator, entry.seq, entry.group, 1
    elif part == keys.LEASED:
        if not records.is_mark(where):
            for entry in records.still_held(reader, raw, stored):
                yield "leased", *entry.locator, entry.seq, entry.group, 1
    elif part == keys.GROUPS:
        group = keys.unescape(where[1 : -len(keys.END_OF_KEY)]).decode()
        yield "group", b"", "", b"", b"", group, groups.outstanding(stored)
    else:
        for each in records.ended_lists.decode(stored):
            said = "archived" if part == keys.ARCHIVED else _IN_LISTS.get(each.status, "unknown")
            yield said, each.key, each.kind, each.id, each.seq, "", 1


def _beside(scope: ScanScope) -> Iterator[Found]:
    """Iterate over the records beside keys: messages without their contents, and sums."""
    for raw, end, stored in _beside_keys(scope, scope.of_keys(), keys.INBOX, _BEHIND_POSTED):
        found = None if stored is None else _record_beside(raw, end, stored)
        yield raw, found


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


# --- images ---------------------------------------------------------------------------------------


def _image(scope: ScanScope) -> Iterator[Found]:
    return _image_entries(scope, images.spans_of_keys(scope.start, scope.end))


def _range_image(scope: ScanScope) -> Iterator[Found]:
    return _image_entries(scope, images.spans_of_range(scope.range_id))


def _image_entries(scope: ScanScope, spans: list[keys.KeySpan]) -> Iterator[Found]:
    for span in spans:
        yield from images.walk(scope.reader, scope.rest_of(span))


TABLES: Final[dict[str, RecordTable]] = {
    "data": RecordTable(Needs.VERSIONS, None),
    "changes": RecordTable(Needs.HISTORY, None),
    "inbox": RecordTable(Needs.VERSIONS, _inbox),
    "reaped": RecordTable(Needs.HISTORY, _reaped),
    "outbox": RecordTable(Needs.SNAPSHOT, _outbox),
    "dead_letters": RecordTable(Needs.SNAPSHOT, _dead_letters),
    "accounting": RecordTable(Needs.SNAPSHOT, _accounting),
    "counters": RecordTable(Needs.SNAPSHOT, _counters),
    "inbox_index": RecordTable(Needs.SNAPSHOT, _inbox_index),
    "places": RecordTable(Needs.SNAPSHOT, _places),
    "beside": RecordTable(Needs.SNAPSHOT, _beside),
    "image": RecordTable(Needs.SNAPSHOT, _image),
    "range_image": RecordTable(Needs.SNAPSHOT, _range_image),
}
