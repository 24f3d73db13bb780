"""The answers of the store as Arrow batches of exactly the schema that Spark expects.

A *page* offers columns: for each name a function that makes the array. Only those are called that
the schema has, so a narrower one costs less. Keys and values of ``data`` and ``changes`` arrive in
Arrow's own layout, and no object is made for a row.

The other tables are read as records (:data:`postroom.messaging.bulk_requests.TABLES`), and each
column has a getter. A few tables have more rows than the store has records: one for each counter,
or for each metric of a sum.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from postroom.errors import WrongType
from postroom.kv.clock import LOGICAL_BITS, Timestamp
from postroom.kv.versions import INTEGER, TOMBSTONE
from postroom.messaging import due as times
from postroom.messaging.bulk_requests import PackedColumn, RecordsPage
from postroom.messaging.queues import crossing
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.requests import Deliverable, Executable
from postroom.pipeline.typed_values import CORRUPT, Decode
from postroom.ranges.checks import unpacked
from postroom.ranges.requests import DeleteRange

Page = Mapping[str, Callable[[pa.Field], pa.Array]]
"""A page: for each column, the function that makes it."""

_FIRST: Final = b"\x00\x00\x00\x00"


def batch(page: Page, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema``, in its order and of its types."""
    return pa.RecordBatch.from_arrays([page[field.name](field) for field in schema], schema=schema)


# --- columns that arrive packed -------------------------------------------------------------------


def packed_page(answer: RecordsPage, decode: Decode | None) -> Page:
    """Return the columns of ``data`` and ``changes``."""
    columns, rows = answer.columns, answer.rows
    kinds = np.frombuffer(columns["kind"].data, np.uint8)
    stamps = np.frombuffer(columns["timestamp"].data, ">u8").astype(np.int64)

    def stored() -> pa.Array:
        return _binary(rows, columns["value"], kinds != TOMBSTONE)

    page: Page = {
        "key": lambda field: as_type(_binary(rows, columns["key"]), field),
        "value": lambda field: as_type(stored(), field),
        "deleted": lambda _: pa.array(kinds == TOMBSTONE),
        "timestamp": lambda _: pa.array(stamps),
        "time": lambda field: pa.array((stamps >> LOGICAL_BITS) * 1000).cast(field.type),
        "range": lambda _: pa.array(np.full(rows, answer.range_id, np.int64)),
    }
    if decode is None:
        return page
    keys = _binary(rows, columns["key"])
    return {**page, **_decoded("value", decode, stored, keys, (kinds == INTEGER).tolist())}


def _decoded(
    name: str,
    decode: Decode,
    stored: Callable[[], pa.Array],
    keys: pa.Array,
    integers: Sequence[bool],
) -> Page:
    """Return the column of decoded values and that of corrupt ones, decoded once for both."""
    columns = functools.cache(lambda: decode.columns(stored(), keys, integers))
    return {name: lambda _: columns()[0], CORRUPT: lambda _: columns()[1]}


