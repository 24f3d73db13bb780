"""The reads of a transaction: all at one timestamp, kept for the check at its commit.

The first answer settles the timestamp; reads after it are sent with it. Reads that run at the same
time (``asyncio.gather``) are all sent without one, and each is answered at a moment of its own. The
answer that comes first settles the timestamp. The other reads are sent once more, at the settled
timestamp::

    get a ─┬─ send, 0 ──────────── answer at 7: settled ─▶ value
    get b ─┴─ send, 0 ─────────────── answer at 9 ─▶ send, 7 ─── answer at 7 ─▶ value

Values and the timestamp thereby never disagree, in whatever order answers come in. A lock that was
granted meanwhile is kept: the second request finds it, and learns whether the key has changed
since.

While everything read so far is locked, the timestamp *moves*: the answer to ``get_for_update`` may
be from a later one, since no other transaction could change those keys in between.

Inboxes are read in two ways. A peek is a read like the others. A reap takes the messages that are
there *now*. Messages that it does not return are no read, because consumers must not be in conflict
with arriving messages. But an inbox that a reap finds empty, with no messages held by others, is a
read. This read cannot move to the settled timestamp, so the commit checks it: the inbox must be
empty then (still, or again). A transaction that only reads needs this check only if it has seen
something besides the one empty inbox.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from postroom.client.buffer import NO_LIST
from postroom.client.pages import Page, pages, stored_messages, stored_values
from postroom.client.sender import Sender
from postroom.messaging.requests import CheckInbox, Peeked
from postroom.ranges.requests import Get, GetForUpdate, Value, Values

AnswerT = TypeVar("AnswerT", Value, Values, Peeked)


class Reads(msgspec.Struct, eq=False, gc=False):
    """The reads of one transaction.

    It is a struct, since a struct is made in few steps. The garbage collector need not see it,
    because nothing in it leads back to it.

    Attributes:
        timestamp: where it reads; 0 before the first answer.
        keys, spans: what it has read, for the check at the commit.
        locked: how many of the keys it had locked when it read them.
        inboxes: whether it has read any; if not, there are no ``checks`` to ask for.
    """

    _sender: Sender
    timestamp: int = 0
    keys: list[bytes] = NO_LIST
    spans: list[tuple[bytes, bytes | None]] = NO_LIST
    inboxes: bool = False
    locked: int = 0
    _peeked: list[CheckInbox] = NO_LIST
    _drained: dict[CheckInbox, None] = {}

    def add(self, key: bytes) -> None:
        """Note that ``key`` was read."""
        if self.keys:
            self.keys.append(key)
        else:
            self.keys = [key]

    # --- asking

    async def get(self, key: bytes) -> Value:
        """Return the stored value of ``key``."""
        reply: Value = await self._sender.send(Get(key, self.timestamp))
        if reply.timestamp != self.timestamp and not self._settles(reply.timestamp):
            reply = await self._sender.send(Get(key, self.timestamp))
        self.add(key)
        return reply

    async def get_many(self, keys: list[bytes]) -> Values:
        """Return the stored values of ``keys``."""
        reply = await self._at_one(lambda at: stored_values(self._sender, keys, at))
        self.keys = self.keys or []
        self.keys += keys
        return reply

    async def get_for_update(
        self, key: bytes, transaction_id: bytes, seconds_left: float, began: int
    ) -> Value:
        """Return the stored value of ``key``, and lock it."""
        while True:
            at = self.timestamp
            request = GetForUpdate(
                key, at, transaction_id, seconds_left, began, self._has_locked_all()
            )
            reply: Value = await self._sender.send(request, seconds_left)
            if at and reply.timestamp > self.timestamp and self._has_locked_all():
                self.timestamp = reply.timestamp
            if self._settles(reply.timestamp):
                break
        self.add(key)
        self.locked += 1
        return reply

    def _has_locked_all(self) -> bool:
        """Return whether no other transaction can change what was read."""
        return len(self.keys) == self.locked and not (self.spans or self.inboxes)

    async def scan(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[Page]:
        """Return the pages of a span."""
        if not self.timestamp:
            timestamp = self._sender.now()
            self._settles(timestamp if isinstance(timestamp, int) else await timestamp)
        found = pages(self._sender, start, end, self.timestamp, limit=limit, reverse=reverse)
        async for page in found:
            self.spans = self.spans or []
            self.spans.append((page.start, page.end))
            yield page

    async def peek(self, key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the oldest ``limit`` messages of an inbox, as (id, stored)."""
        reply = await self._at_one(lambda at: stored_messages(self._sender, key, at, limit))
        ids = tuple(id_ for id_, _ in reply.messages)
        is_whole = len(ids) < limit
        self.inboxes = True
        self._peeked = self._peeked or []
        self._peeked.append(CheckInbox(key, len(ids) if is_whole else None, ids))
        return reply.messages

    def found_drained(self, key: bytes, held: int) -> None:
        """Note that an inbox held only ``held`` messages, all taken by this transaction."""
        self.inboxes = True
        self._drained[CheckInbox(key, held, ())] = None

    def __bool__(self) -> bool:
        """Return whether anything was read."""
        return bool(self.timestamp or self._drained)

    async def _at_one(self, ask: Callable[[int], Awaitable[AnswerT]]) -> AnswerT:
        reply = await ask(self.timestamp)
        return reply if self._settles(reply.timestamp) else await ask(self.timestamp)

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


__all__ = ["Reads"]
