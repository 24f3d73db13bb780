"""A transaction as applications use it, in its asyncio form.

Optimistic: reads go to the store and are remembered as keys and spans; writes and messages gather
here; ``commit`` sends everything in one request. The store then checks that nothing read has
changed (:mod:`postroom.ranges.transactions`). A transaction sees its own writes.

It is put together from parts, each with one subject::

    Transaction ─┬─ Lifetime   its state and its time (:mod:`postroom.client.lifetime`)
                 ├─ Reads      what it has read, at one timestamp (:mod:`postroom.client.reading`)
                 ├─ Buffer     what it writes and sends (:mod:`postroom.client.buffer`),
                 │             filled by Writes (:mod:`postroom.client.writing`)
                 ├─ Overlay    reads, with its own writes over them (:mod:`postroom.client.overlay`)
                 ├─ Reaping    what it has taken out of inboxes (:mod:`postroom.client.reaping`);
                 │             InboxReads takes and looks (:mod:`postroom.client.inbox_reads`)
                 ├─ Trying     of that, what it gives back (:mod:`postroom.client.trying`)
                 └─ Sends      what it does to queues (:mod:`postroom.client.queues.sending`)

The last three are made when they are needed: most transactions do without. Here arguments are
checked, and the parts are sent as one commit.

What every transaction does is written for few steps, since they are a good part of what one costs:
``get`` asks nobody if the sender knows the value, and a commit is one coroutine on its way to the
answer. What can go wrong with either is elsewhere (:mod:`postroom.client.commits`).
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Iterable
from types import TracebackType
from typing import Any, Final, Self

from postroom.client import arguments
from postroom.client.buffer import Buffer
from postroom.client.codec import Packing, resolve
from postroom.client.commits import after_failure, anchor_of
from postroom.client.inbox_reads import InboxReads
from postroom.client.lifetime import Event, Lifetime
from postroom.client.overlay import Overlay
from postroom.client.queues.sending import QueueWrites, Sends
from postroom.client.reading import Reads
from postroom.client.reaping import Reaping
from postroom.client.sender import Sender
from postroom.client.trying import InboxWrites, Trying
from postroom.errors import Error
from postroom.kv.clock import Timestamp, from_seconds
from postroom.limits import KEY_BYTES_MAX
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.evaluators import INTEGER, added
from postroom.ranges.requests import CommitTransaction, GetForUpdate
from postroom.ranges.transactions import RECORD_SECONDS, expired

UNKNOWN: Final[Any] = object()
"""Says that a value must be asked for."""

_SEND: Final = Event.SEND  # a member is slow to find in its class
_MADE: Final = Event.MADE


class Transaction(InboxReads, QueueWrites, InboxWrites):
    """Reads, writes and messages that take effect together, or not at all.

    Its calls may be under way at the same time (``asyncio.gather``): all of it is read at one
    timestamp (:mod:`postroom.client.reading`). While it is being committed it takes no others.

    Use it as ``async with db.begin() as tx``: it commits at the end of the block and rolls back on
    an exception. Made by :meth:`Database.begin`.
    """

    __slots__ = (
        "_commit_timestamp",
        "_over",
        "_queues",
        "_trying",
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
        self._trying: Trying | None = None
        self._commit_timestamp = 0

    @property
    def _overlay(self) -> Overlay:
        if self._over is None:
            self._over = Overlay(self._lifetime, self._reads, self._buffer, self._codec)
        return self._over

    # --- what it is

    @property
    def id(self) -> bytes:
        """16 bytes, unique. Committing again with it is safe."""
        return self._id

    @property
    def read_timestamp(self) -> Timestamp | None:
        """Where it reads; ``None`` before its first read."""
        moment = self._reads.timestamp
        return Timestamp(moment) if moment else None

    @property
    def commit_timestamp(self) -> Timestamp | None:
        """Where it committed; ``None`` before that."""
        return Timestamp(self._commit_timestamp) if self._commit_timestamp else None

    @property
    def closed(self) -> bool:
        """Whether it was committed or rolled back."""
        return not self._lifetime.may_end

    @property
    def waited_seconds(self) -> float:
        """How long it has waited for messages."""
        parts = (self._reaping, self._queues)
        return sum(part.waited_seconds for part in parts if part is not None)

    @property
    def queues(self) -> Sends:
        """What it does to queues: for what is built on top, as the synchronous form is."""
        if self._queues is None:
            self._queues = Sends(self._sender, self._codec, self._id, self._lifetime, self._buffer)
        return self._queues

    @property
    def trying(self) -> Trying:
        """What it does with messages that were tried in vain."""
        self._lifetime.check_open()
        if self._trying is None:
            self._trying = Trying(self._reaps, self._buffer.grow)
        return self._trying

    @property
    def codec(self) -> Packing:
        """Of its values: for what is built on top."""
        return self._codec

    def as_stored(self) -> Transaction:
        """The same transaction, values as bytes: for what is built on top. It ends with this one,
        which is the one to be committed.
        """
        other = copy.copy(self)
        other._codec, other._over = resolve(None), None
        return other

    @property
    def is_idle(self) -> bool:
        """Whether it knows nothing that could become too old: for what is built on top."""
        if self._queues is not None and self._queues.has_claimed:
            return False
        return not (self._reads or self._reaping or self._lifetime.is_unknown)

    def keep_young(self) -> None:
        """See :meth:`.QueueSends.keep_young`."""
        if self.is_idle and not self._lifetime.closed:
            self._lifetime.start_clock()

    # --- reading

    async def get(self, key: bytes) -> Any:
        """The value of ``key``, or ``None``.

        Raises:
            KeyTooLarge: the key has more than 8 KiB.
            WrongType: the codec cannot unpack what is there.
            TransactionClosed, TransactionExpired: nothing was read.
        """
        found = self.known(key)
        if found is not UNKNOWN:
            return found
        key = arguments.key(key)
        reply = await self._reads.get(key)
        buffer = self._buffer
        if self._lifetime.closed or buffer.writes:  # it may have been written meanwhile
            self._lifetime.check_open()
            if key in buffer.writes:
                return buffer.value(key, self._codec)
        stored = reply.value
        return None if stored is None else self._codec.decode(stored, key, integer=reply.integer)

    def known(self, key: bytes) -> Any:
        """What ``get`` returns, if that is known at once; else ``UNKNOWN``. For what is built on
        top, as the synchronous form is.
        """
        if self._lifetime.closed or self._sender.monotonic() > self._lifetime.expires:
            self._lifetime.check_alive()
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = arguments.key(key)
        buffer, reads = self._buffer, self._reads
        if key in buffer.writes:
            return buffer.value(key, self._codec)
        reply = None if reads.timestamp else self._sender.try_get(key)
        if reply is None:
            return UNKNOWN
        reads.timestamp = reply.timestamp
        reads.add(key)
        stored = reply.value
        return None if stored is None else self._codec.decode(stored, key, integer=reply.integer)

    async def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """The values of ``keys``, in their order; ``None`` for those that are absent.

        Args:
            keys: up to 8 KiB each.

        Raises:
            As ``get``.
        """
        self._lifetime.check_alive()
        return await self._overlay.get_many([arguments.key(key) for key in keys])

    async def get_for_update(self, key: bytes) -> Any:
        """Like ``get``, but others that ask for ``key`` so wait until this transaction ends.

        Raises:
            TransactionConflict: another transaction kept it locked for too long, or changed it.
            Else as ``get``.
        """
        self._lifetime.check_alive()
        return await self._overlay.get_for_update(arguments.key(key), self._id)

    async def try_lock(self, key: bytes, patience: float) -> bool:
        """Locks ``key`` as ``get_for_update`` does, without reading it; whether it could in time.

        Args:
            key: what to lock.
            patience: seconds.
        """
        self._lifetime.check_alive()
        request = GetForUpdate(arguments.key(key), 0, self._id, self._lifetime.remaining())
        self._lifetime.holds = True
        try:
            await self._sender.send(request, patience)
        except DeadlineExceeded:
            return False
        self._lifetime.check_still_open()
        return True

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[tuple[bytes, Any]]:
        """The pairs with ``start <= key < end``, its own writes included.

        Args:
            start: first key.
            end: first key that is not wanted any more; ``None``: no bound.
            limit: how many pairs at most.
            reverse: from the end backwards.

        Raises:
            As ``get``, when the iterator comes to it.
        """
        self._lifetime.check_alive()
        start, end = arguments.span(start, end)
        if limit is not None:
            arguments.count(limit, "limit", 0)
        return self._overlay.scan(start, end, limit=limit, reverse=reverse)

    # --- writing

    async def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Removes the keys with ``start <= key < end``; returns how many there were.

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
        for key in found:
            self._buffer.write(key, None)
        return len(found)

    async def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: ``by``, or the sum, leaves 64 bits.
            KeyTooLarge, TransactionClosed, TransactionExpired: nothing was added.
        """
        arguments.integer(by)
        key = arguments.key(key)
        self._lifetime.check_alive()
        stored, integer = await self._overlay.stored(key)
        number = added(stored, by, key, integer=integer, packed=self._codec.packs)
        self._buffer.write_integer(key, INTEGER.pack(number))
        return number

    async def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Raises:
            ConditionFailed: it holds something else, which the error carries as ``actual``.
            Else as ``put``.
        """
        key = arguments.key(key)
        packed = arguments.value(value, self._codec, key)
        wanted, or_integer = arguments.expected(expected, self._codec)
        self._lifetime.check_alive()
        await self._overlay.check_holds(key, wanted, or_integer)
        self._buffer.write(key, packed)

    # --- ending

    @property
    def may_be_told(self) -> bool:
        """Whether another ``commit`` may yet tell an outcome that is unknown."""
        try:
            now = self._sender.reading()
        except Error:  # a store that is down: it would hide that the outcome is unknown
            return True
        return now <= self._lifetime.began + from_seconds(RECORD_SECONDS)

    async def commit(self) -> Timestamp:
        """Makes everything take effect; returns the timestamp at which it does.

        Raises:
            TransactionConflict: something it read has changed. Nothing happened; try again.
            CommitUnknown: the outcome is not known; ``commit`` again tells it.
            TransactionExpired, TransactionTooLarge, Unavailable: nothing happened.
        """
        await self.finish()
        return Timestamp(self._commit_timestamp)

    async def finish(self) -> None:
        """Commits. For what is built on top, as the synchronous form is."""
        lifetime, sender, reads = self._lifetime, self._sender, self._reads
        if lifetime.closed:
            lifetime.check_may_end()
        if sender.monotonic() > lifetime.expires and not lifetime.is_unknown:
            lifetime.end(Event.REFUSED)
            raise expired(lifetime.timeout)
        writes = self._requests()
        if not writes:
            lifetime.end(_MADE)
            self._commit_timestamp = reads.timestamp or await self._now()
            return
        request = CommitTransaction(
            self._id, lifetime.began, lifetime.timeout, reads.timestamp, anchor_of(writes),
            reads.keys, reads.spans, writes,
        )  # fmt: skip
        lifetime.to(_SEND)
        try:
            reply = await sender.send(request)
        except BaseException as error:  # also being cancelled: it may have happened all the same
            reply = await after_failure(lifetime, sender, request, error)
        lifetime.to(_MADE)
        self._commit_timestamp = reply.timestamp
        if self._queues is not None:
            self._queues.committed(reply.answers)

    async def _now(self) -> int:
        moment = self._sender.now()
        return moment if isinstance(moment, int) else await moment

    async def rollback(self) -> None:
        """Forgets everything. What it had locked or reaped is free again.

        Waits for nothing, neither the store nor the network, so it ends at once, whatever has
        happened to them.

        Raises:
            TransactionClosed: it was committed or rolled back already.
        """
        self._lifetime.check_may_end()
        self._lifetime.end(Event.GIVE_UP)

    def _requests(self) -> list[Any]:
        requests = self._buffer.requests()
        if self._reaping is not None:
            requests += self._reaping.requests(
                None if self._trying is None else self._trying.includes
            )
        if self._trying is not None:
            requests += self._trying.requests()
        requests += self._buffer.sends
        if self._queues is not None:
            requests += self._queues.requests()
        if self._reads.inboxes:
            return self._reads.checks(writes=bool(requests)) + requests
        return requests

    async def __aenter__(self) -> Self:
        return self

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Awaitable[None]:
        if kind is None and self._lifetime.may_end:
            return self.finish()
        return self._given_up()

    async def _given_up(self) -> None:
        if self._lifetime.may_end:
            # Nothing may take the place of the exception that ends the block.
            self._lifetime.end(Event.GIVE_UP)


__all__ = ["UNKNOWN", "Transaction"]
