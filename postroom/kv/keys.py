r"""The keyspace of one node, whole, in sort order.

Nothing else in the project composes engine keys.

::

    01  store      01 name                                  identity, format version, clock ceiling
    02  raft log   02 range 'h'                             hard state: term, vote, base of the log
                   02 range 'l' index                       entry
                   02 range 'b'                             up to where nobody needs entries
                   02 range 'a'                             last entry applied: index, term
                   02 range 'm'                             members that an applied entry has set
                   02 range 's'                             snapshot on its way in: which one
                   02 range 's' ordinal                     its chunks, until it is installed
                   02 range 'o'                             entry of another range that has begun it
                   02 range 't'                             tombstone of a destroyed replica
    03  range      03 range 01 00 when <id>                 outbox, deliverable: outgoing entries
                   03 range 01 01 due <id>                  ... entries that wait, in order of due
                   03 range 02 00 when <id>                 outbox, executable: outgoing entries
                   03 range 02 01 due <id>                  ... entries that wait, in order of due
                   03 range 03 <id>                         dead letter
                   03 range 04 timestamp                    garbage: what may go once that is old
                   03 range 04 timestamp ordinal            ... more of the same proposal
                   03 range 05 name                         applied index, lease, descriptor, ...
                   03 range 05 'position ' name             up to where a reader has read
                   03 range 06 sender kind lane             up to where a channel has handed over
                   03 range 07 transaction                  prepared: what it has read, will write
                   03 range 08 00000000 name                definition of a queue
                   03 range 08 00000000 FF queue            a queue that was dropped, and is emptied
                   03 range 08 queue 01 due seq             its scheduled messages
                   03 range 08 queue 02 <group> rank seq    ready ones, in the order of their groups
                   03 range 08 queue 03 until seq           what one claim holds: list of messages
                   03 range 08 queue 03 until seq timestamp ... those that a proposal ended
                   03 range 08 queue 04 timestamp           done in one proposal: list of messages
                   03 range 08 queue 05 timestamp           archived in one proposal, too
                   03 range 08 queue 06 died seq            dead ones
                   03 range 08 queue 07 <group>             how many of a group are not done
                   03 range 08 queue 08 name                periodic schedule
                   03 range 08 queue 09 until seq           a result that goes then: whose it is
                   03 range 08 queue 0A <kind> id           result of a task
                   03 range 08 queue 0B <group> seq         ... of a group: whose it is
                   03 range 09 06 <name>                    a bulk load into keys of the range
                   03 range 09 07                           where to go on deleting what is useless
                   03 range 09 08 part                      a part of an export that is restored
                   03 range 0A <anchor> transaction         committed: spans that have not heard
                   03 range 0B queue ...                    as 08: the two take turns at each split
                   03 range 0C <name> timestamp             trail: an entry of an image, as of then
    04  txn        04 <anchor> transaction                  COMMIT record
    05  mail       05 <key>                                 index of the inboxes that have something
    06  data       06 <key> 01                              head: newest version (or intent)
                   06 <key> 02 ~timestamp                   history: older versions, newest first
                   06 <key> 03 <id>                         inbox
                   06 <key> 04 ~timestamp [<id>] [01]       reaped: what left the inbox, and when;
                                                            01: it was postponed, or died
                   06 <key> 05                              accounting: metric sums of the key
                   06 <home> 06 queue <kind> id             queue message: payload, and what it is
                   06 <home> 07 queue <kind> id             its state, if it is not what it began as
                   06 <id> 08 queue <kind>                  the home of this id, if another
                   06 <key> 09 <id>                         postponed, and holds up its inbox: where
                   06 <key> 0A                              accounting: of 05, what was added here
    07  staging    07 01 <query>                            last batch of a query
                   07 02 <query>                            what its publication takes, by attempt
                   07 03 <query> job                        a try to write a batch
                   07 04 <query> job attempt                how much an attempt has staged
                   07 05 <query> job attempt number         staged rows, a chunk

``<key>`` is a user key, escaped and terminated: ``00`` becomes ``00 FF`` and the end is ``00 01``.
Keys therefore sort as the user's bytes do, and no key is a prefix of another one. The first ``00
01`` is the end of the key, whatever follows. ``<group>``, ``<kind>`` and ``<id>`` are escaped, too.

Numbers are big-endian and of fixed width: ``range``, ``index`` and timestamps (``when``, ``due``,
``rank``, ``until``, ``died``) have 8 bytes, ``ordinal`` and ``queue`` 4. ``seq`` is a timestamp and
an ordinal; those of each range are its own. ``~`` marks a complement, which sorts the newest first.
The ``<id>`` of a message or deferred update is the timestamp of its commit, the range that sent it,
and an ordinal.

A range is one span of user keys in the last four spaces, plus its own part of ``02`` and ``03``. A
split carries COMMIT records, the index of inboxes, the inboxes and staged rows along with their
keys, and moves nothing. (``docs/storage.md`` says why inboxes have an index, ``05``.)
"""

