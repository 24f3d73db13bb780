"""One part of one table, as Arrow batches: pages of the store, turned into columns.

The next page is on its way while one is turned into a batch (:mod:`postroom.client.bulk`). A
timestamp is protected for as long as it is read, over this process's own connection, whoever else
protects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from postroom.client.sync import Database
from postroom.kv.clock import Timestamp
from postroom.kv.columns import packed
from postroom.kv.versions import INTEGER, TOMBSTONE, VALUE
from postroom.messaging import due as times
from postroom.messaging.queues.requests import StoredQueueMessage
from postroom.messaging.requests import Deliverable, Delivered, Executable
from postroom.pipeline.columns import (
    Getter,
    Page,
    batch,
    headers_text,
    packed_page,
    records_page,
    with_values,
)
from postroom.pipeline.decoding import Decode
from postroom.pipeline.filters import Span
from postroom.pipeline.recounting import RECOUNTED
from postroom.pipeline.tables import SINCE, VALUES
from postroom.ranges.bulk_requests import Columns
from postroom.ranges.headers import unpacked
from postroom.ranges.requests import CommittedChange, DeleteRange

_delivered = msgspec.msgpack.Decoder(Delivered)
_BETWEEN: Final = SINCE | {"data"}


@dataclass(frozen=True)
class Part:
    """What one task reads.

    Attributes:
        spans: of keys.
        range_id, generation: of the range that held them when this was planned.
        queue, state: of messages of queues.
    """

    spans: tuple[Span, ...] = ((b"", None),)
    range_id: int = 0
    generation: int = 0
    queue: str = ""
    state: str = ""


@dataclass(frozen=True)
class Work:
    """How parts of a table are read.

    Attributes:
        table: which.
        at: the timestamp.
        after, until: only what is of later than ``after``, and not later than ``until``.
        schema: of the batches.
        decode: unpacks values.
    """

    table: str
    at: int
    after: int
    until: int
    schema: pa.Schema
    decode: Decode | None


def read(db: Database, part: Part, work: Work) -> Iterator[pa.RecordBatch]:
    """The batches of a part, none of them empty.

    Raises:
        SnapshotTooOld: the timestamp cannot be read any more.
    """
    if work.table in _BETWEEN and min(work.at, work.until) <= work.after:
        return  # nothing is between them, and perhaps they are collected, or in the future
    first = max(work.after, 1) if work.table in SINCE else work.at
    with db.hold(first):
        yield from _READERS[work.table](db, part, work)


# --- data and changes -----------------------------------------------------------------------------


def _data(db: Database, part: Part, work: Work) -> Iterator[pa.RecordBatch]:
    changes = work.table == "changes"
    at = min(work.at, work.until) if changes else work.at
    wanted = "value" in work.schema.names
    for start, end in part.spans:
        pages = db.bulk.columns(start, end, at=at, after=work.after, changes=changes, values=wanted)
        for page in pages:
            if page.rows:
                yield batch(packed_page(page, part.range_id, work.decode), work.schema)


def recent(db: Database, part: Part, work: Work) -> list[pa.RecordBatch] | None:
    """The changes of a part from what the leaseholder remembers; ``None``: they are more than one
    answer holds.
    """
    ((start, end),) = part.spans
    answer = db.bulk.recent_changes(start, end, work.after)
    if answer.until < work.until and answer.changes:
        return None
    return of_changes(answer.changes, part, work)


def of_changes(changes: list[CommittedChange], part: Part, work: Work) -> list[pa.RecordBatch]:
    """Those of a part's changes that were committed up to ``work.until``."""
    found = [each for each in changes if each.timestamp <= work.until]
    if not found:
        return []
    keys, ends = packed([each.key for each in found])
    values, value_ends = packed([each.value or b"" for each in found])
    stamps = b"".join(each.timestamp.to_bytes(8, "big") for each in found)
    kinds = bytes(_kind(each) for each in found)
    columns = Columns(len(found), None, 0, keys, ends, values, value_ends, stamps, kinds)
    return [batch(packed_page(columns, part.range_id, work.decode), work.schema)]


