"""The request for pages of all records of a table, the tables, and the form of a page.

A page has one packed column for each attribute of its records, and no object for a record. Values
of variable size lie one after the other, with the end of each; the others have a fixed size::

    rows = 2     key: data "ab" "c", ends 2 3      timestamp: data 8 bytes, 8 bytes

A reader hands the bytes of a column on as they are, or unpacks records (:func:`records`).
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

import msgspec

from postroom.kv import keys
from postroom.kv.columns import packed
from postroom.limits import (
    QUEUE_NAME_BYTES_MAX,
    SCAN_COLUMNS_MAX,
    SCAN_CURSOR_BYTES_MAX,
    TABLE_NAME_CHARACTERS_MAX,
)
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.requests import (
    Counters,
    DeadLetterRecord,
    Deliverable,
    Delivered,
    Executable,
)
from postroom.ranges.contract import Concern, KeySet, Read, on_everything
from postroom.ranges.requests import Bound, Count, TimestampNumber
from postroom.ranges.rights import Need, Verb


class RecordFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A filter of the records of a table.

    Attributes:
        after: of ``data``, ``changes`` and ``reaped``: only records of a later timestamp.
        queue: of ``places``: the queue; empty: the outboxes and dead letters.
    """

    after: TimestampNumber = 0
    queue: Annotated[str, msgspec.Meta(max_length=QUEUE_NAME_BYTES_MAX)] = ""


ALL_RECORDS: Final = RecordFilter()


# --- the form of a page ---------------------------------------------------------------------------


class PackedColumn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A column in one piece.

    Attributes:
        data: all values.
        ends: where each value ends: 4 bytes, the least significant first. Empty if all values have
            the size of the column's kind.
    """

    data: bytes
    ends: bytes = b""


class RecordsPage(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``ScanRecords``. A page may be empty and yet not the last.

    Attributes:
        range_id: the range that had the records; at a timestamp that is protected as a whole, the
            one of then.
        rows: the number of records.
        columns: the columns by name, in the order of the table.
        resume: the ``cursor`` of the next page; ``None``: this was the last one.
    """

    range_id: int
    rows: int
    columns: dict[str, PackedColumn]
    resume: bytes | None


class ColumnKind(NamedTuple):
    """A kind of columns.

    Attributes:
        width: the number of bytes of each value; 0: it varies.
        store: a function that returns the bytes of a value; `None`: it is bytes.
        load: a function that returns the value of its bytes.
    """

    width: int
    store: Callable[[Any], bytes] | None
    load: Callable[[bytes], Any]


def _as_it_is(value: Any) -> Any:
    return value


def _stored(kind: Any) -> ColumnKind:
    """Return the kind of columns that have stored structures; empty: there is none."""
    decode = msgspec.msgpack.Decoder(kind).decode
    return ColumnKind(0, None, lambda stored: decode(stored) if stored else None)


BYTES: Final = ColumnKind(0, None, _as_it_is)
TEXT: Final = ColumnKind(0, str.encode, bytes.decode)
INTEGER: Final = ColumnKind(8, lambda number: number.to_bytes(8, "big"),
                            lambda stored: int.from_bytes(stored, "big"))  # fmt: skip
BYTE: Final = ColumnKind(1, lambda number: bytes((number,)), lambda stored: stored[0])
_MESSAGE: Final = _stored(Delivered)
_SUMS: Final = _stored(dict[str, int])

Columns = dict[str, ColumnKind]
_VERSIONS: Final[Columns] = {"key": BYTES, "value": BYTES, "timestamp": INTEGER, "kind": BYTE}
_ENTRIES: Final[Columns] = {"name": BYTES, "stored": BYTES}

