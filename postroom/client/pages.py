"""Scans, page by page: whatever their length, a page is all that is in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from postroom.client.sender import Sender
from postroom.ranges.requests import Pairs, ReverseScan, Scan

PAIRS_PER_PAGE: Final = 1000
BYTES_PER_PAGE: Final = 1024 * 1024


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