from __future__ import annotations

from typing import Final, NamedTuple

STORE: Final = b"\x01"
RAFT_LOG: Final = b"\x02"
RANGE: Final = b"\x03"
TRANSACTION: Final = b"\x04"
MAIL: Final = b"\x05"
DATA: Final = b"\x06"
DATA_END: Final = b"\x07"
STAGED: Final = b"\x07"
STAGED_END: Final = b"\x08"

HEAD: Final = b"\x01"
HISTORY: Final = b"\x02"
INBOX: Final = b"\x03"
REAPED: Final = b"\x04"
ACCOUNTING: Final = b"\x05"
QUEUE_BODY: Final = b"\x06"
QUEUE_STATE: Final = b"\x07"
QUEUE_POINTER: Final = b"\x08"
HOLD_UP: Final = b"\x09"
POSTED: Final = b"\x0a"
SUFFIX_END: Final = b"\xff"
NOT_CONSUMED: Final = b"\x01"
"""The end of the key of a record of messages that left an inbox without being consumed."""

DELIVERABLE: Final = b"\x01"
EXECUTABLE: Final = b"\x02"
OUTGOING: Final = b"\x00"
WAITING: Final = b"\x01"
DEAD_LETTER: Final = b"\x03"
GARBAGE: Final = b"\x04"
RECORD: Final = b"\x05"
MARKS: Final = b"\x06"
PREPARED: Final = b"\x07"
QUEUES: Final = b"\x08"
OTHER_QUEUES: Final = b"\x0b"
"""The kind of the index of queues that takes turns with ``QUEUES`` (:mod:`.queues.dividing`)."""

SCHEDULED: Final = b"\x01"
READY: Final = b"\x02"
LEASED: Final = b"\x03"
DONE: Final = b"\x04"
ARCHIVED: Final = b"\x05"
DEAD: Final = b"\x06"
GROUPS: Final = b"\x07"
TICKS: Final = b"\x08"
EXPIRING: Final = b"\x09"
RESULTS: Final = b"\x0a"
GROUP_RESULTS: Final = b"\x0b"
QUEUE_END: Final = b"\xff"
"""The byte behind all subspaces of a queue."""

STAGED_QUERY: Final = b"\x01"
STAGED_WINNERS: Final = b"\x02"
STAGED_JOB: Final = b"\x03"
STAGED_TASK_ATTEMPT: Final = b"\x04"
STAGED_CHUNK: Final = b"\x05"
STAGED_SUBSPACES: Final = (
    STAGED_QUERY, STAGED_WINNERS, STAGED_JOB, STAGED_TASK_ATTEMPT, STAGED_CHUNK
)  # fmt: skip
"""The parts of the space of staged rows."""

STAGING: Final = b"\x09"
STAGED_LOAD: Final = b"\x06"
STAGED_SWEPT: Final = b"\x07"
RESTORED_PART: Final = b"\x08"
UNRESOLVED: Final = b"\x0a"
TRAIL: Final = b"\x0c"

END_OF_KEY: Final = b"\x00\x01"
_COMPLEMENT: Final = bytes(255 - byte for byte in range(256))


class KeySpan(NamedTuple):
    """Engine keys with ``lower <= key < upper``."""

    lower: bytes
    upper: bytes


def escape(key: bytes) -> bytes:
    """Return ``key`` escaped and terminated."""
    return key.replace(b"\x00", b"\x00\xff") + END_OF_KEY


def unescape(escaped: bytes) -> bytes:
    """Return the user key of an escaped one without its terminator."""
    return escaped.replace(b"\x00\xff", b"\x00")


def user_key(raw: bytes) -> bytes:
    """Return the user key in a key of the spaces ``04``, ``05`` or ``06``."""
    return unescape(raw[1 : raw.index(END_OF_KEY, 1)])


def u32(number: int) -> bytes:
    """Return 4 bytes, big-endian."""
    return number.to_bytes(4, "big")


def u64(number: int) -> bytes:
    """Return 8 bytes, big-endian: how timestamps, indexes and range ids are stored."""
    return number.to_bytes(8, "big")


def complement(ordered: bytes) -> bytes:
    """Return bytes that sort in reverse order. The function is its own inverse."""
    return ordered.translate(_COMPLEMENT)