TABLES: Final[dict[str, Columns]] = {
    # The newest version of each key that has a value. Kinds: 1 a value, 4 an integer.
    "data": _VERSIONS,
    # All versions, the oldest of each key first. Kind 2 is a deletion.
    "changes": _VERSIONS,
    "inbox": {"key": BYTES, "id": BYTES, "message": _MESSAGE},
    # The messages that left inboxes: consumed, or postponed, or buried.
    "reaped": {
        "key": BYTES, "id": BYTES, "message": _MESSAGE, "reaped_at": INTEGER, "consumed": BYTE,
    },
    "outbox": {"id": BYTES, "message": _stored(Deliverable), "update": _stored(Executable)},
    "dead_letters": {"id": BYTES, "record": _stored(DeadLetterRecord)},
    "accounting": {"prefix": BYTES, "sums": _SUMS},
    # First the counters of the range, in ``counters``; then those of each queue, in ``counted``.
    # The counters of a queue that is ``dropped`` mean nothing: it is being emptied.
    "counters": {
        "queue": TEXT, "number": INTEGER, "dropped": BYTE, "counters": _stored(Counters),
        "counted": _stored(QueueCounts),
    },
    "inbox_index": {"key": BYTES, "messages": INTEGER, "oldest": BYTES, "held": BYTES},
    # The place of each message, or the number of ``outstanding`` messages of a group. The parts
    # outside of queues are ``message``, ``update`` (of outboxes) and ``dead_letter``. Those of a
    # queue are ``scheduled``, ``ready``, ``leased``, ``dead``, ``done``, ``cancelled``, ``moved``,
    # ``archived`` and ``group``. ``number`` is that of the queue.
    "places": {
        "queue": TEXT, "number": INTEGER, "part": TEXT, "key": BYTES, "kind": TEXT, "id": BYTES,
        "seq": BYTES, "group": TEXT, "outstanding": INTEGER,
    },
    # The records beside keys. ``what``: ``message`` (in its inbox), ``hold``, ``sum``, ``posted``
    # (the part of the sums that was added to this very key), ``body`` or ``state`` (of a queue's
    # message). Sums have the status 0.
    "beside": {
        "what": TEXT, "key": BYTES, "number": INTEGER, "kind": TEXT, "id": BYTES, "seq": BYTES,
        "status": BYTE, "sums": _SUMS,
    },
    # The records of the slots of queues with limits (:mod:`postroom.messaging.queues.slot_sums`).
    "slots": _ENTRIES,
    # The entries of an image (:mod:`postroom.messaging.image_entries`): those of the keys, and
    # those of no key. ``marks`` are those of the channels to a range (`03 06 sender kind lane`).
    "image": _ENTRIES,
    "range_image": _ENTRIES,
    "marks": _ENTRIES,
    # The entries of the trail (:mod:`postroom.messaging.trail`), divided in the same way.
    "trail": _ENTRIES,
    "range_trail": _ENTRIES,
}  # fmt: skip
"""The columns of each table."""


OF_NO_KEY: Final = frozenset({"outbox", "dead_letters", "counters", "places", "slots"})
OF_ONE_RANGE: Final = OF_NO_KEY | {"range_image", "marks", "range_trail"}
"""The tables of records of no key: those of the range of the key ``start``."""
_OF_SPACES: Final = frozenset({"image", "trail"})
"""The tables of keys that are walked over several times, in one space after the other."""
_OF_VERSIONS: Final = frozenset({"data", "changes"})
_BEFORE_KEY: Final = 8
"""The bytes of a cursor before its key, in tables of versions."""
_BEFORE_NAME: Final = 4
"""The bytes of a cursor before its engine key, in other tables."""
_OF_KEYS_ALONE: Final = frozenset(
    {"data", "changes", "inbox", "reaped", "accounting", "inbox_index"}
)


