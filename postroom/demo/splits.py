"""The ranges of the tour's store: ``postroom demo --ranges 8``.

::

    aircraft/... │ aircraft/N5... │ airport/... │ board/... │ carrier/... │ flight/... │ stats/...

Half of the splits are made before the first departure, the others while departures are replayed.
A departure writes keys of several ranges in one transaction, and its message and its updates go
to others. A clerk reaps mail in one range and writes on a board in another one.

The sums below ``stats/`` stay in one range: an accounting adds to all of them. More ranges
cut the departures, in halves, quarters, eighths.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console

import postroom.aio
from postroom.counted import counted
from postroom.demo.replay import flight_key
from postroom.errors import CommitUnknown, Error, Retryable
from postroom.limits import TOUR_RANGES_MAX

PREFIXES: Final = (b"flight/", b"board/", b"stats/", b"airport/", b"carrier/", b"aircraft/N5")
SPLIT_SECONDS: Final = 0.5
"""The time between two splits while departures are replayed."""
RETRY_SECONDS: Final = 0.2


def split_keys(total: int) -> Iterator[bytes]:
    """Yield the keys at which a store of ``total`` departures is split, in this order."""
    yield from PREFIXES
    total, pieces = max(total, TOUR_RANGES_MAX), 2
    while pieces <= TOUR_RANGES_MAX:
        yield from (flight_key(1 + total * each // pieces) for each in range(1, pieces, 2))
        pieces *= 2


class Splits:
    """The splits that a store needs yet.

    Args:
        console: what to tell it.
        db: the store.
        keys: where it is to be split.
    """

    def __init__(self, console: Console, db: postroom.aio.Database, keys: list[bytes]) -> None:
        self._console = console
        self._db = db
        self._keys = keys
        self._finishing = asyncio.Event()

    async def make_half(self) -> None:
        """Make half of them now."""
        first = (len(self._keys) + 1) // 2
        for _ in range(first):
            await self._make(self._keys.pop(0))

    @asynccontextmanager
    async def made_meanwhile(self) -> AsyncIterator[None]:
        """Make the others while the block runs; afterwards all are made."""
        task = asyncio.create_task(self._make_all())
        try:
            yield
        except BaseException:
            task.cancel()
            raise
        self._finishing.set()
        await task

    async def _make_all(self) -> None:
        for key in self._keys:
            await self._rest(SPLIT_SECONDS)
            await self._make(key)

    async def _make(self, key: bytes) -> None:
        """Split at a key; try again if a node dies meanwhile."""
        while True:
            try:
                made = await self._split(key)
            except (Retryable, CommitUnknown):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            name = key.decode()
            self._console.out(f"split at {name}: range {made.id} begins there", highlight=False)
            return

    async def _split(self, key: bytes) -> postroom.RangeInfo:
        """Split at a key, unless an earlier try has done it."""
        (there,) = await self._db.ranges(key, key + b"\x00")
        return there if there.start == key else await self._db.split(key)

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._finishing.wait(), seconds)
        except TimeoutError:
            return


async def plan_splits(
    console: Console, db: postroom.aio.Database, path: Path, wanted: int | None, total: int
) -> Splits:
    """Return the splits that a store needs.

    Args:
        console: what to tell it.
        db: the store.
        path: where it is, on this machine.
        wanted: how many ranges it shall have; ``None``: those that it has.
        total: how many departures it shall have.

    Raises:
        Error: it has more ranges already, or cannot be split.
    """
    starts = {each.start for each in await db.ranges()}
    if wanted is None or wanted == len(starts):
        return Splits(console, db, [])
    if wanted < len(starts):
        raise Error(
            f"{str(path)!r} has {len(starts)} ranges, which are not put together again: give "
            f"--ranges {len(starts)} or more, or start over with --fresh"
        )
    new = (key for key in split_keys(total) if key not in starts)
    return Splits(console, db, list(islice(new, wanted - len(starts))))


async def tell_ranges(console: Console, db: postroom.aio.Database) -> None:
    """Tell which node leads how many ranges, if there are several."""
    leaders = Counter(each.leader for each in await db.ranges())
    if leaders.total() == 1:
        return
    led = ", ".join(f"{count} led by node {node}" for node, count in sorted(leaders.items()))
    console.out(f"{counted(leaders.total(), 'range')}: {led}", highlight=False)
