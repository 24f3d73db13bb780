"""Results that may be too large for one answer, page by page.

Only one page of a scan is in memory, however long the scan is. The values of many keys, an inbox
and the dead letters are returned as lists: there, pages limit what a node makes, and a frame
carries, at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from postroom.client.codec import Packing
from postroom.client.sender import Sender, post
from postroom.client.values import Message
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
            return found
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
    return found