def _binary(rows: int, column: PackedColumn, there: Any = None) -> pa.Array:
    validity = None
    if there is not None and not there.all():
        validity = pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(_FIRST + column.ends), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def as_type(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return ``array`` as bytes or text, by the type of a field.

    Raises:
        WrongType: these bytes are no text.
    """
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowInvalid as error:
        raise WrongType(
            f"the column {field.name!r} contains bytes that are no UTF-8: read it as binary"
        ) from error


# --- columns of records ---------------------------------------------------------------------------

Getter = Callable[[Any], Any]


def records_page(records: Sequence[Any], getters: Mapping[str, Getter]) -> Page:
    """Return the columns of records, each made by its getter."""

    def column(get: Getter) -> Callable[[pa.Field], pa.Array]:
        return lambda field: _column([get(record) for record in records], field)

    return {name: column(get) for name, get in getters.items()}


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_timestamp(field.type):
        micros = [None if each is None else (each >> LOGICAL_BITS) * 1000 for each in values]
        return pa.array(micros, pa.int64()).cast(field.type)
    if values and pa.types.is_string(field.type) and any(type(v) is bytes for v in values):
        return as_type(pa.array(values, pa.binary()), field)
    return pa.array(values, field.type)


def with_values(page: Page, name: str, keys: Iterable[bytes], decode: Decode | None) -> Page:
    """Return ``page`` with the column of values decoded."""
    if decode is None or name not in page:
        return page

    stored, keyed = page[name](pa.field(name, pa.binary())), pa.array(keys, pa.binary())
    return {**page, **_decoded(name, decode, lambda: stored, keyed, [False] * len(stored))}


def headers_text(headers: Mapping[str, Any] | None) -> str:
    """Return headers as JSON, with bytes as hexadecimal text."""
    return json.dumps(headers or {}, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


# --- tables that are read as records --------------------------------------------------------------


Expand = Callable[[int, list[Any]], list[Any]]
"""A function that returns the rows of records of a range."""


class RowTable(NamedTuple):
    """A table that is read as records.

    Attributes:
        getters: for each column, a function that returns its value in a row.
        expand: a function that returns the rows of records; ``None``: each record is a row.
    """

    getters: Mapping[str, Getter]
    expand: Expand | None = None


def _numbered(*names: str) -> dict[str, Getter]:
    return {name: itemgetter(index) for index, name in enumerate(names)}


def _of(index: int, *names: str) -> dict[str, Getter]:
    """Return the getters of attributes of the record at an index of a row."""

    def getter(name: str) -> Getter:
        return lambda row: getattr(row[index], name)

    return {name: getter(name) for name in names}


def _time_in(id_: bytes) -> int:
    return Timestamp.from_bytes(id_[:8], "big")


# --- messages -------------------------------------------------------------------------------------

_INBOX: Final[dict[str, Getter]] = {
    "key": lambda record: record.key,
    "id": lambda record: record.id.hex(),
    "value": lambda record: record.message.value,
    "headers": lambda record: headers_text(unpacked(record.message.headers)),
    "sent_at": lambda record: _time_in(record.id),
    "sent_time": lambda record: _time_in(record.id),
    "delivered_at": lambda record: record.message.delivered_at,
    "delivered_time": lambda record: record.message.delivered_at,
    "sender_range": lambda record: int.from_bytes(record.id[8:16], "big"),
}
_REAPED: Final[dict[str, Getter]] = {
    **_INBOX,
    "reaped_at": lambda record: record.reaped_at,
    "reaped_time": lambda record: record.reaped_at,
    "consumed": lambda record: bool(record.consumed),
    "attempts": lambda record: record.message.trial.attempts if record.message.trial else 0,
    "last_error": lambda record: record.message.trial.error if record.message.trial else "",
}


# --- outboxes and dead letters --------------------------------------------------------------------


def _entry(record: Any) -> Deliverable | Executable:
    """Return the message or the update of a record, or of the dead letter in it."""
    stored: Any = getattr(record, "record", record)
    found: Deliverable | Executable = stored.message or stored.update
    return found


def _key(record: Any) -> bytes:
    """Return the key that a message or an update concerns."""
    entry = _entry(record)
    if isinstance(entry, Deliverable):
        return entry.key
    return entry.request.start if isinstance(entry.request, DeleteRange) else entry.request.key


def _request(record: Any) -> str | None:
    """Return an update, or a change of a queue, as JSON: its name, and its fields."""
    entry = _entry(record)
    if isinstance(entry, Executable):
        return headers_text(_named(entry.request))
    return headers_text(_named(crossing.decode(entry.value))) if entry.is_of_queue else None


def _named(request: msgspec.Struct) -> dict[str, Any]:
    """Return the name of a request, and its fields."""
    fields = msgspec.structs.asdict(request)
    return {"request": type(request).__name__} | {
        name: msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
        for name, value in fields.items()
    }


def _message(record: Any) -> bytes | None:
    entry = _entry(record)
    return entry.value if isinstance(entry, Deliverable) and not entry.is_of_queue else None


_ENTRY: Final[dict[str, Getter]] = {
    "id": lambda record: record.id.hex(),
    "key": _key,
    "request": _request,
    "message": _message,
    "headers": lambda record: headers_text(unpacked(getattr(_entry(record), "headers", None))),
    "transaction_id": lambda record: _entry(record).transaction_id,
    "source_key": lambda record: _entry(record).source,
}
_OUTBOX: Final[dict[str, Getter]] = {
    **_ENTRY,
    "due": lambda record: times.shown(_time_in(record.id[8:])),
    "due_time": lambda record: times.shown(_time_in(record.id[8:])),
    "sent_at": lambda record: _time_in(record.id[16:]),
    "sent_time": lambda record: _time_in(record.id[16:]),
}
_LETTERS: Final[dict[str, Getter]] = {
    **_ENTRY,
    "reason": lambda record: record.record.reason,
    "sent_at": lambda record: _time_in(record.id[8:]),
    "sent_time": lambda record: _time_in(record.id[8:]),
}


# --- messages of queues ---------------------------------------------------------------------------


def _timestamp_of(name: str) -> Getter:
    """Return the getter of a timestamp; 0 is none."""
    return lambda row: getattr(row[1], name) or None


_TIMES: Final = {
    "created_at": "created_time",
    "first_scheduled": "first_scheduled_time",
    "scheduled": "scheduled_time",
    "leased_until": "leased_until_time",
    "done_at": "done_time",
    "fired_at": "fired_time",
}
QUEUE_GETTERS: Final[Mapping[str, Getter]] = {
    **_of(1, *StoredQueueMessage.__struct_fields__),
    **{name: _timestamp_of(name) for name in _TIMES},
    **{time: _timestamp_of(name) for name, time in _TIMES.items()},
    "queue": lambda row: row[0],
    "headers": lambda row: headers_text(unpacked(row[1].headers)),
}
"""The columns of rows that are the name of a queue and one of its messages."""


# --- sums, and the tables of an audit -------------------------------------------------------------

_NO_SUMS: Final = [(None, None)]


def _sums(_: int, records: list[Any]) -> list[Any]:
    """Return a row for each metric of a prefix."""
    return [(record.prefix, *sums) for record in records for sums in record.sums.items()]


def _counters(range_id: int, records: list[Any]) -> list[Any]:
    """Return a row for each counter."""
    return [
        (range_id, record.queue, record.number, *counter)
        for record in records
        if not record.dropped
        for counter in msgspec.structs.asdict(record.counters or record.counted).items()
    ]


def _beside(range_id: int, records: list[Any]) -> list[Any]:
    """Return a row for each metric of a record, and one for a record that has none."""
    return [
        (range_id, *sums, record)
        for record in records
        for sums in ((record.sums or {}).items() or _NO_SUMS)
    ]


ROW_TABLES: Final[Mapping[str, RowTable]] = {
    "inbox": RowTable(_INBOX),
    "reaped": RowTable(_REAPED),
    "outbox": RowTable(_OUTBOX),
    "dead_letters": RowTable(_LETTERS),
    "accounting": RowTable(_numbered("prefix", "metric", "value"), _sums),
    "counters": RowTable(_numbered("range", "queue", "number", "counter", "value"), _counters),
    "inbox_index": RowTable({
        name: attrgetter(name) for name in ("key", "messages", "oldest", "held")
    }),
    "places": RowTable(
        _numbered("range")
        | _of(1, "queue", "number", "part", "key", "kind", "id", "seq", "group", "outstanding"),
        lambda range_id, records: [(range_id, record) for record in records],
    ),
    "beside": RowTable(
        _numbered("range", "metric", "value")
        | _of(3, "what", "key", "number", "kind", "id", "seq", "status"),
        _beside,
    ),
}  # fmt: skip
"""The tables that are read as records, by name."""
