"""What queues hand to applications: messages, handles, definitions, numbers.

A message that was claimed is an *attempt*: it says how often it was fired before, and until when it
is held. Who acknowledges a message acknowledges that attempt; once another one has begun, it
changes nothing any more, and says so (``LeaseLost``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from postroom.client.codec import Packing
from postroom.errors import Invalid, shorten
from postroom.kv.clock import Timestamp
from postroom.messaging.queues.requests import (
    Attempt,
    QueueDefinition,
    QueueSettings,
    SetSchedule,
    ToldQueue,
)
from postroom.messaging.queues.requests import QueueMessage as StoredMessage

_UNREAD: Any = object()


def shown_id(stored: bytes) -> str | bytes:
    """An id as applications see it: the text that it is, else bytes."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


class AnyMessage:
    """A message of a queue: what both forms have.

    Attributes:
        queue: the name of the queue.
    """

    __slots__ = ("_codec", "_leased_until", "_on_settled", "_payload", "_stored", "queue")

    def __init__(self, queue: str, stored: StoredMessage, codec: Packing) -> None:
        self.queue = queue
        self._stored = stored
        self._codec = codec
        self._payload = _UNREAD
        self._leased_until = stored.leased_until
        self._on_settled: Callable[[AnyMessage], None] | None = None

    @property
    def id(self) -> str | bytes:
        """What it is known by, with its kind: text if it is UTF-8, else bytes."""
        return shown_id(self._stored.id)

    @property
    def kind(self) -> str:
        """The type tag of the payload; empty if its sender gave none."""
        return self._stored.kind

    @property
    def key(self) -> bytes:
        """Where it is stored; its id, if its sender gave no key."""
        return self._stored.key

    @property
    def payload(self) -> Any:
        """What it says. It is unpacked when it is asked for, so that a payload that cannot be is
        the trouble of whoever handles this message, and of no other one.

        Raises:
            WrongType: the codec cannot unpack it.
        """
        if self._payload is _UNREAD:
            self._payload = self._codec.decode(self._stored.payload, self._stored.key)
        return self._payload

    @property
    def headers(self) -> dict[str, Any]:
        """What the sender added; empty if nothing."""
        return self._stored.headers or {}

    @property
    def priority(self) -> int:
        """Lower ones go first."""
        return self._stored.priority

    @property
    def group(self) -> str:
        """Its group; empty if it has none."""
        return self._stored.group

    @property
    def created_at(self) -> Timestamp:
        """The commit timestamp of the transaction that enqueued it."""
        return Timestamp(self._stored.created_at)

    @property
    def first_scheduled(self) -> Timestamp:
        """When it was to be fired first."""
        return Timestamp(self._stored.first_scheduled)

    @property
    def scheduled(self) -> Timestamp:
        """When it was, or is to be, fired."""
        return Timestamp(self._stored.scheduled)

    @property
    def epoch(self) -> int:
        """How many times it was fired before."""
        return self._stored.epoch

    @property
    def leased_until(self) -> Timestamp | None:
        """Until when it is held; ``None``: nobody holds it."""
        return Timestamp(self._leased_until) if self._leased_until else None

    @property
    def last_error(self) -> str:
        """Why the attempt before this one failed; of a dead letter, why it died."""
        return self._stored.last_error

    @property
    def state(self) -> str:
        """``scheduled``, ``ready``, ``leased``, ``done``, ``archived`` or ``dead``."""
        return self._stored.state

    @property
    def done_at(self) -> Timestamp | None:
        """When it was acknowledged, or died; ``None``: it lives."""
        return Timestamp(self._stored.done_at) if self._stored.done_at else None

    @property
    def fired_at(self) -> Timestamp | None:
        """When it was handed to its holder, or to who has acknowledged it; ``None``: to nobody, or
        it was ended before the store kept that.
        """
        return Timestamp(self._stored.fired_at) if self._stored.fired_at else None

    @property
    def stored(self) -> StoredMessage:
        """As the store has answered it."""
        return self._stored

    @property
    def codec(self) -> Packing:
        """What unpacks its payload."""
        return self._codec

    def attempt(self) -> Attempt:
        """What requests name it by: this attempt, if it is held; else the message."""
        stored = self._stored
        if stored.state != "leased":
            return Attempt(stored.key, stored.kind, stored.id)
        return Attempt(stored.key, stored.kind, stored.id, stored.epoch, fired_at=stored.fired_at)

    def leased_for(self, until: int) -> None:
        """Its lease was extended."""
        self._leased_until = until

    def settled(self) -> None:
        """It was acknowledged or given back: its consumer may have another one."""
        if self._on_settled is not None:
            self._on_settled(self)
            self._on_settled = None

    def __repr__(self) -> str:
        payload = shorten(self._stored.payload)
        return (
            f"{type(self).__name__}(queue={self.queue!r}, id={self.id!r}, kind={self.kind!r}, "
            f"epoch={self.epoch}, state={self.state!r}, stored payload={payload})"
        )


