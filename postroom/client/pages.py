"""Reads that take more than one answer: long results page by page, a snapshot, a stream.

Only one page of a scan is in memory, however long the scan is. The values of many keys, an inbox
and the dead letters are returned as lists: there, pages limit what a node makes, and a frame
carries, at a time.

``Snapshot`` is what ``db.snapshot()`` gives in asyncio: reads of a database at one timestamp.

``Stream`` is the iterator that ``watch`` and ``receive`` return in asyncio. Any task may close it.
Only the task that waits for the next item of an asynchronous generator can close the generator.
Here a close by another task ends that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from postroom.client.codec import Packing
from postroom.client.sender import Sender, post
from postroom.client.values import Message
from postroom.kv.clock import Timestamp
from postroom.messaging.requests import (
    Delivered,
    ListDeadLetters,
    ListScheduled,
    Peek,
    Peeked,
    ScheduledEntry,
    SchedulePage,
    StoredDeadLetter,
)
from postroom.ranges.requests import (
    GetMany,
    Pairs,
    Protect,
    ReverseScan,
    Scan,
    Unprotect,
    Values,
)

PAIRS_PER_PAGE: Final = 1000
BYTES_PER_PAGE: Final = 1024 * 1024
KEYS_PER_PAGE: Final = 4096
"""The most keys of one request: keys that an answer leaves out have to be sent again."""
LIST_BYTES_PER_PAGE: Final = 4 * 1024 * 1024
"""The size of a page of a list.

