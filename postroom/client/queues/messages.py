"""Objects of queues for applications: messages, handles, definitions, numbers.

A message that was claimed is an *attempt*. It says how often it was fired before, and until when it
is held. An acknowledgement is for that attempt. Once another attempt has begun, it changes nothing
any more, and raises ``LeaseLost``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import msgspec

from postroom.client.codec import Packing
from postroom.errors import Invalid, shorten
from postroom.kv.clock import Timestamp
from postroom.limits import RECEIPT_BYTES_MAX
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.definition_requests import (
    QueueDefinition,
    QueueSettings,
    SetSchedule,
    ToldQueue,
)
from postroom.messaging.queues.requests import Attempt, Group, Kind, QueueMessageId
from postroom.ranges.checks import unpacked
from postroom.ranges.requests import Count, Key, TimestampNumber

_UNREAD: Any = object()


class _Receipt(msgspec.Struct, frozen=True, array_like=True):
    """The name of an attempt, and the key and the group that tell its home."""

    key: Key
    kind: Kind
    id: QueueMessageId
    epoch: Count
    group: Group
    fired_at: TimestampNumber


_pack: Final = msgspec.msgpack.encode
_unpack: Final = msgspec.msgpack.Decoder(_Receipt).decode


def stored_of_receipt(receipt: bytes) -> StoredQueueMessage:
    """Return as much of a claimed message as its receipt says.

    Raises:
        TypeError, Invalid: it is no receipt.
    """
    if not isinstance(receipt, bytes):
        raise TypeError(f"a receipt is bytes, not {type(receipt).__name__}")
    try:
        named = _unpack(receipt) if len(receipt) <= RECEIPT_BYTES_MAX else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        named = None
    if named is None:
        raise Invalid(
            f"{shorten(receipt)} is not the receipt of a message; nothing was changed: pass the "
            "receipt of a message that was received or claimed"
        )
    return StoredQueueMessage(
        named.key, named.kind, named.id, b"", None, 0, named.group, 0, 0, 0, named.epoch, 0, "",
        "leased", fired_at=named.fired_at,
    )  # fmt: skip


def shown_id(stored: bytes) -> str | bytes:
    """Return an id in the form for applications: text if it is UTF-8, else bytes."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


