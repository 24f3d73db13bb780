"""What a transaction does to queues: gathered like its writes, and sent with its commit.

The calls are carried out in their order, after the writes of the transaction and what it reaped.
What it claims is a part of it too: the store gives it to nobody else while the transaction is open;
the commit acknowledges whatever of it was not settled otherwise, and a transaction that ends
without a commit gives it back, as a failed attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from postroom.client import arguments
from postroom.client.buffer import NO_LIST, Buffer
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.queues import arguments as checks
from postroom.client.queues.arguments import Id, Messages
from postroom.client.queues.claims import claim_all, definition
from postroom.client.queues.messages import AnyMessage, EnqueueHandle, QueueMessage, shown_id
from postroom.client.sender import Sender
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    CancelMessages,
    ClaimQueue,
    Reject,
    Reschedule,
    WhenDone,
)
from postroom.messaging.queues.requests import Enqueue as EnqueueRequest


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A message to be enqueued later, for ``tx.when_done``; the arguments of ``tx.enqueue``."""

    queue: str
    payload: Any
    id: Id | None = field(default=None, kw_only=True)
    kind: str = field(default="", kw_only=True)
    key: bytes | None = field(default=None, kw_only=True)
    priority: int = field(default=0, kw_only=True)
    deliver_at: arguments.Due | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, Any] | None = field(default=None, kw_only=True)


class Sends(msgspec.Struct, eq=False, gc=False):
    """What one transaction has gathered for queues. It does not know the transaction, so that both
    are freed as soon as nobody has the transaction any more.

    Attributes:
        waited_seconds: how long it has waited for messages.
    """

    _sender: Sender
    _codec: Packing
    _id: bytes
    _lifetime: Lifetime
    _buffer: Buffer
    _requests: list[Any] = []
    _handles: dict[int, EnqueueHandle] = {}
    _settled: list[AnyMessage] = NO_LIST
    _claimed: dict[str, dict[tuple[str, bytes], QueueMessage]] = {}
    waited_seconds: float = 0.0

    # --- enqueueing

    def enqueue(self, *what: Any) -> EnqueueHandle:
        """Gathers a message: its arguments, in the order of those of :class:`Enqueue`."""
        request = self._request(*what)
        handle = EnqueueHandle(request.queue, shown_id(request.id), request.kind)
        self._handles[len(self._requests)] = handle
        self._requests.append(request)
        return handle

    def when_done(self, queue: str, group: str, what: Enqueue) -> None:
        """Gathers what comes after a group."""
        name, of_group = checks.queue_name(queue), checks.group(group)
        self._requests.append(WhenDone(name, of_group, self._request(
            what.queue, what.payload, what.id, what.kind, what.key, what.priority,
            what.deliver_at, what.group, what.headers,
        )))  # fmt: skip

    def _request(  # noqa: PLR0913, PLR0917 - each argument is an option of a message
        self,
        queue: str,
        payload: Any,
        id: Id | None,  # noqa: A002 - what a message is known by is called its id everywhere
        kind: str,
        key: bytes | None,
        priority: int,
        deliver_at: arguments.Due | None,
        group: str | None,
        headers: Mapping[str, Any] | None,
    ) -> EnqueueRequest:
        self._lifetime.check_open()
        name, of_kind = checks.queue_name(queue), checks.kind(kind)
        id_ = self._sender.next_id().hex().encode() if id is None else checks.message_id(id)
        stored_at = id_ if key is None else arguments.key(key)
        extra, extra_bytes = arguments.headers(headers, stored_at)
        packed = arguments.message(payload, self._codec, stored_at, extra_bytes)
        due = self.due(deliver_at)
        self._buffer.grow(len(stored_at) + len(id_) + len(packed) + extra_bytes)
        return EnqueueRequest(
            name, stored_at, of_kind, id_, packed, extra,
            checks.priority(priority), due, checks.group(group), id is None,
        )  # fmt: skip

    def due(self, given: arguments.Due | None) -> int:
        """A time as a timestamp; 0: at once."""
        if given is None:
            return 0
        return arguments.due(given, self._sender.reading(), "deliver_at")

    # --- settling

    def settle(
        self,
        queue: str,
        given: Messages,
        kind: str | None,
        make: Callable[[str, list[Any]], Any],
        *,
        settles: bool = True,
    ) -> None:
        """Gathers a request about messages.

        Args:
            queue: its name.
            given: messages or ids.
            kind: of the ids; ``None``: whichever.
            make: the request, of the queue and of at most as many attempts as one may name.
            settles: whether it ends the attempts.
        """
        self._lifetime.check_open()
        name = checks.queue_name(queue)
        named: list[Any] = _listed(given)
        for attempts in checks.attempts(named, kind):
            self._buffer.grow(sum(len(each.key) + len(each.id) + 24 for each in attempts))
            self._requests.append(make(name, attempts))
            if settles:
                self._forget_claimed(name, attempts)
        if settles:
            self._settled = self._settled or []
            self._settled += [each for each in named if isinstance(each, AnyMessage)]

    def settles(self, message: AnyMessage) -> bool:
        """Whether it acknowledges a message, or gives it back, or cancels it."""
        kind, id_ = message.stored.kind, message.stored.id
        return any(
            each.id == id_ and (each.kind == kind or (each.by_id and not each.of_kind))
            for request in self._requests
            if isinstance(request, Acknowledge | Reject | CancelMessages)
            if request.queue == message.queue
            for each in request.attempts
        )

    def _forget_claimed(self, queue: str, named: Iterable[Attempt]) -> None:
        claimed = self._claimed.get(queue)
        if not claimed:
            return
        for each in named:
            if each.by_id and not each.of_kind:
                for of_any_kind in [one for one in claimed if one[1] == each.id]:
                    del claimed[of_any_kind]
            else:
                claimed.pop((each.kind, each.id), None)

    # --- claiming

    async def claim(
        self, queue: str, most: int, patience: float, selection: Any, *, is_idle: bool
    ) -> list[QueueMessage]:
        """Messages that are a part of this transaction from now on.

        Args:
            queue: its name.
            most: how many.
            patience: seconds to wait for the first one.
            selection: which.
            is_idle: whether the transaction knows nothing yet that could become too old.
        """
        self._lifetime.check_alive()
        name = checks.queue_name(queue)
        left = self._lifetime.timeout if is_idle else self._lifetime.remaining()
        request = ClaimQueue(
            name, self._id, most, selection, wait=patience > 0, seconds=left,
            transaction_id=self._id,
        )  # fmt: skip
        self._lifetime.holds = True
        began = self._sender.monotonic()
        try:
            patience = patience if is_idle else min(patience, left)
            found = await claim_all(self._sender, request, patience, lambda: self._batch_size(name))
        finally:
            if patience:
                self.waited_seconds += self._sender.monotonic() - began
        if patience and is_idle:
            self._lifetime.start_clock()
        self._lifetime.check_still_open()
        messages = [QueueMessage(name, each, self._codec) for each in found]
        claimed = self._claimed.setdefault(name, {})
        claimed.update(
            ((each.kind, each.id), one) for each, one in zip(found, messages, strict=True)
        )
        return messages

    async def _batch_size(self, queue: str) -> int:
        return (await definition(self._sender, queue)).settings.batch_size

    @property
    def has_claimed(self) -> bool:
        """Whether it holds messages."""
        return any(self._claimed.values())

    # --- at the commit

    def requests(self) -> list[Any]:
        """What the commit carries, in order."""
        last = [
            Acknowledge(queue, attempts)
            for queue, claimed in self._claimed.items()
            for attempts in checks.attempts(claimed.values())
        ]
        return self._requests + last

    def committed(self, answers: list[Any]) -> None:
        """It was committed.

        Args:
            answers: to everything that the commit carried, the requests of queues last; none at all
                if there was nothing to say.
        """
        first = len(answers) - len(self.requests()) if answers else 0
        for index, handle in self._handles.items():
            handle.committed(answers[first + index] if answers else None)
        for message in self._settled:
            message.settled()


