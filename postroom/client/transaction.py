"""A transaction as applications use it, in its asyncio form.

Transactions are optimistic. Reads go to the store and are remembered as keys and spans; writes and
messages gather here; ``commit`` sends everything in one request. The store then checks that nothing
read has changed (:mod:`postroom.ranges.transactions.one_range`). A transaction sees its own writes.

A transaction consists of parts, each with one subject::

    Transaction ─┬─ Lifetime   its state and its time (:mod:`postroom.client.lifetime`)
                 ├─ Buffer     what it writes and sends (:mod:`postroom.client.buffer`),
                 │             filled by the calls of WriteBuffer
                 ├─ Reads      what it has read, at one timestamp (:mod:`postroom.client.reading`)
                 ├─ Overlay    reads, with its own writes over them
                 ├─ Reaping    what it has taken out of inboxes (:mod:`postroom.client.reaping`);
                 │             InboxReads takes and looks
                 ├─ Postponing messages that it gives back
                 └─ Sends      what it does to queues (:mod:`postroom.client.queues.sending`)

Overlay, Reaping, Postponing and Sends are made when they are needed: most transactions do without.
This module checks arguments and sends the parts as one commit.

The code that every transaction runs takes few steps, since these are a good part of its cost.
``get`` sends nothing if the sender has the value, and a commit is one coroutine on its way to the
answer. The handling of failures is elsewhere (:mod:`postroom.client.commits`).
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Iterable
from types import TracebackType
from typing import Any, Final, Self

from postroom.client import arguments
from postroom.client.buffer import Buffer
from postroom.client.codec import Packing, resolve
from postroom.client.commits import Lost, after_failure, anchor_of, parsed_retry_id
from postroom.client.functions import Plain, explain_await
from postroom.client.lifetime import Event, Lifetime, TransactionState
from postroom.client.queues.sending import QueueWrites, Sends
from postroom.client.reading import Overlay, Reads
from postroom.client.reaping import InboxReads, InboxWrites, Postponing, Reaping
from postroom.client.sender import Sender
from postroom.counted import counted
from postroom.errors import (
    AccessDenied,
    Error,
    Retryable,
    TransactionConflict,
    TransactionTooLarge,
    shorten,
)
from postroom.kv.clock import Timestamp, from_seconds
from postroom.limits import KEY_BYTES_MAX
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.evaluators import INTEGER, added
from postroom.ranges.requests import CommitTransaction, GetForUpdate, Lock, Put
from postroom.ranges.transactions.one_range import RECORD_SECONDS, expired

UNKNOWN: Final[Any] = object()
"""The answer of ``known`` if the store has to be asked for the value."""

_SEND: Final = Event.SEND  # the class finds a member slowly
_MADE: Final = Event.MADE


class Transaction(Plain, InboxReads, QueueWrites, InboxWrites):
    """Reads, writes and messages that take effect together, or not at all.

    Its calls may run at the same time (``asyncio.gather``): all of them read at one timestamp
    (:mod:`postroom.client.reading`). While it is being committed it accepts no calls.

    Use it as ``async with db.begin() as tx``: it commits at the end of the block and rolls back on
    an exception. :meth:`Database.begin` makes it.
    """

    plain_call = "db.begin() is a plain call: async with db.begin() as tx, or tx = db.begin()"

    __slots__ = (
        "_commit_timestamp",
        "_over",
        "_postponing",
        "_queues",
    )

    def __init__(
        self, sender: Sender, codec: Packing, transaction_id: bytes, timeout: float
    ) -> None:
        self._sender = sender
        self._codec = codec
        self._id = transaction_id
        self._lifetime = Lifetime(
            sender, transaction_id, timeout, sender.reading(), sender.monotonic() + timeout
        )
        self._buffer = Buffer()
        self._reads = Reads(sender)
        self._over: Overlay | None = None
        self._reaping: Reaping | None = None
        self._queues: Sends | None = None
        self._postponing: Postponing | None = None
        self._commit_timestamp = 0

    @classmethod
    def again(cls, sender: Sender, codec: Packing, retry_id: bytes, timeout: float) -> Transaction:
        """Return another try of the transaction with a ``retry_id``.

        For layers on top. It has the id and the beginning of that transaction. Without the
        beginning, a leaseholder that was elected since would take it for a new transaction, and
        would not look for a COMMIT record.

        Raises:
            Invalid: ``retry_id`` is none.
        """
        transaction_id, began = parsed_retry_id(retry_id, sender.reading())
        tx = cls(sender, codec, transaction_id, timeout)
        tx._lifetime.began = began
        return tx

    @property
    def _overlay(self) -> Overlay:
        if self._over is None:
            self._over = Overlay(self._lifetime, self._reads, self._buffer, self._codec)
        return self._over

    # --- its attributes

    @property
    def id(self) -> bytes:
        """Return the id: 16 bytes, unique. Another commit with the same id is safe."""
        return self._id

    @property
    def retry_id(self) -> bytes:
        """Return the id with which ``db.begin(retry_id=...)`` begins another try of it.

        Any client may make that try, for 75 s. It is safe if the outcome of this
        transaction is not known: the two commit once.
        """
        return self._id + self._lifetime.began.to_bytes(8, "big")

    @property
    def read_timestamp(self) -> Timestamp | None:
        """Return the timestamp at which it reads; ``None`` before its first read."""
        timestamp = self._reads.timestamp
        return Timestamp(timestamp) if timestamp else None

    @property
    def commit_timestamp(self) -> Timestamp | None:
        """Return the timestamp at which it committed; ``None`` before that."""
        return Timestamp(self._commit_timestamp) if self._commit_timestamp else None

    @property
    def closed(self) -> bool:
        """Return whether it has ended, or is being committed."""
        return not self._lifetime.may_end

    @property
    def waited_seconds(self) -> float:
        """Return how many seconds it has waited for messages.

        For layers on top.
        """
        waits = (self._reaping, self._queues)
        return sum(each.waited_seconds for each in waits if each is not None)

    @property
    def queues(self) -> Sends:
        """Return what it does to queues, for layers on top, such as the synchronous form."""
        if self._queues is None:
            self._queues = Sends(self._sender, self._codec, self._id, self._lifetime, self._buffer)
        return self._queues

    @property
    def postponing(self) -> Postponing:
        """Return the part that postpones and buries messages after failed attempts.

        For layers on top.

        Raises:
            TransactionClosed: the transaction has ended.
        """
        self._lifetime.check_open()
        if self._postponing is None:
            self._postponing = Postponing(self._reaps, self._buffer.grow)
        return self._postponing

    @property
    def codec(self) -> Packing:
        """Return the codec of its values, for layers on top."""
        return self._codec

    def packed(self, key: bytes, value: Any) -> bytes:
        """Return a value in the form in which ``put`` would store it, checked.

        For layers on top.

        Raises:
            TypeError, KeyTooLarge, ValueTooLarge: see ``put``.
        """
        return arguments.value(value, self._codec, arguments.key(key))

    def as_stored(self) -> Transaction:
        """Return the same transaction with packed values, for layers on top.

        It ends with this one. Commit this one, not the copy.
        """
        other = copy.copy(self)
        other._codec, other._over = resolve(None), None
        return other

    @property
    def is_idle(self) -> bool:
        """Return whether it has no reads, reaps or claims that could become too old.

        For layers on top.
        """
        if self._queues is not None and self._queues.has_claimed:
            return False
        return not (self._reads or self._reaping or self._lifetime.is_unknown)

    def keep_young(self) -> None:
        """Restart the transaction's time if it is idle and open.

        For layers on top.
        """
        if self.is_idle and not self._lifetime.closed:
            self._lifetime.start_clock()

    # --- reading

    async def get(self, key: bytes) -> Any:
        """Return the value of ``key``, or ``None``.

        Args:
            key: up to 8 KiB.

        Raises:
            KeyTooLarge: the key has more than 8 KiB.
            WrongType: the codec cannot unpack the stored value.
            TransactionClosed, TransactionExpired: nothing was read.
        """
        found = self.known(key)
        if found is not UNKNOWN:
            return found
        key = arguments.key(key)
        reply = await self._reads.get(key)
        buffer = self._buffer
        if self._lifetime.closed or buffer.writes:  # a concurrent call may have written it
            self._lifetime.check_open()
            if key in buffer.writes:
                return buffer.value(key, self._codec)
        stored = reply.value
        return None if stored is None else self._codec.decode(stored, key, integer=reply.integer)

    def known(self, key: bytes) -> Any:
        """Return what ``get`` returns if the client has it without waiting; else ``UNKNOWN``.

        For layers on top, such as the synchronous form.

        Args:
            key: up to 8 KiB.
        """
        lifetime, sender, buffer, reads = self._lifetime, self._sender, self._buffer, self._reads
        if lifetime.closed or sender.monotonic() > lifetime.expires:
            lifetime.check_alive()
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = arguments.key(key)
        if key in buffer.writes:
            return buffer.value(key, self._codec)
        reply = None if reads.timestamp else sender.try_get(key)
        if reply is None:
            return UNKNOWN
        reads.timestamp, reads.keys = reply.timestamp, [key]
        stored, codec = reply.value, self._codec
        if stored is None or not codec.packs:
            return stored
        return codec.decode(stored, key, integer=reply.integer)

    async def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """Return the values of ``keys``, in their order; ``None`` for absent ones.

        Args:
            keys: up to 8 KiB each.

        Raises:
            KeyTooLarge, WrongType, TransactionClosed, TransactionExpired: see ``get``.
        """
        self._lifetime.check_alive()
        return await self._overlay.get_many([arguments.key(key) for key in keys])

    async def get_for_update(self, key: bytes) -> Any:
        """Return the value of ``key`` and lock it until this transaction ends.

        Other transactions that call this for ``key`` wait until then.

        Args:
            key: up to 8 KiB.

        Raises:
            TransactionConflict: another transaction kept it locked for too long, or changed it.
            KeyTooLarge, WrongType, TransactionClosed, TransactionExpired: see ``get``.
        """
        self._lifetime.check_alive()
        return await self._overlay.get_for_update(arguments.key(key), self._id)

    async def try_lock(self, key: bytes, patience: float) -> bool:
        """Lock ``key`` like ``get_for_update``, without reading it; return whether that succeeded.

        For layers on top.

        Args:
            key: the key to lock.
            patience: seconds to wait for the lock.
        """
        self._lifetime.check_alive()
        lifetime, key = self._lifetime, arguments.key(key)
        request = GetForUpdate(
            key, 0, self._id, lifetime.remaining(), lifetime.age or lifetime.began
        )
        lifetime.holds = True
        try:
            await self._sender.send(request, patience)
        except DeadlineExceeded:
            return False
        self._reads.locks_elsewhere(key)
        self._lifetime.check_still_open()
        return True

    async def lock_again(self, lost: Lost) -> None:
        """Lock what earlier tries have lost, before this one begins. For layers on top.

        If the timestamp of one has moved, because of another range, this one needs not move.

        Args:
            lost: what earlier tries have lost.

        Raises:
            TransactionConflict: others kept it locked for too long.
        """
        lifetime = self._lifetime
        lifetime.age = lost.began
        if lost.keys or lost.spans:
            await self._lock(lost)
        if lost.has_moved:
            self._reads.move_at_first()

    async def _lock(self, lost: Lost) -> None:
        lifetime = self._lifetime
        lifetime.holds = True
        request = Lock([*lost.keys], [*lost.spans], self._id, lifetime.remaining(), lifetime.age)
        try:
            await self._sender.send(request, lifetime.remaining())
        except AccessDenied:
            return  # it reads where it may not write: it goes on without locks
        except DeadlineExceeded:
            raise TransactionConflict(
                "other transactions hold what this one lost before, and did not end in time; "
                "nothing was changed: try again (run() does)"
            ) from None
        for key in (*lost.keys, *(bound for span in lost.spans for bound in span if bound)):
            self._reads.locks_elsewhere(key)
        lifetime.check_still_open()
        self.keep_young()

    def has_lost(self, lost: Lost, error: Retryable) -> bool:
        """Note what a failed try has lost; return the result of :meth:`.Lost.add`.

        For layers on top.

        Args:
            lost: what earlier tries have lost.
            error: the error of the try.
        """
        lost.began = lost.began or self._lifetime.began
        lost.has_moved = lost.has_moved or self._reads.has_moved
        return lost.add(error, self._buffer.writes)

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[tuple[bytes, Any]]:
        """Return the pairs with ``start <= key < end``, its own writes included.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many pairs at most.
            reverse: whether to go from the end backwards.

        Raises:
            KeyTooLarge: at once.
            TransactionClosed: at once, or when the iterator needs another page.
            TransactionExpired: at once, or when the iteration begins.
            WrongType: when the iterator reaches the pair.
        """
        self._lifetime.check_alive()
        start, end = arguments.span(start, end)
        if limit is not None:
            arguments.count(limit, "limit", 0)
        return self._overlay.scan(start, end, limit=limit, reverse=reverse)

    # --- writing

    async def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Remove the keys with ``start <= key < end``; return how many there were.

        Args:
            start: first key.
            end: first key that stays; ``None``: no bound.

        Raises:
            TransactionTooLarge: there are too many for one transaction.
            TransactionClosed, TransactionExpired: nothing was removed.
        """
        self._lifetime.check_alive()
        start, end = arguments.span(start, end)
        pairs = self._overlay.scan_stored(start, end, limit=None, reverse=False)
        found = [key async for key, *_ in pairs]
        for number, key in enumerate(found):
            try:
                self._buffer.delete_stored(key)
            except TransactionTooLarge as error:
                raise TransactionTooLarge(
                    f"{error}; {counted(len(found), 'key')} were to be deleted, and the "
                    f"transaction has room for {number:,}, those below {shorten(key)}: "
                    "tx.enqueue_update(DeleteRange(start, end)) deletes any number of keys, step "
                    "by step, and so does db.delete_range outside of a transaction"
                ) from None
        return len(found)

    async def increment(self, key: bytes, by: int = 1) -> int:
        """Add ``by`` to the 64-bit integer at ``key`` (absent: 0); return the sum.

        Args:
            key: up to 8 KiB.
            by: a 64-bit integer; a negative one subtracts.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: ``by``, or the sum, exceeds 64 bits.
            KeyTooLarge, TransactionClosed, TransactionExpired: nothing was added.
        """
        arguments.integer(by)
        key = arguments.key(key)
        self._lifetime.check_alive()
        stored, integer = await self._overlay.stored(key)
        number = added(stored, by, key, integer=integer, packed=self._codec.packs)
        self._buffer.write(Put(key, INTEGER.pack(number), integer=True), INTEGER.size)
        return number

    async def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Set ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Args:
            key: up to 8 KiB.
            value: see ``put``.
            expected: the value that it has to hold; ``None``: it has to be absent.

        Raises:
            ConditionFailed: it contains something else, which the error carries as ``actual``.
            TypeError, KeyTooLarge, ValueTooLarge, TransactionTooLarge: see ``put``.
            TransactionClosed, TransactionExpired: nothing was changed.
        """
        key = arguments.key(key)
        packed = arguments.value(value, self._codec, key)
        wanted, or_integer = arguments.expected(expected, self._codec)
        self._lifetime.check_alive()
        await self._overlay.check_holds(key, wanted, or_integer)
        self._buffer.write(Put(key, packed), len(packed))

    # --- ending

    @property
    def may_be_told(self) -> bool:
        """Return whether another ``commit`` may still tell an unknown outcome.

        For layers on top.
        """
        try:
            now = self._sender.reading()
        except Error:  # a store that is down must not hide that the outcome is unknown
            return True
        return now <= self._lifetime.began + from_seconds(RECORD_SECONDS)

    async def commit(self) -> Timestamp:
        """Make everything take effect; return the timestamp at which it does.

        Raises:
            TransactionConflict: something that it read has changed. Nothing happened; try again.
            CommitUnknown: the outcome is not known; another ``commit`` tells it.
            TransactionExpired, TransactionTooLarge, Unavailable: nothing happened.
            Invalid: it is the transaction of a task, which its worker commits.
        """
        self._lifetime.check_is_users()
        await self.finish()
        return Timestamp(self._commit_timestamp)

    async def finish(self) -> None:
        """Commit. For layers on top, such as the synchronous form."""
        lifetime, sender, reads = self._lifetime, self._sender, self._reads
        if lifetime.closed:
            lifetime.check_may_end()
        if sender.monotonic() > lifetime.expires and not lifetime.is_unknown:
            lifetime.end(Event.REFUSED)
            raise expired(lifetime.timeout)
        if self._queues is not None and self._queues.names_ids:
            await self._find_homes(self._queues)
        writes = self._requests()
        if not writes:
            lifetime.end(_MADE)
            self._commit_timestamp = reads.timestamp or await self._now()
            return
        request = CommitTransaction(
            self._id, lifetime.began, lifetime.timeout, reads.timestamp, anchor_of(writes),
            reads.keys, reads.spans, writes,
        )  # fmt: skip
        try:
            lifetime.to(_SEND)
            reply = await sender.send(request)
        except BaseException as error:  # cancellation too: the commit may have happened
            if lifetime.may_end:  # an interrupt: it was not sent
                self.give_up_unsent()
                raise
            reply = await after_failure(lifetime, sender, request, error)
        lifetime.to(_MADE)
        is_spread = sender.range_of is None and sender.ranges.are_several
        if is_spread and self._holds_elsewhere(request.anchor):
            lifetime.release()  # the range of the anchor has released only what it held itself
        self._commit_timestamp = reply.timestamp
        if self._queues is not None:
            self._queues.committed(reply.answers)

    def _holds_elsewhere(self, anchor: bytes) -> bool:
        """Return whether it holds something in other ranges than that of its anchor."""
        reads, queues = self._reads, self._queues
        if reads.lock_range and reads.locks_elsewhere(anchor):
            return True
        return queues is not None and queues.claimed_elsewhere(anchor)

    async def _find_homes(self, queues: Sends) -> None:
        """Find the messages that it names by their ids."""
        try:
            await queues.find_homes()
        except BaseException:
            self.give_up_unsent()
            raise

    def give_up_unsent(self) -> None:
        """Give the transaction up if its commit was not sent, so that its locks do not stay.

        For layers on top, such as the synchronous form.
        """
        if self._lifetime.state is TransactionState.OPEN:
            self._lifetime.end(Event.GIVE_UP)
        else:  # it has ended, perhaps without the release
            self._lifetime.release()

    async def _now(self) -> int:
        timestamp = self._sender.now()
        return timestamp if isinstance(timestamp, int) else await timestamp

    async def rollback(self) -> None:
        """Forget everything, and free what it has locked or reaped.

        It waits for neither the store nor the network: it returns at once, whatever has happened to
        them.

        Raises:
            TransactionClosed: it was committed or rolled back already.
            Invalid: it is the transaction of a task, which its worker ends.
        """
        self._lifetime.check_is_users()
        self._lifetime.check_may_end()
        self._lifetime.end(Event.GIVE_UP)

    def _requests(self) -> list[Any]:
        requests: list[Any] = [*self._buffer.writes.values()]
        if self._reaping is not None:
            requests += self._reaping.requests(
                None if self._postponing is None else self._postponing.includes
            )
        if self._postponing is not None:
            requests += self._postponing.requests()
        requests += self._buffer.sends
        if self._queues is not None:
            requests += self._queues.requests()
        if self._reads.inboxes:
            return self._reads.checks(writes=bool(requests)) + requests
        return requests

    async def __aenter__(self) -> Self:
        if self._lifetime.ended_by:
            self._lifetime.check_is_users()
        return self

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Awaitable[None]:
        if kind is None and (not self._lifetime.closed or self._lifetime.may_end):
            return self.finish()
        return self._given_up(error)

    async def _given_up(self, error: BaseException | None) -> None:
        self.let_go(error)

    def let_go(self, error: BaseException | None) -> None:
        """Give the transaction up at the end of its block, unless it has ended.

        For layers on top. Nothing may replace the exception that ends the block.

        Args:
            error: the exception that ends the block; ``None``: it ends well.
        """
        if type(error) is TypeError:
            explain_await(error)
        if self._lifetime.may_end:
            self._lifetime.end(Event.GIVE_UP)
        elif error is not None or self._lifetime.state is TransactionState.ROLLED_BACK:
            self._lifetime.release()
