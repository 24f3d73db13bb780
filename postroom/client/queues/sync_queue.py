"""The synchronous form of queues: :mod:`postroom.client.sync` lists the errors of all its calls.

See :mod:`.queue` and :mod:`.sending`.
"""

from __future__ import annotations

from typing import ClassVar

from postroom.client.blocking import (
    SyncForm,
    blocking,
    closable_own,
    iterating,
    iterating_own,
    owning,
)
from postroom.client.functions import Plain
from postroom.client.queues import handles, sending
from postroom.client.queues import queue as asynchronous
from postroom.client.queues.messages import AnyMessage
from postroom.client.queues.messages import QueueMessage as AsynchronousMessage
from postroom.client.sender import BlockingSender
from postroom.kv.clock import Timestamp


class QueueMessage(AnyMessage):
    """A message of a queue.

    Attributes:
        queue: the name of the queue.
        held_until: when the lease of a claimed message ends, on the client's monotonic clock.
    """

    __slots__ = ("_blocking", "_core")

    def __init__(self, sender: BlockingSender, core: AsynchronousMessage) -> None:
        super().__init__(core.queue, core.stored, core.codec)
        self._blocking = sender
        self._core = core

    acknowledge = blocking(AsynchronousMessage.acknowledge)
    reject = blocking(AsynchronousMessage.reject)
    release = blocking(AsynchronousMessage.release)
    extend = blocking(AsynchronousMessage.extend)

    @property
    def leased_until(self) -> Timestamp | None:
        """Return when its lease ends; ``None``: no consumer holds it."""
        return self._core.leased_until

    def leased_for(self, until: int, held_until: float) -> None:
        """Note that its lease was extended.

        For layers on top.

        Args:
            until: when it ends, as a timestamp.
            held_until: when it ends on the client's monotonic clock.
        """
        self._core.leased_for(until, held_until)

    def given_to_task(self, transaction_id: bytes) -> None:
        """Reserve its settling for the transaction that a task was given with it.

        For layers on top.

        Args:
            transaction_id: the id of that transaction.
        """
        super().given_to_task(transaction_id)
        self._core.given_to_task(transaction_id)

    def settled(self) -> None:
        """Tell its consumer that it was acknowledged or given back.

        For layers on top.
        """
        self._core.settled()


def own_messages(sender: BlockingSender, messages: list[AsynchronousMessage]) -> list[QueueMessage]:
    """Return messages in the synchronous form."""
    return [QueueMessage(sender, each) for each in messages]


def _own_message(
    sender: BlockingSender, message: AsynchronousMessage | None
) -> QueueMessage | None:
    return None if message is None else QueueMessage(sender, message)


class Queue(SyncForm[asynchronous.Queue]):
    """A queue: its settings, its messages, and its consumers.

    ``db.queue(name)`` makes it without asking the store. If there is no such queue, each call
    raises ``Invalid``.

    Examples:
        >>> q = db.create_queue("emails", ack_wait=30)
        >>> with db.begin() as tx:
        ...     handle = tx.enqueue("emails", b"hello")
        >>> (message,) = q.claim(wait=5)
        >>> message.payload
        b'hello'
        >>> message.acknowledge()
        >>> q.stats().acknowledged
        1
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """Return the name of the queue."""
        return self._core.name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # --- the queue itself

    info = blocking(asynchronous.Queue.info)
    update = blocking(asynchronous.Queue.update)
    pause = blocking(asynchronous.Queue.pause)
    resume = blocking(asynchronous.Queue.resume)
    drop = blocking(asynchronous.Queue.drop)
    stats = blocking(asynchronous.Queue.stats)

    # --- consuming

    receive = closable_own(asynchronous.Queue.receive, QueueMessage)
    claim = owning(asynchronous.Queue.claim, own_messages)

    def by_receipt(self, receipt: bytes) -> QueueMessage:
        """Return a claimed message by its ``receipt``, to be settled or extended.

        The store is not asked. The result has the names of the message (``id``, ``kind``, ``key``,
        ``epoch``, ``fired_at``), and not its content.

        Args:
            receipt: the ``receipt`` of a message that any client has received or claimed.

        Raises:
            TypeError, Invalid: it is no receipt.
        """
        return QueueMessage(self._blocking, self._core.by_receipt(receipt))

    # --- settling, each call a transaction (1000 messages at a time)

    acknowledge = blocking(asynchronous.Queue.acknowledge)
    reject = blocking(asynchronous.Queue.reject)
    release = blocking(asynchronous.Queue.release)
    extend = blocking(asynchronous.Queue.extend)
    reschedule = blocking(asynchronous.Queue.reschedule)
    cancel = blocking(asynchronous.Queue.cancel)
    replay = blocking(asynchronous.Queue.replay)

    # --- looking

    get = owning(asynchronous.Queue.get, _own_message)
    result = blocking(asynchronous.Queue.result)
    results = iterating(asynchronous.Queue.results)
    messages = owning(asynchronous.Queue.messages, own_messages)
    dead_letters = owning(asynchronous.Queue.dead_letters, own_messages)
    archive = iterating_own(asynchronous.Queue.archive, QueueMessage)
    trim_archive = blocking(asynchronous.Queue.trim_archive)
    scan = iterating_own(asynchronous.Queue.scan, QueueMessage)

    # --- periodic

    schedule = blocking(asynchronous.Queue.schedule)
    schedules = blocking(asynchronous.Queue.schedules)
    unschedule = blocking(asynchronous.Queue.unschedule)


class EnqueueHandle(Plain, SyncForm[handles.EnqueueHandle]):
    """The result of ``tx.enqueue``: the id, after the commit the outcome, and then the result."""

    __slots__ = ()
    plain_call: ClassVar[str] = handles.PLAIN_CALL

    @property
    def queue(self) -> str:
        """Return the name of the queue."""
        return self._core.queue

    @property
    def id(self) -> str | bytes:
        """Return the id, given or made up."""
        return self._core.id

    @property
    def kind(self) -> str:
        """Return the kind of the message."""
        return self._core.kind

    @property
    def inserted(self) -> bool | None:
        """Return whether a new message was inserted; false: this kind and id existed already.

        ``None``: the transaction has not committed.
        """
        return self._core.inserted

    @property
    def replaced(self) -> bool | None:
        """Return whether it replaced a message that was not fired yet.

        ``None``: the transaction has not committed.
        """
        return self._core.replaced

    result = blocking(handles.EnqueueHandle.result)

    def __repr__(self) -> str:
        return repr(self._core)


class QueueWrites(sending.QueueSends[EnqueueHandle]):
    """The queue calls of a transaction.

    Attributes:
        _blocking, _core: the sender and the asyncio form of the transaction.
    """

    __slots__ = ()
    _blocking: BlockingSender
    _core: sending.QueueWrites

    def own_handle(self, handle: handles.EnqueueHandle) -> EnqueueHandle:
        """Return a handle in the synchronous form, for layers on top."""
        return EnqueueHandle(self._blocking, handle)

    @property
    def queues(self) -> sending.Sends:
        """Return what was gathered, for layers on top."""
        return self._core.queues

    def keep_young(self) -> None:
        """Restart the transaction's time if nothing in it could become too old.

        For layers on top.
        """
        self._core.keep_young()

    claim = owning(sending.QueueWrites.claim, own_messages)