def _listed(given: Messages) -> list[Any]:
    return [given] if isinstance(given, AnyMessage | str | bytes) else list(given)


class QueueSends:
    """What a transaction sends to queues: calls that only gather, which are the same in both
    forms.
    """

    __slots__ = ()

    @property
    def queues(self) -> Sends:
        """What was gathered: for what is built on top, as the synchronous form is."""
        raise NotImplementedError

    def keep_young(self) -> None:
        """Its time begins now, if it knows nothing that could become too old: for what is built on
        top, as workers are.
        """
        raise NotImplementedError

    def enqueue(  # noqa: PLR0913 - each argument is an option
        self,
        queue: str,
        payload: Any,
        *,
        id: Id | None = None,  # noqa: A002 - what a message is known by is called its id everywhere
        kind: str = "",
        key: bytes | None = None,
        priority: int = 0,
        deliver_at: arguments.Due | None = None,
        group: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> EnqueueHandle:
        """Puts a message into a queue when, and only if, the transaction commits.

        Args:
            queue: its name.
            payload: 1 MiB at most, headers included.
            id: text or bytes; with the kind it is unique in the queue, and what happens to a
                duplicate is a setting of the queue. Made up if it is not given.
            kind: a type tag; consumers ask for kinds.
            key: where it is stored; its id, if not given.
            priority: from -128 to 127, lower ones first.
            deliver_at: not before this aware ``datetime``, or this ``timedelta`` or number of
                seconds from now.
            group: shares with other groups by turns; a unit of order, if the queue keeps any.
            headers: text to text, bytes, numbers, bools or ``None``; 64 KiB at most.

        Returns:
            A handle, with the id, and after the commit whether the message was inserted.

        Raises:
            TypeError, ValueError, Invalid: an argument is none that can be.
            ValueTooLarge, TransactionTooLarge, TransactionClosed: as ``enqueue_message``. That
                there is no such queue is told by the commit.
        """
        return self.queues.enqueue(
            queue, payload, id, kind, key, priority, deliver_at, group, headers
        )

    def when_done(self, queue: str, group: str, enqueue: Enqueue | Mapping[str, Any]) -> None:
        """When all messages of ``group`` are done, has another message enqueued, once, in the same
        write as the last acknowledgement; at once, if none is outstanding.

        Args:
            queue: of the group.
            group: dead letters of it are outstanding until they are replayed and done, or
                cancelled.
            enqueue: what, and where: ``postroom.Enqueue(queue, payload, ...)``, or its arguments
                by name.
        """
        if isinstance(enqueue, Mapping):
            enqueue = Enqueue(**enqueue)
        if not isinstance(enqueue, Enqueue):
            raise TypeError(f"enqueue is a postroom.Enqueue, not {type(enqueue).__name__}")
        self.queues.when_done(queue, group, enqueue)

    def acknowledge(self, queue: str, messages: Messages, *, kind: str | None = None) -> None:
        """Messages are done when the transaction commits, together with what it changes.

        Args:
            queue: its name.
            messages: one or several. A message names its attempt: if that has passed to another
                consumer, the commit raises ``LeaseLost`` and nothing happens. An id names the
                message, whoever holds it.
            kind: of the ids; ``None``: whichever.
        """
        self.queues.settle(queue, messages, kind, Acknowledge)

    def reject(
        self,
        queue: str,
        messages: Messages,
        delay: Any = None,
        *,
        dead: bool = False,
        reason: str | None = None,
        kind: str | None = None,
    ) -> None:
        """Messages are given back when the transaction commits, and fired again.

        Args:
            queue, messages, kind: as for :meth:`acknowledge`.
            delay: seconds until then, or a ``timedelta``; ``None``: the queue's back-off, 0: at
                once.
            dead: never; they become dead letters.
            reason: why; kept as ``last_error``, up to 1000 characters.
        """
        seconds, why = checks.seconds(delay, "delay"), checks.reason(reason)
        self.queues.settle(
            queue, messages, kind, lambda name, each: Reject(name, each, seconds, bool(dead), why)
        )

    def reschedule(
        self,
        queue: str,
        ids: Messages,
        deliver_at: arguments.Due | None = None,
        epoch: int | None = None,
        *,
        kind: str | None = None,
    ) -> None:
        """Messages that nobody holds are fired at another time.

        Args:
            queue: its name.
            ids: or messages.
            deliver_at: as for :meth:`enqueue`; ``None``: at once.
            epoch: what their number of attempts becomes; ``None``: it stays.
            kind: of the ids; ``None``: whichever.
        """
        due = self.queues.due(deliver_at)
        number = None if epoch is None else arguments.count(epoch, "epoch", 0)
        self.queues.settle(
            queue, ids, kind, lambda name, each: Reschedule(name, each, due, number), settles=False
        )

    def cancel(self, queue: str, ids: Messages, *, kind: str | None = None) -> None:
        """Messages that are not done are deleted when the transaction commits, whoever holds them.

        Args:
            queue: its name.
            ids: or messages.
            kind: of the ids; ``None``: whichever.
        """
        self.queues.settle(queue, ids, kind, CancelMessages)


class QueueWrites(QueueSends):
    """What a transaction offers about queues, in the asyncio form."""

    __slots__ = ()

    @property
    def is_idle(self) -> bool:
        """Whether it knows nothing that could become too old."""
        raise NotImplementedError

    async def claim(  # noqa: PLR0913 - each argument is an option
        self,
        queue: str,
        max_results: int = 1,
        *,
        wait: float | None = None,
        start: bytes = b"",
        end: bytes | None = None,
        kinds: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[QueueMessage]:
        """Takes messages that are ready, for this transaction.

        They are acknowledged when it commits, but for those that were rejected, cancelled or
        acknowledged in it. If it does not commit, the attempt has failed: they are fired again
        after the queue's back-off.

        Args:
            queue: its name.
            max_results: how many at most.
            wait: seconds to wait for the first one, as many as you like; as with ``reap_queue``
                they do not count towards the time of a transaction that has read nothing. ``None``:
                it does not wait.
            start, end: only messages with ``start <= key < end``.
            kinds: only of these; ``None``: of every kind.
            where: only with these headers.
        """
        most = arguments.count(max_results, "max_results")
        selection = checks.selection(start, end, kinds, where)
        return await self.queues.claim(
            queue, most, arguments.wait(wait), selection, is_idle=self.is_idle
        )


__all__ = ["Enqueue", "QueueSends", "QueueWrites", "Sends"]
