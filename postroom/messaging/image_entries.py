"""The entries of an image: their names, their tables, and the checks of their values.

The *name* of an entry is its engine key (:mod:`postroom.kv.keys`) without the id of its range. Thus
it is the same in a store with other ranges::

    05 <key>              name: the same
    06 <key> ...          name: the same
    07 kind <key> ...     name: the same
    03 range kind ...     name: 03 kind ...

==============  ========================================================================
table           entries
==============  ========================================================================
data            the newest version of each key that has a value
inbox           messages in inboxes
inbox_index     the number of messages by key; postponed messages that hold up an inbox
accounting      sums by prefix, and the amounts added to each key itself
queue           bodies and states of queue messages, and the pointers of their ids
queue_index     definitions, places in queues, groups and their followers, schedules
outbox          entries that wait to be delivered or carried out
dead_letters    entries that could not be delivered or carried out
staging         the last batches of queries, and rows that are staged
counters        the numbers of all messages by fate; the same for each queue
access          the grants
==============  ========================================================================

An image leaves out older versions, reaped messages, lists of garbage, COMMIT records, leases of
ranges, and the nodes.

Values are as the engine contains them, with one exception. A record that says where a postponed
message waits contains an engine key; the image has a name instead. An entry that comes from
elsewhere is checked here. It is decoded by its type, and nothing in it is later than the
image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from postroom.errors import Invalid, shorten
from postroom.kv import keys, versions
from postroom.limits import (
    GRANTS_BYTES_MAX,
    GRANTS_MAX,
    KEY_BYTES_MAX,
    METRICS_PER_PREFIX_MAX,
    RESTORED_HELD_MAX,
    STAGED_CHUNK_BYTES_MAX,
    STAGED_QUERY_BYTES_MAX,
    STAGED_WINNERS_MAX,
    VALUE_BYTES_MAX,
)
from postroom.messaging.ingest import machine, staging
from postroom.messaging.ingest.requests import JOB_BYTES, TASK_ATTEMPT_BYTES, Winner
from postroom.messaging.queues import records
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.definitions import NUMBER_RECORD
from postroom.messaging.queues.event_groups import Outstanding
from postroom.messaging.queues.holdings import ENDED_LIST_LENGTH
from postroom.messaging.queues.periodic import PeriodicSchedule
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.requests import (
    MESSAGE_ID_BYTES,
    Counters,
    DeadLetterRecord,
    Deliverable,
    Delivered,
    Executable,
    InboxIndexEntry,
)
from postroom.ranges.access import Grant
from postroom.ranges.rights import EVERY_VERB
from postroom.ranges.state import APPLIED_RECORD, decode_applied

DATA: Final = "data"
INBOX: Final = "inbox"
INBOX_INDEX: Final = "inbox_index"
ACCESS: Final = "access"
TABLES: Final = (
    DATA, INBOX, INBOX_INDEX, "accounting", "queue", "queue_index", "outbox", "dead_letters",
    "staging", "counters", "access",
)  # fmt: skip

_STAMP: Final = 8
_QUEUE_DIGITS: Final = 10
_KIND: Final = 1
"""The position of the kind in the name of an entry that belongs to a range."""

Check = Callable[[bytes, bytes, bytes], None]
"""A check of an entry.

