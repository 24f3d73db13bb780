"""Objects for applications: messages, inboxes, dead letters, changes, the status."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, overload

import msgspec

from postroom.client.codec import Packing
from postroom.errors import WrongType, shorten
from postroom.kv.clock import LOGICAL_BITS, Timestamp
from postroom.messaging import due as times
from postroom.messaging.requests import (
    LETTER_ID_BYTES,
    SCHEDULED_ID_BYTES,
    Counters,
    Deliverable,
    ScheduledEntry,
    StoredDeadLetter,
)
from postroom.ranges.checks import Headers, unpacked
from postroom.ranges.evaluators import INTEGER
from postroom.ranges.nodes import ServiceStatus, StorageStatus
from postroom.ranges.protections import Position
from postroom.ranges.requests import DeleteRange


class Message(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """A message in, or from, an inbox.

    Attributes:
        key: the recipient.
        value: the payload.
        headers: what the sender added; empty if nothing.
        attempts: how many have failed: 0 for a message that was never tried.
        last_error: how the last of them ended; empty if there was none.
    """

    key: bytes
    value: Any
    _headers: Headers
    _id: bytes
    _delivered_at: int
    attempts: int = 0
    last_error: str = ""

    @property
    def headers(self) -> dict[str, Any]:
        """Return the headers that the sender added; empty if it added none."""
        return unpacked(self._headers)

    @property
    def id(self) -> str:
        """Return the id, unique for ever.

        It consists of the commit timestamp and the range of the sender and of the message's
        ordinal in the sender's transaction.
        """
        return self._id.hex()

    @property
    def sent_at(self) -> Timestamp:
        """Return the commit timestamp of the sender's transaction."""
        return Timestamp.from_bytes(self._id[:8], "big")

    @property
    def delivered_at(self) -> Timestamp:
        """Return when it last entered the inbox, always after ``sent_at``.

        A postponed message enters its inbox again.
        """
        return Timestamp(self._delivered_at)

    @property
    def sender_range(self) -> int:
        """Return the range that the sender's transaction committed in."""
        return int.from_bytes(self._id[8:16], "big")


class Reaped(Sequence[Message]):
    """The messages that ``reap_queue`` took.

    Attributes:
        more: whether further messages wait that no transaction has reaped.
    """

    __slots__ = ("_messages", "more")

    def __init__(self, messages: list[Message], *, more: bool) -> None:
        self._messages = messages
        self.more = more

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"Reaped({self._messages!r}, more={self.more})"


class AwaitableTimestamp(Timestamp):
    """A timestamp that may be awaited, for code that does not know whether it must be."""

    def __await__(self) -> Generator[Any, None, Timestamp]:
        yield from ()
        return self


class InboxInfo(NamedTuple):
    """A key with waiting messages: how many, and when the oldest was sent.

    Attributes:
        key: the key.
        messages: how many messages wait.
        oldest: the commit timestamp of the oldest one.
        held_up: whether they wait for a postponed message; no transaction is given any of them.
    """

    key: bytes
    messages: int
    oldest: Timestamp
    held_up: bool = False


class DeadLetter(NamedTuple):
    """A message or an update that could not be delivered, carried out or processed.

    Attributes:
        id: for ``replay`` and ``discard``.
        reason: the error that it met, with its name; for a message that was tried, the reason that
            its consumer gave, or how the attempt ended.
        transaction_id: the transaction that sent it; empty if it was delivered before it died.
        request: the update, if it was one.
        message: the payload, if it was a message; as it is stored, if the codec cannot unpack it.
        source_key: the first key that the transaction wrote or sent to; empty if it was delivered
            before it died.
        key: the recipient, if it was a message; else empty.
        headers: the headers of the message; empty if there are none.
        attempts: how many have failed.
    """

    id: str
    reason: str
    transaction_id: bytes
    request: Any
    message: Any
    source_key: bytes
    key: bytes = b""
    headers: dict[str, Any] = {}  # noqa: RUF012 - a field of a tuple: never changed
    attempts: int = 0


class Scheduled(NamedTuple):
    """A message or an update that waits for its time, or a message that was postponed.

    Attributes:
        id: for ``cancel``.
        due: when it is delivered, or carried out.
        key: the recipient, or the key of the update (for a ``DeleteRange``, its start).
        request: the update, if it is one; ``None``: it is a message.
        message: the payload, if it is one; as it is stored, if the codec cannot unpack it.
        headers: the headers of the message; empty if there are none.
        transaction_id: the transaction that sent it; empty if it was postponed.
        source_key: the first key that the transaction wrote or sent to; empty if it was postponed.
        attempts: how many have failed; 0: it was scheduled when it was sent.
        last_error: how the last of them ended.
    """

    id: str
    due: Timestamp
    key: bytes
    request: Any
    message: Any
    headers: dict[str, Any]
    transaction_id: bytes
    source_key: bytes
    attempts: int = 0
    last_error: str = ""