class Settling(Protocol):
    """Who settles a message outside a transaction: the queue that it was claimed from."""

    async def acknowledge(self, messages: Any) -> int:
        """They are done."""

    async def reject(
        self, messages: Any, delay: Any = None, *, dead: bool = False, reason: str | None = None
    ) -> int:
        """They are given back."""

    async def extend(self, message: AnyMessage, seconds: float) -> Timestamp:
        """It is held for longer."""


class QueueMessage(AnyMessage):
    """A message of a queue, in the asyncio form."""

    __slots__ = ("_home", "_on_extended")

    def __init__(
        self, queue: str, stored: StoredMessage, codec: Packing, home: Settling | None = None
    ) -> None:
        super().__init__(queue, stored, codec)
        self._home = home
        self._on_extended: Callable[[QueueMessage], None] | None = None

    async def acknowledge(self) -> None:
        """It is done, in a transaction of its own; ``tx.acknowledge`` does so together with other
        changes.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        await self._settler().acknowledge(self)

    async def reject(
        self, delay: Any = None, *, dead: bool = False, reason: str | None = None
    ) -> None:
        """It is given back, and fired again: after the queue's back-off, or after ``delay`` seconds
        (0: at once), or never (``dead``).

        Args:
            delay: seconds; ``None``: the queue's back-off.
            dead: it becomes a dead letter.
            reason: why; kept with it.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        await self._settler().reject(self, delay, dead=dead, reason=reason)

    async def extend(self, seconds: float) -> Timestamp:
        """It is held for ``seconds`` from now on; answers until when.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        return await self._settler().extend(self, seconds)

    def _settler(self) -> Settling:
        if self._home is None:
            raise Invalid(
                "this message was claimed in a transaction, which acknowledges it when it commits: "
                "use tx.reject to give it back; nothing was changed"
            )
        return self._home

    def on_settled(self, tell: Callable[[AnyMessage], None]) -> None:
        """``tell`` is called, once, when it was settled."""
        self._on_settled = tell

    def on_extended(self, tell: Callable[[QueueMessage], None]) -> None:
        """``tell`` is called whenever its lease was extended."""
        self._on_extended = tell

    def leased_for(self, until: int) -> None:
        """Its lease was extended."""
        super().leased_for(until)
        if self._on_extended is not None:
            self._on_extended(self)


class EnqueueHandle(msgspec.Struct, eq=False, gc=False):
    """What ``tx.enqueue`` returns: the id, and after the commit what became of it.

    Attributes:
        queue: the name of the queue.
        id: given, or made up.
        kind: of the message.
    """

    queue: str
    id: str | bytes
    kind: str
    _outcome: str | None = None

    @property
    def inserted(self) -> bool | None:
        """Whether a new message was inserted: false if there was one of this kind and id. ``None``:
        the transaction has not committed.
        """
        return None if self._outcome is None else self._outcome == "inserted"

    @property
    def replaced(self) -> bool | None:
        """Whether it took the place of one that was not fired yet."""
        return None if self._outcome is None else self._outcome == "replaced"

    def committed(self, answer: str | None) -> None:
        """What the store said: ``None``: inserted; ``ignored`` or ``replaced``."""
        self._outcome = answer or "inserted"

    def __repr__(self) -> str:
        return (
            f"EnqueueHandle(queue={self.queue!r}, id={self.id!r}, kind={self.kind!r}, "
            f"inserted={self.inserted})"
        )


class QueueInfo(NamedTuple):
    """What a queue is, as it is stored.

    Attributes:
        damaged: why it cannot be used, nor its messages be read; empty: it can. If it is its
            definition that cannot be read, the other fields tell nothing but its name.
    """

    name: str
    settings: QueueSettings
    paused: bool
    created_at: Timestamp
    damaged: str = ""


class QueueSchedule(NamedTuple):
    """A periodic schedule: at each tick of ``cron`` a message is enqueued."""

    name: str
    cron: str
    timezone: str
    kind: str
    payload: Any
    headers: dict[str, Any]
    priority: int
    group: str


def schedule_of(stored: SetSchedule, codec: Packing) -> QueueSchedule:
    """A stored schedule as applications see it."""
    payload = codec.decode(stored.payload, stored.key)
    return QueueSchedule(
        stored.name, stored.cron or "", stored.timezone, stored.kind, payload,
        stored.headers or {}, stored.priority, stored.group,
    )  # fmt: skip


def info_of(definition: QueueDefinition) -> QueueInfo:
    """A stored definition as applications see it."""
    return QueueInfo(
        definition.name, definition.settings, definition.paused, Timestamp(definition.created_at),
        definition.damaged if isinstance(definition, ToldQueue) else "",
    )  # fmt: skip


__all__ = [
    "AnyMessage",
    "EnqueueHandle",
    "QueueInfo",
    "QueueMessage",
    "QueueSchedule",
    "Settling",
    "info_of",
    "schedule_of",
    "shown_id",
]
