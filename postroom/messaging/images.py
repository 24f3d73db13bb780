"""The walk over the entries of an image, and their count at one timestamp.

An image is read in the snapshot of the engine that belongs to a timestamp protected as a whole
(:mod:`postroom.ranges.protections`), since much of it has no versions. Thus all of it is of one
point, between two proposals: everything committed up to then, and nothing after it.

Entries of no image (older versions, reaped messages, lists of garbage) are passed over; long runs
of them are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging import counters
from postroom.messaging import image_entries as entries
from postroom.messaging.ingest.requests import WRONG_TOLD, CheckImage, Counted
from postroom.messaging.queues import records
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.requests import Counters, InboxIndexEntry
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import View
from postroom.ranges.state import APPLIED_RECORD

_PASSED_AT_ONCE: Final = 4
"""The number of unwanted entries that are read in a row before they are skipped."""

_INFIX_BYTES: Final = {keys.QUEUES: 6, keys.DELIVERABLE: 2, keys.EXECUTABLE: 2}
"""The length of the infix that tells the subspace of a record of a range, by its first byte."""
_WAITING_MESSAGES: Final = keys.DELIVERABLE + keys.WAITING
_WAITING_UPDATES: Final = keys.EXECUTABLE + keys.WAITING
_OUTGOING_MESSAGES: Final = keys.DELIVERABLE + keys.OUTGOING
_OUTGOING_UPDATES: Final = keys.EXECUTABLE + keys.OUTGOING

_mail = msgspec.msgpack.Decoder(InboxIndexEntry)
_counters = msgspec.msgpack.Decoder(Counters)


def spans_of_keys(start: bytes, end: bytes | None) -> list[keys.KeySpan]:
    """Return the spans of the entries of the keys in ``[start, end)``, in order."""
    return [keys.mail_span(start, end), keys.data_span(start, end), *keys.staged_spans(start, end)]


def has_begun(reader: Reader, range_id: int) -> bool:
    """Return whether the range was there; copies of records may have been, for its split."""
    record = keys.record_key(range_id, APPLIED_RECORD)
    return range_id == ROOT_ID or reader.get(record) is not None


def spans_of_range(range_id: int) -> list[keys.KeySpan]:
    """Return the spans of the entries of no key."""
    prefix = keys.range_prefix(range_id)
    return [keys.KeySpan(prefix, keys.after_prefix(prefix))]


Shown = tuple[bytes, bytes]
"""The name of an entry, and its value as the image has it."""


def walk(reader: Reader, span: keys.KeySpan) -> Iterator[tuple[bytes, Shown | None]]:
    """Iterate over a span of engine keys, with the entry of each.

    It is `None` if the key is no part of an image.
    """
    shown, index = entries.shown, keys.QUEUES
    if span.lower[:1] == keys.RANGE:
        index = records.index_in_use(reader, int.from_bytes(span.lower[1:9], "big"))
    bound: bytes | None = span.lower
    while bound is not None:
        lower, bound, passed = bound, None, 0
        for raw, stored in reader.iterate(lower, span.upper):
            entry = shown(raw, stored, index)
            yield raw, entry
            if entry is not None:
                passed = 0
                continue
            passed += 1
            if passed > _PASSED_AT_ONCE:
                bound = _beyond(raw)
                break


def _beyond(raw: bytes) -> bytes:
    """Return the key behind all entries like this one: old versions, garbage, the trail."""
    if raw[:1] == keys.RANGE:
        if raw[9:10] == keys.GARBAGE:
            return raw[:9] + keys.RECORD
        # the index of queues that is not in use, or the trail
        if raw[9:10] in {keys.QUEUES, keys.OTHER_QUEUES, keys.TRAIL}:
            return keys.after_prefix(raw[:10])
    elif raw[:1] == keys.DATA:
        end = raw.index(keys.END_OF_KEY, 1) + 2
        if raw[end : end + 1] in {keys.HISTORY, keys.REAPED}:
            return keys.after_prefix(raw[: end + 1])
    return raw + b"\x00"


def check_image(
    bounds: Bounds, reader: Callable[[Reader, int], Reader], view: View, request: CheckImage
) -> Generator[None, None, Counted]:
    """Evaluate ``CheckImage``, over as many turns as it takes.

    The halves of a range that has split since the timestamp have one snapshot. The left one counts
    what belongs to no key, as the range had it.

    Args:
        bounds: the bounds of the range.
        reader: the stored state at a timestamp that is protected as a whole.
        view: the view of the request.
        request: the request.

    Raises:
        SnapshotTooOld: the timestamp is not protected as a whole, or not any more.
    """
    counting = Counting(lambda key: reader(view, request.timestamp).get(key))
    spans, range_id = spans_of_keys(request.start, request.end), bounds.descriptor.range_id
    stored = reader(view, request.timestamp)
    if request.start == bounds.start and has_begun(stored, range_id):
        spans = [*spans_of_range(range_id), *spans]
    of_range = "" if bounds.is_whole else f"range {range_id}: "
    for span in spans:
        lower: bytes | None = span.lower
        while lower is not None:
            bound, lower = lower, None
            stored = reader(view, request.timestamp)
            for raw, entry in walk(stored, keys.KeySpan(bound, span.upper)):
                view.steps += 1
                if entry is not None:
                    counting.add(*entry)
                if view.is_used_up():
                    lower = raw + b"\x00"
                    break
            if lower is not None:
                yield
    counted = counting.end()
    return Counted(counted.tables, [of_range + each for each in counted.wrong])


class Counting:
    """A count of entries by table, and of the differences from the stored counters and indexes.

    Args:
        index: a function that returns the value of an entry of the index of inboxes, by its name.

    Attributes:
        tables: the number of entries of each table.
        wrong: descriptions of the differences.
    """

    def __init__(self, index: Callable[[bytes], bytes | None]) -> None:
        self._index = index
        self.tables: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._counters = Counters()
        self._of_range: Counter[bytes] = Counter()
        self._queues: dict[int, QueueCounts] = {}
        self._inboxes_told = self._inboxes_found = 0
        self._inbox = b""
        self._messages = 0
        self._first = b""

    def add(self, name: bytes, stored: bytes) -> None:
        """Count an entry; they come in order."""
        table = entries.table_of(name)
        assert table is not None
        self.tables[table] += 1
        if name[:1] == keys.RANGE:
            self._add_of_range(name[1:], stored)
        elif name[:1] == keys.MAIL:
            self._inboxes_told += _mail.decode(stored).messages > 0
        elif table == entries.INBOX:
            end = name.index(keys.END_OF_KEY, 1)
            if name[1:end] != self._inbox or not self._messages:
                self.end_inbox()
                self._inbox, self._first = name[1:end], name[end + 3 :]
                self._inboxes_found += 1
            self._messages += 1

    def add_all(self, names: Sequence[bytes], stored: Sequence[bytes]) -> None:
        """Count entries; they come in order."""
        tables = Counter(map(entries.table_of, names))
        if tables.keys() == {entries.DATA}:
            self.tables[entries.DATA] += len(names)
        else:
            for name, value in zip(names, stored, strict=True):
                self.add(name, value)

    def _add_of_range(self, rest: bytes, stored: bytes) -> None:
        kind = rest[:1]
        self._of_range[rest[: _INFIX_BYTES.get(kind, 1)]] += _messages_in(rest, stored)
        if kind != keys.RECORD:
            return
        record = rest[1:].decode()
        if rest == entries.COUNTERS_NAME[1:]:
            self._counters = _counters.decode(stored)
        elif record.startswith("queue "):
            self._queues[int(record[6:])] = counters.read_queue_counts(stored)

    def end_inbox(self) -> None:
        """Compare the last inbox with its index, since all its messages were added."""
        if not self._messages:
            return
        key = keys.unescape(self._inbox)
        packed = self._index(keys.mail_key(key))
        told = InboxIndexEntry(0, b"") if packed is None else _mail.decode(packed)
        self._same(f"messages in the inbox of {key!r:.60}", told.messages, self._messages)
        if told.oldest != self._first:
            self._note(f"the index of inboxes names another first message of {key!r:.60}")
        self._messages = 0

    def end(self) -> Counted:
        """Compare the counts with the counters, after the last entry; return the result."""
        self.end_inbox()
        self._same("inboxes", self._inboxes_told, self._inboxes_found)
        told, found = self._counters, self._of_range
        if not told.conserved():
            self._note(f"messages are lost or made up: {told}")
        self._same("messages in the outbox", told.pending_messages, found[_WAITING_MESSAGES])
        self._same("updates in the outbox", told.pending_updates, found[_WAITING_UPDATES])
        self._same("outgoing messages", told.outgoing_messages, found[_OUTGOING_MESSAGES])
        self._same("outgoing updates", told.outgoing_updates, found[_OUTGOING_UPDATES])
        self._same("dead letters", told.dead_letters, found[keys.DEAD_LETTER])
        for number, counted in self._queues.items():
            self._end_queue(number, counted)
        return Counted(dict(self.tables), self.wrong)

    def _end_queue(self, number: int, counted: QueueCounts) -> None:
        subspaces = (
            ("scheduled", keys.SCHEDULED), ("ready", keys.READY), ("leased", keys.LEASED),
            ("dead", keys.DEAD),
        )  # fmt: skip
        prefix = keys.QUEUES + keys.u32(number)
        for state, subspace in subspaces:
            found = self._of_range[prefix + subspace]
            self._same(f"{state} messages of queue {number}", getattr(counted, state), found)
        # An image of several ranges has one result of an id, and the entries of earlier ones, too.
        kept, listed = (self._of_range[prefix + each] for each in (keys.RESULTS, keys.EXPIRING))
        self._same(f"results of queue {number}", counted.results, listed)
        if kept > listed:
            self._note(f"results of queue {number}: {listed} are listed, {kept} are there")
        if not counted.conserved():
            self._note(f"messages of queue {number} are lost or made up: {counted}")

    def _same(self, what: str, told: int, found: int) -> None:
        if told != found:
            self._note(f"{what}: {told} are counted, {found} are there")

    def _note(self, wrong: str) -> None:
        if len(self.wrong) < WRONG_TOLD:
            self.wrong.append(wrong)


def _messages_in(rest: bytes, stored: bytes) -> int:
    """Return the number of messages that a record of a range adds to its subspace.

    A holding has several messages; a mark behind it takes some of them away again.
    """
    if rest[:1] != keys.QUEUES or rest[5:6] != keys.LEASED:
        return 1
    if records.is_mark(rest[5:]):
        return -len(records.marks.decode(stored))
    return len(records.holdings.decode(stored).entries)