It is larger, since the whole list will be in memory; few lists need a second page.
"""

_delivered = msgspec.msgpack.Decoder(Delivered)


class Page(NamedTuple):
    """Consecutive pairs, the span ``[start, end)`` that they cover, and the indexes of integers."""

    pairs: list[tuple[bytes, bytes]]
    start: bytes
    end: bytes | None
    integers: tuple[int, ...] = ()

    def unpacked(self, codec: Packing) -> Iterable[tuple[bytes, Any]]:
        """Return the pairs in the form for applications."""
        if not codec.packs:
            return self.pairs
        decode, integers = codec.decode, frozenset(self.integers)
        return (
            (key, decode(value, key, integer=index in integers))
            for index, (key, value) in enumerate(self.pairs)
        )


async def pages(
    sender: Sender,
    start: bytes,
    end: bytes | None,
    timestamp: int,
    *,
    limit: int | None = None,
    reverse: bool = False,
) -> AsyncIterator[Page]:
    """Return the pages of a scan at ``timestamp``, in its direction; about ``limit`` pairs."""
    request = ReverseScan if reverse else Scan
    left = limit
    while left is None or left > 0:
        most = PAIRS_PER_PAGE if left is None else min(left, PAIRS_PER_PAGE)
        reply: Pairs = await sender.send(request(start, end, timestamp, most, BYTES_PER_PAGE))
        resume = reply.resume
        if reverse:
            first = start if resume is None else resume
            yield Page(reply.pairs, first, end, reply.integers)
            end = resume
        else:
            last = end if resume is None else resume
            yield Page(reply.pairs, start, last, reply.integers)
            start = resume or b""
        if resume is None:
            return
        if left is not None:
            left -= len(reply.pairs)


async def stored_values(sender: Sender, keys: list[bytes], timestamp: int) -> Values:
    """Return the values of ``keys``, all at ``timestamp`` (0: now, which the answer tells).

    Pages after the first are read at its timestamp, which is protected from garbage collection
    meanwhile.
    """
    first = GetMany(keys[:KEYS_PER_PAGE], timestamp, LIST_BYTES_PER_PAGE)
    page: Values = await sender.send(first)
    if len(page.values) == len(keys):
        return page
    found, integers = list(page.values), list(page.integers)
    protected = await sender.send(Protect(page.timestamp))
    try:
        while len(found) < len(keys):
            following = keys[len(found) : len(found) + KEYS_PER_PAGE]
            page = await sender.send(GetMany(following, protected, LIST_BYTES_PER_PAGE))
            integers += [len(found) + index for index in page.integers]
            found += page.values
    finally:
        post(sender, Unprotect(protected))
    return Values(found, protected, tuple(integers))


def unpacked_values(keys: list[bytes], stored: Values, codec: Packing) -> list[Any]:
    """Return the values of ``keys`` in the form for applications; ``None`` for absent ones."""
    if not codec.packs:
        return list(stored.values)
    decode, integers = codec.decode, frozenset(stored.integers)
    return [
        None if value is None else decode(value, key, integer=index in integers)
        for index, (key, value) in enumerate(zip(keys, stored.values, strict=True))
    ]


async def stored_messages(sender: Sender, key: bytes, timestamp: int, limit: int) -> Peeked:
    """Return the oldest ``limit`` messages of an inbox, as (id, stored), at ``timestamp`` (0: now).

    All pages show one view: those after the first are read at its timestamp, which is protected
    from garbage collection meanwhile.
    """
    page: Peeked = await sender.send(Peek(key, limit, timestamp, LIST_BYTES_PER_PAGE))
    if not page.more or len(page.messages) >= limit:
        return page
    found = list(page.messages)
    protected = await sender.send(Protect(page.timestamp))
    try:
        while True:
            left, last = limit - len(found), found[-1][0]
            page = await sender.send(Peek(key, left, protected, LIST_BYTES_PER_PAGE, last))
            found += page.messages
            if not page.more or len(found) >= limit:
                return Peeked(found, page.more, protected)
    finally:
        post(sender, Unprotect(protected))


def unpacked_messages(
    key: bytes,
    stored: Iterable[tuple[bytes, bytes]],
    codec: Packing,
    tried: dict[bytes, int] | None = None,
) -> list[Message]:
    """Return messages in the inbox of ``key`` in the form for applications.

    Args:
        key: the recipient.
        stored: ids and stored forms.
        codec: unpacks the values.
        tried: receives the attempts of messages with failed ones, by id.
    """
    decode, unpack = _delivered.decode, codec.decode
    if not codec.packs:
        stored = list(stored)
        plain = [
            Message(key, entry.value, entry.headers, id_, entry.delivered_at)
            for id_, packed in stored
            if (entry := decode(packed)).trial is None
        ]
        if len(plain) == len(stored):  # the usual case
            return plain
    result = []
    for id_, packed in stored:
        entry = decode(packed)
        value = unpack(entry.value, key)
        trial = entry.trial
        if trial is None:
            result.append(Message(key, value, entry.headers, id_, entry.delivered_at))
        else:
            if tried is not None and trial.attempts:
                tried[id_] = trial.attempts
            result.append(Message(
                key, value, entry.headers, id_, entry.delivered_at, trial.attempts, trial.error
            ))  # fmt: skip
    return result


def attempts_of(packed: bytes) -> int:
    """Return how many attempts at a message in an inbox have failed."""
    trial = _delivered.decode(packed).trial
    return 0 if trial is None else trial.attempts


async def stored_schedule(
    sender: Sender, start: bytes, end: bytes | None, limit: int
) -> list[ScheduledEntry]:
    """Return the first ``limit`` messages and updates that wait for their time.

    The pages have no view in common, like those of dead letters.
    """
    found: list[ScheduledEntry] = []
    after = b""
    while True:
        left = limit - len(found)
        request = ListScheduled(start, end, left, LIST_BYTES_PER_PAGE, after)
        page: SchedulePage = await sender.send(request)
        found += page.entries
        if page.resume is None or len(found) >= limit:
            return found[:limit]
        after = page.resume


async def stored_letters(sender: Sender, limit: int) -> list[StoredDeadLetter]:
    """Return the oldest ``limit`` dead letters.

    They have no versions, so pages have no view in common. A letter that comes or goes meanwhile
    may be among them or not; each other letter is, once.
    """
    found: list[StoredDeadLetter] = []
    while len(found) < limit:
        after = found[-1].id if found else b""
        request = ListDeadLetters(limit - len(found), LIST_BYTES_PER_PAGE, after)
        page: list[StoredDeadLetter] = await sender.send(request)
        found += page
        if not page or not page[-1].more:
            break
    return found[:limit]


class Readable(Protocol):
    """The reads of a database that a snapshot needs."""

    async def get(self, key: bytes, *, at: int | None = None) -> Any:
        """Return the value of a key."""

    async def get_many(self, keys: Iterable[bytes], *, at: int | None = None) -> list[Any]:
        """Return the values of keys."""

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        at: int | None = None,
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        """Return the pairs of a span."""

    async def peek(self, key: bytes, limit: int = 100, *, at: int | None = None) -> list[Message]:
        """Return the oldest messages of an inbox."""


class Snapshot:
    """Reads at one timestamp, protected from garbage collection while the snapshot is open.

    Attributes:
        timestamp: the timestamp at which it reads.
    """

    def __init__(self, database: Readable, timestamp: int) -> None:
        self._database = database
        self.timestamp = Timestamp(timestamp)

    async def get(self, key: bytes) -> Any:
        """Return the value of ``key`` at the snapshot; see :meth:`Database.get`.

        Args:
            key: up to 8 KiB.
        """
        return await self._database.get(key, at=self.timestamp)

    async def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """Return the values of ``keys`` at the snapshot, in their order.

        Args:
            keys: up to 8 KiB each.
        """
        return await self._database.get_many(keys, at=self.timestamp)

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        """Return the pairs in ``[start, end)`` at the snapshot; see :meth:`Database.scan`.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many at most.
            reverse: whether to go from the end backwards.
        """
        return self._database.scan(start, end, limit=limit, reverse=reverse, at=self.timestamp)

    async def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """Return the oldest ``limit`` messages in the inbox of ``key`` at the snapshot.

        Args:
            key: the recipient.
            limit: how many at most.
        """
        return await self._database.peek(key, limit, at=self.timestamp)


T = TypeVar("T")


class Stream(AsyncGenerator[T, None]):
    """The items of a generator, until it ends or is closed.

    Args:
        items: the generator, which now belongs to the stream.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._waiting: asyncio.Task[Any] | None = None
        self._closed = False
        self._ends = False

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        if self._waiting is not None:
            return await anext(self._items)  # raises an error: a task waits already
        self._waiting = task = _current_task()
        try:
            return await anext(self._items)
        except asyncio.CancelledError:
            if not self._ends or task is None or task.uncancel():
                raise
            raise StopAsyncIteration from None
        finally:
            self._waiting = None

    async def asend(self, value: None) -> T:
        """Return the next item."""
        del value
        return await anext(self)

    async def athrow(
        self,
        typ: Any,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> T:
        """Raise an exception where the generator stands."""
        del val, tb
        return await self._items.athrow(typ)

    async def aclose(self) -> None:
        """End the iteration: a waiting task gets no further item.

        Messages that were claimed and not handed out are given back.
        """
        self._closed = True
        if self._waiting is None:
            await self._items.aclose()
        elif not self._ends:
            self._ends = True
            self._waiting.cancel()

    close = aclose


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread runs it, and ends a wait in its own way
        return None
