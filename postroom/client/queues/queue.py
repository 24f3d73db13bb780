"""A queue as applications use it, in its asyncio form.

A ``Queue`` is a name and a client. It is made without asking the store; errors come with the first
call.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from postroom.client import arguments
from postroom.client.arguments import Id, Messages
from postroom.client.codec import Packing
from postroom.client.commits import commit_one, repeat_one
from postroom.client.pages import LIST_BYTES_PER_PAGE, Stream
from postroom.client.queues.claims import claim_all, definition
from postroom.client.queues.consuming import Consumer, Received
from postroom.client.queues.messages import (
    AnyMessage,
    QueueInfo,
    QueueMessage,
    QueueSchedule,
    info_of,
    schedule_of,
    stored_of_receipt,
)
from postroom.client.queues.placing import (
    at_homes,
    home_of_attempt,
    in_ranges,
    may_have_several_ranges,
    stored_by_id,
)
from postroom.client.queues.results import TaskResult, result_in_group, result_of
from postroom.client.sender import Sender
from postroom.kv.clock import Timestamp
from postroom.limits import LEASE_SECONDS_MAX
from postroom.messaging.queues.claim_requests import EVERY_HOME, ClaimQueue, StoredQueueMessage
from postroom.messaging.queues.definition_requests import DropQueue, SetSchedule, UpdateQueue
from postroom.messaging.queues.queries import (
    FindRangeStarts,
    ListGroupResults,
    ListQueueMessages,
    QueuePage,
    QueueStats,
    ReadQueueMessage,
    ReadQueueStats,
    ReadResult,
    ReadSchedules,
    ResultPage,
)
from postroom.messaging.queues.requests import (
    Acknowledge,
    CancelMessages,
    Extend,
    RejectMessages,
    ReplayMessages,
    Reschedule,
    TrimArchive,
)

State = Literal["scheduled", "ready", "leased", "done", "archived", "dead"]
STATES: Final = ("scheduled", "ready", "leased", "done", "archived", "dead")
MESSAGES_PER_PAGE: Final = 1000
CREDIT_DEFAULT: Final = 100

When = datetime.datetime | int | None
"""A bound in time: a ``Timestamp`` or an aware ``datetime``."""


class Queue:
    """A queue: its settings, its messages, and its consumers.

    ``db.queue(name)`` makes it without asking the store. If there is no such queue, each call
    raises ``Invalid``.

    Attributes:
        name: the name of the queue.
    """

    __slots__ = ("_batch", "_codec", "_sender", "name")

    def __init__(self, sender: Sender, codec: Packing, name: str) -> None:
        self._sender = sender
        self._codec = codec
        self._batch = 0
        self.name = arguments.queue_name(name)

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # --- the queue itself

    async def info(self) -> QueueInfo:
        """Return its settings, and whether it is paused."""
        return info_of(await definition(self._sender, self.name))

    async def update(self, /, **settings: Any) -> None:
        """Change settings, at once and for all its consumers.

        Args:
            settings: those of ``create_queue``, by name. Settings that are not named stay.
            **settings: those of ``create_queue``, by name. Settings that are not named stay.

        Raises:
            TypeError, Invalid: a setting is not valid. The error names it; nothing was changed.
        """
        self._batch = 0
        await self._do(UpdateQueue(self.name, arguments.settings(settings)))

    async def pause(self) -> None:
        """Fire nothing until :meth:`resume`. Messages that are held can be settled."""
        await self._do(UpdateQueue(self.name, {}, True))

    async def resume(self) -> None:
        """Fire messages again."""
        await self._do(UpdateQueue(self.name, {}, False))

    async def drop(self) -> None:
        """Delete the queue, with all its messages; its consumers get ``Invalid``."""
        await self._do(DropQueue(self.name))

    async def stats(self) -> QueueStats:
        """Return the statistics of the queue."""
        stats: QueueStats = await self._sender.send(ReadQueueStats(self.name))
        return stats

    # --- consuming

    def receive(
        self,
        *,
        start: bytes = b"",
        end: bytes | None = None,
        kinds: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
        credit: int = CREDIT_DEFAULT,
        timeout: float | None = None,
    ) -> Stream[QueueMessage]:
        """Return the messages as they become ready: ``for message in q.receive()``.

        A coroutine uses ``async for``. The iteration goes on until any thread or task closes it
        (``close()``).

        Each message goes to one consumer, the least busy. At the end of the loop, messages that
        were claimed ahead are given back, uncounted. Those that were handed out stay held until
        their leases pass. A change of leader, or nodes that cannot be reached for a while, do not
        end the loop.

        Args:
            start: only messages whose key is not below this one.
            end: only messages whose key is below this one; ``None``: no bound.
            kinds: only messages of these kinds; ``None``: of every kind.
            where: only messages with these headers, compared as Python does: ``True``, 1 and 1.0
                are equal.
            credit: how many messages it may hold that were neither settled nor lost.
            timeout: seconds; the iteration ends when no message has come for this long. ``None``:
                it goes on.

        Raises:
            Invalid: there is no such queue, or it was dropped, or the database was closed.
            AccessDenied: not allowed.
            Retryable: the store could not be reached; only with ``timeout``.
        """
        seconds = arguments.timeout(timeout)
        consumer = self.consumer(start=start, end=end, kinds=kinds, where=where, credit=credit)
        return Received(consumer, seconds)

    def consumer(
        self,
        *,
        start: bytes = b"",
        end: bytes | None = None,
        kinds: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
        credit: int = CREDIT_DEFAULT,
    ) -> Consumer:
        """Return the consumer that :meth:`receive` iterates over, for layers on top."""
        selection = arguments.selection(start, end, kinds, where)
        most = arguments.count(credit, "credit")
        return Consumer(self._sender, self._codec, self.name, selection, most, self)

    async def claim(
        self,
        max_results: int = 1,
        *,
        wait: float | None = None,
        start: bytes = b"",
        end: bytes | None = None,
        kinds: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[QueueMessage]:
        """Take messages that are ready; they are held for ``ack_wait`` seconds.

        Args:
            max_results: how many at most.
            wait: seconds to wait for the first one; ``None``: not at all.
            start: only messages whose key is not below this one.
            end: only messages whose key is below this one; ``None``: no bound.
            kinds: only messages of these kinds; ``None``: of every kind.
            where: only messages with these headers, compared as Python does: ``True``, 1 and 1.0
                are equal.

        Returns:
            The messages; none if none became ready in time.

        Raises:
            Invalid: there is no such queue.
        """
        selection = arguments.selection(start, end, kinds, where)
        most, patience = arguments.count(max_results, "max_results"), arguments.wait(wait)
        consumer = self._sender.next_id()
        request = ClaimQueue(self.name, consumer, most, selection, wait=patience > 0)
        found = await claim_all(self._sender, request, patience, self._batch_size)
        return [QueueMessage(self.name, each, self._codec, self) for each in found]

    async def _batch_size(self) -> int:
        if not self._batch:
            self._batch = (await definition(self._sender, self.name)).settings.batch_size
        return self._batch

    def by_receipt(self, receipt: bytes) -> QueueMessage:
        """Return a claimed message by its ``receipt``, to be settled or extended.

        The store is not asked. The result has the names of the message (``id``, ``kind``, ``key``,
        ``group``, ``epoch``, ``fired_at``), and not its content.

        Args:
            receipt: the ``receipt`` of a message that any client has received or claimed.

        Raises:
            TypeError, Invalid: it is no receipt.
        """
        return QueueMessage(self.name, stored_of_receipt(receipt), self._codec, self)

    # --- settling, each call a transaction (1000 messages at a time)

    async def acknowledge(self, messages: Messages, *, kind: str | None = None) -> int:
        """Mark messages as done; return how many of them were not done yet.

        Args:
            messages: one or several messages, or ids.
            kind: the kind of the ids; ``None``: any.

        Raises:
            LeaseLost: an attempt that a message names has passed. Nothing was changed.
        """
        return await self._settle(messages, kind, Acknowledge)

    async def reject(
        self,
        messages: Messages,
        delay: Any = None,
        *,
        dead: bool = False,
        reason: str | None = None,
        kind: str | None = None,
    ) -> int:
        """Give messages back, to be fired again; return how many there were.

        Args:
            messages: one or several messages, or ids.
            delay: seconds until they are fired again, or a ``timedelta``; 0: at once; ``None``: the
                queue's back-off.
            dead: whether they become dead letters instead.
            reason: why; kept as ``last_error``, up to 1000 characters.
            kind: the kind of the ids; ``None``: any.

        Raises:
            LeaseLost: see :meth:`acknowledge`.
        """
        seconds, why = arguments.seconds(delay, "delay"), arguments.reason(reason)
        return await self._settle(
            messages, kind, lambda name, each: RejectMessages(name, each, seconds, bool(dead), why)
        )

    async def release(self, messages: Messages, *, kind: str | None = None) -> int:
        """Give messages back as if they had not been claimed; return how many there were.

        They go to their old places, at once, and no attempt is counted. This is for work that was
        not begun; reject a message whose work has failed.

        Args:
            messages: one or several messages, or ids.
            kind: the kind of the ids; ``None``: any.

        Raises:
            LeaseLost: see :meth:`acknowledge`.
        """
        return await self._settle(
            messages, kind, lambda name, each: RejectMessages(name, each, 0.0, uncounted=True)
        )

    async def extend(self, message: AnyMessage, seconds: float) -> Timestamp:
        """Hold a message for ``seconds`` from now on; return when its lease ends.

        Args:
            message: a message that was claimed.
            seconds: a number, or a ``timedelta``.

        Raises:
            LeaseLost: its attempt has passed. Nothing was changed.
        """
        length = arguments.seconds(seconds, "seconds")
        if length is None:
            raise TypeError("seconds is a number of seconds, not NoneType")
        held_until = self._sender.monotonic() + min(length, LEASE_SECONDS_MAX)
        until: int = await self._do(Extend(self.name, [message.attempt()], length))
        message.leased_for(until, held_until)
        return Timestamp(until)

    async def reschedule(
        self,
        ids: Messages,
        deliver_at: arguments.Due | None = None,
        epoch: int | None = None,
        *,
        kind: str | None = None,
    ) -> int:
        """Reschedule messages that no consumer holds; return how many were found.

        Args:
            ids: ids or messages.
            deliver_at: not before this aware ``datetime``, or this ``timedelta`` or number of
                seconds from now; ``None``: at once.
            epoch: their new number of attempts; ``None``: it stays.
            kind: the kind of the ids; ``None``: any.
        """
        due = arguments.due(deliver_at, "deliver_at")
        number = arguments.epoch(epoch)
        return await self._settle(
            ids, kind, lambda name, each: Reschedule(name, each, due, number), settles=False
        )

    async def cancel(self, ids: Messages, *, kind: str | None = None) -> int:
        """Delete messages that are not done, held or not; return how many were found.

        Args:
            ids: ids or messages.
            kind: the kind of the ids; ``None``: any.
        """
        return await self._settle(ids, kind, CancelMessages)

    async def replay(self, ids: Messages, *, kind: str | None = None) -> int:
        """Fire dead messages again, as if for the first time; return how many were found.

        Args:
            ids: ids, or messages from :meth:`dead_letters`.
            kind: the kind of the ids; ``None``: any.
        """
        return await self._settle(ids, kind, ReplayMessages, settles=False)

    async def _settle(
        self,
        given: Messages,
        kind: str | None,
        make: Callable[[str, list[Any]], Any],
        *,
        settles: bool = True,
    ) -> int:
        named = list(arguments.messages_or_ids(given))
        for each in named if settles else ():
            if isinstance(each, AnyMessage):
                each.check_settled_by(None)
        found = done = 0
        for attempts in arguments.attempts(named, kind):
            given = named[done : done + len(attempts)]
            done += len(attempts)
            placed = await at_homes(self._sender, self.name, attempts)
            bundles = in_ranges(self._sender, placed, home_of_attempt)
            by_attempt = dict(zip(attempts, given, strict=True)) if len(bundles) > 1 else {}
            for bundle in bundles:
                found += await self._do(make(self.name, bundle)) or 0
                for each in (
                    (map(by_attempt.get, bundle) if by_attempt else given) if settles else ()
                ):
                    if isinstance(each, AnyMessage):
                        each.settled()
        return found

    async def _do(self, request: Any) -> Any:
        return await commit_one(self._sender, request.anchor(), request)

    # --- looking

    async def get(self, id: Id, kind: str | None = None) -> QueueMessage | None:  # noqa: A002
        """Return the message with an id, whatever its state; ``None`` if there is none.

        Args:
            id: text or bytes.
            kind: the kind of the message; ``None``: any (if there are several, the first of them).
        """
        of_kind = None if kind is None else arguments.kind(kind)
        id_, sender = arguments.message_id(id), self._sender
        found: list[StoredQueueMessage] = await sender.send(
            ReadQueueMessage(self.name, id_, of_kind)
        )
        if not found and may_have_several_ranges(sender):
            found = await stored_by_id(sender, self.name, id_, of_kind)
        return self._message(found[0]) if found else None

    async def result(
        self,
        id: Id,  # noqa: A002
        *,
        kind: str = "",
        wait: float | None = None,
    ) -> Any:
        """Return what the task of a message has returned; its worker keeps results.

        Args:
            id: text or bytes.
            kind: the kind of the message.
            wait: seconds to wait until the message is over; ``None``: not at all.

        Raises:
            TaskFailed: the message is dead, or was cancelled.
            TimeoutError: it is not over yet.
            Invalid: there is no such message or queue, or no result is kept.
        """
        patience, of_kind = arguments.wait(wait), arguments.kind(kind)
        id_ = arguments.message_id(id)
        request = ReadResult(self.name, id_, of_kind, wait=patience > 0)
        return await result_of(self._sender, self._codec, request, patience)

    async def results(self, group: str) -> AsyncGenerator[TaskResult, None]:
        """Return what the tasks of a group have returned, in the order of its messages.

        Failures and results that are gone are left out. In the task that ``when_done`` has begun
        all are there: give that task the name of the group.

        Args:
            group: the group of the messages.

        Raises:
            Invalid: there is no such queue.
        """
        request = ListGroupResults(self.name, arguments.group(group))
        while True:
            page: ResultPage = await self._sender.send(request)
            for each in page.results:
                yield result_in_group(each, self._codec)
            if not page.next:
                return
            request = msgspec.structs.replace(request, after=page.next)

    async def messages(
        self, state: State | None = None, limit: int = 100, *, at: int | None = None
    ) -> list[QueueMessage]:
        """Return messages, without claiming any.

        Args:
            state: only messages of this state; ``None``: all that live (scheduled, ready or
                leased).
            limit: how many at most.
            at: the timestamp to read at, instead of now.
        """
        return [each async for each in self.scan(state, limit=limit, at=at)]

    async def dead_letters(self, *, limit: int = 100) -> list[QueueMessage]:
        """Return messages that are given up, the first to die first; ``last_error`` says why.

        Args:
            limit: how many at most.
        """
        return await self.messages("dead", limit)

    def archive(
        self,
        start: When = None,
        end: When = None,
        *,
        limit: int | None = None,
        at: int | None = None,
    ) -> AsyncGenerator[QueueMessage, None]:
        """Return the archived messages that were acknowledged in ``[start, end)``, in that order.

        Args:
            start: only messages acknowledged at or after this ``Timestamp`` or aware ``datetime``;
                ``None``: no bound.
            end: only messages acknowledged before this one; ``None``: no bound.
            limit: how many at most.
            at: the timestamp to read at, instead of now.
        """
        return self.scan("archived", start, end, limit=limit, at=at)

    async def trim_archive(
        self, until: When, *, created_at: int | None = None, limit: int | None = None
    ) -> int:
        """Delete archived messages that were acknowledged up to a timestamp; return how many.

        The first to be acknowledged go first. This is for applications that keep the messages
        elsewhere, like the job ``archive``. Messages that may be read at a past timestamp (by
        ``gc_ttl``, or by a protection) stay for now. The ids of deleted messages can be used again.
        The call may be repeated.

        Args:
            until: a ``Timestamp`` or an aware ``datetime``.
            created_at: when the intended queue was made (``info().created_at``), in case it was
                dropped and made again; ``None``: the existing queue.
            limit: about how many at most; ``None``: all of them.

        Raises:
            Invalid: there is no such queue.
        """
        last = arguments.moment(until, "until")
        if created_at is None:
            created_at = int((await self.info()).created_at)
        trimmed, done_ranges = 0, set[bytes]()
        while starts := {*await self._range_starts()} - done_ranges:  # a range may split meanwhile
            for start in sorted(starts):
                request, more = TrimArchive(self.name, int(created_at), last, start), 1
                while more and (limit is None or trimmed < limit):
                    done, more = await repeat_one(self._sender, request)
                    trimmed += done
            done_ranges |= starts
        return trimmed

    async def _range_starts(self) -> list[bytes]:
        """Return the first keys of the ranges."""
        starts: list[bytes] = await self._sender.send(FindRangeStarts(self.name))
        return starts

    def scan(
        self,
        state: State | None = None,
        start: When = None,
        end: When = None,
        *,
        limit: int | None = None,
        at: int | None = None,
    ) -> AsyncGenerator[QueueMessage, None]:
        """Return messages of a state, in the order of their time, page by page.

        Args:
            state: only messages of this state; ``None``: all that live.
            start: only messages that are due, were acknowledged, or died at or after this
                ``Timestamp`` or aware ``datetime``; ``None``: no bound.
            end: only messages for which that was before this one; ``None``: no bound.
            limit: how many at most.
            at: the timestamp to read at, instead of now.

        Raises:
            ValueError: there is no such state.
            SnapshotTooOld: the messages at ``at`` are collected already.
        """
        if state is not None and state not in STATES:
            raise ValueError(f"state is one of {', '.join(STATES)} or None, not {state!r}")
        if limit is not None:
            arguments.count(limit, "limit", 0)
        first, last = arguments.moment(start, "start"), arguments.moment(end, "end")
        read_at = arguments.timestamp(at)
        request = ListQueueMessages(
            self.name,
            state or "",
            b"",
            first,
            last,
            MESSAGES_PER_PAGE,
            LIST_BYTES_PER_PAGE,
            read_at,
            homes=EVERY_HOME if read_at else None,
        )
        return self._pages(request, limit)

    async def _pages(
        self, request: ListQueueMessages, limit: int | None
    ) -> AsyncGenerator[QueueMessage, None]:
        after, left = b"", limit
        while left is None or left > 0:
            size = MESSAGES_PER_PAGE if left is None else min(left, MESSAGES_PER_PAGE)
            wanted = msgspec.structs.replace(request, after=after, messages_max=size)
            page: QueuePage = await self._sender.send(wanted)
            for each in page.messages[:left]:
                yield self._message(each)
            if left is not None:
                left -= len(page.messages)
            after = page.next
            if not after:
                return

    def _message(self, stored: StoredQueueMessage) -> QueueMessage:
        return QueueMessage(self.name, stored, self._codec, self)

    # --- periodic

    async def schedule(  # noqa: PLR0913 - each argument is an option
        self,
        name: str,
        *,
        cron: str,
        payload: Any,
        timezone: str = "UTC",
        kind: str = "",
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        group: str | None = None,
    ) -> None:
        """Enqueue a message at each tick of ``cron``, once per tick whatever fails.

        Its id is ``name@`` and the tick's time. If ticks passed while no node ran, a message is
        enqueued only for the latest one. The call replaces a schedule of the same name.

        Args:
            name: the name of the schedule.
            cron: five fields (minute, hour, day, month, weekday), as ``"0 3 * * *"``.
            payload: the payload of its messages, see ``tx.enqueue``.
            timezone: the time zone of the fields, as ``"Europe/Berlin"``.
            kind: the kind of its messages.
            headers: the headers of its messages.
            priority: the priority of its messages.
            group: the group of its messages.

        Raises:
            Invalid: there is no such queue or time zone, or ``cron`` is not valid; or the store's
                side lacks the extra ``[cron]``. Nothing was changed.
        """
        key = arguments.schedule_name(name)
        arguments.texts(cron=cron, timezone=timezone)
        extra, extra_bytes = arguments.headers(headers, key.encode())
        packed = arguments.message(payload, self._codec, key.encode(), extra_bytes)
        await self._do(SetSchedule(
            self.name, key, cron, timezone, arguments.kind(kind), packed, extra,
            arguments.priority(priority), arguments.group(group),
        ))  # fmt: skip

    async def schedules(self) -> list[QueueSchedule]:
        """Return its periodic schedules."""
        found: list[SetSchedule] = await self._sender.send(ReadSchedules(self.name))
        return [schedule_of(each, self._codec) for each in found]

    async def unschedule(self, name: str) -> None:
        """End a schedule; messages that it has enqueued stay.

        Args:
            name: the name of the schedule.
        """
        await self._do(SetSchedule(self.name, arguments.schedule_name(name), None))
