"""The reads of a transaction: all at one timestamp, kept for the check at its commit.

``Reads`` asks the store. The first answer settles the timestamp; reads after it are sent with it.
Reads that run at the same time (``asyncio.gather``) are all sent without one, and each is answered
at a moment of its own. The answer that comes first settles the timestamp. The other reads are sent
once more, at the settled timestamp::

    get a ─┬─ send, 0 ──────────── answer at 7: settled ─▶ value
    get b ─┴─ send, 0 ─────────────── answer at 9 ─▶ send, 7 ─── answer at 7 ─▶ value

Values and the timestamp thereby never disagree, in whatever order answers come in. A lock that was
granted meanwhile is kept: the second request finds it, and learns whether the key has changed
since.

Locks of several ranges could be waited for in a circle, which no range sees. A transaction that has
a lock in one range waits only a moment for one in another range. If that is not enough, it is a
conflict, and its next try locks both keys before it begins, in the order of the ranges. The range
of a lock is the one that the client knows of when it has it. A right half forgets the locks of
before its split: for each lock in a circle, its holder has heard of the range.

While everything read so far is locked in one range, the timestamp *moves*. No other transaction
could change those keys, so the answer to ``get_for_update`` may be from a later one. A range that
has lost a lock of the transaction, or has split since, does not move it.

*Several ranges* on different nodes have different clocks. The timestamp is that of the range which
has answered first. In another range something may have been acknowledged before the transaction
began, at a later timestamp. A read of a key there therefore asks whether anything later exists
(:mod:`postroom.ranges.transactions.refresh`). If it does, the timestamp moves up to that, unless
something that was read before has changed in between, which is a conflict.

When it has to move for a second time, it moves up to the greatest clock of all leaseholders
(``Now``). Everything that was acknowledged before is below that, in every range, so nothing has to
be asked any more. Each read is thus checked twice at most, however many ranges are read. A scan, or
a peek, of another range moves it in this way at once, and goes through its span once. The try after
one that could not move begins in this way.

Inboxes are read in two ways. A peek is a read like the others. A reap takes the messages that are
there *now*. Messages that it does not return are no read, because consumers must not be in conflict
with arriving messages. But an inbox that a reap finds empty, with no messages held by others, is a
read. This read cannot move to the settled timestamp, so the commit checks it: the inbox must be
empty then (still, or again). A transaction that only reads needs this check only if it has seen
something besides the one empty inbox.

``Overlay`` is a transaction's view of the store: its reads, with its own writes over them::

    get ── written here? ─┬─ yes ─▶ what it wrote
                          └─ no ──▶ Reads (the store, at one timestamp) ─▶ written meanwhile?

``get`` itself is a part of :class:`.transaction.Transaction`, because it is the most frequent call.

Calls of one transaction may run at the same time. The transaction is therefore checked again after
each answer: it may have ended, or have written the key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from postroom.client.buffer import NO_LIST, Buffer, overlaid
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.pages import Page, pages, stored_messages, stored_values, unpacked_values
from postroom.client.sender import Sender, present
from postroom.errors import ConditionFailed, TransactionConflict, shorten
from postroom.limits import KEY_BYTES_MAX, LOCK_ELSEWHERE_SECONDS_MAX
from postroom.messaging.requests import CheckInbox, Peeked
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.evaluators import INTEGER
from postroom.ranges.requests import Get, GetForUpdate, Value, Values
from postroom.ranges.transactions.requests import Refresh

AnswerT = TypeVar("AnswerT", Value, Values, Peeked)

UNSETTLED: Final = -1
"""The range of the timestamp before the first answer."""
UNKNOWN_RANGE: Final = -2
"""The range of a timestamp of which it is not known: reads in every range ask for later changes."""
EVERY_RANGE: Final = -3
"""The range of a timestamp that no leaseholder's clock was above: no reads ask."""
TO_MOVE: Final = -4
"""The range of a timestamp that is moved to every range with the first read."""
LAST_KEY: Final = b"\xff" * KEY_BYTES_MAX
"""The last key that a store may have."""


