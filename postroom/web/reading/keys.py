"""Pages of keys: a span at a timestamp, and one key with the versions that are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import postroom
import postroom.aio
from postroom.errors import SnapshotTooOld
from postroom.web.limits import SCAN_PAGES_MAX, VERSIONS_MAX
from postroom.web.reading import PageReader
from postroom.web.texts import name_of, when

HISTORY_SECONDS: Final = (300, 60, 10)
"""The times for which changes of a key are looked for. Older ones may be collected."""

_SECOND: Final = 1000 << 16
"""A second in timestamps, which are milliseconds with 16 bits behind them."""

_AT_ONCE_SECONDS: Final = 0.001


async def keys(reader: PageReader) -> dict[str, Any]:
    """Return pairs of keys and values, in the order of the keys, as they were at a timestamp.

    It looks at a bounded part of the store, however few keys with values there are in it.
    """
    asked = reader.asked
    prefix, limit, at = asked.raw("prefix"), asked.count(), asked.timestamp()
    first, end = postroom.prefix(prefix) if prefix else (b"", None)
    start = max(first, asked.raw("from"))

    async def read(db: postroom.aio.Database) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        found, number = list[tuple[bytes, bytes]](), 0
        async with aclosing(db.scan_pages(start, end, limit=limit, at=at)) as pages:
            async for page in pages:
                found += page.pairs
                number += 1
                if page.end == end or len(found) >= limit or number >= SCAN_PAGES_MAX:
                    return found, None if page.end == end else page.end
        return found, None

    found, following = await reader.store.read(read)
    return {
        "prefix": name_of(prefix),
        "at": None if at is None else {"number": str(int(at)), "text": when(at)},
        "pairs": [
            {"key": name_of(key), "value": reader.payload(value, key)} for key, value in found
        ],
        "next": None if following is None else name_of(following),
    }


async def key(reader: PageReader) -> dict[str, Any]:
    """Return the value of one key, at a timestamp or now, and its last changes."""
    name, at = reader.asked.raw("key"), reader.asked.timestamp()

    async def read(db: postroom.aio.Database) -> tuple[Any, Sequence[postroom.Change]]:
        return await db.get(name, at=at), await _changes(db, name)

    value, changes = await reader.store.read(read)
    return {
        "key": name_of(name),
        "at": None if at is None else {"number": str(int(at)), "text": when(at)},
        "value": reader.payload(value, name),
        "changes": [
            {
                "at": when(each.timestamp),
                "number": str(int(each.timestamp)),
                "value": reader.payload(each.value, name),
            }
            for each in reversed(changes)
        ],
    }


async def _changes(db: postroom.aio.Database, name: bytes) -> Sequence[postroom.Change]:
    """Return the last changes of a key, as far back as they are kept."""
    now = await db.now()
    for seconds in HISTORY_SECONDS:
        last = deque[postroom.Change](maxlen=VERSIONS_MAX)
        try:
            after = max(int(now) - seconds * _SECOND, 1)
            async for each in db.watch(name, after=after, timeout=_AT_ONCE_SECONDS):
                last.append(each)
        except SnapshotTooOld:
            continue
        return last
    return ()
