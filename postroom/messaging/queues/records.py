"""The stored records of queues, and their engine keys.

::

    enqueued           fired                      acknowledged
    body               body                       body, until it is purged
    ready | scheduled ─▶ holding of its claim ───▶ state (done), list of ended messages
         ▲               │ rejected, expired
         └── state ◀─────┘

A *body* has the payload and the headers of a message; it is written once. A small payload is in the
entry as well, until the message is fired. An *entry* stands for a message in one of the subspaces
of its queue: scheduled, ready, leased, dead. It moves from one to the next in one write set with
its cause, so a message is in one subspace at a time.

The messages of one claim are leased as a whole: their entries are one record, a *holding*. It is
deleted when all of them are over. Until then, each proposal that ends others of them adds a *mark*
behind it, with their numbers in the holding. A *state* is written only for what neither body nor
entry says: after a failure, and at the end.

Thus a message that succeeds at the first attempt costs two writes to enqueue. Its attempt costs one
write and a share of a holding; its end costs one write and a share of a list.

``seq`` (timestamp and ordinal of the enqueuing) is the same for the whole life of a message. It
makes keys unique, and distinguishes a message from a later one with the same id. Ranges may use one
timestamp, so each has ordinals of its own (:meth:`QueueLayout.seq`). Thus
a backup can make one range of them.

Ready entries are ordered within their group by *rank*: their due time, later by ``AGEING_SECONDS``
for each level of priority. The most urgent messages (-128) overtake the least urgent ones (127) for
255 times that, and not longer.

With ``order="group"`` the rank in a group is the first schedule, which neither a failure nor
another schedule changes. A message that is put off keeps its place, and holds up those behind it:
it becomes ready at its first schedule, and is not fired before ``not_before``. Messages without a
group are in no order there either.

A record may be damaged::

    restart · firing · time ─▶ a record that nothing can decode ─▶ its queue is set aside
    a request of a client   ─▶ the same ─────────────────────────▶ that request is refused

A queue that is set aside serves nobody until the stored records are replaced, or the queue is
dropped (:mod:`.advance`). All others go on. It is set aside in the leaseholder's memory only.
Nothing is written: the next leaseholder finds the damage by itself, and followers apply records
without reading them. A block that the storage engine cannot read (``BlockDamaged``) is damage of a
disk, not of a record, and another node may have it whole. It is handled elsewhere.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import Reader, ValueReader
from postroom.limits import TROUBLE_CHARACTERS_MAX
from postroom.log_once import shown
from postroom.messaging import due as times
from postroom.messaging.queues.homes import home_of, told_key
from postroom.messaging.queues.requests import TaskFailure
from postroom.ranges.checks import Headers, has_headers
from postroom.ranges.contract import ROOT_ID

T = TypeVar("T")

AGEING_SECONDS: Final = 60
"""The number of seconds for which a message overtakes those of the next level of priority."""
_AGEING: Final = from_seconds(AGEING_SECONDS)
SEQ_BYTES: Final = 12
_ORDINALS: Final = 1 << 16
"""The number of ordinals that a range has for itself at each timestamp."""
_ORDINALS_MASK: Final = (1 << 32) - 1
_KNOWN_AT_ONCE: Final = 1000

PAYLOAD_KEPT_BYTES: Final = 512
"""The size in bytes up to which the entry has a copy of the payload."""

LIVE: Final = 0
DONE: Final = 1
ARCHIVED: Final = 2
DEAD: Final = 3
CANCELLED: Final = 4
MOVED: Final = 5
"""The status of a dead message that is now a message of another queue."""

PURGED: Final = frozenset({DONE, CANCELLED, MOVED})
"""The statuses of messages in the lists that are to be purged."""

Locator: TypeAlias = tuple[bytes, str, bytes]
"""The name of a message: its home (:mod:`.homes`), kind and id."""

EndedFields: TypeAlias = tuple[bytes, str, bytes, bytes, int]
"""The fields of an :class:`Ended`, which are stored as one is."""

AttemptName: TypeAlias = tuple[Locator, int]
"""The name of an attempt: its message, and when it began. No two attempts have the same."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in one of the subspaces of its queue.

    Attributes:
        due: when it is to be fired next (:mod:`postroom.messaging.due`).
        first: when it was to be fired at first.
        epoch: how many times it was fired before.
        not_before: in an ordered group, when a message that failed or was put off may be fired.
        has_failed: whether its state says why an attempt has failed.
        payload: the payload of a small message without headers, so that its body need not be read
            when it is first fired; ``None``: read its body.
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
        """Return the name of the message."""
        home = home_of(self.key, self.group) if self.group else self.key
        return home, self.kind, self.id


