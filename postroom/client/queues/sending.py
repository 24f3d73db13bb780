"""The effects of a transaction on queues: gathered like its writes, and sent with its commit.

The calls are carried out in their order, after the writes and the reaps of the transaction.

Messages that it claims are a part of it too: the store gives them to no other consumer while the
transaction is open. The commit acknowledges those that were not settled otherwise. A transaction
that ends without a commit gives them back, uncounted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from postroom.client import arguments
from postroom.client.arguments import Id, Messages
from postroom.client.buffer import NO_LIST, Buffer
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.queues.claims import claim_all, definition
from postroom.client.queues.handles import EnqueueHandle
from postroom.client.queues.made_up import near_to
from postroom.client.queues.messages import AnyMessage, QueueMessage, shown_id
from postroom.client.queues.placing import at_homes, home_of_message
from postroom.client.sender import Sender
from postroom.errors import Invalid
from postroom.messaging.queues.claim_requests import ClaimQueue
from postroom.messaging.queues.homes import home_of
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    CancelMessages,
    ConcernsAttempts,
    EnqueueInQueue,
    KeepResult,
    RejectMessages,
    Reschedule,
    WhenDone,
)

_Ended: TypeAlias = tuple[str, str | None, bytes]
"""A queue, a kind (``None``: any) and an id."""


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A message to be enqueued later, for ``tx.when_done``; the arguments of ``tx.enqueue``.

    Attributes:
        queue: the name of the queue.
        payload: 1 MiB at most, headers included.
        id: text or bytes; ``None``: one is made up.
        kind: a type tag.
        key: its key, under which it is stored unless it has a group; ``None``: its id.
        priority: from -128 to 127, lower ones first.
        deliver_at: not before this aware ``datetime``, or this ``timedelta`` or number of seconds
            from then on.
        group: its group; ``None``: none.
        headers: text to text, bytes, numbers, bools or ``None``.
    """

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
    """The requests to queues that one transaction has gathered.

    It does not refer to the transaction. Both are freed as soon as the last reference to the
    transaction is gone.

    Attributes:
        names_ids: whether it names messages by their ids.
        waited_seconds: how long it has waited for messages.
        near: the key at which it may commit, if it writes none; ``None``: any, or not known yet.
    """

    _sender: Sender
    _codec: Packing
    _id: bytes
    _lifetime: Lifetime
    _buffer: Buffer
    _requests: list[Any] = []
    _handles: dict[int, EnqueueHandle] = {}
    _settled: list[AnyMessage] = NO_LIST
    _ended: dict[_Ended, None] = {}
    _claimed: dict[str, dict[tuple[str, bytes], QueueMessage]] = {}
    _claimed_in: set[int] = set()
    names_ids: bool = False
    waited_seconds: float = 0.0
    near: bytes | None = None
    _looked_at: int = 0

    # --- enqueueing

    def enqueue(self, *what: Any) -> EnqueueHandle:
        """Gather a message; the arguments have the order of those of :class:`Enqueue`."""
        request = self._request(*what)
        id_ = shown_id(request.id)
        handle = EnqueueHandle(request.queue, id_, request.kind, self._sender, self._codec)
        self._handles[len(self._requests)] = handle
        self._requests.append(request)
        return handle

    def when_done(self, queue: str, group: str, what: Enqueue) -> None:
        """Gather a message that is enqueued when a group is done."""
        name, of_group = arguments.queue_name(queue), arguments.group(group)
        self._requests.append(WhenDone(name, of_group, self._request(
            what.queue, what.payload, what.id, what.kind, what.key, what.priority,
            what.deliver_at, what.group, what.headers,
        )))  # fmt: skip

    def _placed(self, id_: bytes, key: bytes | None, group: str) -> bytes:
        """Return a made-up id, in the range of the message, or else of the transaction."""
        if group or key is not None:
            return near_to(self._sender, home_of(key or b"", group), id_)
        return near_to(self._sender, next(iter(self._buffer.writes), self._commits_near()), id_)

    def _commits_near(self) -> bytes | None:
        """Return the key at which it may commit, which its first request that participates tells.

        It is looked for when it is needed, which it never is in a store of one range.
        """
        if self.near is None:
            new = self._requests[self._looked_at :]
            self._looked_at += len(new)
            self.near = next((each.anchor() for each in new if each.participates()), None)
        return self.near

    def _request(  # noqa: PLR0913, PLR0917 - each argument is an option of a message
        self,
        queue: str,
        payload: Any,
        id: Id | None,  # noqa: A002 - the id of a message is called id everywhere
        kind: str,
        key: bytes | None,
        priority: int,
        deliver_at: arguments.Due | None,
        group: str | None,
        headers: Mapping[str, Any] | None,
    ) -> EnqueueInQueue:
        self._lifetime.check_open()
        # Most messages have no options: what is not given need not be checked.
        name, of_kind = arguments.queue_name(queue), "" if kind == "" else arguments.kind(kind)
        given_key = None if key is None else arguments.key(key)
        of_group = "" if group is None else arguments.group(group)
        if id is None:
            id_ = self._sender.next_id().hex().encode()
            if self._sender.ranges.are_several:
                id_ = self._placed(id_, given_key, of_group)
        else:
            id_ = arguments.message_id(id)
        stored_at = id_ if given_key is None else given_key
        extra, extra_bytes = (None, 0) if headers is None else arguments.headers(headers, stored_at)
        packed = arguments.message(payload, self._codec, stored_at, extra_bytes)
        due = 0 if deliver_at is None else arguments.due(deliver_at, "deliver_at")
        self._buffer.grow(len(stored_at) + len(id_) + len(packed) + extra_bytes)
        return EnqueueInQueue(
            name, stored_at, of_kind, id_, packed, extra,
            arguments.priority(priority), due,
            of_group, id is None,
        )  # fmt: skip

    # --- settling

    def keep_result(self, message: AnyMessage, seconds: float, value: bytes | None) -> None:
        """Gather what the attempt at a message has returned; it is to be acknowledged next."""
        self._lifetime.check_open()
        self._buffer.grow(len(message.key) + len(value or b""))
        self._requests.append(KeepResult(message.queue, message.attempt(), seconds, value))

    def settle(
        self,
        queue: str,
        given: Messages,
        kind: str | None,
        make: Callable[[str, list[Any]], Any],
        *,
        settles: bool = True,
    ) -> None:
        """Gather a request about messages.

        Args:
            queue: the name of the queue.
            given: messages or ids.
            kind: the kind of the ids; ``None``: any.
            make: makes the request from the queue and from as many attempts as one may name.
            settles: whether it ends the attempts.
        """
        self._lifetime.check_open()
        name = arguments.queue_name(queue)
        named = arguments.messages_or_ids(given)
        messages = [each for each in named if isinstance(each, AnyMessage)]
        self.names_ids |= len(messages) < len(named)
        for each in messages if settles else ():
            each.check_settled_by(self._id)
        for attempts in arguments.attempts(named, kind):
            ended = self._ending(name, attempts) if settles else {}
            self._buffer.grow(sum([len(each.home) + len(each.id) + 24 for each in attempts]))
            self._requests.append(make(name, attempts))
            if settles:
                self._ended.update(ended)
                self._forget_claimed(name, attempts)
        if settles:
            self._settled = self._settled or []
            self._settled += messages

    def _ending(self, queue: str, attempts: list[Attempt]) -> dict[_Ended, None]:
        """Return what the transaction settles with these attempts.

        Raises:
            Invalid: it has settled one of them already, and cannot commit with both.
        """
        before = self._ended
        if not before:  # the usual case, in one step
            ended: dict[_Ended, None] = {
                (queue, each.kind, each.id): None for each in attempts if not each.by_id
            }
            if len(ended) == len(attempts):
                return ended
        ended = {}
        for each in attempts:
            this = (queue, each.kind if each.of_kind or not each.by_id else None, each.id)
            if each.epoch >= 0 and (
                this in ended
                or this in before
                or (any_kind := (queue, None, each.id)) in ended
                or any_kind in before
            ):
                raise Invalid(
                    f"this transaction settles message {shown_id(each.id)!r} of queue {queue!r} "
                    "already (acknowledge, reject or cancel): settle it once; this call changed "
                    "nothing"
                )
            ended[this] = None
        return ended

    def settles(self, message: AnyMessage) -> bool:
        """Return whether it acknowledges, rejects or cancels a message."""
        kind, id_ = message.stored.kind, message.stored.id
        queue, ended = message.queue, self._ended
        return (queue, kind, id_) in ended or (queue, None, id_) in ended

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
        """Return messages that are a part of this transaction from now on.

        Args:
            queue: the name of the queue.
            most: how many.
            patience: seconds to wait for the first one.
            selection: which messages.
            is_idle: whether the transaction has nothing yet that could become too old.
        """
        self._lifetime.check_alive()
        name = arguments.queue_name(queue)
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
        if self._sender.ranges.are_several:
            range_id = self._sender.range_id
            self._claimed_in.update(range_id(home_of_message(each)) for each in found)
            if found and self._commits_near() is None:
                self.near = home_of_message(found[0])
        claimed = self._claimed.setdefault(name, {})
        claimed.update(
            ((each.kind, each.id), one) for each, one in zip(found, messages, strict=True)
        )
        return messages

    async def _batch_size(self, queue: str) -> int:
        return (await definition(self._sender, queue)).settings.batch_size

    @property
    def has_claimed(self) -> bool:
        """Return whether it holds claimed messages."""
        return any(self._claimed.values())

    # --- at the commit

    async def find_homes(self) -> None:
        """Find the messages that are named by their ids, if the store has several ranges."""
        for index, request in enumerate(self._requests):
            if isinstance(request, ConcernsAttempts):
                attempts = await at_homes(self._sender, request.queue, request.attempts)
                replaced: Any = request
                self._requests[index] = msgspec.structs.replace(replaced, attempts=attempts)

    def claimed_elsewhere(self, anchor: bytes) -> bool:
        """Return whether messages were claimed in other ranges than that of the anchor."""
        return bool(self._claimed_in) and self._claimed_in != {self._sender.range_id(anchor)}

    def requests(self) -> list[Any]:
        """Return the requests of the commit, in order."""
        last = [
            Acknowledge(queue, attempts)
            for queue, claimed in self._claimed.items()
            for attempts in arguments.attempts(claimed.values())
        ]
        return self._requests + last

    def committed(self, answers: list[Any]) -> None:
        """Tell handles and messages that it was committed.

        Args:
            answers: the answers to everything in the commit, with those to queue requests last;
                empty if every answer is the usual one.
        """
        first = len(answers) - len(self.requests()) if answers else 0
        for index, handle in self._handles.items():
            handle.committed(answers[first + index] if answers else None)
        for message in self._settled:
            message.settled()


