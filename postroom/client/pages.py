"""What may be more than one answer should hold, page by page.

Of a scan a page is all that is in memory, whatever its length. The values of many keys, an inbox
and the dead letters are told as lists: there, pages keep small what a node makes, and a frame
carries, at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from postroom.client.sender import Sender
from postroom.messaging.requests import DeadLetter, ListDeadLetters, Peek, Peeked
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


class Page(NamedTuple):
    """Consecutive pairs, and the span ``[start, end)`` that they are all of."""

    pairs: list[tuple[bytes, bytes]]
    start: bytes
    end: bytes | None


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
            yield Page(reply.pairs, start if resume is None else resume, end)
            end = resume
        else:
            yield Page(reply.pairs, start, end if resume is None else resume)
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
    found = list(page.values)
    moment = await sender.send(Protect(page.timestamp))
    try:
        while len(found) < len(keys):
            following = keys[len(found) : len(found) + KEYS_PER_PAGE]
            page = await sender.send(GetMany(following, moment, LIST_BYTES_PER_PAGE))
            found += page.values
    finally:
        await sender.send(Unprotect(moment))
    return Values(found, moment)


async def stored_messages(
    sender: Sender, key: bytes, timestamp: int, limit: int
) -> list[tuple[bytes, bytes]]:
    """The oldest ``limit`` messages of an inbox, as (id, stored), as of ``timestamp`` (0: now).

    However many pages that takes, all of them are of one view: those after the first are read at
    its timestamp, which is protected from garbage collection meanwhile.
    """
    page: Peeked = await sender.send(Peek(key, limit, timestamp, LIST_BYTES_PER_PAGE))
    if not page.more or len(page.messages) >= limit:
        return page.messages
    found = list(page.messages)
    moment = await sender.send(Protect(page.timestamp))
    try:
        while True:
            left, last = limit - len(found), found[-1][0]
            page = await sender.send(Peek(key, left, moment, LIST_BYTES_PER_PAGE, last))
            found += page.messages
            if not page.more or len(found) >= limit:
                return found
    finally:
        await sender.send(Unprotect(moment))


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