def _kind(change: CommittedChange) -> int:
    if change.value is None:
        return TOMBSTONE
    return INTEGER if change.integer else VALUE


# --- messages -------------------------------------------------------------------------------------


def _records(
    found: list[Any], getters: Mapping[str, Getter], key: Getter, work: Work
) -> Iterator[pa.RecordBatch]:
    if found:
        page: Page = records_page(found, getters)
        page = with_values(page, VALUES.get(work.table, ""), map(key, found), work.decode)
        yield batch(page, work.schema)


def _inbox(db: Database, part: Part, work: Work) -> Iterator[pa.RecordBatch]:
    decode = _delivered.decode
    for start, end in part.spans:
        for page in db.bulk.inboxes(start, end, at=work.at):
            found = [
                (key, id_, decode(stored)) for key, inbox in page.inboxes for id_, stored in inbox
            ]
            yield from _records(found, _INBOX, lambda each: each[0], work)


def _reaped(db: Database, part: Part, work: Work) -> Iterator[pa.RecordBatch]:
    decode, at = _delivered.decode, min(work.at, work.until)
    for start, end in part.spans:
        for page in db.bulk.reaped(start, end, at=at, after=work.after):
            found = [
                (key, id_, decode(stored), when, consumed)
                for key, when, consumed, messages in page.records
                for id_, stored in messages
            ]
            yield from _records(found, _REAPED, lambda each: each[0], work)


def _time_in(id_: bytes) -> int:
    return Timestamp.from_bytes(id_[:8], "big")


_INBOX: Final[dict[str, Getter]] = {
    "key": lambda each: each[0],
    "id": lambda each: each[1].hex(),
    "value": lambda each: each[2].value,
    "headers": lambda each: headers_text(unpacked(each[2].headers)),
    "sent_at": lambda each: _time_in(each[1]),
    "sent_time": lambda each: _time_in(each[1]),
    "delivered_at": lambda each: each[2].delivered_at,
    "delivered_time": lambda each: each[2].delivered_at,
    "sender_range": lambda each: int.from_bytes(each[1][8:16], "big"),
}


_REAPED: Final[dict[str, Getter]] = {
    **_INBOX,
    "reaped_at": lambda each: each[3],
    "reaped_time": lambda each: each[3],
    "consumed": lambda each: each[4],
    "attempts": lambda each: each[2].trial.attempts if each[2].trial else 0,
    "last_error": lambda each: each[2].trial.error if each[2].trial else "",
}


def _outbox(db: Database, _: Part, work: Work) -> Iterator[pa.RecordBatch]:
    for page in db.bulk.outbox(at=work.at):
        found = [(each.id, each.message or each.update, "") for each in page.entries]
        yield from _records(found, _OUTBOX, lambda each: _about(each[1]), work)


def _dead_letters(db: Database, _: Part, work: Work) -> Iterator[pa.RecordBatch]:
    for page in db.bulk.dead_letters(at=work.at):
        found = [
            (each.id, each.record.message or each.record.update, each.record.reason)
            for each in page.letters
        ]
        yield from _records(found, _LETTERS, lambda each: _about(each[1]), work)


def _about(entry: Deliverable | Executable) -> bytes:
    """The key that a message or an update is about."""
    if isinstance(entry, Deliverable):
        return entry.key
    return entry.request.start if isinstance(entry.request, DeleteRange) else entry.request.key


def _request(entry: Deliverable | Executable) -> str | None:
    """An update as JSON: its name, and its fields, bytes as hexadecimal text."""
    if isinstance(entry, Deliverable):
        return None
    fields = msgspec.structs.asdict(entry.request)
    return headers_text({"request": type(entry.request).__name__, **fields})