HandleT = TypeVar("HandleT")


class QueueSends(Generic[HandleT]):
    """The calls of a transaction about queues that only gather; both forms share them."""

    __slots__ = ()

    def own_handle(self, handle: EnqueueHandle) -> HandleT:
        """Return a handle in the form of the transaction, for layers on top."""
        raise NotImplementedError

    @property
    def queues(self) -> Sends:
        """Return what was gathered, for layers on top, such as the synchronous form."""
        raise NotImplementedError

    @property
    def lifetime(self) -> Lifetime:
        """Return the lifetime, for layers on top, such as workers."""
        raise NotImplementedError

    def keep_young(self) -> None:
        """Restart the transaction's time if nothing in it could become too old.

        For layers on top, such as workers.
        """
        raise NotImplementedError

    def enqueue(  # noqa: PLR0913 - each argument is an option
        self,
        queue: str,
        payload: Any,
        *,
        id: Id | None = None,  # noqa: A002 - the id of a message is called id everywhere
        kind: str = "",
        key: bytes | None = None,
        priority: int = 0,
        deliver_at: arguments.Due | None = None,
        group: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> HandleT:
        """Put a message into a queue when, and only if, the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        Args:
            queue: the name of the queue.
            payload: 1 MiB at most, headers included.
            id: text or bytes; with the kind it is unique in the queue. A setting of the queue says
                what happens to a duplicate. Made up if it is not given.
            kind: a type tag; consumers ask for kinds.
            key: its key, under which it is stored unless it has a group; its id, if not given.
            priority: from -128 to 127, lower ones first.
            deliver_at: not before this aware ``datetime``, or this ``timedelta`` or number of
                seconds from now.
            group: groups take turns; also the unit of order, if the queue keeps any.
            headers: text to text, bytes, numbers, bools or ``None``; 64 KiB at most.

        Returns:
            A handle, with the id, and after the commit whether the message was inserted.

        Raises:
            TypeError, ValueError, Invalid: an argument is not valid.
            ValueTooLarge, TransactionTooLarge, TransactionClosed: see ``enqueue_message``. If there
                is no such queue, the commit raises ``Invalid``.
        """
        return self.own_handle(self.queues.enqueue(
            queue, payload, id, kind, key, priority, deliver_at, group, headers
        ))  # fmt: skip

    def when_done(self, queue: str, group: str, enqueue: Enqueue | Mapping[str, Any]) -> None:
        """Enqueue another message, once, when all messages of ``group`` are done.

        It is enqueued in the same write as the last acknowledgement; at once, if no message of the
        group is outstanding.

        A plain call, also with asyncio: it is not awaited.

        Args:
            queue: the queue of the group.
            group: the group; its dead letters are outstanding until they are replayed and done, or
                cancelled.
            enqueue: the message: ``postroom.Enqueue(queue, payload, ...)``, or its arguments by
                name.
        """
        if isinstance(enqueue, Mapping):
            enqueue = Enqueue(**enqueue)
        if not isinstance(enqueue, Enqueue):
            raise TypeError(f"enqueue is a postroom.Enqueue, not {type(enqueue).__name__}")
        self.queues.when_done(queue, group, enqueue)

    def acknowledge(self, queue: str, messages: Messages, *, kind: str | None = None) -> None:
        """Mark messages as done when the transaction commits, together with its changes.

        A plain call, also with asyncio: it is not awaited.

        Args:
            queue: the name of the queue.
            messages: one or several. A message names its attempt: if another consumer has begun a
                new one, the commit raises ``LeaseLost`` and nothing happens. An id names the
                message, whoever holds it.
            kind: the kind of the ids; ``None``: any.
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
        """Give messages back when the transaction commits, to be fired again.

        A plain call, also with asyncio: it is not awaited.

        Args:
            queue: the name of the queue.
            messages: one or several messages, or ids.
            delay: seconds until they are fired again, or a ``timedelta``; 0: at once; ``None``: the
                queue's back-off.
            dead: whether they become dead letters instead.
            reason: why; kept as ``last_error``, up to 1000 characters.
            kind: the kind of the ids; ``None``: any.
        """
        seconds, why = arguments.seconds(delay, "delay"), arguments.reason(reason)
        self.queues.settle(
            queue,
            messages,
            kind,
            lambda name, each: RejectMessages(name, each, seconds, bool(dead), why),
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
        """Reschedule messages that no consumer holds when the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        Args:
            queue: the name of the queue.
            ids: ids or messages.
            deliver_at: see :meth:`enqueue`; ``None``: at once.
            epoch: their new number of attempts; ``None``: it stays.
            kind: the kind of the ids; ``None``: any.
        """
        due = arguments.due(deliver_at, "deliver_at")
        number = arguments.epoch(epoch)
        self.queues.settle(
            queue, ids, kind, lambda name, each: Reschedule(name, each, due, number), settles=False
        )

    def cancel(self, queue: str, ids: Messages, *, kind: str | None = None) -> None:
        """Delete messages that are not done when the transaction commits, held or not.

        A plain call, also with asyncio: it is not awaited.

        Args:
            queue: the name of the queue.
            ids: ids or messages.
            kind: the kind of the ids; ``None``: any.
        """
        self.queues.settle(queue, ids, kind, CancelMessages)


class QueueWrites(QueueSends[EnqueueHandle]):
    """The calls of a transaction about queues, in the asyncio form."""

    __slots__ = ()

    def own_handle(self, handle: EnqueueHandle) -> EnqueueHandle:
        """Return the handle, for layers on top."""
        return handle

    @property
    def is_idle(self) -> bool:
        """Return whether it has nothing that could become too old.

        For layers on top.
        """
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
        """Take messages that are ready, for this transaction.

        They are acknowledged when it commits, unless it rejects, cancels or acknowledges them. If
        it does not commit they go back to their old places at once, and no attempt is counted.

        Args:
            queue: the name of the queue.
            max_results: how many at most.
            wait: seconds to wait for the first one, any number. Like those of ``reap_queue``, they
                do not count towards the time of a transaction that has read nothing. ``None``: it
                does not wait.
            start: only messages whose key is not below this one.
            end: only messages whose key is below this one; ``None``: no bound.
            kinds: only messages of these kinds; ``None``: of every kind.
            where: only messages with these headers.

        Returns:
            The messages; none if none became ready in time.
        """
        most = arguments.count(max_results, "max_results")
        selection = arguments.selection(start, end, kinds, where)
        return await self.queues.claim(
            queue, most, arguments.wait(wait), selection, is_idle=self.is_idle
        )