class Holding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The messages of one claim: leased together, each until it is settled.

    Attributes:
        since, until: the timestamps between which they are leased.
        transaction: the transaction with which the claim ends, if it is not empty.
        claim: the number of the claim, among those of the consumer.
        fired: the timestamp of firing, if that was before ``since``: the lease was extended.
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
        """Return the timestamp at which the messages were fired.

        An extension does not change it.
        """
        return self.fired or self.since


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The payload and the schedule of a message, as it was enqueued.

    Attributes:
        key: its key, if neither its home nor its id is that.
    """

    seq: bytes
    payload: bytes
    headers: Headers
    first: int
    priority: int
    group: str
    key: bytes | None = None

    @property
    def created_at(self) -> int:
        """Return the timestamp of the commit that enqueued it."""
        return int.from_bytes(self.seq[:8], "big")

    def key_of(self, locator: Locator) -> bytes:
        """Return the key of its message."""
        return told_key(self.key, locator[0], locator[2], self.group)


class MessageState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of a message, for what its body does not say.

    Attributes:
        status: ``LIVE``, ``DONE`` and so on.
        due: when it is, or was, to be fired next.
        at: when it ended; 0: it is live.
        error: why it failed last.
        fired: when the attempt that ended it was fired; 0: nobody held it.
    """

    seq: bytes
    status: int
    epoch: int
    due: int
    at: int = 0
    error: str = ""
    fired: int = 0


class KeptResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of a task, kept beside the messages: it may outlive its own.

    Attributes:
        seq: that of its message.
        until: the timestamp at which it goes.
        group: the group of its message.
        value: what the task returned, packed; ``None``: nothing.
        failure: the failure of which the message died.
        home: the home of its message.
    """

    seq: bytes
    until: int
    group: str = ""
    value: bytes | None = None
    failure: TaskFailure | None = None
    home: bytes = b""


class ResultName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The message to which a listed result belongs, and its home."""

    kind: str
    id: bytes
    group: str = ""
    home: bytes = b""


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in the list of those that one proposal has ended.

    Attributes:
        home: where it lies.
    """

    home: bytes
    kind: str
    id: bytes
    seq: bytes
    status: int = DONE


encode = msgspec.msgpack.encode
entries: Final = msgspec.msgpack.Decoder(Entry)
marks: Final = msgspec.msgpack.Decoder(list[int])
holdings: Final = msgspec.msgpack.Decoder(Holding)
bodies: Final = msgspec.msgpack.Decoder(Body)
states: Final = msgspec.msgpack.Decoder(MessageState)
ended_lists: Final = msgspec.msgpack.Decoder(list[Ended])
results: Final = msgspec.msgpack.Decoder(KeptResult)
result_names: Final = msgspec.msgpack.Decoder(ResultName)


def still_held(reader: Reader, key: bytes, packed: bytes) -> list[Entry]:
    """Return the entries of a holding that no mark behind it names.

    Args:
        reader: the stored state.
        key: the engine key of the holding.
        packed: the stored holding.
    """
    over: set[int] = set()
    for _, mark in reader.iterate(key + b"\x00", keys.after_prefix(key)):
        over.update(marks.decode(mark))
    return [each for n, each in enumerate(holdings.decode(packed).entries) if n not in over]


def is_mark(where: bytes) -> bool:
    """Return whether a key of the subspace *leased* is that of a mark (:func:`mark_key`).

    Args:
        where: the key without the prefix that all keys of the queue share.
    """
    return len(where) > len(keys.LEASED) + 8 + SEQ_BYTES


def with_schedule(entry: Entry, due: int, now: int, *, ordered: bool, **said: Any) -> Entry:
    """Return the entry with another schedule, and nothing of the one before.

    Args:
        entry: the entry as it was.
        due: when it is to be fired.
        now: the timestamp of the proposal.
        ordered: whether the groups of its queue are in order.
        said: other changes.
    """
    waits = ordered and due > now and bool(said.get("group", entry.group))
    said |= {"due": due, "not_before": due if waits else 0}
    return msgspec.structs.replace(entry, **said)


def ready_at(entry: Entry, *, ordered: bool) -> int:
    """Return when a scheduled entry becomes ready.

    An entry of an ordered group takes its place at its first schedule, although it may be put off.
    """
    if ordered and entry.group:
        return min(entry.due, entry.first, key=times.shown)
    return entry.due


def rank(entry: Entry, *, ordered: bool) -> int:
    """Return the position of an entry in its group; the least is fired first."""
    if ordered and entry.group:
        return times.shown(entry.first)
    return max(times.shown(entry.due) + entry.priority * _AGEING, 0)


def kept_payload(payload: bytes, headers: Headers) -> bytes | None:
    """Return the copy of a payload that the entry keeps, or `None` if it keeps none."""
    return payload if not has_headers(headers) and len(payload) <= PAYLOAD_KEPT_BYTES else None


def without_payload(entry: Entry) -> Entry:
    """Return the entry as it is leased, without the payload, which its holder has."""
    if entry.payload is None:
        return entry
    return Entry(
        entry.key, entry.kind, entry.id, entry.seq, entry.due, entry.first, entry.priority,
        entry.epoch, entry.group, entry.not_before, entry.has_failed,
    )  # fmt: skip


def mark_key(holding: bytes, stamp: bytes) -> bytes:
    """Return the key of the mark that the proposal of this stamp adds to a holding."""
    return holding + stamp


# --- damage

UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of decoding a damaged record: a text may be no UTF-8, headers may be too deep."""
UNREADABLE: Final = (*UNDECODABLE, ValueError, LookupError, OverflowError, StoreCorrupted)
"""The errors of reading a damaged record. Let ``BlockDamaged`` through before catching these."""


