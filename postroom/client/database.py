"""The database as applications use it, in its asyncio form.

Every operation outside a transaction is a transaction of one request. Logic is written once, here
and in :mod:`postroom.client.transaction`; the synchronous forms (:mod:`postroom.client.sync`) run
the same coroutines and block where these wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroom.client import arguments
from postroom.client.administration import Administration
from postroom.client.bulk import BulkOfDatabase
from postroom.client.codec import resolve
from postroom.client.commits import commit_one
from postroom.client.images import ImagesOfDatabase
from postroom.client.pages import (
    Page,
    pages,
    stored_messages,
    stored_values,
    unpacked_messages,
    unpacked_values,
)
from postroom.client.queues.of_database import QueuesOfDatabase
from postroom.client.retries import repeat
from postroom.client.search.of_database import SearchOfDatabase
from postroom.client.sender import Sender, post
from postroom.client.snapshot import Snapshot
from postroom.client.staging import StagingOfDatabase
from postroom.client.transaction import UNKNOWN, Transaction
from postroom.client.values import Change, Message, Moment
from postroom.errors import ConditionFailed, NotInTransaction
from postroom.kv.clock import Timestamp
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.ranges.requests import (
    Changes,
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


class Database(
    QueuesOfDatabase,
    BulkOfDatabase,
    StagingOfDatabase,
    ImagesOfDatabase,
    SearchOfDatabase,
    Administration,
):
    """A store: embedded, or reached over the network. Made by ``open`` or ``connect``."""

    # --- reading

    async def get(self, key: bytes, *, at: int | None = None) -> Any:
        """The newest committed value of ``key``, or the one as of ``at``; ``None`` if absent.

        Args:
            key: up to 8 KiB.
            at: a timestamp that :meth:`now` or a commit has told.

        Raises:
            KeyTooLarge: the key has more than 8 KiB.
            WrongType: the codec cannot unpack what is there.
            SnapshotTooOld: versions of ``at`` are collected already.
        """
        key = arguments.key(key)
        if at is None:
            reply = self._sender.try_get(key) or await self._sender.send(Get(key))
        else:
            reply = await self._sender.send(Get(key, arguments.timestamp(at)))
        return self._value(reply, key)

    def _value(self, reply: Value, key: bytes) -> Any:
        stored = reply.value
        return None if stored is None else self.codec.decode(stored, key, integer=reply.integer)

    def known(self, key: bytes) -> Any:
        """What ``get`` returns, if that is known at once; else ``UNKNOWN``. For what is built on
        top, as the synchronous form is.
        """
        key = arguments.key(key)
        reply = self._sender.try_get(key)
        return UNKNOWN if reply is None else self._value(reply, key)

    async def get_many(self, keys: Iterable[bytes], *, at: int | None = None) -> list[Any]:
        """The values of ``keys`` at one timestamp, in their order; ``None`` for absent ones.

        Args:
            keys: up to 8 KiB each.
            at: as of this timestamp instead of now.

        Raises:
            As ``get``.
        """
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

        Raises:
            As ``get``; what concerns the store, when the iterator comes to it.
        """
        return self._unpacked(self.scan_pages(start, end, limit=limit, reverse=reverse, at=at))

    async def _unpacked(
        self, found: AsyncGenerator[Page, None]
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        async with aclosing(found):  # else its timestamp stays protected when this is closed
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
            WrongType: the codec cannot unpack one of the values.
            KeyTooLarge: a bound has more than 8 KiB.
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
        """The sums of the metrics that ``Accounting`` has added under ``prefix``.

        Raises:
            KeyTooLarge: the prefix has more than 8 KiB.
        """
        sums: dict[str, int] = await self._sender.send(ReadAccounting(arguments.key(prefix)))
        return sums

    # --- writing: transactions of one request

    async def put(self, key: bytes, value: Any) -> None:
        """Sets ``key`` to ``value``.

        Args:
            key: up to 8 KiB.
            value: ``bytes``, or what the codec packs; up to 1 MiB.

        Raises:
            TypeError: ``value`` is nothing that the codec packs; without a codec: no ``bytes``.
            KeyTooLarge, ValueTooLarge: the key has more than 8 KiB, the value more than 1 MiB.
            Unavailable: nothing was changed.
            CommitUnknown: it may have been.
        """
        key = arguments.key(key)
        await commit_one(self._sender, key, Put(key, arguments.value(value, self.codec, key)))

    async def delete(self, key: bytes) -> None:
        """Removes ``key``, if it is there.

        Raises:
            KeyTooLarge, Unavailable, CommitUnknown: as ``put``.
        """
        key = arguments.key(key)
        await commit_one(self._sender, key, Delete(key))

    async def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Removes the keys with ``start <= key < end``; returns how many there were.

        Args:
            start: first key.
            end: first key that stays; ``None``: no bound.

        Raises:
            TransactionTooLarge: there are too many for one transaction. Nothing was changed.
            KeyTooLarge, Unavailable, CommitUnknown: as ``put``.
        """
        start, end = arguments.span(start, end)
        deleted: int = await commit_one(self._sender, start, DeleteRange(start, end))
        return deleted

    async def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: ``by``, or the sum, leaves 64 bits.
            KeyTooLarge, Unavailable: nothing was changed.
            CommitUnknown: it may have been; trying again may count twice (``run`` does not).
        """
        key = arguments.key(key)
        request = Increment(key, arguments.integer(by), self.codec.packs)
        number: int = await commit_one(self._sender, key, request)
        return number

    async def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Raises:
            ConditionFailed: it holds something else, which the error carries as ``actual``.
            Else as ``put``.
        """
        key = arguments.key(key)
        packed = arguments.value(value, self.codec, key)
        wanted, or_integer = arguments.expected(expected, self.codec)
        request = ConditionalPut(key, packed, wanted, self.codec.packs, or_integer)
        try:
            await commit_one(self._sender, key, request)
        except ConditionFailed as failed:
            if isinstance(failed.actual, bytes):
                failed.actual = self.codec.decode(failed.actual, key)
            raise

    def through(self, sender: Sender) -> Database:
        """The same store, by another sender of the same client."""
        return Database(sender, self.codec, self._status, self._close)

    def as_stored(self) -> Database:
        """The same store, values as bytes: for what is built on top."""
        return Database(self._sender, resolve(None), self._status, self._close)

    # --- transactions

    def begin(self, *, timeout: float = TRANSACTION_SECONDS_MAX) -> Transaction:
        """A new transaction: ``async with db.begin() as tx``.

        Args:
            timeout: seconds that it may stay open; 60 at most.

        Raises:
            ValueError: ``timeout`` is not above 0 and at most 60.
        """
        if timeout is not TRANSACTION_SECONDS_MAX:
            _check_timeout(timeout)
        sender = self._sender
        return Transaction(sender, self.codec, sender.next_id(), timeout)

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

        Raises:
            SnapshotTooOld: what the inbox held at ``at`` is collected already.
            KeyTooLarge, WrongType: as ``get``.
        """
        most = arguments.count(limit, "limit")
        found = await stored_messages(
            self._sender, arguments.key(key), arguments.timestamp(at), most
        )
        return unpacked_messages(key, found.messages, self.codec)

    def reap_queue(self, *_: Any, **__: Any) -> Any:
        """Works only in a transaction.

        Raises:
            NotInTransaction: always.
        """
        raise NotInTransaction(
            "reap_queue deletes the messages when its transaction commits, so it needs one: "
            "with db.begin() as tx: tx.reap_queue(key)"
        )

    # --- the store itself

    def now(self) -> Moment | Awaitable[Timestamp]:
        """A timestamp above that of every commit so far, and below that of every later one:
        ``await db.now()``.

        An embedded store knows it at once: what it returns is the timestamp already, and may be
        awaited all the same. A remote one is asked.
        """
        moment = self._sender.now()
        return Moment(moment) if isinstance(moment, int) else _timestamp(moment)


def _check_timeout(seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"timeout is a number of seconds, not {type(seconds).__name__}")
    if not 0 < seconds <= TRANSACTION_SECONDS_MAX:
        raise ValueError(
            f"timeout is above 0 and at most {TRANSACTION_SECONDS_MAX:g} s, not {seconds}"
        )


async def _timestamp(moment: Awaitable[int]) -> Timestamp:
    return Timestamp(await moment)