class Change(NamedTuple):
    """A committed change: the new value, or ``None`` for a deletion.

    Attributes:
        key: the key.
        value: the new value; ``None``: it was deleted.
        timestamp: the commit timestamp.
    """

    key: bytes
    value: Any
    timestamp: Timestamp


class NodeInfo(NamedTuple):
    """A node of a cluster, as its leader sees it.

    Attributes:
        node_id: its id.
        address: where it is reached.
        entries_behind: how many log entries it still lacks; ``None``: not known.
        silent_seconds: for how long nothing was heard of it; ``None``: not known.
        retired: whether it is to leave for good.
    """

    node_id: int
    address: str
    entries_behind: int | None
    silent_seconds: float | None
    retired: bool


class ServiceInfo(NamedTuple):
    """A service of the store: background work that it does by itself.

    Attributes:
        name: ``dispatcher`` (delivers), ``executor`` (carries out), ``attempts`` (counts those of
            consumers that have vanished), ``queues`` (fires), ``collector`` (of garbage), ``feed``
            (forgets changes that no client watches) or ``membership`` (of a cluster).
        running: false while it pauses after a failure; it starts again by itself. Also false while
            an embedded store is at rest: it was only read since it was opened, and nothing is due.
        failures: how often it has failed since it last ran for a minute without a failure.
        trouble: why it failed last; empty if it did not.
        note: a hint for finding what blocks the service; for ``queues``, which message is held for
            longest, and by which consumer.
    """

    name: str
    running: bool
    failures: int
    trouble: str
    note: str = ""


def service_infos(services: Iterable[ServiceStatus]) -> tuple[ServiceInfo, ...]:
    """Return what a node tells about its services, in the form for applications."""
    return tuple(
        ServiceInfo(each.name, each.running, each.failures, each.trouble, each.note)
        for each in services
    )


class StorageInfo(NamedTuple):
    """Files and memory of a node's storage.

    Attributes:
        engine: ``leveldb``, ``rocksdb`` or ``memory``.
        tables: how many table files there are.
        tables_open_max: how many of them stay open, by the limit of open files (``ulimit -n``).
            With more tables, look-ups open files and become slow.
        memory_bytes: the budget of memory, as it was given.
        own_bytes: the process's own memory; 0: the system does not tell.
        mapped_bytes: memory of files that the system maps into the process, and takes back when
            others need it.
    """

    engine: str = "memory"
    tables: int = 0
    tables_open_max: int = 0
    memory_bytes: int = 0
    own_bytes: int = 0
    mapped_bytes: int = 0


def storage_info(storage: StorageStatus) -> StorageInfo:
    """Return what a node tells about its storage, in the form for applications."""
    return StorageInfo(*msgspec.structs.astuple(storage))


class PositionInfo(NamedTuple):
    """A named position: changes after it stay readable (``db.keep_position``).

    Attributes:
        name: the name of the reader that goes on from there.
        position: the timestamp up to which it has read.
        behind_seconds: how long ago that was.
        protected_until: when its protection ends, unless its reader names a later position before.
    """

    name: str
    position: Timestamp
    behind_seconds: float
    protected_until: Timestamp


def position_infos(found: Iterable[Position], now: int) -> tuple[PositionInfo, ...]:
    """Return what a node tells about positions, in the form for applications."""
    return tuple(
        PositionInfo(
            each.name,
            Timestamp(each.timestamp),
            (max(now - each.timestamp, 0) >> LOGICAL_BITS) / 1000,
            Timestamp(each.until),
        )
        for each in found
    )


class Status(NamedTuple):
    """The status of the store.

    Attributes:
        path: the data folder, or ``:memory:``; the addresses, if it is reached over the network.
        node_id: the node that answered.
        term: the term of the consensus group.
        applied_index: the index of the last log entry that is applied.
        timestamp: when this was true: above the newest commit. For a store that is only read, when
            it was last closed.
        disk_bytes: size of the store on its device.
        counters: sums over all messages; enqueued = delivered + executed + pending + dead.
        leader: the id of the node that leads; ``None``: none, as far as the answering node knows.
        nodes: the nodes of the cluster; none if the store is not part of one.
        services: what the store does by itself, and whether it can.
        storage: files and memory of the node that answered.
        refused: why writes are refused: the device has hardly any room. Empty: they are not.
        positions: where readers will go on, in the order of their names. Changes after the oldest
            of them are not collected.
        store_id: the id of the store, which its backups have, too.
        enqueued, delivered, executed, pending, dead: the same, by name. Discarding or cancelling
            never lowers ``dead`` but does lower ``dead_letters``, so watch ``dead_letters``.
    """

    path: str
    node_id: int
    term: int
    applied_index: int
    timestamp: Timestamp
    disk_bytes: int
    counters: Counters
    leader: int | None = None
    nodes: tuple[NodeInfo, ...] = ()
    services: tuple[ServiceInfo, ...] = ()
    storage: StorageInfo = StorageInfo()
    refused: str = ""
    positions: tuple[PositionInfo, ...] = ()
    store_id: bytes = b""

    @property
    def enqueued(self) -> int:
        """Return how many messages and updates were committed."""
        return self.counters.enqueued

    @property
    def delivered(self) -> int:
        """Return how many messages reached their inbox and stayed there or were consumed."""
        return self.counters.delivered

    @property
    def executed(self) -> int:
        """Return how many deferred updates were carried out."""
        return self.counters.executed

    @property
    def pending(self) -> int:
        """Return how many messages and updates are in an outbox.

        This includes those that are scheduled for later or postponed.
        """
        return self.counters.pending

    @property
    def dead(self) -> int:
        """Return how many dead letters there were, discarded and cancelled ones included."""
        return self.counters.dead

    @property
    def discarded(self) -> int:
        """Return how many dead letters were given up for good, by ``discard`` or ``cancel``."""
        return self.counters.discarded

    @property
    def cancelled(self) -> int:
        """Return how many discarded messages and updates were cancelled before their time."""
        return self.counters.cancelled

    @property
    def dead_letters(self) -> int:
        """Return how many dead letters wait to be replayed or discarded."""
        return self.counters.dead_letters

    @property
    def reaped(self) -> int:
        """Return how many delivered messages were consumed."""
        return self.counters.reaped


