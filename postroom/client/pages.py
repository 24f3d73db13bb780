"""Results that may be larger than one answer should be, page by page.

Only one page of a scan is in memory, however long the scan is. The values of many keys, an inbox
and the dead letters are told as lists: there, pages keep small what a node makes, and a frame
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
    DeadLetter,
    Delivered,
    ListDeadLetters,
    ListScheduled,
    Peek,
    Peeked,
    Scheduled,
    SchedulePage,
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
"""So many keys are asked for at a time: more would have to be sent again and again."""
LIST_BYTES_PER_PAGE: Final = 4 * 1024 * 1024
"""Larger, as the whole list will be in memory anyway: few need a second page."""

_delivered = msgspec.msgpack.Decoder(Delivered)


class Page(NamedTuple):
    """Consecutive pairs, the span ``[start, end)`` that they are all of, and which of them hold
    integers, counted from 0.
    """

    pairs: list[tuple[bytes, bytes]]
    start: bytes
    end: bytes | None
    integers: tuple[int, ...] = ()

    def unpacked(self, codec: Packing) -> Iterable[tuple[bytes, Any]]:
        """The pairs as applications see them."""
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
    """The pages of a scan at ``timestamp``, in its direction; about ``limit`` pairs in all."""
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
    """The values of ``keys``, all at ``timestamp`` (0: now, which the answer tells).

    Pages after the first are read at its timestamp, which is protected from garbage collection
    meanwhile.
    """
    first = GetMany(keys[:KEYS_PER_PAGE], timestamp, LIST_BYTES_PER_PAGE)
    page: Values = await sender.send(first)
    if len(page.values) == len(keys):
        return page
    found, integers = list(page.values), list(page.integers)
    moment = await sender.send(Protect(page.timestamp))
    try:
        while len(found) < len(keys):
            following = keys[len(found) : len(found) + KEYS_PER_PAGE]
            page = await sender.send(GetMany(following, moment, LIST_BYTES_PER_PAGE))
            integers += [len(found) + index for index in page.integers]
            found += page.values
    finally:
        post(sender, Unprotect(moment))
    return Values(found, moment, tuple(integers))


def unpacked_values(keys: list[bytes], stored: Values, codec: Packing) -> list[Any]:
    """The values of ``keys`` as applications see them; ``None`` for those that are absent."""
    if not codec.packs:
        return list(stored.values)
    decode, integers = codec.decode, frozenset(stored.integers)
    return [
        None if value is None else decode(value, key, integer=index in integers)
        for index, (key, value) in enumerate(zip(keys, stored.values, strict=True))
    ]


async def stored_messages(sender: Sender, key: bytes, timestamp: int, limit: int) -> Peeked:
    """The oldest ``limit`` messages of an inbox, as (id, stored), as of ``timestamp`` (0: now).

    However many pages that takes, all of them are of one view: those after the first are read at
    its timestamp, which is protected from garbage collection meanwhile.
    """
    page: Peeked = await sender.send(Peek(key, limit, timestamp, LIST_BYTES_PER_PAGE))
    if not page.more or len(page.messages) >= limit:
        return page
    found = list(page.messages)
    moment = await sender.send(Protect(page.timestamp))
    try:
        while True:
            left, last = limit - len(found), found[-1][0]
            page = await sender.send(Peek(key, left, moment, LIST_BYTES_PER_PAGE, last))
            found += page.messages
            if not page.more or len(found) >= limit:
                return Peeked(found, page.more, moment)
    finally:
        post(sender, Unprotect(moment))


def unpacked_messages(
    key: bytes,
    stored: Iterable[tuple[bytes, bytes]],
    codec: Packing,
    tried: dict[bytes, int] | None = None,
) -> list[Message]:
    """Messages in the inbox of ``key`` as applications see them.

    Args:
        key: whose inbox.
        stored: ids and stored forms.
        codec: unpacks the values.
        tried: gets the attempts of those that have failed at some.
    """
    decode, unpack = _delivered.decode, codec.decode
    if not codec.packs:
        stored = list(stored)
        plain = [
            Message(key, entry.value, entry.headers, id_, entry.delivered_at)
            for id_, packed in stored
            if (entry := decode(packed)).trial is None
        ]
        if len(plain) == len(stored):  # as a rule
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
    """How many attempts a message in an inbox has failed at."""
    trial = _delivered.decode(packed).trial
    return 0 if trial is None else trial.attempts


async def stored_schedule(
    sender: Sender, start: bytes, end: bytes | None, limit: int
) -> list[Scheduled]:
    """What waits for its time, the first ``limit`` of it. As with dead letters, pages have no view
    in common.
    """
    found: list[Scheduled] = []
    after = b""
    while True:
        left = limit - len(found)
        request = ListScheduled(start, end, left, LIST_BYTES_PER_PAGE, after)
        page: SchedulePage = await sender.send(request)
        found += page.entries
        if page.resume is None or len(found) >= limit:
            return found
        after = page.resume


async def stored_letters(sender: Sender, limit: int) -> list[DeadLetter]:
    """The oldest ``limit`` dead letters.

    They have no versions, so pages have no view in common: a letter that comes or goes meanwhile
    may be among them or not; all others are, each once.
    """
    found: list[DeadLetter] = []
    while len(found) < limit:
        after = found[-1].id if found else b""
        request = ListDeadLetters(limit - len(found), LIST_BYTES_PER_PAGE, after)
        page: list[DeadLetter] = await sender.send(request)
        found += page
        if not page or not page[-1].more:
            break
    return found