class ScanRecords(Read, frozen=True, tag="scan_records"):
    """A request for a page of the records of a table; the answer is ``RecordsPage``.

    Attributes:
        table: the name of the table, one of ``TABLES``.
        start, end: the span of keys. The records of a table that belong to no key are those of the
            range of ``start``.
        timestamp: the timestamp to read at, which is protected; of ``changes`` and ``reaped`` the
            last one that counts. A table without versions needs one that is protected as a whole;
            0: now.
        filter: the records that are wanted.
        columns: the columns that are wanted; empty: all.
        cursor: the ``resume`` of the page before; empty: from the first record.
        bytes_max: about how large the page may be; 0: as the node likes.
    """

    answer: ClassVar = RecordsPage
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)

    table: Annotated[str, msgspec.Meta(max_length=TABLE_NAME_CHARACTERS_MAX)]
    start: Bound
    end: Bound | None
    timestamp: TimestampNumber
    filter: RecordFilter = ALL_RECORDS
    columns: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=TABLE_NAME_CHARACTERS_MAX)], ...],
        msgspec.Meta(max_length=SCAN_COLUMNS_MAX),
    ] = ()
    cursor: Annotated[bytes, msgspec.Meta(max_length=SCAN_CURSOR_BYTES_MAX)] = b""
    bytes_max: Count = 0

    def concerns(self) -> Concern:
        """Return the rest of the span, or the first key for records that belong to no key."""
        if self.table in OF_ONE_RANGE:
            return KeySet((self.start,))
        first = self.start if self.table in _OF_SPACES else max(self.start, self._key_of_cursor())
        return KeySet(spans=((first, self.end),))

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about a piece of the rest of the span."""
        ((start, end),) = concern.spans
        return msgspec.structs.replace(self, start=start, end=end)

    def goes_on(self) -> bool:
        """Return whether it may go on from range to range."""
        return self.table not in OF_ONE_RANGE | _OF_SPACES

    def _key_of_cursor(self) -> bytes:
        """Return the key at which its cursor is; the cursor may be anything."""
        if self.table in _OF_VERSIONS:
            return self.cursor[_BEFORE_KEY:]
        name = self.cursor[_BEFORE_NAME:]
        return keys.unescape(name[1 : name.find(keys.END_OF_KEY, 1)])

    def needs(self) -> Iterator[Need]:
        """Yield the right to read the span, or everything if records tell of more than its keys."""
        if self.table in _OF_KEYS_ALONE:
            yield Need(Verb.READ, spans=((self.start, self.end),))
        else:
            yield on_everything(Verb.READ)


def cursor_at(table: str, key: bytes) -> bytes:
    """Return the cursor of a scan that goes on at a key, of which no record is known."""
    if table in _OF_VERSIONS:
        return bytes(_BEFORE_KEY) + key
    space = keys.MAIL if table == "inbox_index" else keys.DATA
    return bytes(_BEFORE_NAME) + space + keys.escape(key)


def pack(kind: ColumnKind, values: Iterable[Any]) -> PackedColumn:
    """Return a column of these values."""
    stored = values if kind.store is None else map(kind.store, values)
    if kind.width:
        return PackedColumn(b"".join(stored))
    return PackedColumn(*packed(stored))


def unpack(kind: ColumnKind, column: PackedColumn) -> list[Any]:
    """Return the values of a column."""
    data, load = column.data, kind.load
    width = kind.width
    ends = range(0, len(data) + 1, width) if width else _unpacked_ends(column.ends)
    return [load(data[start:end]) for start, end in pairwise(ends)]


def _unpacked_ends(ends: bytes) -> list[int]:
    found = array("I", ends)
    if sys.byteorder == "big":  # pragma: no cover - no such machine runs the tests
        found.byteswap()
    return [0, *found]


def records(table: str, page: RecordsPage) -> list[Any]:
    """Return the records of a page, as named tuples of its columns."""
    kinds = TABLES[table]
    columns = [unpack(kinds[name], column) for name, column in page.columns.items()]
    return [*map(_record_type(table, tuple(page.columns))._make, zip(*columns, strict=True))]


@functools.cache
def _record_type(table: str, names: tuple[str, ...]) -> Any:
    return namedtuple(table, names)
