"""What the client hands to applications: messages, inboxes, dead letters, changes, the status."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import msgspec

from postroom.errors import WrongType, shorten
from postroom.kv.clock import Timestamp
from postroom.messaging.counters import Counters
from postroom.ranges.evaluators import INTEGER
from postroom.ranges.nodes import ServiceStatus


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
    _headers: dict[str, Any] | None
    _id: bytes
    _delivered_at: int
    attempts: int = 0
    last_error: str = ""

    @property
    def headers(self) -> dict[str, Any]:
        """What the sender added; empty if nothing."""
        return {} if self._headers is None else self._headers

    @property
    def id(self) -> str:
        """Unique for ever: commit timestamp and range of the sender, position in its
        transaction.
        """
        return self._id.hex()

    @property
    def sent_at(self) -> Timestamp:
        """The commit timestamp of the sender's transaction."""
        return Timestamp.from_bytes(self._id[:8], "big")

    @property
    def delivered_at(self) -> Timestamp:
        """When it entered the inbox, of one that was tried: again; always after ``sent_at``."""
        return Timestamp(self._delivered_at)

    @property
    def sender_range(self) -> int:
        """The range that the sender's transaction committed in."""
        return int.from_bytes(self._id[8:16], "big")


class Reaped(Sequence[Message]):
    """The messages that ``reap_queue`` took.

    Attributes:
        more: whether further messages wait that nobody holds.
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


class Moment(Timestamp):
    """A timestamp that may be awaited, for code that does not know whether it must be."""

    def __await__(self) -> Generator[Any, None, Timestamp]:
        yield from ()
        return self


class InboxInfo(NamedTuple):
    """A key with waiting messages: how many, and when the oldest was sent.

    Attributes:
        held_up: they wait for one that was postponed; nobody is given any of them.
    """

    key: bytes
    messages: int
    oldest: Timestamp
    held_up: bool = False


class DeadLetter(NamedTuple):
    """What could not be executed, delivered or digested.

    Attributes:
        id: for ``replay`` and ``discard``.
        reason: the error that it met, with its name; of a message that was tried, what its consumer
            said, or how it ended.
        transaction_id: of the transaction that sent it; empty if it was delivered before it died.
        request: the update, if it was one.
        message: the payload, if it was a message; as it is stored, if the codec cannot unpack it.
        source_key: the first key that the transaction wrote or sent to; empty likewise.
        key: the recipient, if it was a message; else empty.
        headers: of the message; empty if there are none.
        attempts: how many at it have failed.
    """

    id: str
    reason: str
    transaction_id: bytes
    request: Any
    message: Any
    source_key: bytes
    key: bytes = b""
    headers: dict[str, Any] = {}  # noqa: RUF012 - of a tuple: nobody changes it
    attempts: int = 0


class Scheduled(NamedTuple):
    """A message or an update that waits for its time, or a message that was postponed.

    Attributes:
        id: for ``cancel``.
        due: when it is delivered, or carried out.
        key: the recipient, or what the update is about (of a ``DeleteRange``, its start).
        request: the update, if it is one; ``None``: it is a message.
        message: the payload, if it is one; as it is stored, if the codec cannot unpack it.
        headers: of the message; empty if there are none.
        transaction_id: of the transaction that sent it.
        source_key: the first key that the transaction wrote or sent to.
        attempts: how many have failed; 0: it was scheduled when it was sent. (Of one that was
            postponed, its transaction and source are known no more.)
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
    """A committed change: the new value, or ``None`` for a deletion."""

    key: bytes
    value: Any
    timestamp: Timestamp


class NodeInfo(NamedTuple):
    """A node of a cluster, as its leader sees it.

    Attributes:
        address: where it is reached.
        entries_behind: how many entries of the log it still lacks; ``None``: not known.
        silent_seconds: since when nothing was heard of it; ``None``: not known.
        retired: it is to leave for good.
    """

    node_id: int
    address: str
    entries_behind: int | None
    silent_seconds: float | None
    retired: bool


class ServiceInfo(NamedTuple):
    """A service of the store: what it does by itself.

    Attributes:
        name: ``dispatcher`` (delivers), ``executor`` (carries out), ``attempts`` (counts those of
            consumers that have vanished), ``queues`` (fires), ``collector`` (of garbage), ``feed``
            (forgets changes that nobody watches) or ``membership`` (of a cluster).
        running: false while it pauses after a failure; it begins again by itself. Also while an
            embedded store is at rest: it was only read since it was opened, and nothing is due.
        failures: how often it has failed, until it ran for a minute without.
        trouble: why it failed last; empty if it did not.
    """

    name: str
    running: bool
    failures: int
    trouble: str


def service_infos(services: Iterable[ServiceStatus]) -> tuple[ServiceInfo, ...]:
    """What a node says of its services, as applications see it."""
    return tuple(
        ServiceInfo(each.name, each.running, each.failures, each.trouble) for each in services
    )


class Status(NamedTuple):
    """How the store is.

    Attributes:
        path: the data folder, or ``:memory:``; the addresses, if it is reached over the network.
        node_id: of the node that answered.
        term: of the consensus group.
        applied_index: entries of its log applied.
        timestamp: as of which this was so: above that of the newest commit. (Of a store that is
            only read, that is when it was last closed.)
        disk_bytes: size of the store on its device.
        counters: what became of all messages; enqueued = delivered + executed + pending + dead.
        leader: which node leads; ``None``: none does, as far as the node knows that answered.
        nodes: of the cluster; none if the store is not part of one.
        services: what the store does by itself, and whether it can.
        enqueued, delivered, executed, pending, dead: the same, by name. ``dead`` never becomes
            less by discarding or cancelling; ``dead_letters`` does, so that is what to watch.
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

    @property
    def enqueued(self) -> int:
        """Messages and updates committed so far."""
        return self.counters.enqueued

    @property
    def delivered(self) -> int:
        """Messages that reached their inbox, and have not left it but by being consumed."""
        return self.counters.delivered

    @property
    def executed(self) -> int:
        """Deferred updates carried out."""
        return self.counters.executed

    @property
    def pending(self) -> int:
        """Messages and updates in an outbox: those scheduled for later, and postponed, included."""
        return self.counters.pending

    @property
    def dead(self) -> int:
        """Dead letters, those discarded and what was cancelled included."""
        return self.counters.dead

    @property
    def discarded(self) -> int:
        """Of the dead, those given up for good: ``discard``, and ``cancel``."""
        return self.counters.discarded

    @property
    def cancelled(self) -> int:
        """Of the discarded, those cancelled before their time."""
        return self.counters.cancelled

    @property
    def dead_letters(self) -> int:
        """Dead letters that wait to be replayed or discarded."""
        return self.counters.dead_letters

    @property
    def reaped(self) -> int:
        """Of the delivered messages, those consumed."""
        return self.counters.reaped


def integer(value: bytes | None) -> int:
    """The number that ``increment`` stored; an absent value (``None``) counts as 0.

    Raises:
        WrongType: ``value`` is no stored integer.
    """
    if value is None:
        return 0
    if not isinstance(value, bytes):
        raise TypeError(f"integer() reads stored bytes, not {type(value).__name__}")
    if len(value) != INTEGER.size:
        raise WrongType(f"{shorten(value)} is no 64-bit integer (8 bytes, big-endian)")
    number: int = INTEGER.unpack(value)[0]
    return number