class AnyMessage:
    """A message of a queue: the part that both forms share.

    Args:
        queue: the name of the queue.
        stored: the message as the store has sent it.
        codec: unpacks its payload.
        home: settles it outside transactions; ``None``: a transaction has claimed it.
        holder: the consumer that has claimed it, which is told when its lease is extended, and
            when it is settled.
        answered_at: when the claim was answered, on the client's monotonic clock.

    Attributes:
        queue: the name of the queue.
        held_until: when the lease of a claimed message ends, on the client's monotonic clock.
    """

    __slots__ = (
        "_codec",
        "_holder",
        "_home",
        "_leased_until",
        "_of_task",
        "_payload",
        "_stored",
        "held_until",
        "queue",
    )

    def __init__(
        self,
        queue: str,
        stored: StoredQueueMessage,
        codec: Packing,
        home: SettlingCalls | None = None,
        holder: MessageHolder | None = None,
        answered_at: float | None = None,
    ) -> None:
        self.queue = queue
        self._stored = stored
        self._codec = codec
        self._payload = _UNREAD
        self._leased_until = stored.leased_until
        self.held_until = 0.0 if answered_at is None else answered_at + stored.lasts / 1000
        self._home = home
        self._holder = holder
        self._of_task: bytes | None = None

    @property
    def id(self) -> str | bytes:
        """Return the id, which names it together with its kind: text if it is UTF-8, else bytes."""
        return shown_id(self._stored.id)

    @property
    def kind(self) -> str:
        """Return the type tag of the payload; empty if its sender gave none."""
        return self._stored.kind

    @property
    def key(self) -> bytes:
        """Return its key: its id, if its sender gave none."""
        return self._stored.key

    @property
    def payload(self) -> Any:
        """Return the payload, which is unpacked at the first access.

        Thus a payload that cannot be unpacked fails the handling of this message, and of no other
        one.

        Raises:
            WrongType: the codec cannot unpack it.
        """
        if self._payload is _UNREAD:
            self._payload = self._codec.decode(self._stored.payload, self._stored.key)
        return self._payload

    @property
    def headers(self) -> dict[str, Any]:
        """Return the headers that the sender added; empty if it added none."""
        return unpacked(self._stored.headers)

    @property
    def priority(self) -> int:
        """Return the priority; lower ones go first."""
        return self._stored.priority

    @property
    def group(self) -> str:
        """Return the group; empty if it has none."""
        return self._stored.group

    @property
    def created_at(self) -> Timestamp:
        """Return the commit timestamp of the transaction that enqueued it."""
        return Timestamp(self._stored.created_at)

    @property
    def first_scheduled(self) -> Timestamp:
        """Return when it was to be fired first."""
        return Timestamp(self._stored.first_scheduled)

    @property
    def scheduled(self) -> Timestamp:
        """Return when it was, or is to be, fired."""
        return Timestamp(self._stored.scheduled)

    @property
    def epoch(self) -> int:
        """Return how many times it was fired before."""
        return self._stored.epoch

    @property
    def leased_until(self) -> Timestamp | None:
        """Return when its lease ends; ``None``: no consumer holds it."""
        return Timestamp(self._leased_until) if self._leased_until else None

    @property
    def last_error(self) -> str:
        """Return why the attempt before this one failed; for a dead letter, why it died."""
        return self._stored.last_error

    @property
    def state(self) -> str:
        """Return ``scheduled``, ``ready``, ``leased``, ``done``, ``archived`` or ``dead``."""
        return self._stored.state

    @property
    def done_at(self) -> Timestamp | None:
        """Return when it was acknowledged, or died; ``None``: neither has happened."""
        return Timestamp(self._stored.done_at) if self._stored.done_at else None

    @property
    def fired_at(self) -> Timestamp | None:
        """Return when it was handed to the consumer that holds or has acknowledged it.

        ``None``: no consumer has it, or it was ended before the store kept this.
        """
        return Timestamp(self._stored.fired_at) if self._stored.fired_at else None

    @property
    def stored(self) -> StoredQueueMessage:
        """Return the message as the store has sent it.

        For layers on top.
        """
        return self._stored

    @property
    def codec(self) -> Packing:
        """Return the codec that unpacks its payload.

        For layers on top.
        """
        return self._codec

    @property
    def receipt(self) -> bytes:
        """Return the name of this attempt as bytes, for other processes.

        ``q.by_receipt`` makes a message of it that can be settled.
        """
        told = self._stored
        epoch = told.epoch if told.state == "leased" else None
        return _pack((told.key, told.kind, told.id, epoch, told.group, told.fired_at))

    def attempt(self) -> Attempt:
        """Return the name of this attempt for requests, or of the message if it is not held.

        For layers on top.
        """
        stored = self._stored
        if stored.state != "leased":
            return Attempt(*stored.locator)
        # Most messages have no group: their locators need no call.
        home = stored.locator[0] if stored.group else stored.key
        return Attempt(home, stored.kind, stored.id, stored.epoch, False, stored.fired_at)

    def leased_for(self, until: int, held_until: float) -> None:
        """Note that its lease was extended.

        For layers on top.

        Args:
            until: when the lease ends, as a timestamp.
            held_until: when the lease ends on the client's monotonic clock, which cannot be set.
        """
        self._leased_until, self.held_until = until, held_until

    def given_to_task(self, transaction_id: bytes) -> None:
        """Reserve its settling for the transaction that a task was given with it.

        For layers on top.

        Args:
            transaction_id: the id of that transaction.
        """
        self._of_task = transaction_id

    def check_settled_by(self, transaction_id: bytes | None) -> None:
        """Check that a transaction may settle it.

        For layers on top.

        Args:
            transaction_id: the transaction that settles it; ``None``: one that does nothing else.

        Raises:
            Invalid: it was given to a task. If it were settled alone, it would be done, and the
                writes of the task would be lost.
        """
        if self._of_task is not None and self._of_task != transaction_id:
            raise Invalid(
                f"this message was given to a task of queue {self.queue!r}, whose transaction "
                "settles it together with what the function writes: return, and it is "
                f"acknowledged; or call tx.acknowledge({self.queue!r}, message), "
                f"tx.reject({self.queue!r}, message, delay) or tx.cancel({self.queue!r}, message), "
                "with the tx of this call; nothing was changed"
            )

    def settled(self) -> None:
        """Tell its consumer that it was settled: the consumer may have another one.

        For layers on top.
        """
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.settled(self)

    def __repr__(self) -> str:
        payload = shorten(self._stored.payload)
        return (
            f"{type(self).__name__}(queue={self.queue!r}, id={self.id!r}, kind={self.kind!r}, "
            f"epoch={self.epoch}, state={self.state!r}, stored payload={payload})"
        )


