"""What a transaction has read: all of it at one timestamp, kept for the check at its commit.

The first answer settles the timestamp; reads after it are sent with it. Reads that were under way
at the same time (``asyncio.gather``) were all sent without one, and each is answered at a moment of
its own. Whichever answer comes first settles; the others are asked for once more, at the settled
timestamp::

    get a ─┬─ send, 0 ──────────── answer at 7: settled ─▶ value
    get b ─┴─ send, 0 ─────────────── answer at 9 ─▶ send, 7 ─── answer at 7 ─▶ value

So values and the timestamp never disagree, in whatever order answers come in. A lock that was
granted meanwhile is kept: asking once more finds it, and learns whether the key has changed since.

Inboxes are read in two ways. A peek is a read like the others. A reap takes what is there *now*,
and what it did not return is no read, because consumers must not be in conflict with what arrives.
But an inbox that it found empty, with nothing of it held by others, is one. That cannot be moved to
the settled timestamp, so it is checked at the commit, where it must be so (still, or again). A
transaction that only reads needs no such check, unless it has seen an empty inbox beside other
things.
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
    """The reads of one transaction. A struct, since those are made in few steps; the garbage
    collector need not see it, because nothing in it leads back to it.

    Attributes:
        timestamp: where it reads; 0 before the first answer.
        keys, spans: what it has read, for the check at the commit.
        inboxes: whether it has read any; if not, there are no ``checks`` to ask for.
    """

    _sender: Sender
    timestamp: int = 0
    keys: list[bytes] = NO_LIST
    spans: list[tuple[bytes, bytes | None]] = NO_LIST
    inboxes: bool = False
    _peeked: list[CheckInbox] = NO_LIST
    _drained: dict[CheckInbox, None] = {}

    def add(self, key: bytes) -> None:
        """``key`` was read."""
        if self.keys:
            self.keys.append(key)
        else:
            self.keys = [key]

    # --- asking

    async def get(self, key: bytes) -> Value:
        """What is stored at ``key``."""
        reply: Value = await self._sender.send(Get(key, self.timestamp))
        if reply.timestamp != self.timestamp and not self._settles(reply.timestamp):
            reply = await self._sender.send(Get(key, self.timestamp))
        self.add(key)
        return reply

    async def get_many(self, keys: list[bytes]) -> Values:
        """What is stored at ``keys``."""
        reply = await self._at_one(lambda at: stored_values(self._sender, keys, at))
        self.keys = self.keys or []
        self.keys += keys
        return reply

    async def get_for_update(self, key: bytes, transaction_id: bytes, seconds_left: float) -> Value:
        """What is stored at ``key``, locked."""

        def ask(at: int) -> Awaitable[Value]:
            request = GetForUpdate(key, at, transaction_id, seconds_left)
            return self._sender.send(request, seconds_left)

        reply = await self._at_one(ask)
        self.add(key)
        return reply

    async def scan(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[Page]:
        """The pages of a span."""
        if not self.timestamp:
            moment = self._sender.now()
            self._settles(moment if isinstance(moment, int) else await moment)
        found = pages(self._sender, start, end, self.timestamp, limit=limit, reverse=reverse)
        async for page in found:
            self.spans = self.spans or []
            self.spans.append((page.start, page.end))
            yield page

    async def peek(self, key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The oldest ``limit`` messages of an inbox, as (id, stored)."""
        reply = await self._at_one(lambda at: stored_messages(self._sender, key, at, limit))
        ids = tuple(id_ for id_, _ in reply.messages)
        is_whole = len(ids) < limit
        self.inboxes = True
        self._peeked = self._peeked or []
        self._peeked.append(CheckInbox(key, len(ids) if is_whole else None, ids))
        return reply.messages

    def found_drained(self, key: bytes, held: int) -> None:
        """An inbox held nothing but ``held`` messages that this transaction has taken itself."""
        self.inboxes = True
        self._drained[CheckInbox(key, held, ())] = None

    def __bool__(self) -> bool:
        """Whether anything was read."""
        return bool(self.timestamp or self._drained)

    async def _at_one(self, ask: Callable[[int], Awaitable[AnswerT]]) -> AnswerT:
        reply = await ask(self.timestamp)
        return reply if self._settles(reply.timestamp) else await ask(self.timestamp)

    def _settles(self, timestamp: int) -> bool:
        """Whether an answer was read where this transaction reads; the first one decides that."""
        if not self.timestamp:
            self.timestamp = timestamp
        return timestamp == self.timestamp

    # --- at the commit

    def checks(self, *, writes: bool) -> list[Any]:
        """What the commit must check besides keys and spans.

        Args:
            writes: whether the transaction changes anything. If not, what was read at the settled
                timestamp was so then; so was a single empty inbox, if it is all that was seen.
        """
        seen = len(self._drained) + len(self._peeked) + len(self.keys) + len(self.spans)
        if writes or (self._drained and seen > 1):
            return [*self._drained, *self._peeked]
        return []


__all__ = ["Reads"]
