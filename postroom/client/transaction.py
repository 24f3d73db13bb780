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
from postroom.client.codec import Packing
from postroom.client.pages import Page, unpacked_values
from postroom.client.reading import Reads
from postroom.client.sender import Sender, post, send_again
from postroom.client.values import Message, Reaped
from postroom.errors import (
    CommitUnknown,
    ConditionFailed,
    Error,
    TransactionClosed,
    TransactionConflict,
    TransactionTooLarge,
    Unavailable,
    shorten,
)
from postroom.kv.clock import Timestamp, from_seconds
from postroom.limits import PEEKED_MESSAGES_MAX, REAPED_BYTES_DEFAULT, TRANSACTION_BYTES_MAX
from postroom.messaging.requests import (
    CheckInbox,
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
    Put,
    ReleaseLocks,
    UpdateRequest,
)
from postroom.ranges.transactions import RECORD_SECONDS, expired

_COMMITTING: Final = "being committed"
LAST_LOOK_SECONDS: Final = 0.5
"""How much longer than ``wait`` a reap may take that gives up."""

_OVERHEAD_BYTES: Final = 32
_delivered = msgspec.msgpack.Decoder(Delivered)


def messages(key: bytes, found: Iterable[tuple[bytes, bytes]], codec: Packing) -> list[Message]:
    """Stored messages of ``key`` as applications see them."""
    decode, unpack = _delivered.decode, codec.decode
    result = []
    for id_, stored in found:
        entry = decode(stored)
        value = unpack(entry.value, key)
        result.append(Message(key, value, entry.headers, id_, entry.delivered_at))
    return result