class QueueDamaged(StoreCorrupted):
    """An error for a record of a queue that cannot be read. To users it is a ``StoreCorrupted``.

    Attributes:
        queue: its name.
    """

    def __init__(self, queue: str, message: str) -> None:
        super().__init__(message)
        self.queue = queue


def damaged(queue: str, what: str, error: object) -> QueueDamaged:
    """Return the error for a queue with a damaged record.

    Args:
        queue: its name.
        what: the record.
        error: the error of reading it.
    """
    why = shown(str(error), TROUBLE_CHARACTERS_MAX)
    return QueueDamaged(
        queue,
        f"the queue {queue!r} is damaged: {what} cannot be read ({why}); nothing was changed: "
        "restore a backup, or drop the queue with all that it holds; other queues go on",
    )


def decoded(decoder: msgspec.msgpack.Decoder[T], packed: bytes, queue: str) -> T:
    """Return a decoded record of a queue.

    Raises:
        QueueDamaged: it cannot be decoded.
    """
    try:
        return decoder.decode(packed)
    except UNDECODABLE as error:
        kind = decoder.type
        what = f"a stored {getattr(kind, '__name__', 'list').lower()} of {len(packed)} bytes"
        raise damaged(queue, what, error) from error


# --- engine keys


INDEX_RECORD: Final = "index of queues"


def index_in_use(reader: ValueReader, range_id: int) -> bytes:
    """Return the kind of the index that the queues of a range have (:mod:`.dividing`)."""
    return reader.get(keys.record_key(range_id, INDEX_RECORD)) or keys.QUEUES