def after_prefix(prefix: bytes) -> bytes:
    """Return the least bytes above everything that starts with ``prefix``.

    ``prefix`` is not all ``FF``.
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


# --- 01 store -----------------------------------------------------------------------------


def store_key(name: str) -> bytes:
    """Return the key of a record of the node itself."""
    return STORE + name.encode()


# --- 02 raft log --------------------------------------------------------------------------


def raft_log_prefix(range_id: int) -> bytes:
    """Return the key prefix of the log of a range."""
    return RAFT_LOG + u64(range_id)


# --- 03 range metadata --------------------------------------------------------------------


def outbox_prefix(range_id: int, kind: bytes, subspace: bytes) -> bytes:
    """Return the key prefix of the entries of an outbox in one of its subspaces.

    Args:
        range_id: the range.
        kind: ``DELIVERABLE`` or ``EXECUTABLE``.
        subspace: ``OUTGOING`` or ``WAITING``.
    """
    return RANGE + u64(range_id) + kind + subspace


def dead_letter_prefix(range_id: int) -> bytes:
    """Return the key prefix of the dead letters of a range."""
    return RANGE + u64(range_id) + DEAD_LETTER


def garbage_prefix(range_id: int) -> bytes:
    """Return the key prefix of the garbage lists of a range, which are ordered by timestamp."""
    return RANGE + u64(range_id) + GARBAGE


def record_key(range_id: int, name: str) -> bytes:
    """Return the key of a record about a range: the applied record, the lease."""
    return RANGE + u64(range_id) + RECORD + name.encode()


def marks_key(range_id: int, sender: int, kind: bytes, lane: int) -> bytes:
    """Return the key of the marks of a channel, whose entries come from the range ``sender``.

    ``kind`` is ``DELIVERABLE`` or ``EXECUTABLE``.
    """
    return RANGE + u64(range_id) + MARKS + u64(sender) + kind + bytes((lane,))


def marks_prefix(range_id: int) -> bytes:
    """Return the key prefix of the marks of all channels to a range."""
    return RANGE + u64(range_id) + MARKS


def prepared_prefix(range_id: int) -> bytes:
    """Return the key prefix of the prepared records of a range; the transaction follows."""
    return RANGE + u64(range_id) + PREPARED


def unresolved_prefix(range_id: int) -> bytes:
    """Return the key prefix of the commits of which not all ranges have heard.

    The engine key of the COMMIT record follows, without its first byte.
    """
    return RANGE + u64(range_id) + UNRESOLVED


def trail_prefix(range_id: int) -> bytes:
    """Return the key prefix of the trail of a range; an escaped name and a timestamp follow."""
    return RANGE + u64(range_id) + TRAIL


def queue_definitions_prefix(range_id: int) -> bytes:
    """Return the key prefix of the definitions of the queues of a range; the name follows."""
    return RANGE + u64(range_id) + QUEUES + u32(0)


def dropped_queues_prefix(range_id: int) -> bytes:
    """Return the key prefix of the dropped queues that are not empty; the number follows.

    No name of a queue begins so: this byte is in no text in UTF-8.
    """
    return queue_definitions_prefix(range_id) + b"\xff"


def queue_prefix(range_id: int, queue: int, index: bytes = QUEUES) -> bytes:
    """Return the key prefix of a queue; its subspace (``SCHEDULED``, ``READY``, ...) follows.

    ``index`` is ``QUEUES`` or ``OTHER_QUEUES``.
    """
    return RANGE + u64(range_id) + index + u32(queue)


def queue_counters_key(range_id: int, queue: int, index: bytes = QUEUES) -> bytes:
    """Return the key of the counters of a queue."""
    return queue_counters_prefix(range_id, index) + str(queue).encode()


def queue_counters_prefix(range_id: int, index: bytes = QUEUES) -> bytes:
    """Return the key prefix of the counters of all queues; the number follows, as text."""
    return record_key(range_id, "queue " if index == QUEUES else "other queue ")


def is_of_queues(raw: bytes) -> bool:
    """Return whether an engine key of a range belongs to the index, or the counters, of queues."""
    return raw[9:10] == QUEUES or raw[9:].startswith(queue_counters_prefix(0)[9:])


def staging_prefix(range_id: int, subspace: bytes = b"") -> bytes:
    """Return the key prefix of loads and restores in a range (``STAGED_LOAD``, ...)."""
    return RANGE + u64(range_id) + STAGING + subspace


def range_prefix(range_id: int) -> bytes:
    """Return the key prefix of the metadata of a range."""
    return RANGE + u64(range_id)


# --- 04 transactions, 05 mail -------------------------------------------------------------


def transaction_key(anchor: bytes, transaction_id: bytes) -> bytes:
    """Return the key of the COMMIT record of a transaction, beside its anchor."""
    return TRANSACTION + anchor.replace(b"\x00", b"\x00\xff") + END_OF_KEY + transaction_id


def transaction_span(start: bytes, end: bytes | None) -> KeySpan:
    """Return the span of the COMMIT records beside the user keys in ``[start, end)``."""
    upper = MAIL if end is None else TRANSACTION + escape(end)
    return KeySpan(TRANSACTION + escape(start), upper)


def mail_key(key: bytes) -> bytes:
    """Return the key of a non-empty inbox in the index of inboxes."""
    return MAIL + key.replace(b"\x00", b"\x00\xff") + END_OF_KEY


def mail_span(start: bytes, end: bytes | None) -> KeySpan:
    """Return the span of the index of inboxes for the user keys in ``[start, end)``."""
    return KeySpan(MAIL + escape(start), DATA if end is None else MAIL + escape(end))


# --- 06 data ------------------------------------------------------------------------------


def head_key(key: bytes) -> bytes:
    """Return the engine key of the newest version of a user key."""
    return DATA + key.replace(b"\x00", b"\x00\xff") + b"\x00\x01\x01"


def is_head(raw: bytes) -> bool:
    """Return whether an engine key is that of a newest version."""
    return raw[:1] == DATA and raw[raw.index(END_OF_KEY, 1) + 2 :] == HEAD


def data_span(start: bytes, end: bytes | None) -> KeySpan:
    """Return the span of all user keys in ``[start, end)``; ``end=None`` is unbounded."""
    return KeySpan(DATA + escape(start), DATA_END if end is None else DATA + escape(end))


def suffix_span(key: bytes, suffix: bytes) -> KeySpan:
    """Return all engine keys of one user key under one suffix."""
    prefix = DATA + escape(key) + suffix
    return KeySpan(prefix, DATA + escape(key) + bytes((suffix[0] + 1,)))


def history_key(head: bytes, timestamp: bytes) -> bytes:
    """Return the engine key of the version of ``timestamp`` (8 bytes) beside a head."""
    return head[:-1] + HISTORY + timestamp.translate(_COMPLEMENT)


def inbox_prefix(key: bytes) -> bytes:
    """Return the key prefix of the inbox entries of a user key; the id of the message follows."""
    return DATA + key.replace(b"\x00", b"\x00\xff") + b"\x00\x01\x03"


def reaped_key(key: bytes, timestamp: bytes) -> bytes:
    """Return the key of the record of messages that left an inbox at ``timestamp`` (8 bytes)."""
    return DATA + escape(key) + REAPED + complement(timestamp)


def reaped_in(raw: bytes, end: int) -> tuple[bytes, bool]:
    """Return when messages left an inbox (8 bytes), and whether they were consumed.

    Both are in the engine key of the record, in which the user key ends at ``end``.
    """
    start = end + len(END_OF_KEY) + len(REAPED)
    return complement(raw[start : start + 8]), len(raw) % 2 == (start + 8) % 2


def hold_up_span(key: bytes) -> KeySpan:
    """Return the span of the postponed messages that hold up an inbox; ids follow."""
    return suffix_span(key, HOLD_UP)


def accounting_key(key: bytes) -> bytes:
    """Return the key of the metric sums of one prefix."""
    return DATA + escape(key) + ACCOUNTING


def posted_key(key: bytes) -> bytes:
    """Return the key of the sums that were posted to ``key`` itself."""
    return DATA + escape(key) + POSTED


def queue_message_infix(suffix: bytes, queue: bytes, kind: bytes) -> bytes:
    """Return the infix between home and id in the engine key of a queue's message.

    ``suffix`` tells whether it is that of the body or of the state; ``queue`` is the number of the
    queue (4 bytes).
    """
    return END_OF_KEY + suffix + queue + escape(kind)


def queue_message_key(home: bytes, infix: bytes, id_: bytes) -> bytes:
    """Return the engine key of the body or the state of a message."""
    return DATA + home.replace(b"\x00", b"\x00\xff") + infix + id_


def queue_pointer_prefix(id_: bytes, queue: bytes) -> bytes:
    """Return the key prefix of the pointers to messages with the id ``id_``.

    The kind follows, escaped.
    """
    return DATA + escape(id_) + QUEUE_POINTER + queue


# --- 07 staging ---------------------------------------------------------------------------


def staged_prefix(subspace: bytes, query: bytes) -> bytes:
    """Return the key prefix of what a query has in a subspace of staged rows."""
    return STAGED + subspace + escape(query)


def staged_span(subspace: bytes, start: bytes, end: bytes | None) -> KeySpan:
    """Return the span of a subspace of staged rows, for the queries in ``[start, end)``."""
    prefix = STAGED + subspace
    upper = after_prefix(prefix) if end is None else prefix + escape(end)
    return KeySpan(prefix + escape(start), upper)


def staged_spans(start: bytes, end: bytes | None) -> tuple[KeySpan, ...]:
    """Return the spans of all staged rows of the queries in ``[start, end)``, in order."""
    return tuple(staged_span(subspace, start, end) for subspace in STAGED_SUBSPACES)