class Transaction:
    """Reads, writes and messages that take effect together, or not at all.

    Its calls may be under way at the same time (``asyncio.gather``): all of it is read at one
    timestamp (:mod:`postroom.client.reading`). While it is being committed it takes no others.

    Use it as ``async with db.begin() as tx``: it commits at the end of the block and rolls back on
    an exception. Made by :meth:`Database.begin`.

    Attributes:
        waited_seconds: how long it has waited for messages.
    """

    __slots__ = (
        "_began",
        "_bytes",
        "_closed",
        "_codec",
        "_commit_timestamp",
        "_expires",
        "_id",
        "_integers",
        "_locked",
        "_reads",
        "_reaped",
        "_sender",
        "_sends",
        "_timeout",
        "_unknown",
        "_writes",
        "waited_seconds",
    )  # fmt: skip

    def __init__(
        self, sender: Sender, codec: Packing, transaction_id: bytes, timeout: float
    ) -> None:
        self._sender = sender
        self._codec = codec
        self._id = transaction_id
        self._timeout = timeout
        self.waited_seconds = 0.0
        self._start_clock()
        self._commit_timestamp = 0
        self._reads = Reads(sender)
        self._writes: dict[bytes, bytes | None] = {}
        self._integers: set[bytes] = set()
        self._sends: list[EnqueueMessage | EnqueueUpdate] = []
        self._reaped: dict[bytes, dict[bytes, None]] = {}
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
        moment = self._reads.timestamp
        return Timestamp(moment) if moment else None

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
        if key in self._writes:
            return self._own_value(key)
        reply = await self._reads.get(key)
        if self._closed or self._writes:  # it may have been written meanwhile
            self._check_open()
            if key in self._writes:
                return self._own_value(key)
        stored = reply.value
        return None if stored is None else self._codec.decode(stored, key, integer=reply.integer)

    async def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """The values of ``keys``, in their order; ``None`` for those that are absent."""
        self._check_alive()
        wanted = [arguments.key(key) for key in keys]
        missing = [key for key in dict.fromkeys(wanted) if key not in self._writes]
        found: dict[bytes, Any] = {}
        if missing:
            reply = await self._reads.get_many(missing)
            self._check_open()
            found.update(zip(missing, unpacked_values(missing, reply, self._codec), strict=True))
        # What was written meanwhile counts as well.
        return [self._own_value(key) if key in self._writes else found[key] for key in wanted]

    def _own_value(self, key: bytes) -> Any:
        """What this transaction has written to ``key``; ``None`` if it has deleted it."""
        written = self._writes[key]
        if written is None:
            return None
        return self._codec.decode(written, key, integer=key in self._integers)

    async def get_for_update(self, key: bytes) -> Any:
        """Like ``get``, but others that ask for ``key`` so wait until this transaction ends.

        Raises:
            TransactionConflict: another transaction kept it locked for too long, or changed it.
        """
        self._check_alive()
        key = arguments.key(key)
        self._locked = True
        try:
            reply = await self._reads.get_for_update(key, self._id, self._remaining())
        except DeadlineExceeded:
            raise TransactionConflict(
                f"another transaction holds {shorten(key)} and did not end in time; nothing was "
                "changed: try again (run() does)"
            ) from None
        self._check_still_open()
        if key in self._writes:
            return self._own_value(key)
        stored = reply.value
        return None if stored is None else self._codec.decode(stored, key, integer=reply.integer)

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
        self, found: AsyncIterator[tuple[bytes, bytes, bool]]
    ) -> AsyncIterator[tuple[bytes, Any]]:
        decode = self._codec.decode
        async for key, value, integer in found:
            yield key, decode(value, key, integer=integer)

    async def _raw_scan(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[tuple[bytes, bytes, bool]]:
        self._check_alive()
        start, end = arguments.span(start, end)
        left = -1 if limit is None else limit
        own = sorted(self._own(start, end), reverse=reverse)
        size = None if limit is None else limit + len(own)
        async for page in self._reads.scan(start, end, limit=size, reverse=reverse):
            self._check_open()
            integers = self._integers_in(page)
            for key, value in _overlaid(page.pairs, own, page.start, page.end, reverse=reverse):
                if left == 0:
                    return
                left -= 1
                yield key, value, key in integers

    def _integers_in(self, page: Page) -> set[bytes]:
        """The keys that hold integers, of a page with this transaction's own writes in place."""
        stored = {page.pairs[index][0] for index in page.integers}
        return (stored - self._writes.keys()) | self._integers

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
        found = [key async for key, *_ in self._raw_scan(start, end, limit=None, reverse=False)]
        for key in found:
            self._write(key, None)
        return len(found)

    async def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: the sum leaves 64 bits.
        """
        arguments.integer(by)
        key = arguments.key(key)
        self._check_alive()
        stored, integer = await self._stored(key)
        number = added(stored, by, key, integer=integer, packed=self._codec.packs)
        self._write(key, INTEGER.pack(number), integer=True)
        return number

    async def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Raises:
            ConditionFailed: it holds something else, which the error carries.
        """
        key = arguments.key(key)
        packed = arguments.value(value, self._codec, key)
        wanted, or_integer = arguments.expected(expected, self._codec)
        self._check_alive()
        actual, integer = await self._stored(key)
        if integer and actual is not None and self._codec.packs:
            as_expected = INTEGER.unpack(actual)[0] == or_integer
        else:
            as_expected = actual == wanted
        if not as_expected:
            decode = self._codec.decode
            raise ConditionFailed(
                f"{shorten(key)} does not hold the expected value; nothing was changed: read it "
                "again and decide anew",
                None if actual is None else decode(actual, key, integer=integer),
            )
        self._write(key, packed)

    async def _stored(self, key: bytes) -> tuple[bytes | None, bool]:
        """What ``get`` reads, before it is unpacked, and whether it is an integer."""
        if key not in self._writes:
            reply = await self._reads.get(key)
            self._check_open()
            if key not in self._writes:  # it may have been written meanwhile
                return reply.value, reply.integer
        return self._writes[key], key in self._integers

    def _write(self, key: bytes, packed: bytes | None, *, integer: bool = False) -> None:
        self._grow(len(key) + (len(packed) if packed else 0))
        self._writes[key] = packed
        if integer:
            self._integers.add(key)
        else:
            self._integers.discard(key)

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
        deliver_at: arguments.Due | None = None,
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

    def enqueue_update(
        self, request: UpdateRequest, *, execute_at: arguments.Due | None = None
    ) -> None:
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

        They are deleted when the transaction commits, and free again when it does not. What is not
        among them is no read; but an inbox that is found empty is one, unless others hold messages
        of it: the commit raises ``TransactionConflict`` if it is not empty any more.

        Args:
            key: whose inbox.
            max_results: how many at most.
            max_bytes: how many bytes of them at most (but one message at least); 8 MiB if not told,
                since what is reaped counts towards the 16 MiB of the transaction.
            wait: seconds to wait for the first one to arrive, as many as you like. The time-out of
                the transaction counts from the end of the wait, unless it has read or reaped
                something before.

        Raises:
            TransactionConflict: what it had read or reaped before has become too old while it
                waited.
        """
        self._check_alive()
        most = arguments.count(max_results, "max_results")
        size = (
            REAPED_BYTES_DEFAULT if max_bytes is None else arguments.count(max_bytes, "max_bytes")
        )
        key = arguments.key(key)
        reply = await self._reap(key, most, size, arguments.wait(wait))
        self._check_still_open()
        return self._taken(key, reply)

    async def _last_look(self, request: ReapQueue) -> ReapedMessages:
        """Nothing came while it waited: what there is now, and whether others hold it.

        If nobody can tell at once the inbox counts as found empty, which the commit checks.
        """
        at_once = msgspec.structs.replace(request, wait=False)
        try:
            reply: ReapedMessages = await self._sender.send(at_once, LAST_LOOK_SECONDS)
        except (DeadlineExceeded, Unavailable):
            return ReapedMessages([], more=False, drained=len(self._reaped.get(request.key, ())))
        return reply

    def _taken(self, key: bytes, reply: ReapedMessages) -> Reaped:
        if reply.drained is not None:
            self._reads.found_drained(key, reply.drained)
        own = self._reaped.get(key, ())
        # A new leaseholder has forgotten what this transaction holds, and may give it once more.
        fresh = [pair for pair in reply.messages if pair[0] not in own] if own else reply.messages
        if fresh:
            self._reaped.setdefault(key, {}).update(dict.fromkeys(id_ for id_, _ in fresh))
        return Reaped(messages(key, fresh, self._codec), more=reply.more)

    async def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """The oldest messages in the inbox of ``key``, without consuming any.

        A read like any other: as of the timestamp at which this transaction reads, and checked at
        the commit, which fails if other messages would be seen by then. What comes behind the last
        message of a peek that has found ``limit`` of them is not among that. Messages that other
        transactions hold are shown, those that this one has reaped are not. What it sends itself
        is not in an inbox before it commits.

        Args:
            key: whose inbox.
            limit: how many messages at most. 10,000 of one inbox are the most that can be checked;
                their bytes count towards the 16 MiB of the transaction.

        Raises:
            TransactionTooLarge: these are too many.
        """
        self._check_alive()
        most = arguments.count(limit, "limit")
        key = arguments.key(key)
        asked = most + len(self._reaped.get(key, ()))
        found = await self._reads.peek(key, asked)
        self._check_open()
        self._count_peeked(key, found)
        own = self._reaped.get(key, ())
        return messages(key, [pair for pair in found if pair[0] not in own][:most], self._codec)

    def _count_peeked(self, key: bytes, found: list[tuple[bytes, bytes]]) -> None:
        if len(found) > PEEKED_MESSAGES_MAX:
            raise TransactionTooLarge(
                f"more than {PEEKED_MESSAGES_MAX} messages of {shorten(key)} were peeked at, which "
                "a commit cannot check; nothing was changed: peek with a lower limit"
            )
        for _, stored in found:
            self._grow(len(stored))

    async def _reap(self, key: bytes, most: int, size: int, patience: float) -> ReapedMessages:
        """What there is, or what comes within ``patience`` seconds.

        Before it has read or reaped anything a transaction has no age: nothing that it knows can
        be outdated, and nobody waits for it. Afterwards the time that it waits counts, like any.
        """
        left = self._remaining()
        is_idle = not (self._reads or self._reaped or self._unknown)
        request = ReapQueue(
            key, most, size, self._id, self._timeout if is_idle else left, wait=patience > 0
        )
        self._locked = True
        time_out = patience if is_idle else min(patience, left)
        began_to_wait = self._sender.monotonic()
        reply: ReapedMessages | None = None
        try:
            reply = await self._sender.send(request, time_out if patience else None)
        except DeadlineExceeded:
            if time_out < patience:
                raise self._too_old() from None
        finally:
            if patience:
                self.waited_seconds += self._sender.monotonic() - began_to_wait
        if patience and is_idle:
            self._start_clock()
        if reply is None:
            reply = await self._last_look(request)
        return reply

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
            self._close("not committed")
            raise expired(self._timeout)
        writes = self._requests()
        if not writes:
            self._close("committed")
            self._commit_timestamp = self._reads.timestamp or await self._now()
            return Timestamp(self._commit_timestamp)
        self._closed = _COMMITTING
        try:
            reply = await self._send_commit(self._commit_request(writes))
        except CommitUnknown:
            self._closed, self._unknown = "", True
            raise
        except Exception as error:
            if self._unknown and isinstance(error, Unavailable):
                self._closed = ""
                raise CommitUnknown(
                    "an earlier commit of this transaction may have happened, and the store cannot "
                    "tell now: commit again with the same transaction id"
                ) from error
            self._close("not committed")
            raise
        except BaseException:  # cancelled: whether it has happened, another commit tells
            self._closed, self._unknown = "", True
            self._release()
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
        """Forgets everything. What it had locked or reaped is free again.

        Waits for nothing, neither the store nor the network: it cannot fail, and ends at once also
        when its task is cancelled.

        Raises:
            TransactionClosed: it was committed or rolled back already.
        """
        self._check_open()
        self._close("rolled back")

    def _requests(self) -> list[Any]:
        integers = self._integers
        requests: list[Any] = [
            Delete(key) if value is None else Put(key, value, key in integers)
            for key, value in self._writes.items()
        ]
        if self._reaped:
            requests += [ReapMessages(key, list(ids)) for key, ids in self._reaped.items()]
        requests += self._sends
        return self._reads.checks(writes=bool(requests)) + requests

    def _commit_request(self, writes: list[Any]) -> CommitTransaction[Any]:
        return CommitTransaction(
            self._id,
            self._began,
            self._timeout,
            self._reads.timestamp,
            _anchor(next((w for w in writes if type(w) is not CheckInbox), writes[0])),
            self._reads.keys,
            self._reads.spans,
            writes,
        )

    def _close(self, how: str) -> None:
        self._closed = how
        self._release()

    def _release(self) -> None:
        if self._locked:
            post(self._sender, ReleaseLocks(self._id))

    def _start_clock(self) -> None:
        self._began = self._sender.reading()
        self._expires = self._sender.monotonic() + self._timeout

    def _too_old(self) -> TransactionConflict:
        return TransactionConflict(
            f"the transaction waited for messages until it had been open for {self._timeout:g} s, "
            "and what it had read or reaped before is too old; nothing was changed: try again "
            "(run() does), and wait for messages first"
        )

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

    def _check_still_open(self) -> None:
        """After what locks: granted to a transaction that has ended meanwhile, it is given back."""
        if self._closed:
            self._release()
            self._check_open()

    def _check_alive(self) -> None:
        """Before what asks the store."""
        self._check_open()
        if self._sender.monotonic() > self._expires:
            raise expired(self._timeout)

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
        else:  # nothing may take the place of the exception that ends the block
            self._close("rolled back")


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