class MessageHolder(Protocol):
    """A consumer that has claimed messages, and is told what becomes of them."""

    def settled(self, message: AnyMessage) -> None:
        """Note that a message was settled."""

    def extended(self, message: AnyMessage) -> None:
        """Note that the lease of a message was extended."""


class SettlingCalls(Protocol):
    """The calls of a message's queue that settle it outside a transaction."""

    async def acknowledge(self, messages: Any) -> int:
        """Mark messages as done."""

    async def reject(
        self, messages: Any, delay: Any = None, *, dead: bool = False, reason: str | None = None
    ) -> int:
        """Give messages back."""

    async def extend(self, message: AnyMessage, seconds: float) -> Timestamp:
        """Hold a message for longer."""

    async def release(self, messages: Any) -> int:
        """Put messages back to their old places, uncounted."""


class QueueMessage(AnyMessage):
    """A message of a queue, in the asyncio form."""

    __slots__ = ()

    async def acknowledge(self) -> None:
        """Mark it as done, in a transaction of its own.

        ``tx.acknowledge`` does this together with other changes.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        await self._settler().acknowledge(self)

    async def reject(
        self, delay: Any = None, *, dead: bool = False, reason: str | None = None
    ) -> None:
        """Give it back, to be fired again.

        Args:
            delay: seconds until it is fired again, 0: at once; ``None``: the queue's back-off.
            dead: whether it becomes a dead letter instead.
            reason: why; kept with it.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        await self._settler().reject(self, delay, dead=dead, reason=reason)

    async def release(self) -> None:
        """Give it back as if it had not been claimed: to its old place, at once, uncounted.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        await self._settler().release(self)

    async def extend(self, seconds: float) -> Timestamp:
        """Hold it for ``seconds`` from now on; return when its lease ends.

        Args:
            seconds: a number, or a ``timedelta``.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        return await self._settler().extend(self, seconds)

    def _settler(self) -> SettlingCalls:
        if self._home is None:
            raise Invalid(
                "this message was claimed in a transaction, which acknowledges it when it commits: "
                "use tx.reject to give it back; nothing was changed"
            )
        return self._home

    def leased_for(self, until: int, held_until: float) -> None:
        """Note that its lease was extended, and tell its consumer.

        For layers on top.

        Args:
            until: when it ends, as a timestamp.
            held_until: when it ends on the client's monotonic clock.
        """
        super().leased_for(until, held_until)
        if self._holder is not None:
            self._holder.extended(self)


class QueueInfo(NamedTuple):
    """The stored definition of a queue.

    Attributes:
        name: the name of the queue.
        settings: its settings.
        paused: whether it fires nothing.
        created_at: the commit timestamp of the transaction that made it.
        damaged: why the queue cannot be used, nor its messages be read; empty: it can. If its
            definition itself cannot be read, only the name among the other fields is right.
    """

    name: str
    settings: QueueSettings
    paused: bool
    created_at: Timestamp
    damaged: str = ""


class QueueSchedule(NamedTuple):
    """A periodic schedule: at each tick of ``cron`` a message is enqueued.

    Attributes:
        name: the name of the schedule.
        cron: when it fires, in the five fields of cron.
        timezone: the time zone of these fields.
        kind: the kind of its messages.
        payload: their payload.
        headers: their headers.
        priority: their priority.
        group: their group; empty: none.
    """

    name: str
    cron: str
    timezone: str
    kind: str
    payload: Any
    headers: dict[str, Any]
    priority: int
    group: str


def schedule_of(stored: SetSchedule, codec: Packing) -> QueueSchedule:
    """Return a stored schedule in the form for applications."""
    payload = codec.decode(stored.payload, stored.anchor())
    return QueueSchedule(
        stored.name, stored.cron or "", stored.timezone, stored.kind, payload,
        unpacked(stored.headers), stored.priority, stored.group,
    )  # fmt: skip


def info_of(definition: QueueDefinition) -> QueueInfo:
    """Return a stored definition in the form for applications."""
    return QueueInfo(
        definition.name, definition.settings, definition.paused, Timestamp(definition.created_at),
        definition.damaged if isinstance(definition, ToldQueue) else "",
    )  # fmt: skip