class Reads(msgspec.Struct, eq=False, gc=False):
    """The reads of one transaction.

    It is a struct, since a struct is made in few steps. The garbage collector need not see it,
    because nothing in it leads back to it.

    Attributes:
        timestamp: where it reads; 0 before the first answer.
        keys, spans: what it has read, for the check at the commit.
        locked: how many of the keys it had locked when it read them.
        inboxes: whether it has read any; if not, there are no ``checks`` to ask for.
        has_moved: whether the timestamp has moved, or could not, because of another range.
        lock_range: the id of the range in which all its locks are; 0: it has none.
    """

    _sender: Sender
    timestamp: int = 0
    keys: list[bytes] = NO_LIST
    spans: list[tuple[bytes, bytes | None]] = NO_LIST
    inboxes: bool = False
    locked: int = 0
    has_moved: bool = False
    lock_range: int = 0
    _peeked: list[CheckInbox] = NO_LIST
    _drained: dict[CheckInbox, None] = {}
    _range: int = UNSETTLED

    def add(self, key: bytes) -> None:
        """Note that ``key`` was read."""
        if self.keys:
            self.keys.append(key)
        else:
            self.keys = [key]

    # --- asking

    async def get(self, key: bytes) -> Value:
        """Return the stored value of ``key``."""
        if self._range == TO_MOVE:
            await self._begin_everywhere()
        reply: Value = await self._sender.send(Get(key, self.timestamp))
        while reply.timestamp != self.timestamp and not self._settles(reply.timestamp):
            reply = await self._sender.send(Get(key, self.timestamp))
        if self._sender.range_of is not None and self._is_elsewhere(key):
            await self._catch_up([key])
            while reply.timestamp != self.timestamp:
                reply = await self._sender.send(Get(key, self.timestamp))
        self.add(key)
        return reply

    async def get_many(self, keys: list[bytes]) -> Values:
        """Return the stored values of ``keys``."""
        range_of = self._sender.range_of
        if range_of is None:
            reply = await self._at_one(lambda at: stored_values(self._sender, keys, at))
        else:
            reply = await self._get_many_anywhere(keys, range_of)
        self.keys = self.keys or []
        self.keys += keys
        return reply

    async def _get_many_anywhere(
        self, keys: list[bytes], range_of: Callable[[bytes], int]
    ) -> Values:
        """Return the stored values of ``keys``, whose ranges may have clocks of their own."""
        ends = min(keys), max(keys)
        is_first = not self.timestamp and range_of(ends[0]) != range_of(ends[1])
        if is_first or self._range == TO_MOVE:
            await self._begin_everywhere()
        reply = await self._at_one(lambda at: stored_values(self._sender, keys, at))
        if any(map(self._is_elsewhere, ends)):
            await self._catch_up([*filter(self._is_elsewhere, keys)])
            while reply.timestamp != self.timestamp:
                reply = await stored_values(self._sender, keys, self.timestamp)
        return reply

    async def get_for_update(
        self, key: bytes, transaction_id: bytes, seconds_left: float, began: int
    ) -> Value:
        """Return the stored value of ``key``, and lock it."""
        if self._range == TO_MOVE:
            await self._begin_everywhere()
        patience = seconds_left
        if self.locks_elsewhere(key):
            longest = LOCK_ELSEWHERE_SECONDS_MAX * self._sender.random.uniform(0.5, 1.0)
            patience = min(seconds_left, longest)
        while True:
            at = self.timestamp
            request = GetForUpdate(
                key, at, transaction_id, seconds_left, began, self._has_locked_all()
            )
            reply: Value = await self._sender.send(request, patience)
            if at and reply.timestamp > self.timestamp and self._has_locked_all():
                self.timestamp = reply.timestamp
            if self._settles(reply.timestamp):
                break
        self.locks_elsewhere(key)  # it may have been split meanwhile, and the client knows now
        if self._sender.range_of is not None and self._is_elsewhere(key):
            self.has_moved = True  # the lock was refused if anything later exists there
        self.add(key)
        self.locked += 1
        return reply

    def locks_elsewhere(self, key: bytes) -> bool:
        """Note that ``key`` is, or is to be, locked; return whether locks are in another range."""
        range_id = self._sender.range_id(key) or UNKNOWN_RANGE
        if not self.lock_range:
            self.lock_range = range_id
        elif range_id != self.lock_range:
            self.lock_range = EVERY_RANGE
        return self.lock_range != range_id

    def _has_locked_all(self) -> bool:
        """Return whether one range keeps others from changing what was read."""
        is_all = len(self.keys) == self.locked and not (self.spans or self.inboxes)
        return is_all and self.lock_range != EVERY_RANGE

    async def scan(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[Page]:
        """Return the pages of a span."""
        if self._range == TO_MOVE:
            await self._begin_everywhere()
        if not self.timestamp:
            now = self._sender.now()
            if self._settles(now if isinstance(now, int) else await now):
                self._range = EVERY_RANGE
        if self._sender.range_of is not None and self._range != EVERY_RANGE:
            ends = start, LAST_KEY if end is None else end
            if any(map(self._is_elsewhere, ends)):
                await self.move_everywhere()
        at = self.timestamp
        async for page in pages(self._sender, start, end, at, limit=limit, reverse=reverse):
            if at != self.timestamp:
                raise _moved_on()
            self.spans = self.spans or []
            self.spans.append((page.start, page.end))
            yield page

    async def peek(self, key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the oldest ``limit`` messages of an inbox, as (id, stored)."""
        if self._range == TO_MOVE:
            await self._begin_everywhere()
        elif self._sender.range_of is not None and self.timestamp and self._is_elsewhere(key):
            await self.move_everywhere()
        reply = await self._at_one(lambda at: stored_messages(self._sender, key, at, limit))
        if self._sender.range_of is not None:
            self._is_elsewhere(key)
        ids = tuple(id_ for id_, _ in reply.messages)
        is_whole = len(ids) < limit
        self.inboxes = True
        self._peeked = self._peeked or []
        self._peeked.append(CheckInbox(key, len(ids) if is_whole else None, ids))
        return reply.messages

    # --- reads in other ranges

    def _is_elsewhere(self, key: bytes) -> bool:
        """Return whether a key lies in another range than that of the timestamp.

        The first answer settles that range.
        """
        if self._range == EVERY_RANGE:
            return False
        assert self._sender.range_of is not None
        range_id = self._sender.range_of(key)
        if self._range == UNSETTLED:
            self._range = range_id or UNKNOWN_RANGE
            return False
        return range_id != self._range

    async def _catch_up(self, keys: list[bytes]) -> None:
        """Move the timestamp up to the latest change of what is read in another range, if any.

        Raises:
            TransactionConflict: something that was read before has changed until then.
        """
        latest: int = await self._sender.send(Refresh(keys, [], self.timestamp))
        if latest <= self.timestamp:
            return
        if self.has_moved:
            await self.move_everywhere()
        else:
            await self._move(latest)

    def move_at_first(self) -> None:
        """Move the timestamp everywhere, but not before the first read.

        A reap may wait before, and what it finds is to be seen.
        """
        self._range = TO_MOVE

    async def _begin_everywhere(self) -> None:
        """Take the greatest clock of all leaseholders, unless another read has done so meanwhile.

        Reads of one transaction may be concurrent. If each of them moved the timestamp, all would
        move on while the others read, and no later try would come to its end.
        """
        latest = await present(self._sender)
        if self._range == TO_MOVE or not self.timestamp:
            await self._move(latest)
            self._range = EVERY_RANGE

    async def move_everywhere(self) -> None:
        """Move the timestamp up to the greatest clock of all leaseholders.

        Raises:
            TransactionConflict: something that was read before has changed until then.
        """
        await self._move(await present(self._sender))
        self._range = EVERY_RANGE

    async def _move(self, latest: int) -> None:
        """Move the timestamp up to ``latest``, unless what was read has changed until then."""
        before = self.timestamp
        if before:
            self.has_moved = True
            keys = spans = peeked = 0
            while keys < len(self.keys) or spans < len(self.spans) or peeked < len(self._peeked):
                request = Refresh([*self.keys[keys:]], [*self.spans[spans:]], before, latest)
                inboxes = self._peeked[peeked:]
                keys, spans = len(self.keys), len(self.spans)
                peeked = len(self._peeked)
                if (request.keys or request.spans) and await self._sender.send(request):
                    raise _moved_on()
                for inbox in inboxes:
                    await self._check_inbox(inbox, latest)
        self.timestamp = max(self.timestamp, latest)

    async def _check_inbox(self, seen: CheckInbox, at: int) -> None:
        """Check that an inbox is at a timestamp as it was seen.

        Raises:
            TransactionConflict: it is not.
        """
        limit = len(seen.ids) + (seen.messages is not None)
        found = await stored_messages(self._sender, seen.key, at, limit)
        if tuple(id_ for id_, _ in found.messages) != seen.ids:
            raise _moved_on()

    def found_drained(self, key: bytes, held: int) -> None:
        """Note that an inbox held only ``held`` messages, all taken by this transaction."""
        self.inboxes = True
        self._drained[CheckInbox(key, held, ())] = None

    def __bool__(self) -> bool:
        """Return whether anything was read."""
        return bool(self.timestamp or self._drained)

    async def _at_one(self, ask: Callable[[int], Awaitable[AnswerT]]) -> AnswerT:
        reply = await ask(self.timestamp)
        while not self._settles(reply.timestamp):
            reply = await ask(self.timestamp)
        return reply

    def _settles(self, timestamp: int) -> bool:
        """Return whether an answer has the settled timestamp; settle it by the first answer."""
        if not self.timestamp:
            self.timestamp = timestamp
        return timestamp == self.timestamp

    # --- at the commit

    def checks(self, *, writes: bool) -> list[Any]:
        """Return what the commit must check besides keys and spans.

        Args:
            writes: whether the transaction changes anything. If not, reads at the settled timestamp
                are consistent without a check. This is also true of a single empty inbox, if the
                transaction has seen nothing else.
        """
        seen = len(self._drained) + len(self._peeked) + len(self.keys) + len(self.spans)
        if writes or (self._drained and seen > 1):
            return [*self._drained, *self._peeked]
        return []


def _moved_on() -> TransactionConflict:
    return TransactionConflict(
        "something that was read was changed before the read in another range; nothing was "
        "changed: try again (run() does)"
    )


class Overlay:
    """The keys of one transaction. Arguments are checked already."""

    __slots__ = ("_buffer", "_codec", "_lifetime", "_reads")

    def __init__(self, lifetime: Lifetime, reads: Reads, buffer: Buffer, codec: Packing) -> None:
        self._lifetime = lifetime
        self._reads = reads
        self._buffer = buffer
        self._codec = codec

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        """Return the values of ``keys``, in their order."""
        buffer = self._buffer
        missing = [key for key in dict.fromkeys(keys) if key not in buffer.writes]
        found: dict[bytes, Any] = {}
        if missing:
            reply = await self._reads.get_many(missing)
            self._lifetime.check_open()
            found.update(zip(missing, unpacked_values(missing, reply, self._codec), strict=True))
        # A concurrent call may have written some of them meanwhile.
        return [
            buffer.value(key, self._codec) if key in buffer.writes else found[key] for key in keys
        ]

    async def get_for_update(self, key: bytes, transaction_id: bytes) -> Any:
        """Return the value of ``key``, and lock it.

        Raises:
            TransactionConflict: another transaction kept it locked for too long.
        """
        self._lifetime.holds = True
        try:
            reply = await self._reads.get_for_update(
                key, transaction_id, self._lifetime.remaining(),
                self._lifetime.age or self._lifetime.began,
            )  # fmt: skip
        except DeadlineExceeded:
            raise TransactionConflict(
                f"another transaction holds {shorten(key)} and did not end in time; nothing was "
                "changed: try again (run() does)",
                keys=(key,),
            ) from None
        self._lifetime.check_still_open()
        if key in self._buffer.writes:
            return self._buffer.value(key, self._codec)
        stored = reply.value
        return None if stored is None else self._codec.decode(stored, key, integer=reply.integer)

    async def stored(self, key: bytes) -> tuple[bytes | None, bool]:
        """Return the packed value of ``key``, and whether it is an integer."""
        buffer = self._buffer
        if key not in buffer.writes:
            reply = await self._reads.get(key)
            self._lifetime.check_open()
            if key not in buffer.writes:  # a concurrent call may have written it
                return reply.value, reply.integer
        return buffer.stored(key)

    async def check_holds(self, key: bytes, wanted: bytes | None, or_integer: int | None) -> None:
        """Check what a conditional write expects.

        Args:
            key: the key to check.
            wanted: its expected value, packed; ``None``: nothing.
            or_integer: its expected value, if an integer is stored and the codec packs objects.

        Raises:
            ConditionFailed: it contains something else.
        """
        actual, integer = await self.stored(key)
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

    async def scan(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[tuple[bytes, Any]]:
        """Return the pairs in ``[start, end)``."""
        decode = self._codec.decode
        found = self.scan_stored(start, end, limit=limit, reverse=reverse)
        async for key, value, integer in found:
            yield key, decode(value, key, integer=integer)

    async def scan_stored(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[tuple[bytes, bytes, bool]]:
        """Return the pairs in ``[start, end)``, packed, and whether each is an integer."""
        self._lifetime.check_alive()
        left = -1 if limit is None else limit
        own = self._buffer.writes_in(start, end)
        size = None if limit is None else limit + len(own)
        async for page in self._reads.scan(start, end, limit=size, reverse=reverse):
            self._lifetime.check_open()
            for each in overlaid(page, own, reverse=reverse):
                if left == 0:
                    return
                left -= 1
                yield each