It gets the part of the name behind its table, the value, and the timestamp of the image (8 bytes).
It raises ``ValueError`` if the entry is not valid.
"""

_COUNTERS: Final = b"messages"
_ACCESS: Final = b"access"
_ACCESS_NAME: Final = keys.RANGE + keys.RECORD + _ACCESS
COUNTERS_NAME: Final = keys.RANGE + keys.RECORD + _COUNTERS
"""The name of the counters of messages. A range has them in its applied record."""
_APPLIED_NAME: Final = keys.RANGE + keys.RECORD + APPLIED_RECORD.encode()


# --- names ----------------------------------------------------------------------------------------


def name_of(raw: bytes) -> bytes:
    """Return the name of the entry at an engine key."""
    if raw[:1] != keys.RANGE:
        return raw
    name = keys.RANGE + raw[9:]
    return COUNTERS_NAME if name == _APPLIED_NAME else name


def engine_key_of(name: bytes, range_id: int) -> bytes:
    """Return the engine key of an entry in the range ``range_id``."""
    if name == COUNTERS_NAME:
        name = _APPLIED_NAME
    if name[:1] == keys.RANGE:
        return keys.range_prefix(range_id) + name[_KIND:]
    return name


def table_of(name: bytes) -> str | None:
    """Return the table of an entry, or `None` if it belongs to no image."""
    space = name[:1]
    if space == keys.DATA:
        end = name.find(keys.END_OF_KEY, 1)
        return None if end < 0 else _BESIDE_KEYS.get(name[end + 2 : end + 3], _NO_TABLE)[0]
    if space != keys.RANGE:
        is_staged = space == keys.STAGED and name[1:2] in _STAGED
        return INBOX_INDEX if space == keys.MAIL else "staging" if is_staged else None
    kind = name[_KIND : _KIND + 1]
    if name == _ACCESS_NAME:
        return ACCESS
    is_other_record = kind == keys.RECORD and not _is_counters(name[_KIND + 1 :])
    is_no_load = kind == keys.STAGING and name[_KIND + 1 : _KIND + 2] != keys.STAGED_LOAD
    if is_other_record or is_no_load:
        return None
    return _OF_RANGE.get(kind, _NO_TABLE)[0]


def _named_as_first(raw: bytes, index: bytes) -> bytes:
    """Return the name of an entry of a range that has another index than ``keys.QUEUES``.

    Entries of an index that is not in use have names of no image.
    """
    of_range, rest = raw[:9], raw[9:]
    for kind, other in ((index, keys.QUEUES), (keys.QUEUES, index)):
        prefix = keys.queue_counters_prefix(0, kind)[9:]
        if rest.startswith(prefix):
            named = keys.queue_counters_prefix(0, other)[9:]
            return keys.RANGE + named + rest[len(prefix) :]
    if rest[:1] == index:
        return keys.RANGE + keys.QUEUES + rest[1:]
    if rest[:1] == keys.QUEUES and not raw.startswith(_definitions_of(of_range)):
        return keys.RANGE + index + rest[1:]
    return keys.RANGE + rest


def _definitions_of(of_range: bytes) -> bytes:
    return of_range + keys.QUEUES + keys.u32(0)


def _is_counters(record: bytes) -> bool:
    if record in {_COUNTERS, NUMBER_RECORD.encode()}:
        return True
    number = record.removeprefix(b"queue ")
    return number != record and number.isdigit() and len(number) <= _QUEUE_DIGITS


def shown(raw: bytes, stored: bytes, index: bytes = keys.QUEUES) -> tuple[bytes, bytes] | None:
    """Return the name and the value of a stored entry, as the image has them.

    `None`: it is no part of an image, like a key that was deleted, or the counters of a range that
    has seen no message.

    Args:
        raw: its engine key.
        stored: its value.
        index: the kind of the index of queues that its range has. All images have the same one.
    """
    name = raw
    if raw[:1] == keys.RANGE:
        name = keys.RANGE + raw[9:] if index == keys.QUEUES else _named_as_first(raw, index)
        if name == _APPLIED_NAME:
            sums = decode_applied(stored).sums
            return (COUNTERS_NAME, sums) if sums else None
    table = table_of(name)
    if table is None or (table == DATA and stored[0] == versions.TOMBSTONE):
        return None
    if table == INBOX_INDEX and _is_hold_up(name):
        return name, name_of(stored)
    return name, stored


def meant(name: bytes, stored: bytes, range_id: int) -> bytes:
    """Return the value of an entry, as the range ``range_id`` has it."""
    return engine_key_of(stored, range_id) if _is_hold_up(name) else stored


def _is_hold_up(name: bytes) -> bool:
    if name[-MESSAGE_ID_BYTES - 1 : -MESSAGE_ID_BYTES] != keys.HOLD_UP or name[:1] != keys.DATA:
        return False
    end = name.find(keys.END_OF_KEY, 1)
    return end + 3 + MESSAGE_ID_BYTES == len(name)


# --- checks ---------------------------------------------------------------------------------------


def check(name: bytes, stored: bytes, until: bytes) -> str:
    """Check an entry, and return its table.

    Args:
        name: the name of the entry.
        stored: its value.
        until: the timestamp of the image (8 bytes): nothing was committed after it.

    Raises:
        Invalid: it is not valid.
    """
    table = table_of(name)
    try:
        if table is None:
            raise ValueError("it belongs to no table")
        if name[:1] == keys.RANGE:
            _OF_RANGE[name[_KIND : _KIND + 1]][1](name[_KIND + 1 :], stored, until)
        elif name[:1] == keys.STAGED:
            _check_staged(name, stored)
        else:
            _check_of_key(name, stored, until)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(
            f"the entry {shorten(name)} of an image cannot be: {error}; nothing of this chunk was "
            "stored: the folder contains no export, or a damaged one"
        ) from error
    return table


def _check_of_key(name: bytes, stored: bytes, until: bytes) -> None:
    end = _end_of_key(name, 1, KEY_BYTES_MAX)
    if name[:1] == keys.MAIL:
        _mail(name[end + 2 :], stored, until)
    else:
        _BESIDE_KEYS[name[end + 2 : end + 3]][1](name[end + 3 :], stored, until)


def _end_of_key(name: bytes, start: int, bytes_max: int) -> int:
    """Return where the key in a name ends that begins at ``start``."""
    end = name.index(keys.END_OF_KEY, start)
    key = keys.unescape(name[start:end])
    if len(key) > bytes_max or keys.escape(key) != name[start : end + 2]:
        raise ValueError("its key is too long, or is not written as keys are")
    return end


def _not_later(stamp: bytes, until: bytes) -> None:
    if stamp > until:
        raise ValueError("it is later than the image that it is in")


def _has_bytes(rest: bytes, count: int) -> None:
    if len(rest) != count:
        raise ValueError(f"its name ends with {len(rest)} bytes, not with {count}")


def _head(rest: bytes, stored: bytes, until: bytes) -> None:
    _has_bytes(rest, 0)
    size = len(stored) - versions.PAYLOAD
    if stored[:1] not in {versions.VALUE_KIND, versions.INTEGER_KIND} or size < 0:
        raise ValueError("it is no value")
    if size > VALUE_BYTES_MAX or (versions.is_integer(stored) and size != 8):
        raise ValueError(f"a value of {size} bytes")
    _not_later(stored[1 : versions.PAYLOAD], until)


def _decoded(kind: Any, name_bytes: int | None, stamp_at: int | None = None) -> Check:
    """Return a check that decodes the value.

    ``stamp_at``: where its name has a commit timestamp.
    """
    decode = msgspec.msgpack.Decoder(kind).decode

    def check_one(rest: bytes, stored: bytes, until: bytes) -> None:
        if name_bytes is not None:
            _has_bytes(rest, name_bytes)
        if stamp_at is not None:
            _not_later(rest[stamp_at : stamp_at + _STAMP], until)
        decode(stored)

    return check_one


_mail = _decoded(InboxIndexEntry, 0)
_sums = _decoded(Annotated[dict[str, int], msgspec.Meta(max_length=METRICS_PER_PREFIX_MAX)], 0)


def _hold_up(rest: bytes, stored: bytes, until: bytes) -> None:
    _has_bytes(rest, MESSAGE_ID_BYTES)
    _not_later(rest[:_STAMP], until)
    waits_at = keys.RANGE + keys.DELIVERABLE + keys.WAITING
    if not stored.startswith(waits_at):
        raise ValueError("it names no place in an outbox")
    _has_bytes(stored[len(waits_at) :], _OUTBOX_NAME_BYTES)


def _in_outbox(kind: Any) -> Check:
    check_entry = _decoded(kind, _OUTBOX_NAME_BYTES, _STAMP)

    def check_one(rest: bytes, stored: bytes, until: bytes) -> None:
        if rest[:1] not in {keys.OUTGOING, keys.WAITING}:
            raise ValueError("it is in no subspace of an outbox")
        check_entry(rest[1:], stored, until)

    return check_one


def _queue_message(kind: Any) -> Check:
    decode = msgspec.msgpack.Decoder(kind).decode

    def check_one(rest: bytes, stored: bytes, until: bytes) -> None:
        end = rest.index(keys.END_OF_KEY, 4)
        keys.unescape(rest[4:end]).decode()
        if len(rest) - end - 2 > KEY_BYTES_MAX:
            raise ValueError("its id is too long")
        _not_later(decode(stored).seq[:_STAMP], until)

    return check_one


def _pointer(rest: bytes, stored: bytes, until: bytes) -> None:
    keys.unescape(rest[4:-2]).decode()
    if rest[-2:] != keys.END_OF_KEY or len(stored) > KEY_BYTES_MAX:
        raise ValueError("it points to no key")


def _record(rest: bytes, stored: bytes, until: bytes) -> None:
    if rest != _ACCESS:
        _counters(rest, stored)
    elif len(stored) > GRANTS_BYTES_MAX or not all(
        each.name and 0 < each.granted <= int(EVERY_VERB) for each in _grants.decode(stored)
    ):
        raise ValueError("it has no grants, or too many")


def _counters(rest: bytes, stored: bytes) -> None:
    if rest == NUMBER_RECORD.encode():
        _has_bytes(stored, 4)
        return
    is_queue = rest != _COUNTERS
    counted = (_queue_counted if is_queue else _counted).decode(stored)
    if not counted.conserved():
        raise ValueError(f"messages are lost or made up: {counted}")


def _queues(rest: bytes, stored: bytes, until: bytes) -> None:
    if rest[:4] == keys.u32(0):
        if not isinstance(_definitions.decode(stored), QueueDefinition):
            raise ValueError("it is no definition")
        return
    decode = _SUBSPACES.get(rest[4:5])
    if decode is None:
        raise ValueError("it is in no subspace of a queue")
    if rest[4:5] == keys.LEASED and records.is_mark(rest[4:]):
        decode = _marks.decode
    decode(stored)


def _load(rest: bytes, stored: bytes, until: bytes) -> None:
    if len(rest) - 1 > STAGED_QUERY_BYTES_MAX:
        raise ValueError("its name is too long")
    _loads(stored)


def _check_staged(name: bytes, stored: bytes) -> None:
    subspace = name[1:2]
    _has_bytes(name[_end_of_key(name, 2, STAGED_QUERY_BYTES_MAX) + 2 :], _STAGED_BYTES[subspace])
    if subspace == keys.STAGED_CHUNK and len(stored) > STAGED_CHUNK_BYTES_MAX:
        raise ValueError("it is too long a chunk")
    _STAGED[subspace](stored)


class _Outline(msgspec.Struct, frozen=True, array_like=True):
    """A holding whose entries are not decoded."""

    consumer: bytes
    since: int
    until: int
    transaction: bytes
    claim: int
    entries: msgspec.Raw
    fired: int = 0


def _holding(stored: bytes) -> None:
    _held.decode(_outlines.decode(stored).entries)


# The decoders check these limits before they decode anything.
_outlines: Final = msgspec.msgpack.Decoder(_Outline)
_held: Final = msgspec.msgpack.Decoder(
    Annotated[list[records.Entry], msgspec.Meta(max_length=RESTORED_HELD_MAX)]
)
_marks: Final = msgspec.msgpack.Decoder(
    Annotated[list[int], msgspec.Meta(max_length=RESTORED_HELD_MAX)]
)
_winners: Final = msgspec.msgpack.Decoder(
    Annotated[list[Winner], msgspec.Meta(max_length=STAGED_WINNERS_MAX)]
)
_ended: Final = msgspec.msgpack.Decoder(
    Annotated[list[records.Ended], msgspec.Meta(max_length=ENDED_LIST_LENGTH)]
)
_grants: Final = msgspec.msgpack.Decoder(
    Annotated[list[Grant], msgspec.Meta(max_length=GRANTS_MAX)]
)
_counted: Final = msgspec.msgpack.Decoder(Counters)
_queue_counted: Final = msgspec.msgpack.Decoder(QueueCounts)
_definitions: Final = msgspec.msgpack.Decoder(QueueDefinition)
_SUBSPACES: Final[dict[bytes, Callable[[bytes], Any]]] = {
    keys.SCHEDULED: records.entries.decode,
    keys.READY: records.entries.decode,
    keys.LEASED: _holding,
    keys.DONE: _ended.decode,
    keys.ARCHIVED: _ended.decode,
    keys.DEAD: records.entries.decode,
    keys.GROUPS: msgspec.msgpack.Decoder(Outstanding).decode,
    keys.TICKS: msgspec.msgpack.Decoder(PeriodicSchedule).decode,
    keys.EXPIRING: records.result_names.decode,
    keys.RESULTS: records.results.decode,
    keys.GROUP_RESULTS: records.result_names.decode,
}
_STAGED: Final[dict[bytes, Callable[[bytes], Any]]] = {
    keys.STAGED_QUERY: staging.queries.decode,
    keys.STAGED_WINNERS: _winners.decode,
    keys.STAGED_JOB: machine.decoder(machine.StagedBatch),
    keys.STAGED_TASK_ATTEMPT: staging.task_attempts.decode,
    keys.STAGED_CHUNK: staging.rows.decode,
}
_STAGED_BYTES: Final = {
    keys.STAGED_QUERY: 0, keys.STAGED_WINNERS: 0, keys.STAGED_JOB: JOB_BYTES,
    keys.STAGED_TASK_ATTEMPT: JOB_BYTES + TASK_ATTEMPT_BYTES,
    keys.STAGED_CHUNK: JOB_BYTES + TASK_ATTEMPT_BYTES + 4,
}  # fmt: skip
"""The lengths of names behind their queries."""
_loads: Final = machine.decoder(machine.LoadedSpan)
_BESIDE_KEYS: Final[dict[bytes, tuple[str, Check]]] = {
    keys.HEAD: (DATA, _head),
    keys.INBOX: (INBOX, _decoded(Delivered, MESSAGE_ID_BYTES, 0)),
    keys.HOLD_UP: (INBOX_INDEX, _hold_up),
    keys.ACCOUNTING: ("accounting", _sums),
    keys.POSTED: ("accounting", _sums),
    keys.QUEUE_BODY: ("queue", _queue_message(records.Body)),
    keys.QUEUE_STATE: ("queue", _queue_message(records.MessageState)),
    keys.QUEUE_POINTER: ("queue", _pointer),
}
"""The tables and the checks of the entries beside keys, by suffix."""
_OUTBOX_NAME_BYTES: Final = _STAMP + MESSAGE_ID_BYTES
_OF_RANGE: Final[dict[bytes, tuple[str, Check]]] = {
    keys.DELIVERABLE: ("outbox", _in_outbox(Deliverable)),
    keys.EXECUTABLE: ("outbox", _in_outbox(Executable)),
    keys.DEAD_LETTER: ("dead_letters", _decoded(DeadLetterRecord, MESSAGE_ID_BYTES, 0)),
    keys.RECORD: ("counters", _record),
    keys.QUEUES: ("queue_index", _queues),
    keys.STAGING: ("staging", _load),
}
"""The tables and the checks of the entries of a range, by kind."""
_NO_TABLE: Final = (None, None)
