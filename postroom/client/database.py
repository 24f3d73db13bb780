"""The database as applications use it, in its asyncio form.

Every operation outside a transaction is a transaction of one request. Logic is written once, here
and in :mod:`postroom.client.transaction`; the synchronous forms (:mod:`postroom.client.sync`) run
the same coroutines and block where these wait.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from inspect import isawaitable
from types import TracebackType
from typing import Any, Final, Self

from postroom.client import arguments
from postroom.client.codec import Codec
from postroom.client.pages import pages, stored_letters, stored_messages, stored_values
from postroom.client.sender import Sender, send_again
from postroom.client.transaction import Transaction, messages
from postroom.client.values import Change, DeadLetter, InboxInfo, Message, Moment, Status
from postroom.errors import CommitUnknown, ConditionFailed, NotInTransaction, Retryable, Unavailable
from postroom.kv.clock import Timestamp
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.requests import (
    AwaitQuiet,
    DiscardDeadLetters,
    Inbox,
    ListInboxes,
    ReplayDeadLetters,
)
from postroom.messaging.requests import DeadLetter as StoredLetter
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

RETRY_SECONDS_MAX: Final = 60.0
BACKOFF_SECONDS_FIRST: Final = 0.001
BACKOFF_SECONDS_MAX: Final = 1.0


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
        codec: Codec,
        status: Callable[[], Awaitable[Status]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._sender = sender
        self.codec = codec
        self._status = status
        self._close = close
        self._id_prefix = sender.random.randbytes(8)
        self._numbers = itertools.count(1)

    # --- reading

    async def get(self, key: bytes, *, at: int | None = None) -> Any:
        """The newest committed value of ``key``, or the one as of ``at``; ``None`` if absent.

        Raises:
            TypeError, KeyTooLarge, SnapshotTooOld, Unavailable.
        """
        key = arguments.key(key)
        moment = 0 if at is None else arguments.timestamp(at)
        reply: Value = await self._sender.send(Get(key, moment))
        return None if reply.value is None else self.codec.decode(reply.value)

    async def get_many(self, keys: Iterable[bytes], *, at: int | None = None) -> list[Any]:
        """The values of ``keys`` at one timestamp, in their order; ``None`` for absent ones."""
        wanted = [arguments.key(key) for key in keys]
        reply = await stored_values(self._sender, wanted, arguments.timestamp(at))
        decode = self.codec.decode
        return [None if value is None else decode(value) for value in reply.values]

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
        self, found: AsyncIterator[list[tuple[bytes, bytes]]]
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        decode = self.codec.decode
        async for page in found:
            for key, value in page:
                yield key, decode(value)

    def scan_pages(
        self,
        start: bytes,
        end: bytes | None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        at: int | None = None,
    ) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
        """The same in lists of up to a thousand pairs, values not unpacked."""
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
    ) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
        moment = await self._sender.send(Protect(at if isinstance(at, int) else await at))
        try:
            async for page in pages(self._sender, start, end, moment, limit=limit, reverse=reverse):
                yield page.pairs
        finally:
            await self._sender.send(Unprotect(moment))

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Snapshot, None]:
        """Reads at one timestamp: ``async with db.snapshot() as snapshot``."""
        moment = await self._sender.send(Protect())
        try:
            yield Snapshot(self, moment)
        finally:
            await self._sender.send(Unprotect(moment))

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
        after = since if isinstance(since, int) else await since
        while True:
            reply: Changes = await self._sender.send(ScanChanges(start, end, after))
            for change in reply.changes:
                value = None if change.value is None else decode(change.value)
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
        number: int = await self._commit_one(key, Increment(key, arguments.integer(by)))
        return number

    async def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Raises:
            ConditionFailed: it holds something else, which the error carries.
        """
        key = arguments.key(key)
        packed = arguments.value(value, self.codec, key)
        wanted = None if expected is None else self.codec.encode(expected)
        try:
            await self._commit_one(key, ConditionalPut(key, packed, wanted))
        except ConditionFailed as failed:
            if isinstance(failed.actual, bytes):
                failed.actual = self.codec.decode(failed.actual)
            raise

    async def _commit_one(self, anchor: bytes, write: Any) -> Any:
        sender = self._sender
        request = CommitTransaction(
            self._next_id(), sender.reading(), TRANSACTION_SECONDS_MAX, 0, anchor, [], [], [write]
        )
        try:
            reply: Committed = await sender.send(request)
        except Unavailable as refusal:
            reply = await send_again(sender, request, refusal)
        return reply.answers[0] if reply.answers else None

    def _next_id(self) -> bytes:
        return self._id_prefix + next(self._numbers).to_bytes(8, "big")

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
        return Transaction(self._sender, self.codec, self._next_id(), timeout)

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls ``function(tx, *args, **kwargs)``, commits, and returns what it returned.

        On ``Retryable`` it starts over, with a back-off, for a minute; on ``CommitUnknown`` it
        commits again with the same id, which tells the outcome, unless so much time has passed that
        nobody can tell any more. So ``function`` may be called several times.
        """
        give_up = self._sender.monotonic() + RETRY_SECONDS_MAX
        backoff = BACKOFF_SECONDS_FIRST
        while True:
            try:
                async with self.begin() as tx:
                    result = function(tx, *args, **kwargs)
                    if isawaitable(result):
                        result = await result
                    await self._commit_for_sure(tx, give_up)
            except Retryable as error:
                if self._sender.monotonic() > give_up:
                    raise
                await self._back_off(error, backoff)
                backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)
            else:
                return result

    async def _commit_for_sure(self, tx: Transaction, give_up: float) -> None:
        backoff = BACKOFF_SECONDS_FIRST
        while not tx.closed:
            try:
                await tx.commit()
            except CommitUnknown as error:
                if self._sender.monotonic() > give_up or not tx.may_be_told:
                    raise
                await self._back_off(error.__cause__ or error, backoff)
                backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)

    async def _back_off(self, error: BaseException, seconds: float) -> None:
        least = error.retry_after if isinstance(error, Unavailable) else 0.0
        await self._sender.sleep(max(least, seconds * self._sender.random.uniform(0.5, 1.0)))

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
        return messages(key, found, self.codec)

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
        letters = await stored_letters(self._sender, arguments.count(limit, "limit"))
        return [self._dead_letter(letter) for letter in letters]

    def _dead_letter(self, letter: StoredLetter) -> DeadLetter:
        record = letter.record
        entry = record.update or record.message
        assert entry is not None
        request = record.update.request if record.update is not None else None
        message = self.codec.decode(record.message.value) if record.message is not None else None
        return DeadLetter(
            letter.id.hex(), record.reason, entry.transaction_id, request, message, entry.source
        )

    async def replay(self, dead_letter_ids: Iterable[str]) -> int:
        """Tries dead letters again; returns how many there were."""
        ids = _letter_ids(dead_letter_ids)
        replayed: int = await self._commit_one(b"", ReplayDeadLetters(ids))
        return replayed

    async def discard(self, dead_letter_ids: Iterable[str]) -> int:
        """Gives dead letters up for good; returns how many there were."""
        ids = _letter_ids(dead_letter_ids)
        discarded: int = await self._commit_one(b"", DiscardDeadLetters(ids))
        return discarded

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
        """A timestamp above every one so far: ``await db.now()``.

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


def _letter_ids(given: Iterable[str]) -> list[bytes]:
    if isinstance(given, str):
        raise TypeError("give a list of ids, as dead_letters() tells them")
    try:
        return [bytes.fromhex(each) for each in given]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"not the id of a dead letter ({error}): use those of dead_letters()"
        ) from None