def integer(value: bytes | None) -> int:
    """Return the number that ``increment`` stored; an absent value (``None``) counts as 0.

    Args:
        value: what ``get`` returned, of a store without a codec.

    Raises:
        TypeError: ``value`` is not ``bytes`` or ``None``.
        WrongType: ``value`` is no stored integer.

    Examples:
        >>> _ = db.increment(b"visits", 3)
        >>> postroom.integer(db.get(b"visits"))
        3
        >>> postroom.integer(None)
        0
    """
    if value is None:
        return 0
    if not isinstance(value, bytes):
        raise TypeError(f"integer() reads stored bytes, not {type(value).__name__}")
    if len(value) != INTEGER.size:
        raise WrongType(f"{shorten(value)} is no 64-bit integer (8 bytes, big-endian)")
    number: int = INTEGER.unpack(value)[0]
    return number


_SHOWN_CHARACTERS: Final = 100
"""The number of characters of a wrong id that an error shows."""


def dead_letter(letter: StoredDeadLetter, codec: Packing) -> DeadLetter:
    """Return a dead letter, unpacked."""
    record = letter.record
    entry = record.update or record.message
    assert entry is not None
    request = record.update.request if record.update is not None else None
    told = (letter.id.hex(), record.reason, entry.transaction_id, request)
    message = record.message
    if message is None:
        return DeadLetter(*told, None, entry.source)
    value = _unpacked(message, codec)
    attempts = 0 if message.trial is None else message.trial.attempts
    return DeadLetter(*told, value, entry.source, message.key, unpacked(message.headers), attempts)


def scheduled(stored: ScheduledEntry, codec: Packing) -> Scheduled:
    """Return a scheduled message or update, unpacked."""
    id_ = stored.id.hex()
    due = Timestamp(times.shown(int.from_bytes(stored.id[8:16], "big")))
    update, message = stored.update, stored.message
    if update is not None:
        request = update.request
        about = request.start if isinstance(request, DeleteRange) else request.key
        nothing: dict[str, Any] = {}
        return Scheduled(
            id_, due, about, request, None, nothing, update.transaction_id, update.source
        )
    assert message is not None
    value = _unpacked(message, codec)
    told = Scheduled(
        id_, due, message.key, None, value, unpacked(message.headers), message.transaction_id,
        message.source,
    )  # fmt: skip
    trial = message.trial
    return told if trial is None else told._replace(attempts=trial.attempts, last_error=trial.error)


def _unpacked(message: Deliverable, codec: Packing) -> Any:
    """Return the payload; as it is stored, if it cannot be unpacked: that may be why it is here."""
    try:
        return codec.decode(message.value, message.key)
    except WrongType:
        return message.value


def dead_letter_ids(given: Iterable[str]) -> list[bytes]:
    """Return ids of dead letters in the form of requests."""
    return _ids(given, LETTER_ID_BYTES, "a dead letter", "dead_letters()")


def scheduled_ids(given: Iterable[str]) -> list[bytes]:
    """Return ids of scheduled messages and updates in the form of requests."""
    return _ids(given, SCHEDULED_ID_BYTES, "anything scheduled", "scheduled()")


def _ids(given: Iterable[str], size: int, what: str, source: str) -> list[bytes]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"give a list of ids, as {source} tells them, not {type(given).__name__}")
    return [_id(each, size, what, source) for each in given]


def _id(given: object, size: int, what: str, source: str) -> bytes:
    if isinstance(given, str):
        try:
            id_ = bytes.fromhex(given)
        except ValueError:
            id_ = b""
        if len(id_) == size:
            return id_
    told = repr(given)[:_SHOWN_CHARACTERS]
    raise ValueError(f"{told} is not the id of {what}; nothing was changed: use those of {source}")
