"""A transaction as applications use it, in its asyncio form.

Optimistic: reads go to the store and are remembered as keys and spans; writes and messages gather
here; ``commit`` sends everything in one request. The store then checks that nothing read has
changed (:mod:`postroom.ranges.transactions`). A transaction sees its own writes.

States: *open* until ``commit`` or ``rollback``; *closed* afterwards. A commit whose outcome is
unknown (``CommitUnknown``) leaves it open for another ``commit`` with the same id, which tells the
outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from postroom.client import arguments
from postroom.client.codec import Codec
from postroom.client.pages import pages, stored_values
from postroom.client.sender import Sender, send_again
from postroom.client.values import Message, Reaped
from postroom.errors import (
    CommitUnknown,
    ConditionFailed,
    Error,
    TransactionClosed,
    TransactionConflict,
    TransactionExpired,
    TransactionTooLarge,
    Unavailable,
    shorten,
)
from postroom.kv.clock import Timestamp, from_seconds
from postroom.limits import REAPED_BYTES_DEFAULT, TRANSACTION_BYTES_MAX
from postroom.messaging.requests import (
    Delivered,
    EnqueueMessage,
    EnqueueUpdate,
    ReapMessages,
    ReapQueue,
)
from postroom.messaging.requests import Reaped as ReapedMessages
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.evaluators import INTEGER, added
from postroom.ranges.requests import (
    Accounting,
    Committed,
    CommitTransaction,
    Delete,
    Get,
    GetForUpdate,
    Put,
    ReleaseLocks,
    UpdateRequest,
    Value,
)
from postroom.ranges.transactions import RECORD_SECONDS

_UNWRITTEN: Final[Any] = object()
_OVERHEAD_BYTES: Final = 32
_delivered = msgspec.msgpack.Decoder(Delivered)


def messages(key: bytes, found: Iterable[tuple[bytes, bytes]], codec: Codec) -> list[Message]:
    """Stored messages of ``key`` as applications see them."""
    decode, unpack = _delivered.decode, codec.decode
    result = []
    for id_, stored in found:
        entry = decode(stored)
        result.append(Message(key, unpack(entry.value), entry.headers, id_, entry.delivered_at))
    return result


class Transaction:
    """Reads, writes and messages that take effect together, or not at all.

    Use it as ``async with db.begin() as tx``: it commits at the end of the block and rolls back on
    an exception. Made by :meth:`Database.begin`.
    """

    __slots__ = (
        "_began",
        "_bytes",
        "_closed",
        "_codec",
        "_commit_timestamp",
        "_expires",
        "_id",
        "_locked",
        "_read_timestamp",
        "_reads",
        "_reaped",
        "_sender",
        "_sends",
        "_spans",
        "_timeout",
        "_unknown",
        "_writes",
    )  # fmt: skip

    def __init__(self, sender: Sender, codec: Codec, transaction_id: bytes, timeout: float) -> None:
        self._sender = sender
        self._codec = codec
        self._id = transaction_id
        self._timeout = timeout
        self._began = sender.reading()
        self._expires = sender.monotonic() + timeout
        self._read_timestamp = 0
        self._commit_timestamp = 0
        self._reads: list[bytes] = []
        self._spans: list[tuple[bytes, bytes | None]] = []
        self._writes: dict[bytes, bytes | None] = {}
        self._sends: list[EnqueueMessage | EnqueueUpdate] = []
        self._reaped: dict[bytes, list[bytes]] = {}
        self._locked = False
        self._unknown = False
        self._bytes = 0
        self._closed = ""

    # --- what it is

    @property
    def id(self) -> bytes:
        """16 bytes, unique. Committing again with it is safe."""
        return self._id

    @property
    def read_timestamp(self) -> Timestamp | None:
        """Where it reads; ``None`` before its first read."""
        return Timestamp(self._read_timestamp) if self._read_timestamp else None

    @property
    def commit_timestamp(self) -> Timestamp | None:
        """Where it committed; ``None`` before that."""
        return Timestamp(self._commit_timestamp) if self._commit_timestamp else None

    @property
    def closed(self) -> bool:
        """Whether it was committed or rolled back."""
        return bool(self._closed)

    # --- reading

    async def get(self, key: bytes) -> Any:
        """The value of ``key``, or ``None``.

        Raises:
            TypeError, KeyTooLarge, TransactionClosed, TransactionExpired, Unavailable.
        """
        self._check_alive()
        key = arguments.key(key)
        written = self._writes.get(key, _UNWRITTEN)
        if written is _UNWRITTEN:
            reply: Value = await self._sender.send(Get(key, self._read_timestamp))
            self._reads.append(key)
            self._read_timestamp = reply.timestamp
            written = reply.value
        return None if written is None else self._codec.decode(written)

    async def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """The values of ``keys``, in their order; ``None`` for those that are absent."""
        self._check_alive()
        wanted = [arguments.key(key) for key in keys]
        missing = [key for key in dict.fromkeys(wanted) if key not in self._writes]
        found = dict(self._writes)
        if missing:
            reply = await stored_values(self._sender, missing, self._read_timestamp)
            self._reads += missing
            self._read_timestamp = reply.timestamp
            found.update(zip(missing, reply.values, strict=True))
        decode = self._codec.decode
        return [None if (value := found[key]) is None else decode(value) for key in wanted]

    async def get_for_update(self, key: bytes) -> Any:
        """Like ``get``, but others that ask for ``key`` so wait until this transaction ends.

        Raises:
            TransactionConflict: another transaction kept it locked for too long, or changed it.
        """
        self._check_alive()
        key = arguments.key(key)
        self._locked = True
        left = self._remaining()
        request = GetForUpdate(key, self._read_timestamp, self._id, left)
        try:
            reply: Value = await self._sender.send(request, left)
        except DeadlineExceeded:
            raise TransactionConflict(
                f"another transaction holds {shorten(key)} and did not end in time; nothing was "
                "changed: try again (run() does)"
            ) from None
        self._reads.append(key)
        self._read_timestamp = reply.timestamp
        written = self._writes.get(key, reply.value)
        return None if written is None else self._codec.decode(written)

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[tuple[bytes, Any]]:
        """The pairs with ``start <= key < end``, its own writes included."""
        self._check_alive()
        start, end = arguments.span(start, end)
        if limit is not None:
            arguments.count(limit, "limit", 0)
        return self._unpacked(self._raw_scan(start, end, limit=limit, reverse=reverse))

    async def _unpacked(
        self, found: AsyncIterator[tuple[bytes, bytes]]
    ) -> AsyncIterator[tuple[bytes, Any]]:
        decode = self._codec.decode
        async for key, value in found:
            yield key, decode(value)

    async def _raw_scan(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        self._check_alive()
        start, end = arguments.span(start, end)
        left = -1 if limit is None else limit
        own = sorted(self._own(start, end), reverse=reverse)
        if not self._read_timestamp:
            self._read_timestamp = await self._now()
        size = None if limit is None else limit + len(own)
        scan = pages(self._sender, start, end, self._read_timestamp, limit=size, reverse=reverse)
        async for page in scan:
            self._spans.append((page.start, page.end))
            for pair in _overlaid(page.pairs, own, page.start, page.end, reverse=reverse):
                if left == 0:
                    return
                left -= 1
                yield pair

    def _own(self, start: bytes, end: bytes | None) -> list[tuple[bytes, bytes | None]]:
        return [(k, v) for k, v in self._writes.items() if k >= start and (end is None or k < end)]

    # --- writing

    def put(self, key: bytes, value: Any) -> None:
        """Sets ``key`` to ``value`` when the transaction commits.

        Raises:
            TypeError, KeyTooLarge, ValueTooLarge, TransactionTooLarge, TransactionClosed.
        """
        self._check_open()
        key = arguments.key(key)
        self._write(key, arguments.value(value, self._codec, key))

    def delete(self, key: bytes) -> None:
        """Removes ``key`` when the transaction commits, if it is there."""
        self._check_open()
        self._write(arguments.key(key), None)

    async def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Removes the keys with ``start <= key < end``; returns how many there were."""
        found = [pair async for pair in self._raw_scan(start, end, limit=None, reverse=False)]
        for key, _ in found:
            self._write(key, None)
        return len(found)

    async def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: the sum leaves 64 bits.
        """
        arguments.integer(by)
        number = added(await self._stored(key), by, key)
        self._write(key, INTEGER.pack(number))
        return number

    async def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Raises:
            ConditionFailed: it holds something else, which the error carries.
        """
        key = arguments.key(key)
        packed = arguments.value(value, self._codec, key)
        wanted = None if expected is None else self._codec.encode(expected)
        actual = await self._stored(key)
        if actual != wanted:
            raise ConditionFailed(
                f"{shorten(key)} does not hold the expected value; nothing was changed: read it "
                "again and decide anew",
                None if actual is None else self._codec.decode(actual),
            )
        self._write(key, packed)

    async def _stored(self, key: bytes) -> bytes | None:
        """What ``get`` reads, before it is unpacked."""
        self._check_alive()
        key = arguments.key(key)
        if key in self._writes:
            return self._writes[key]
        reply: Value = await self._sender.send(Get(key, self._read_timestamp))
        self._reads.append(key)
        self._read_timestamp = reply.timestamp
        return reply.value

    def _write(self, key: bytes, packed: bytes | None) -> None:
        self._grow(len(key) + (len(packed) if packed else 0))
        self._writes[key] = packed

    def _grow(self, size: int) -> None:
        self._bytes += size + _OVERHEAD_BYTES
        if self._bytes > TRANSACTION_BYTES_MAX:
            raise TransactionTooLarge(
                f"the transaction has gathered more than {TRANSACTION_BYTES_MAX} bytes of writes "
                "and messages; nothing was changed: do the work in smaller transactions"
            )

    # --- messages

    def enqueue_message(
        self,
        key: bytes,
        value: Any,
        *,
        headers: dict[str, Any] | None = None,
        deliver_at: Any = None,
    ) -> None:
        """Sends ``value`` to the inbox of ``key`` when, and only if, the transaction commits.

        Args:
            key: the recipient; it need not exist.
            value: the payload, 1 MiB at most, headers included.
            headers: text to text, bytes, numbers, bools or ``None``; 64 KiB at most.
            deliver_at: not before this aware ``datetime``, or this ``timedelta`` or number of
                seconds from now.
        """
        self._check_open()
        key = arguments.key(key)
        extra, extra_bytes = arguments.headers(headers, key)
        payload = arguments.message(value, self._codec, key, extra_bytes)
        due = (
            0
            if deliver_at is None
            else arguments.due(deliver_at, self._sender.reading(), "deliver_at")
        )
        self._grow(len(key) + len(payload) + extra_bytes)
        self._sends.append(EnqueueMessage(key, payload, extra, due))

    def enqueue_update(self, request: UpdateRequest, *, execute_at: Any = None) -> None:
        """Has ``request`` carried out once, soon after the transaction commits.

        Args:
            request: ``Put``, ``Increment``, ``Delete``, ``DeleteRange`` or ``Accounting``.
            execute_at: like ``deliver_at`` of :meth:`enqueue_message`.
        """
        self._check_open()
        checked = arguments.update(request, self._codec)
        due = (
            0
            if execute_at is None
            else arguments.due(execute_at, self._sender.reading(), "execute_at")
        )
        self._grow(_size(checked))
        self._sends.append(EnqueueUpdate(checked, due))

    async def reap_queue(
        self,
        key: bytes,
        max_results: int = 100,
        *,
        max_bytes: int | None = None,
        wait: float | None = None,
    ) -> Reaped:
        """Takes the oldest messages of ``key`` that nobody else holds.

        They are deleted when the transaction commits, and free again when it does not.

        Args:
            key: whose inbox.
            max_results: how many at most.
            max_bytes: how many bytes of them at most (but one message at least); 8 MiB if not told,
                since what is reaped counts towards the 16 MiB of the transaction.
            wait: seconds to wait for the first one to arrive.
        """
        self._check_alive()
        most = arguments.count(max_results, "max_results")
        size = (
            REAPED_BYTES_DEFAULT if max_bytes is None else arguments.count(max_bytes, "max_bytes")
        )
        left = self._remaining()
        key = arguments.key(key)
        request = ReapQueue(key, most, size, self._id, left, wait=bool(wait))
        self._locked = True
        try:
            reply: ReapedMessages = await self._sender.send(
                request, min(wait, left) if wait else None
            )
        except DeadlineExceeded:
            return Reaped([], more=False)
        taken = messages(key, reply.messages, self._codec)
        if taken:
            self._reaped.setdefault(key, []).extend(id_ for id_, _ in reply.messages)
        return Reaped(taken, more=reply.more)

    # --- ending

    @property
    def may_be_told(self) -> bool:
        """Whether another ``commit`` may yet tell an outcome that is unknown."""
        try:
            now = self._sender.reading()
        except Error:  # a store that is down: it would hide that the outcome is unknown
            return True
        return now <= self._began + from_seconds(RECORD_SECONDS)

    async def commit(self) -> Timestamp:
        """Makes everything take effect; returns the timestamp at which it does.

        Raises:
            TransactionConflict: something it read has changed. Nothing happened; try again.
            CommitUnknown: the outcome is not known; ``commit`` again tells it.
            TransactionExpired, TransactionTooLarge, Unavailable: nothing happened.
        """
        self._check_open()
        if self._sender.monotonic() > self._expires and not self._unknown:
            await self._close("not committed")
            raise self._expired()
        writes = self._requests()
        if not writes:
            await self._close("committed")
            self._commit_timestamp = self._read_timestamp or await self._now()
            return Timestamp(self._commit_timestamp)
        try:
            reply = await self._send_commit(self._commit_request(writes))
        except CommitUnknown:
            self._unknown = True
            raise
        except Exception as error:
            if self._unknown and isinstance(error, Unavailable):
                raise CommitUnknown(
                    "an earlier commit of this transaction may have happened, and the store cannot "
                    "tell now: commit again with the same transaction id"
                ) from error
            await self._close("not committed")
            raise
        except BaseException:  # cancelled: whether it has happened, another commit tells
            self._unknown = True
            await self._release()
            raise
        self._closed = "committed"
        self._commit_timestamp = reply.timestamp
        return Timestamp(reply.timestamp)

    async def _send_commit(self, request: CommitTransaction[Any]) -> Committed:
        try:
            reply: Committed = await self._sender.send(request)
        except Unavailable as refusal:
            if self._unknown:
                raise
            reply = await send_again(self._sender, request, refusal)
        return reply

    async def _now(self) -> int:
        moment = self._sender.now()
        return moment if isinstance(moment, int) else await moment

    async def rollback(self) -> None:
        """Forgets everything. What it had locked or reaped is free again."""
        self._check_open()
        await self._close("rolled back")

    def _requests(self) -> list[Any]:
        requests: list[Any] = [
            Delete(key) if value is None else Put(key, value) for key, value in self._writes.items()
        ]
        if self._reaped:
            requests += [ReapMessages(key, ids) for key, ids in self._reaped.items()]
        requests += self._sends
        return requests

    def _commit_request(self, writes: list[Any]) -> CommitTransaction[Any]:
        return CommitTransaction(
            self._id,
            self._began,
            self._timeout,
            self._read_timestamp,
            _anchor(writes[0]),
            self._reads,
            self._spans,
            writes,
        )

    async def _close(self, how: str) -> None:
        self._closed = how
        await self._release()

    async def _release(self) -> None:
        if self._locked:
            await self._sender.send(ReleaseLocks(self._id))

    def _remaining(self) -> float:
        return max(self._expires - self._sender.monotonic(), 0.0)

    def _check_open(self) -> None:
        """Before what only gathers: an expired transaction hears of it at the next read or
        commit.
        """
        if self._closed:
            raise TransactionClosed(
                f"the transaction was {self._closed} already; nothing was changed by this call: "
                "begin a new one"
            )

    def _check_alive(self) -> None:
        """Before what asks the store."""
        self._check_open()
        if self._sender.monotonic() > self._expires:
            raise self._expired()

    def _expired(self) -> TransactionExpired:
        return TransactionExpired(
            f"the transaction was open for more than {self._timeout:g} s; nothing was changed: "
            "begin a new one, or give begin() a longer timeout (60 s at most)"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._closed:
            return
        if kind is None:
            await self.commit()
        else:
            await self.rollback()


def _anchor(first: Any) -> bytes:
    """The key that the first write of a transaction is about."""
    match first:
        case EnqueueUpdate(request=request):
            return _anchor(request)
        case _ if hasattr(first, "key"):
            key: bytes = first.key
            return key
        case _:
            start: bytes = first.start
            return start


def _size(request: Any) -> int:
    match request:
        case Put(key=key, value=value):
            return len(key) + len(value)
        case Accounting(key=key, deltas=deltas):
            return 2 * len(key) + sum(map(len, deltas))
        case _ if hasattr(request, "key"):
            return 2 * len(request.key)
    return len(request.start) + len(request.end or b"")


def _overlaid(
    stored: list[tuple[bytes, bytes]],
    own: list[tuple[bytes, bytes | None]],
    start: bytes,
    end: bytes | None,
    *,
    reverse: bool,
) -> Iterable[tuple[bytes, bytes]]:
    """A page of a scan with the transaction's own writes to its span in place."""
    if not own:
        return stored
    here = {k: v for k, v in own if k >= start and (end is None or k < end)}
    merged = {**dict(stored), **here}
    return [(k, v) for k, v in sorted(merged.items(), reverse=reverse) if v is not None]


__all__ = ["Transaction", "messages"]
