"""Pages of keys: a span at a timestamp, and one key with the versions that are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import postroom
import postroom.aio
from postroom.errors import SnapshotTooOld
from postroom.web.limits import VERSIONS_MAX
from postroom.web.reading import PageReader
from postroom.web.texts import name_of, when

HISTORY_SECONDS: Final = (300, 60, 10)
"""The times for which changes of a key are looked for. Older ones may be collected."""

_SECOND: Final = 1000 << 16
"""A second in timestamps, which are milliseconds with 16 bits behind them."""

_AT_ONCE_SECONDS: Final = 0.001


async def keys(reader: PageReader) -> dict[str, Any]:
    """Return pairs of keys and values, in the order of the keys, as they were at a timestamp."""
    asked = reader.asked
    prefix, after, limit, at = (
        asked.raw("prefix"),
        asked.raw("after"),
        asked.count(),
        asked.timestamp(),
    )
    first, end = postroom.prefix(prefix) if prefix else (b"", None)
    start = max(first, after + b"\x00" if after else b"")

    async def read(db: postroom.aio.Database) -> list[tuple[bytes, bytes]]:
        return [pair async for pair in db.scan(start, end, limit=limit, at=at)]

    found = await reader.store.read(read)
    return {
        "prefix": name_of(prefix),
        "at": None if at is None else {"number": str(int(at)), "text": when(at)},
        "pairs": [
            {"key": name_of(key), "value": reader.payload(value, key)} for key, value in found
        ],
        "next": name_of(found[-1][0]) if len(found) == limit else None,
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