_ENTRY: Final[dict[str, Getter]] = {
    "id": lambda each: each[0].hex(),
    "key": lambda each: _about(each[1]),
    "request": lambda each: _request(each[1]),
    "message": lambda each: each[1].value if isinstance(each[1], Deliverable) else None,
    "headers": lambda each: headers_text(unpacked(getattr(each[1], "headers", None))),
    "transaction_id": lambda each: each[1].transaction_id,
    "source_key": lambda each: each[1].source,
}
_OUTBOX: Final[dict[str, Getter]] = {
    **_ENTRY,
    "due": lambda each: times.shown(_time_in(each[0])),
    "due_time": lambda each: times.shown(_time_in(each[0])),
    "sent_at": lambda each: _time_in(each[0][8:]),
    "sent_time": lambda each: _time_in(each[0][8:]),
}
_LETTERS: Final[dict[str, Getter]] = {
    **_ENTRY,
    "reason": lambda each: each[2],
    "sent_at": lambda each: _time_in(each[0]),
    "sent_time": lambda each: _time_in(each[0]),
}


# --- queues, sums ---------------------------------------------------------------------------------


def _queue(db: Database, part: Part, work: Work) -> Iterator[pa.RecordBatch]:
    until = 0 if work.until >= (1 << 63) - 1 else work.until + 1
    ended = part.state in {"done", "archived", "dead"}
    start, end = (work.after, until) if ended else (0, 0)
    for page in db.bulk.queue(part.queue, part.state, at=work.at, start=start, end=end):
        found = [(part.queue, each) for each in page.messages]
        yield from _records(found, _QUEUE, lambda each: each[1].key, work)


def _of_message(name: str) -> Getter:
    return lambda each: getattr(each[1], name)


def _moment(name: str) -> Getter:
    """A timestamp; 0 is none."""
    return lambda each: getattr(each[1], name) or None


_TIMES: Final = {
    "created_at": "created_time",
    "first_scheduled": "first_scheduled_time",
    "scheduled": "scheduled_time",
    "leased_until": "leased_until_time",
    "done_at": "done_time",
    "fired_at": "fired_time",
}
_QUEUE: Final[dict[str, Getter]] = {
    **{name: _of_message(name) for name in StoredQueueMessage.__struct_fields__},
    **{name: _moment(name) for name in _TIMES},
    **{time: _moment(name) for name, time in _TIMES.items()},
    "queue": lambda each: each[0],
    "headers": lambda each: headers_text(unpacked(each[1].headers)),
}


def _accounting(db: Database, part: Part, work: Work) -> Iterator[pa.RecordBatch]:
    for start, end in part.spans:
        for page in db.bulk.accounting(start, end, at=work.at):
            found = [
                (prefix, metric, value)
                for prefix, sums in page.sums
                for metric, value in sums.items()
            ]
            yield from _records(found, _SUMS, lambda each: each[0], work)


_SUMS: Final[dict[str, Getter]] = {
    "prefix": lambda each: each[0],
    "metric": lambda each: each[1],
    "value": lambda each: each[2],
}


def _recounted(db: Database, part: Part, work: Work) -> Iterator[pa.RecordBatch]:
    read, getters = RECOUNTED[work.table]
    for found in read(db, part.spans, part.queue, work.at):
        yield from _records(found, getters, lambda _: b"", work)


_Reader = Callable[[Database, Part, Work], Iterator[pa.RecordBatch]]

_READERS: Final[dict[str, _Reader]] = {
    "data": _data,
    "changes": _data,
    "inbox": _inbox,
    "reaped": _reaped,
    "outbox": _outbox,
    "dead_letters": _dead_letters,
    "queue": _queue,
    "archive": _queue,
    "accounting": _accounting,
    **dict.fromkeys(RECOUNTED, _recounted),
}

__all__ = ["Part", "Work", "of_changes", "read", "recent"]
