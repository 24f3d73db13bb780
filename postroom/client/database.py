"""The database as applications use it, in its asyncio form.

Every operation outside a transaction is a transaction of one request. Logic is written once, here
and in :mod:`postroom.client.transaction`; the synchronous forms (:mod:`postroom.client.sync`) run
the same coroutines and block where these wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from postroom.client import arguments, letters
from postroom.client.codec import Packing
from postroom.client.pages import (
    Page,
    pages,
    stored_letters,
    stored_messages,
    stored_schedule,
    stored_values,
    unpacked_values,
)
from postroom.client.retries import repeat
from postroom.client.sender import Sender, post, send_again
from postroom.client.transaction import Transaction, messages
from postroom.client.values import Change, DeadLetter, InboxInfo, Message, Moment, Scheduled, Status
from postroom.errors import ConditionFailed, NotInTransaction, Unavailable
from postroom.kv.clock import Timestamp
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.requests import (
    AwaitQuiet,
    CancelScheduled,
    DiscardDeadLetters,
    Inbox,
    ListInboxes,
    ReplayDeadLetters,
)
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.requests import (
    Changes,
    Committed,
    CommitTransaction,
    ConditionalPut,
    Delete,
    DeleteRange,
    Get,
    Increment,
    Protect,
    Put,
    ReadAccounting,
    ScanChanges,
    Unprotect,
    Value,
)

P = ParamSpec("P")
T = TypeVar("T")


class Snapshot:
    """Reads at one timestamp, protected from garbage collection while it is open."""

    def __init__(self, database: Database, timestamp: int) -> None:
        self._database = database
        self.timestamp = Timestamp(timestamp)

    async def get(self, key: bytes) -> Any:
        """The value of ``key`` then."""
        return await self._database.get(key, at=self.timestamp)

    async def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """The values of ``keys`` then."""
        return await self._database.get_many(keys, at=self.timestamp)

    def scan(
        self, start: bytes, end: bytes | None, *, limit: int | None = None, reverse: bool = False
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        """The pairs in ``[start, end)`` then."""
        return self._database.scan(start, end, limit=limit, reverse=reverse, at=self.timestamp)

    async def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """The inbox of ``key`` then."""
        return await self._database.peek(key, limit, at=self.timestamp)


class Database:
    """A store: embedded, or reached over the network. Made by ``open`` or ``connect``."""

    def __init__(
        self,
        sender: Sender,
        codec: Packing,
        status: Callable[[], Awaitable[Status]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._sender = sender
        self.codec = codec
        self._status = status
        self._close = close

    # --- reading

    async def get(self, key: bytes, *, at: int | None = None) -> Any:
        """The newest committed value of ``key``, or the one as of ``at``; ``None`` if absent.

        Raises:
            TypeError, KeyTooLarge, SnapshotTooOld, Unavailable.
        """
        key = arguments.key(key)
        moment = 0 if at is None else arguments.timestamp(at)
        reply: Value = await self._sender.send(Get(key, moment))
        if reply.value is None:
            return None
        return self.codec.decode(reply.value, key, integer=reply.integer)

    async def get_many(self, keys: Iterable[bytes], *, at: int | None = None) -> list[Any]:
        """The values of ``keys`` at one timestamp, in their order; ``None`` for absent ones."""
        wanted = [arguments.key(key) for key in keys]
        reply = await stored_values(self._sender, wanted, arguments.timestamp(at))
        return unpacked_values(wanted, reply, self.codec)

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        at: int | None = None,
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        """The pairs with ``start <= key < end`` at one timestamp, however long it takes.

        Args:
            start: first key.
            end: first key that is not wanted any more; ``None``: no bound.
            limit: how many pairs at most.
            reverse: from the end backwards.
            at: as of this timestamp instead of now.
        """
        return self._unpacked(self.scan_pages(start, end, limit=limit, reverse=reverse, at=at))

    async def _unpacked(
        self, found: AsyncIterator[Page]
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        async for page in found:
            for pair in page.unpacked(self.codec):
                yield pair

    def scan_pages(
        self,
        start: bytes,
        end: bytes | None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        at: int | None = None,
    ) -> AsyncGenerator[Page, None]:
        """The same in pages of up to a thousand pairs, values not unpacked."""
        start, end = arguments.span(start, end)
        if limit is not None:
            arguments.count(limit, "limit", 0)
        moment = arguments.timestamp(at) or self._sender.now()
        return self._pages(start, end, moment, limit, reverse)

    async def _pages(
        self,
        start: bytes,
        end: bytes | None,
        at: int | Awaitable[int],
        limit: int | None,
        reverse: bool,
    ) -> AsyncGenerator[Page, None]:
        moment = await self._sender.send(Protect(at if isinstance(at, int) else await at))
        try:
            async for page in pages(self._sender, start, end, moment, limit=limit, reverse=reverse):
                yield page
        finally:
            post(self._sender, Unprotect(moment))

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Snapshot, None]:
        """Reads at one timestamp: ``async with db.snapshot() as snapshot``."""
        moment = await self._sender.send(Protect())
        try:
            yield Snapshot(self, moment)
        finally:
            post(self._sender, Unprotect(moment))

    def watch(
        self, start: bytes, end: bytes | None = None, *, after: int | None = None
    ) -> AsyncGenerator[Change, None]:
        """The committed changes of a key, or of a span, in order, from now or ``after`` on, for
        ever.

        Args:
            start: the key; or the first key of a span if ``end`` is given.
            end: first key beyond the span.
            after: go on after this timestamp. Changes of one commit share theirs: go on after the
                last one of which all have been seen.

        Raises:
            SnapshotTooOld: changes since ``after`` are collected already.
        """
        start, end = arguments.span(start, end)
        since = self._sender.now() if after is None else arguments.timestamp(after)
        return self._watch(start, start + b"\x00" if end is None else end, since)

    async def _watch(
        self, start: bytes, end: bytes, since: int | Awaitable[int]
    ) -> AsyncGenerator[Change, None]:
        decode = self.codec.decode
        value: Any
        after = since if isinstance(since, int) else await since
        while True:
            reply: Changes = await self._sender.send(ScanChanges(start, end, after))
            for change in reply.changes:
                value = change.value
                if value is not None:
                    value = decode(value, change.key, integer=change.integer)
                yield Change(change.key, value, Timestamp(change.timestamp))
            after = max(after, reply.until)

    async def accounting(self, prefix: bytes) -> dict[str, int]:
        """The sums of the metrics that ``Accounting`` has added under ``prefix``."""
        sums: dict[str, int] = await self._sender.send(ReadAccounting(arguments.key(prefix)))
        return sums

    # --- writing: transactions of one request

    async def put(self, key: bytes, value: Any) -> None:
        """Sets ``key`` to ``value``.

        Raises:
            TypeError, KeyTooLarge, ValueTooLarge, Unavailable, CommitUnknown.
        """
        key = arguments.key(key)
        await self._commit_one(key, Put(key, arguments.value(value, self.codec, key)))

    async def delete(self, key: bytes) -> None:
        """Removes ``key``, if it is there."""
        key = arguments.key(key)
        await self._commit_one(key, Delete(key))

    async def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Removes the keys with ``start <= key < end``; returns how many there were."""
        start, end = arguments.span(start, end)
        deleted: int = await self._commit_one(start, DeleteRange(start, end))
        return deleted

    async def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: the sum leaves 64 bits.
        """
        key = arguments.key(key)
        request = Increment(key, arguments.integer(by), self.codec.packs)
        number: int = await self._commit_one(key, request)
        return number

    async def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Raises:
            ConditionFailed: it holds something else, which the error carries.
        """
        key = arguments.key(key)
        packed = arguments.value(value, self.codec, key)
        wanted, or_integer = arguments.expected(expected, self.codec)
        request = ConditionalPut(key, packed, wanted, self.codec.packs, or_integer)
        try:
            await self._commit_one(key, request)
        except ConditionFailed as failed:
            if isinstance(failed.actual, bytes):
                failed.actual = self.codec.decode(failed.actual, key)
            raise

    async def _commit_one(self, anchor: bytes, write: Any) -> Any:
        sender = self._sender
        request = CommitTransaction(
            sender.next_id(), sender.reading(), TRANSACTION_SECONDS_MAX, 0, anchor, [], [], [write]
        )
        try:
            reply: Committed = await sender.send(request)
        except Unavailable as refusal:
            reply = await send_again(sender, request, refusal)
        return reply.answers[0] if reply.answers else None

    # --- transactions

    def begin(self, *, timeout: float = TRANSACTION_SECONDS_MAX) -> Transaction:
        """A new transaction: ``async with db.begin() as tx``.

        Args:
            timeout: seconds that it may stay open; 60 at most.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise TypeError(f"timeout is a number of seconds, not {type(timeout).__name__}")
        if not 0 < timeout <= TRANSACTION_SECONDS_MAX:
            raise ValueError(
                f"timeout is above 0 and at most {TRANSACTION_SECONDS_MAX:g} s, not {timeout}"
            )
        return Transaction(self._sender, self.codec, self._sender.next_id(), timeout)

    async def run(
        self,
        function: Callable[Concatenate[Transaction, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Calls ``function(tx, *args, **kwargs)``, commits, and returns what it returned.

        On ``Retryable`` it starts over, with a back-off, for a minute, in which the time that it
        waits for messages (``reap_queue``) does not count; on ``CommitUnknown`` it
        commits again with the same id, which tells the outcome, unless so much time has passed that
        nobody can tell any more. So ``function`` may be called several times: it must have no
        effects but those of its transaction.

        Args:
            function: a coroutine function; its first argument is the transaction.
            args, kwargs: the others.

        Raises:
            whatever ``function`` raises: nothing was changed.
            Retryable: a minute was not enough. Nothing was changed.
            CommitUnknown: nobody can tell any more whether it was committed.
            Invalid: the transaction can never succeed as it stands. Nothing was changed.
        """
        result: T = await self.repeat(lambda tx: function(tx, *args, **kwargs))
        return result

    async def repeat(self, call: Callable[[Transaction], Any]) -> Any:
        """What ``run`` does, with ``call`` for the function; it may be a coroutine function or not.
        For what is built on top, as the synchronous form is.
        """
        return await repeat(self._sender, self.begin, call)

    # --- messages

    async def peek(self, key: bytes, limit: int = 100, *, at: int | None = None) -> list[Message]:
        """The oldest messages in the inbox of ``key`` at one timestamp, without consuming any.

        Args:
            key: whose inbox.
            limit: how many messages at most; how many bytes they have does not matter.
            at: as of this timestamp instead of now.
        """
        most = arguments.count(limit, "limit")
        found = await stored_messages(
            self._sender, arguments.key(key), arguments.timestamp(at), most
        )
        return messages(key, found.messages, self.codec)

    async def inboxes(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int = 100
    ) -> list[InboxInfo]:
        """The keys in ``[start, end)`` with waiting messages, those with the oldest one first."""
        start, end = arguments.span(start, end)
        found: list[Inbox] = await self._sender.send(
            ListInboxes(start, end, arguments.count(limit, "limit"))
        )
        return [InboxInfo(each.key, each.messages, Timestamp(each.oldest)) for each in found]

    def reap_queue(self, *_: Any, **__: Any) -> Any:
        """Works only in a transaction.

        Raises:
            NotInTransaction: always.
        """
        raise NotInTransaction(
            "reap_queue deletes the messages when its transaction commits, so it needs one: "
            "with db.begin() as tx: tx.reap_queue(key)"
        )

    async def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
        """What could not be executed or delivered, oldest first, up to ``limit`` of it."""
        found = await stored_letters(self._sender, arguments.count(limit, "limit"))
        return [letters.dead_letter(each, self.codec) for each in found]

    async def replay(self, dead_letter_ids: Iterable[str]) -> int:
        """Tries dead letters again; returns how many there were."""
        ids = letters.dead_letter_ids(dead_letter_ids)
        replayed: int = await self._commit_one(b"", ReplayDeadLetters(ids))
        return replayed

    async def discard(self, dead_letter_ids: Iterable[str]) -> int:
        """Gives dead letters up for good; returns how many there were."""
        ids = letters.dead_letter_ids(dead_letter_ids)
        discarded: int = await self._commit_one(b"", DiscardDeadLetters(ids))
        return discarded

    async def scheduled(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int = 100
    ) -> list[Scheduled]:
        """The messages to, and updates of, keys in ``[start, end)`` that wait for their time.

        Args:
            start: first key.
            end: first key that is not wanted any more; ``None``: no bound.
            limit: how many at most; those that are due first come first.
        """
        start, end = arguments.span(start, end)
        most = arguments.count(limit, "limit")
        found = await stored_schedule(self._sender, start, end, most)
        return [letters.scheduled(each, self.codec) for each in found]

    async def cancel(self, ids: Iterable[str]) -> int:
        """Has messages and updates that wait for their time not take place.

        Args:
            ids: those of :meth:`scheduled`.

        Returns:
            How many were cancelled. Those that have been delivered or carried out meanwhile, or
            cancelled before, do not count; of each, one thing happens.

        Raises:
            ValueError: that is the id of nothing that was ever scheduled.
        """
        found = letters.scheduled_ids(ids)
        cancelled: int = await self._commit_one(b"", CancelScheduled(found))
        return cancelled

    async def drain(self, timeout: float = 30.0) -> None:
        """Waits until every outbox entry that is due has been delivered or executed.

        Raises:
            TimeoutError: that was not so within ``timeout`` seconds.
        """
        try:
            await self._sender.send(AwaitQuiet(), timeout)
        except DeadlineExceeded:
            raise TimeoutError(
                f"outbox entries were still due after {timeout:g} s, or no node could tell"
            ) from None

    # --- the store itself

    def now(self) -> Moment | Awaitable[Timestamp]:
        """A timestamp above that of every commit so far, and below that of every later one:
        ``await db.now()``.

        An embedded store knows it at once: what it returns is the timestamp already, and may be
        awaited all the same. A remote one is asked.
        """
        moment = self._sender.now()
        return Moment(moment) if isinstance(moment, int) else _timestamp(moment)

    async def status(self) -> Status:
        """How the store is."""
        return await self._status()

    async def close(self) -> None:
        """Waits for what is under way, then lets go of the store. Idempotent."""
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _timestamp(moment: Awaitable[int]) -> Timestamp:
    return Timestamp(await moment)
