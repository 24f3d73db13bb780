"""Watching: a cache that follows the store, and goes on where it stopped.

``watch`` gives every committed change of a key or a span, in the order of the commits. A reader
that remembers the last timestamp goes on after it, and misses nothing.

Run it: python examples/watch_changes.py
"""

from __future__ import annotations

import asyncio
from typing import Any

import postroom
import postroom.aio

SPAN = postroom.prefix(b"config/")


async def follow(
    db: postroom.aio.Database, cache: dict[bytes, Any], after: int, changes: int
) -> int:
    """Bring ``cache`` up to date with the next ``changes`` changes; return where to go on."""
    async for change in db.watch(*SPAN, after=after):
        if change.value is None:
            cache.pop(change.key, None)
        else:
            cache[change.key] = change.value
        after = change.timestamp
        changes -= 1
        if changes == 0:
            break
    return after


async def main() -> None:
    async with await postroom.aio.open(":memory:") as db:
        cache: dict[bytes, Any] = {}
        start = await db.now()
        await db.put(b"config/colour", b"green")
        await db.put(b"config/size", b"10")
        after = await follow(db, cache, start, 2)

        await db.put(b"config/size", b"12")  # written while no watch is open
        await db.delete(b"config/colour")
        await follow(db, cache, after, 2)

        print(f"the cache holds {cache}")
        assert cache == {b"config/size": b"12"}


if __name__ == "__main__":
    asyncio.run(main())
