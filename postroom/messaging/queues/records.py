"""What is stored of queues, and where.

::

    enqueued           fired                      acknowledged
    body               body                       body, until it is purged
    ready | scheduled ─▶ holding of its claim ───▶ state (done), list of what one proposal ended
         ▲               │ rejected, expired
         └── state ◀─────┘

A *body* is what a message says; it is written once. (A small payload is in the entry as well, until
the message is fired.) An *entry* stands for a live message in one of
the parts of its queue: scheduled, ready, leased, dead. It moves from one to the next, in one write
set with whatever made it move, so a message is in one part at a time. What one claim was given is
leased as a whole: its entries are one record, a *holding*. When all of them are over, it is
deleted; as long as some are not, each proposal that ends others of them adds a *mark* behind it,
with their numbers in the holding. A *state* is written only for what neither body nor entry tells:
after a failure, and at the end. So a message that succeeds at the first attempt is two writes, one
and a share of a holding for the attempt, and one and a share of a list for its end.

``seq`` (timestamp and ordinal of the enqueuing) is the same for the whole life of a message. It
makes keys unique, and tells one message from a later one with the same id.

Ready entries are ordered within their group by *rank*: when they were due, later by
``AGEING_SECONDS`` for each level of priority. So what is least urgent (127) is overtaken by what
is most urgent (-128) for 255 times that, and not longer. With ``order="group"`` the rank is the
first schedule, which no failure changes.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import Reader

AGEING_SECONDS: Final = 60
"""A message of one level of priority overtakes those of the next one for so long."""
_AGEING: Final = from_seconds(AGEING_SECONDS)
LATEST_DUE: Final = 1 << 62
SEQ_BYTES: Final = 12
_KNOWN_AT_ONCE: Final = 1000

PAYLOAD_KEPT_BYTES: Final = 512
"""Of a payload that is not larger, in bytes, the entry has a copy."""

LIVE: Final = 0
DONE: Final = 1
ARCHIVED: Final = 2
DEAD: Final = 3
CANCELLED: Final = 4
MOVED: Final = 5
"""Dead, and a message of another queue now."""

PURGED: Final = frozenset({DONE, CANCELLED, MOVED})
"""What is in the lists of what is to be purged."""

Locator: TypeAlias = tuple[bytes, str, bytes]
"""Key, kind and id of a message."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A live message in one of the parts of its queue.

    Attributes:
        due: when it is to be fired next; ``first``: at first.
        epoch: how many times it was fired before.
        not_before: of the head of an ordered group that failed: when it may be fired again.
        has_failed: its state tells why.
        payload: of a small message without headers, so that its body need not be read when it is
            fired first; ``None``: its body tells.
    """

    key: bytes
    kind: str
    id: bytes
    seq: bytes
    due: int
    first: int
    priority: int = 0
    epoch: int = 0
    group: str = ""
    not_before: int = 0
    has_failed: bool = False
    payload: bytes | None = None

    @property
    def locator(self) -> Locator:
        """Which message."""
        return self.key, self.kind, self.id


class Holding(msgspec.Struct, frozen=True, array_like=True, tag="holding", gc=False):
    """What one claim was given: leased together, each until it is settled.

    Attributes:
        since, until: timestamps.
        transaction: the claim ends with this transaction, if it is not empty.
        claim: the number of the claim, among those of the consumer.
        fired: when it was handed out, if that was before ``since``: it was extended.
    """

    consumer: bytes
    since: int
    until: int
    transaction: bytes
    claim: int
    entries: list[Entry]
    fired: int = 0

    @property
    def fired_at(self) -> int:
        """When it was handed out, however often it was extended since."""
        return self.fired or self.since


class _LeaseOfOne(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease as it was stored before there were holdings: each message had its own."""

    entry: Entry
    consumer: bytes
    since: int
    until: int
    transaction: bytes = b""
    claim: int = 0
    fired: int = 0


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a message says."""

    seq: bytes
    payload: bytes
    headers: dict[str, Any] | None
    first: int
    priority: int
    group: str

    @property
    def created_at(self) -> int:
        """The timestamp of the commit that enqueued it."""
        return int.from_bytes(self.seq[:8], "big")


class State(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of a message, where its body does not tell.

    Attributes:
        status: ``LIVE``, ``DONE`` and so on.
        due: when it is, or was, to be fired next.
        at: when it ended; 0: it lives.
        error: why it failed at last.
        fired: when the attempt was handed out that ended it; 0: nobody held it.
    """

    seq: bytes
    status: int
    epoch: int
    due: int
    at: int = 0
    error: str = ""
    fired: int = 0


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in the list of those that one proposal has ended."""

    key: bytes
    kind: str
    id: bytes
    seq: bytes
    status: int = DONE


encode = msgspec.msgpack.encode
entries: Final = msgspec.msgpack.Decoder(Entry)
marks: Final = msgspec.msgpack.Decoder(list[int])
_holdings: Final = msgspec.msgpack.Decoder(Holding)
_leases_of_one: Final = msgspec.msgpack.Decoder(_LeaseOfOne)
_IS_HOLDING: Final = encode("holding")
bodies: Final = msgspec.msgpack.Decoder(Body)
states: Final = msgspec.msgpack.Decoder(State)
ended_lists: Final = msgspec.msgpack.Decoder(list[Ended])


def read_holding(packed: bytes) -> Holding:
    """A holding as it is stored, or the lease of one message as it once was."""
    if packed.startswith(_IS_HOLDING, 1):
        return _holdings.decode(packed)
    old = _leases_of_one.decode(packed)
    return Holding(
        old.consumer, old.since, old.until, old.transaction, old.claim, [old.entry], old.fired
    )


def still_held(reader: Reader, key: bytes, packed: bytes) -> list[Entry]:
    """The entries of a holding that no mark behind it names.

    Args:
        reader: of what is stored.
        key: where the holding is stored; ``packed``: what is there.
    """
    over: set[int] = set()
    for _, mark in reader.iterate(key + b"\x00", keys.after_prefix(key)):
        over.update(marks.decode(mark))
    return [each for n, each in enumerate(read_holding(packed).entries) if n not in over]


def is_mark(where: bytes) -> bool:
    """Whether a key of the part *leased* tells which messages of the holding before it are over
    (:func:`mark_key`).

    Args:
        where: the key without what is the same for all keys of the queue.
    """
    return len(where) > len(keys.LEASED) + 8 + SEQ_BYTES


def rank(entry: Entry, *, ordered: bool) -> int:
    """Where an entry stands in its group: the least is fired first."""
    if ordered:
        return entry.first
    return max(entry.due + entry.priority * _AGEING, 0)


def kept_payload(payload: bytes, headers: dict[str, Any] | None) -> bytes | None:
    """The copy of it in the entry."""
    return payload if headers is None and len(payload) <= PAYLOAD_KEPT_BYTES else None


def without_payload(entry: Entry) -> Entry:
    """As it is leased: its holder has the payload."""
    if entry.payload is None:
        return entry
    return Entry(
        entry.key, entry.kind, entry.id, entry.seq, entry.due, entry.first, entry.priority,
        entry.epoch, entry.group, entry.not_before, entry.has_failed,
    )  # fmt: skip


def mark_key(holding: bytes, stamp: bytes) -> bytes:
    """Where it is told which messages of a holding are over since the proposal of this stamp."""
    return holding + stamp


class Layout:
    """The engine keys of one queue in one range.

    Attributes:
        scheduled, ready, leased, done, archived, dead, groups, ticks: what the keys of the parts
            begin with.
    """

    def __init__(self, range_id: int, number: int) -> None:
        self.number = keys.u32(number)
        self.whole = keys.queue_prefix(range_id, number)
        self.scheduled = self.whole + keys.SCHEDULED
        self.ready = self.whole + keys.READY
        self.leased = self.whole + keys.LEASED
        self.done = self.whole + keys.DONE
        self.archived = self.whole + keys.ARCHIVED
        self.dead = self.whole + keys.DEAD
        self.groups = self.whole + keys.GROUPS
        self.ticks = self.whole + keys.TICKS
        self.counters = keys.record_key(range_id, f"queue {number}")
        self._bodies: dict[str, bytes] = {}
        self._states: dict[str, bytes] = {}
        self._groups_known: dict[str, bytes] = {}

    def scheduled_key(self, entry: Entry) -> bytes:
        """Of an entry that is not due yet."""
        return self.scheduled + entry.due.to_bytes(8, "big") + entry.seq

    def group_prefix(self, group: str) -> bytes:
        """What the keys of the ready entries of a group begin with."""
        known = self._groups_known.get(group)
        if known is None:
            if len(self._groups_known) >= _KNOWN_AT_ONCE:
                self._groups_known.clear()
            self._groups_known[group] = known = self.ready + keys.escape(group.encode())
        return known

    def ready_key(self, entry: Entry, *, ordered: bool) -> bytes:
        """Of an entry that may be fired."""
        stands = rank(entry, ordered=ordered).to_bytes(8, "big")
        return self.group_prefix(entry.group) + stands + entry.seq

    def holding_key(self, until: int, name: bytes) -> bytes:
        """Of what a claim holds.

        Args:
            name: 12 bytes, which no other one has.
        """
        return self.leased + until.to_bytes(8, "big") + name

    def until_in(self, key: bytes) -> int:
        """When a holding ends, by its key."""
        return int.from_bytes(key[len(self.leased) :][:8], "big")

    def is_mark(self, key: bytes) -> bool:
        """The same of an engine key."""
        return is_mark(key[len(self.whole) :])

    def is_list(self, key: bytes) -> bool:
        """Whether a key is that of a list of what one proposal has ended."""
        return key.startswith((self.done, self.archived))

    def dead_key(self, at: int, seq: bytes) -> bytes:
        """Of an entry that died at ``at``."""
        return self.dead + at.to_bytes(8, "big") + seq

    def group_key(self, group: str) -> bytes:
        """Where it is counted what is not done of a group."""
        return self.groups + keys.escape(group.encode())

    def tick_key(self, name: str) -> bytes:
        """Of a periodic schedule."""
        return self.ticks + name.encode()

    def body_key(self, key: bytes, kind: str, id_: bytes) -> bytes:
        """Where the body of a message is."""
        infix = self._bodies.get(kind) or self._infix(self._bodies, keys.QUEUE_BODY, kind)
        return keys.queue_message_key(key, infix, id_)

    def state_key(self, key: bytes, kind: str, id_: bytes) -> bytes:
        """Where its state is, if it has one."""
        infix = self._states.get(kind) or self._infix(self._states, keys.QUEUE_STATE, kind)
        return keys.queue_message_key(key, infix, id_)

    def _infix(self, known: dict[str, bytes], suffix: bytes, kind: str) -> bytes:
        """Of a kind; there are few as a rule."""
        if len(known) >= _KNOWN_AT_ONCE:
            known.clear()
        known[kind] = infix = keys.queue_message_infix(suffix, self.number, kind.encode())
        return infix

    def pointers(self, id_: bytes) -> bytes:
        """What the keys begin with that tell the keys of messages with this id."""
        return keys.queue_pointer_prefix(id_, self.number)

    def pointer_key(self, kind: str, id_: bytes) -> bytes:
        """Where the key of a message is told, if that is not its id."""
        return keys.queue_pointer_prefix(id_, self.number) + keys.escape(kind.encode())
