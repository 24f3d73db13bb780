"""The columns of the tables that are read as records: what makes each of them, from a record.

Most tables have the records of the store (:data:`postroom.messaging.bulk_requests.TABLES`). A few
have more rows than the store has records: one for each counter, or for each metric of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from postroom.kv.clock import Timestamp
from postroom.messaging import due as times
from postroom.messaging.queues.requests import StoredQueueMessage
from postroom.messaging.requests import Deliverable, Executable
from postroom.pipeline.columns import Getter, headers_text
from postroom.ranges.checks import unpacked
from postroom.ranges.requests import DeleteRange

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
    """Return an update as JSON: its name, and its fields, with bytes as hexadecimal text."""
    entry = _entry(record)
    if isinstance(entry, Deliverable):
        return None
    fields = msgspec.structs.asdict(entry.request)
    return headers_text({"request": type(entry.request).__name__, **fields})


def _message(record: Any) -> bytes | None:
    entry = _entry(record)
    return entry.value if isinstance(entry, Deliverable) else None


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
    "due": lambda record: times.shown(_time_in(record.id)),
    "due_time": lambda record: times.shown(_time_in(record.id)),
    "sent_at": lambda record: _time_in(record.id[8:]),
    "sent_time": lambda record: _time_in(record.id[8:]),
}
_LETTERS: Final[dict[str, Getter]] = {
    **_ENTRY,
    "reason": lambda record: record.record.reason,
    "sent_at": lambda record: _time_in(record.id),
    "sent_time": lambda record: _time_in(record.id),
}


# --- messages of queues ---------------------------------------------------------------------------


def _timestamp_of(name: str) -> Getter:
    """Return the getter of a timestamp; 0 is none."""
    return lambda row: getattr(row[1], name) or None


def _attribute(name: str) -> Getter:
    return lambda row: getattr(row[1], name)


_TIMES: Final = {
    "created_at": "created_time",
    "first_scheduled": "first_scheduled_time",
    "scheduled": "scheduled_time",
    "leased_until": "leased_until_time",
    "done_at": "done_time",
    "fired_at": "fired_time",
}
QUEUE_GETTERS: Final[Mapping[str, Getter]] = {
    **{name: _attribute(name) for name in StoredQueueMessage.__struct_fields__},
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


def _of(index: int, *names: str) -> dict[str, Getter]:
    """Return the getters of attributes of the record at an index of a row."""

    def getter(name: str) -> Getter:
        return lambda row: getattr(row[index], name)

    return {name: getter(name) for name in names}


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