class QueueLayout:
    """The engine keys of one queue in one range.

    Args:
        range_id: the id of the range.
        number: the number of the queue.
        index: the kind of the index: ``keys.QUEUES`` or ``keys.OTHER_QUEUES``.

    Attributes:
        number: the number of the queue, packed.
        whole: the key prefix of the queue's index.
        scheduled, ready, leased, done, archived, dead, groups, ticks, expiring, results,
            group_results: the key prefixes of its subspaces.
        moments: the key at which the messages scheduled for moments begin.
        counters: the key of its counters.
    """

    def __init__(self, range_id: int, number: int, index: bytes = keys.QUEUES) -> None:
        self.number = keys.u32(number)
        self._ordinals_from = (range_id - ROOT_ID) * _ORDINALS
        self.whole = keys.queue_prefix(range_id, number, index)
        self.scheduled = self.whole + keys.SCHEDULED
        self.moments = self.scheduled + keys.u64(times.MOMENT)
        self.ready = self.whole + keys.READY
        self.leased = self.whole + keys.LEASED
        self.done = self.whole + keys.DONE
        self.archived = self.whole + keys.ARCHIVED
        self.dead = self.whole + keys.DEAD
        self.groups = self.whole + keys.GROUPS
        self.ticks = self.whole + keys.TICKS
        self.expiring = self.whole + keys.EXPIRING
        self.results = self.whole + keys.RESULTS
        self.group_results = self.whole + keys.GROUP_RESULTS
        self.counters = keys.queue_counters_key(range_id, number, index)
        self._bodies: dict[str, bytes] = {}
        self._states: dict[str, bytes] = {}
        self._groups_known: dict[str, bytes] = {}

    def seq(self, stamp: bytes, ordinal: int) -> bytes:
        """Return a timestamp and an ordinal of this range, as 12 bytes; they rise with ordinals."""
        return stamp + ((self._ordinals_from + ordinal) & _ORDINALS_MASK).to_bytes(4, "big")

    def scheduled_key(self, entry: Entry, *, ordered: bool) -> bytes:
        """Return the key of an entry that is not ready yet."""
        return self.scheduled + ready_at(entry, ordered=ordered).to_bytes(8, "big") + entry.seq

    def group_prefix(self, group: str) -> bytes:
        """Return the key prefix of the ready entries of a group."""
        known = self._groups_known.get(group)
        if known is None:
            if len(self._groups_known) >= _KNOWN_AT_ONCE:
                self._groups_known.clear()
            self._groups_known[group] = known = self.ready + keys.escape(group.encode())
        return known

    def ready_key(self, entry: Entry, *, ordered: bool) -> bytes:
        """Return the key of an entry that may be fired."""
        group, due = entry.group, entry.due
        prefix = self._groups_known.get(group) or self.group_prefix(group)
        if entry.priority or group or due & times.MOMENT:
            due = rank(entry, ordered=ordered)
        return prefix + due.to_bytes(8, "big") + entry.seq

    def holding_key(self, until: int, name: bytes) -> bytes:
        """Return the key of a holding.

        Args:
            until: the timestamp at which it ends.
            name: 12 bytes, which no other holding has.
        """
        return self.leased + until.to_bytes(8, "big") + name

    def until_in(self, key: bytes) -> int:
        """Return the timestamp at which a holding ends, from its key."""
        return int.from_bytes(key[len(self.leased) :][:8], "big")

    def is_mark(self, key: bytes) -> bool:
        """Return whether an engine key is that of a mark."""
        return is_mark(key[len(self.whole) :])

    def is_list(self, key: bytes) -> bool:
        """Return whether a key is that of a list of messages that one proposal has ended."""
        return key.startswith((self.done, self.archived))

    def dead_key(self, at: int, seq: bytes) -> bytes:
        """Return the key of an entry that died at ``at``."""
        return self.dead + at.to_bytes(8, "big") + seq

    def group_key(self, group: str) -> bytes:
        """Return the key of the record that counts the messages of a group that are not done."""
        return self.groups + keys.escape(group.encode())

    def expiring_key(self, until: int, seq: bytes) -> bytes:
        """Return the key of the entry of a result that goes at ``until``."""
        return self.expiring + until.to_bytes(8, "big") + seq

    def result_key(self, kind: str, id_: bytes) -> bytes:
        """Return the key of the result of a message."""
        return self.results + keys.escape(kind.encode()) + id_

    def group_results_prefix(self, group: str) -> bytes:
        """Return the key prefix of the entries of the results of a group; ``seq`` follows."""
        return self.group_results + keys.escape(group.encode())

    def tick_key(self, name: str) -> bytes:
        """Return the key of a periodic schedule."""
        return self.ticks + name.encode()

    def body_key(self, home: bytes, kind: str, id_: bytes) -> bytes:
        """Return the key of the body of a message."""
        infix = self._bodies.get(kind) or self._infix(self._bodies, keys.QUEUE_BODY, kind)
        return keys.queue_message_key(home, infix, id_)

    def state_key(self, home: bytes, kind: str, id_: bytes) -> bytes:
        """Return the key of the state of a message."""
        return keys.queue_message_key(home, self.state_infix(kind), id_)

    def state_infix(self, kind: str) -> bytes:
        """Return the part between home and id of the keys of states of a kind."""
        return self._states.get(kind) or self._infix(self._states, keys.QUEUE_STATE, kind)

    def _infix(self, known: dict[str, bytes], suffix: bytes, kind: str) -> bytes:
        """Return the key infix of a kind, and remember it: there are few kinds as a rule."""
        if len(known) >= _KNOWN_AT_ONCE:
            known.clear()
        known[kind] = infix = keys.queue_message_infix(suffix, self.number, kind.encode())
        return infix

    def pointers(self, id_: bytes) -> bytes:
        """Return the key prefix of the pointers of a message id."""
        return keys.queue_pointer_prefix(id_, self.number)

    def pointer_key(self, kind: str, id_: bytes) -> bytes:
        """Return the key of the pointer to a message whose home is not its id."""
        return keys.queue_pointer_prefix(id_, self.number) + keys.escape(kind.encode())
