"""The database as applications use it, in its asyncio form.

Every operation outside a transaction is a transaction of one request. The logic is written once,
here and in :mod:`postroom.client.transaction`. The synchronous forms (:mod:`postroom.client.sync`)
run the same coroutines and block where these wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from postroom.client import arguments
from postroom.client.administration import Administration
from postroom.client.bulk import BulkOfDatabase
from postroom.client.codec import resolve
from postroom.client.commits import alone, commit_one
from postroom.client.functions import check_quickly
from postroom.client.limited import LimitedSender, limited_status
from postroom.client.pages import (
    Page,
    Snapshot,
    Stream,
    pages,
    stored_messages,
    stored_values,
    unpacked_messages,
    unpacked_values,
)
from postroom.client.retries import repeat
from postroom.client.sender import Sender, post, present, send_again
from postroom.client.transaction import UNKNOWN, Transaction
from postroom.client.values import AwaitableTimestamp, Change, Message
from postroom.counted import counted
from postroom.errors import ConditionFailed, Error, NotInTransaction, Unavailable, shorten
from postroom.kv.clock import Timestamp, from_seconds
from postroom.limits import KEY_BYTES_MAX, TRANSACTION_SECONDS_MAX
from postroom.messaging.requests import ReadCounters
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.requests import (
    CommittedChanges,
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
from postroom.ranges.rights import Rights

LEFT_SECONDS_MIN: Final = 0.001
"""The least time-out of a request of a watch, in seconds."""
_LAG: Final = from_seconds(1.0)
"""The lag, as a timestamp, of a watch that does not wait: mostly, there are changes."""

D = TypeVar("D", bound="CoreDatabase")
P = ParamSpec("P")
T = TypeVar("T")


class CoreDatabase(
    BulkOfDatabase,
    Administration,
):
    """The calls of the client, in the asyncio form.

    :mod:`postroom.databases` adds the calls of the layers: then it is what applications get.
    """

    # --- reading

    async def get(self, key: bytes, *, at: int | None = None) -> Any:
        """Return the newest committed value of ``key``, or the one at ``at``; ``None`` if absent.

        Args:
            key: up to 8 KiB.
            at: a timestamp from :meth:`now` or from a commit.

        Raises:
            KeyTooLarge: the key has more than 8 KiB.
            WrongType: the codec cannot unpack the stored value.
            SnapshotTooOld: the versions at ``at`` are collected already.
        """
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = arguments.key(key)
        if at is None:
            reply = self._sender.try_get(key) or await self._sender.send(Get(key))
        else:
            reply = await self._sender.send(Get(key, arguments.timestamp(at)))
        return self._value(reply, key)

    def _value(self, reply: Value, key: bytes) -> Any:
        stored, codec = reply.value, self.codec
        if stored is None or not codec.packs:
            return stored
        return codec.decode(stored, key, integer=reply.integer)

    def known(self, key: bytes) -> Any:
        """Return what ``get`` returns if the client has it without waiting; else ``UNKNOWN``.

        For layers on top, such as the synchronous form.

        Args:
            key: up to 8 KiB.
        """
        key = arguments.key(key)
        reply = self._sender.try_get(key)
        return UNKNOWN if reply is None else self._value(reply, key)

    async def get_many(self, keys: Iterable[bytes], *, at: int | None = None) -> list[Any]:
        """Return the values of ``keys`` at one timestamp, in their order; ``None`` for absent ones.

        Args:
            keys: up to 8 KiB each.
            at: the timestamp to read at, instead of now.

        Raises:
            KeyTooLarge, WrongType, SnapshotTooOld: see ``get``.
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
        """Return the pairs with ``start <= key < end`` at one timestamp, however long it takes.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many pairs at most.
            reverse: whether to go from the end backwards.
            at: the timestamp to read at, instead of now.

        Raises:
            KeyTooLarge: at once.
            WrongType, SnapshotTooOld: when the iterator reaches the pair or page concerned.
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
        """Return the pairs of :meth:`scan` in pages of up to a thousand, their values packed.

        For layers on top.
        """
        start, end = arguments.span(start, end)
        if limit is not None:
            arguments.count(limit, "limit", 0)
        timestamp = arguments.timestamp(at) or self._sender.now()
        return self._pages(start, end, timestamp, limit, reverse)

    async def _pages(
        self,
        start: bytes,
        end: bytes | None,
        at: int | Awaitable[int],
        limit: int | None,
        reverse: bool,
    ) -> AsyncGenerator[Page, None]:
        timestamp = await self._sender.send(Protect(at if isinstance(at, int) else await at))
        try:
            async for page in pages(
                self._sender, start, end, timestamp, limit=limit, reverse=reverse
            ):
                yield page
        finally:
            post(self._sender, Unprotect(timestamp))

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Snapshot, None]:
        """Read at one timestamp: ``async with db.snapshot() as snapshot``.

        Returns:
            A context manager, which gives a :class:`Snapshot`.

        Raises:
            Unavailable: nothing can be read now.
        """
        timestamp = await self._sender.send(Protect())
        try:
            yield Snapshot(self, timestamp)
        finally:
            post(self._sender, Unprotect(timestamp))

    def watch(
        self,
        start: bytes,
        end: bytes | None = None,
        *,
        after: int | None = None,
        timeout: float | None = None,
    ) -> Stream[Change]:
        """Return the committed changes of a key or a span, in order, from now or ``after`` on.

        The iteration goes on until any thread or task closes it (``close()``).

        Args:
            start: the key; or the first key of a span if ``end`` is given.
            end: first key after the span.
            after: go on after this timestamp. Changes of one commit share a timestamp: pass the
                last one whose changes have all been seen.
            timeout: seconds; the iteration ends when nothing has changed for this long. ``None``:
                it goes on.

        Raises:
            SnapshotTooOld: changes since ``after`` are collected already.
            WrongType: the codec cannot unpack one of the values.
            KeyTooLarge: a bound has more than 8 KiB.
        """
        start, end = arguments.span(start, end)
        since = self._sender.now() if after is None else arguments.timestamp(after, "after")
        seconds = arguments.timeout(timeout)
        span = (start, start + b"\x00" if end is None else end)
        return Stream(self._watch(*span, since, seconds))

    async def _watch(
        self, start: bytes, end: bytes, since: int | Awaitable[int], timeout: float | None
    ) -> AsyncGenerator[Change, None]:
        decode, monotonic = self.codec.decode, self._sender.monotonic
        value: Any
        after = since if isinstance(since, int) else await since
        last, may_lag = monotonic(), True
        while True:
            left = None if timeout is None else max(last + timeout - monotonic(), LEFT_SECONDS_MIN)
            try:
                # One that lags is told in parts what it lacks, also by several ranges.
                lags = may_lag and after < self._sender.reading() - _LAG
                reply: CommittedChanges = await self._sender.send(
                    ScanChanges(start, end, after, wait=not lags), left
                )
            except DeadlineExceeded:
                return
            if reply.changes:
                last = monotonic()
            elif left == LEFT_SECONDS_MIN:
                return
            for change in reply.changes:
                value = change.value
                if value is not None:
                    value = decode(value, change.key, integer=change.integer)
                yield Change(change.key, value, Timestamp(change.timestamp))
            after, may_lag = max(after, reply.until), bool(reply.changes)

    async def accounting(self, prefix: bytes) -> dict[str, int]:
        """Return the sums of the metrics that ``Accounting`` has added under ``prefix``.

        Args:
            prefix: parts of a key, separated by ``/``.

        Raises:
            KeyTooLarge: the prefix has more than 8 KiB.
        """
        sums: dict[str, int] = await self._sender.send(ReadAccounting(arguments.key(prefix)))
        return sums

    # --- writing: transactions of one request

    async def put(self, key: bytes, value: Any) -> None:
        """Set ``key`` to ``value``.

        Args:
            key: up to 8 KiB.
            value: ``bytes``, or what the codec packs; up to 1 MiB.

        Raises:
            TypeError: the codec cannot pack ``value``; without a codec: it is not ``bytes``.
            KeyTooLarge, ValueTooLarge: the key has more than 8 KiB, the value more than 1 MiB.
            Unavailable: nothing was changed.
            CommitUnknown: the key may have been set.
        """
        key = arguments.key(key)
        request = alone(self._sender, key, Put(key, arguments.value(value, self.codec, key)))
        try:  # the steps of ``commit_one``: this is the most frequent write
            await self._sender.send(request)
        except Unavailable as refusal:
            await send_again(self._sender, request, refusal)

    async def delete(self, key: bytes) -> None:
        """Remove ``key``, if it is there.

        Args:
            key: up to 8 KiB.

        Raises:
            KeyTooLarge, Unavailable, CommitUnknown: see ``put``.
        """
        key = arguments.key(key)
        await commit_one(self._sender, key, Delete(key))

    async def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Remove the keys with ``start <= key < end``; return how many there were.

        It takes a transaction for each 2,000 keys or 4 MiB of them, in the order of the keys. Each
        transaction is atomic, the whole is not. Keys that are written after it has begun stay.

        Args:
            start: first key.
            end: first key that stays; ``None``: no bound.

        Raises:
            KeyTooLarge: nothing was changed.
            Unavailable, CommitUnknown: see ``put``. If some keys were deleted before, the message
                says how many, and up to which key.
        """
        start, end = arguments.span(start, end)
        deleted, cursor = 0, start
        began = await present(self._sender)  # ranges may have clocks of their own
        answer: tuple[int, bytes | None, int]
        while True:
            try:
                answer = await commit_one(self._sender, cursor, DeleteRange(cursor, end, began))
            except Error as error:
                if deleted:
                    error.args = (
                        f"{error} (before that, {counted(deleted, 'key was', 'keys were')} "
                        "deleted, all below "
                        f"{shorten(cursor)}: delete_range goes on from there)",
                    )
                raise
            some, following, began = answer
            deleted += some
            if following is None:
                return deleted
            cursor = following

    async def increment(self, key: bytes, by: int = 1) -> int:
        """Add ``by`` to the 64-bit integer at ``key`` (absent: 0); return the sum.

        Args:
            key: up to 8 KiB.
            by: a 64-bit integer; a negative one subtracts.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: ``by``, or the sum, exceeds 64 bits.
            KeyTooLarge, Unavailable: nothing was changed.
            CommitUnknown: it may have been added. Another call may add it twice (``run`` does not).
        """
        key = arguments.key(key)
        request = Increment(key, arguments.integer(by), self.codec.packs)
        number: int = await commit_one(self._sender, key, request)
        return number

    async def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Set ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Args:
            key: up to 8 KiB.
            value: see ``put``.
            expected: the value that it has to hold; ``None``: it has to be absent.

        Raises:
            ConditionFailed: it contains something else, which the error carries as ``actual``.
            TypeError, KeyTooLarge, ValueTooLarge, Unavailable, CommitUnknown: see ``put``.
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

    def through(self, sender: Sender) -> Self:
        """Return the same store, reached through another sender of the same client.

        For layers on top.
        """
        return type(self)(sender, self.codec, self._status, self._close)

    def reach_through(self, wrap: Callable[[Sender], Sender]) -> None:
        """Send all later requests through ``wrap(sender)``.

        For layers on top, such as tracing.
        """
        self._sender = wrap(self._sender)

    def as_stored(self) -> Self:
        """Return the same store with packed values, for layers on top."""
        return type(self)(self._sender, resolve(None), self._status, self._close)

    def as_client(self, rights: Rights) -> Self:
        """Return the same store as a client with some rights may use it, for layers on top.

        A call that needs more raises ``AccessDenied``, and nothing is sent.

        Args:
            rights: those that ``access.rights`` returns.
        """
        sender = LimitedSender(self._sender, rights)
        status = limited_status(sender, self._sender, ReadCounters(), self._status)
        return type(self)(sender, self.codec, status, self._close)

    def as_a(self, subclass: type[D]) -> D:
        """Return the same store as an object of a subclass, which has the calls of layers.

        For layers on top.
        """
        return subclass(self._sender, self.codec, self._status, self._close)

    # --- transactions

    def begin(
        self, *, timeout: float = TRANSACTION_SECONDS_MAX, retry_id: bytes | None = None
    ) -> Transaction:
        """Return a new transaction: ``async with db.begin() as tx``.

        A plain call, also with asyncio: it is not awaited.

        Args:
            timeout: seconds that it may stay open; 60 at most.
            retry_id: the ``retry_id`` of an earlier transaction whose outcome is not known, from
                any client. If that one has committed, the commit of this one changes nothing and
                returns its timestamp. Its first write or message must be to the same key.

        Raises:
            ValueError: ``timeout`` is not above 0 and at most 60.
            Invalid: ``retry_id`` is none.
        """
        if timeout is not TRANSACTION_SECONDS_MAX:
            _check_timeout(timeout)
        sender = self._sender
        if retry_id is not None:
            return Transaction.again(sender, self.codec, retry_id, timeout)
        return Transaction(sender, self.codec, sender.next_id(), timeout)

    async def run(
        self,
        function: Callable[Concatenate[Transaction, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call ``function(tx, *args, **kwargs)``, commit, and return the result of the call.

        On ``Retryable`` it starts over, with a back-off, for a minute. The time that it waits for
        messages (``reap_queue``) does not count. On ``CommitUnknown`` it commits again with the
        same id, which tells the outcome, unless the store no longer keeps it. An exception of
        ``function`` comes through, and nothing was changed.

        ``function`` may be called several times, so it must have no effects but those of its
        transaction. It may end the transaction itself (``commit``, ``rollback``); once it has
        committed it is not called again.

        Args:
            function: a coroutine function; its first argument is the transaction.
            *args: further arguments of ``function``.
            **kwargs: further arguments of ``function`` by name.

        Raises:
            Retryable: a minute was not enough. Nothing was changed.
            CommitUnknown: the store can no longer tell whether it was committed.
            Invalid: the transaction can never succeed. Nothing was changed.
            TypeError: ``function`` is a class or a generator function, or returns something that
                still has to run. Nothing was changed.
        """
        check_quickly(function, "the argument of run")
        result: T = await self.repeat(lambda tx: function(tx, *args, **kwargs), function)
        return result

    def repeat(
        self, call: Callable[[Transaction], Any], function: Any = None
    ) -> Coroutine[Any, Any, Any]:
        """Do the work of ``run`` with ``call``, a plain or a coroutine function.

        For layers on top, such as the synchronous form.
        """
        return repeat(self._sender, self.begin, call, function)

    # --- messages

    async def peek(self, key: bytes, limit: int = 100, *, at: int | None = None) -> list[Message]:
        """Return the oldest messages in the inbox of ``key`` at one timestamp; consume none.

        Args:
            key: the recipient.
            limit: how many messages at most, however many bytes they have.
            at: the timestamp to read at, instead of now.

        Raises:
            SnapshotTooOld: the contents of the inbox at ``at`` are collected already.
            KeyTooLarge, WrongType: see ``get``.
        """
        most = arguments.count(limit, "limit")
        found = await stored_messages(
            self._sender, arguments.key(key), arguments.timestamp(at), most
        )
        return unpacked_messages(key, found.messages, self.codec)

    def reap_queue(self, *_: Any, **__: Any) -> Any:
        """Raise an error: messages are reaped only in a transaction.

        Raises:
            NotInTransaction: always.
        """
        raise NotInTransaction(
            "reap_queue deletes the messages when its transaction commits, so it needs one: "
            "with db.begin() as tx: tx.reap_queue(key)"
        )

    # --- the store itself

    def now(self) -> AwaitableTimestamp | Awaitable[Timestamp]:
        """Return a timestamp above every commit so far and below every later one.

        Use it as ``await db.now()``. An embedded store has it at once: the result is the timestamp
        already, and may also be awaited. A remote store is asked.
        """
        timestamp = self._sender.now()
        return (
            AwaitableTimestamp(timestamp) if isinstance(timestamp, int) else _timestamp(timestamp)
        )


def _check_timeout(seconds: float) -> None:
    if not 0 < arguments.number(seconds, "timeout") <= TRANSACTION_SECONDS_MAX:
        raise ValueError(
            f"timeout is above 0 and at most {TRANSACTION_SECONDS_MAX:g} s, not {seconds}"
        )


async def _timestamp(timestamp: Awaitable[int]) -> Timestamp:
    return Timestamp(await timestamp)
