"""The parts of the subjects of ``python -m benchmarks growth``.

A subject is a store with a given number of something. Most of its measures are rates, in calls a
second: more is better. The rest are costs: their names end with a unit in brackets.

All stores are embedded, on disk, and synced with each commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import postroom
import postroom.aio
from postroom.kv.engine_folder import EngineName

Database = postroom.aio.Database
Rates: TypeAlias = dict[str, float]

IN_FLIGHT: Final = 64
FILLED_WITH: Final = 1000
VALUE: Final = b"x" * 100


@dataclass
class Growing:
    """A store with a given number of something: one size of one subject.

    Attributes:
        folder: for what is written.
        size: how many of the subject there are.
        seconds: how long a rate is measured.
        engine: what the store is written by; ``None``: the first that is installed.
        rates: what was measured, by name; costs, too.
    """

    folder: Path
    size: int
    seconds: float
    engine: EngineName | None = None
    rates: Rates = field(default_factory=dict)

    @property
    def store(self) -> Path:
        """Return the path of the store."""
        return self.folder / "store"

    def run(self, work: Callable[[Database], Awaitable[None]]) -> None:
        """Let ``work`` use the store, which is made if there is none."""

        async def opened() -> None:
            async with await postroom.aio.open(self.store, engine=self.engine) as db:
                await work(db)

        asyncio.run(opened())

    async def rate(
        self,
        what: str,
        operation: Callable[[], Coroutine[Any, Any, object]],
        in_flight: int = 1,
    ) -> None:
        """Measure how often a second ``operation`` is done."""
        done, begun = 0, time.perf_counter()
        end = begun + self.seconds

        async def one() -> None:
            nonlocal done
            while True:
                try:
                    await operation()
                    done += 1
                # two tasks chose the same key: the call does not count
                except postroom.TransactionConflict:
                    pass
                if time.perf_counter() >= end:
                    return
                if in_flight > 1 and done % 16 == 15:  # the loop's turns are no part of a read
                    await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(in_flight)))
        self.rates[what] = done / (time.perf_counter() - begun)

    def plain_rate(self, what: str, operation: Callable[[], object]) -> None:
        """Measure how often a second a plain call is done."""
        done, begun = 0, time.perf_counter()
        while not done or time.perf_counter() < begun + self.seconds:
            operation()
            done += 1
        self.rates[what] = done / (time.perf_counter() - begun)

    async def slowest_beside(
        self, what: str, work: Awaitable[object], operation: Callable[[], Awaitable[object]]
    ) -> None:
        """Measure the longest time of an ``operation`` beside ``work``, until that ends."""
        working = asyncio.ensure_future(work)
        slowest = 0.0
        while not working.done():
            begun = time.perf_counter()
            await operation()
            slowest = max(slowest, time.perf_counter() - begun)
            await asyncio.sleep(0)
        await working
        self.rates[f"{what} [ms]"] = 1000 * slowest


@dataclass(frozen=True)
class Subject:
    """A subject whose number grows.

    Attributes:
        largest: the number at full scale.
        measure: measures one size.
        is_by_name: it takes so long that it is measured only if ``--only`` names it.
    """

    largest: int
    measure: Callable[[Growing], None]
    is_by_name: bool = False


SUBJECTS: dict[str, Subject] = {}


def subject(
    name: str, largest: int, *, is_by_name: bool = False
) -> Callable[[Callable[[Growing], None]], Callable[[Growing], None]]:
    """Register a function that measures; its docstring says exactly what."""

    def register(measure: Callable[[Growing], None]) -> Callable[[Growing], None]:
        SUBJECTS[name] = Subject(largest, measure, is_by_name)
        return measure

    return register


async def in_thousands(
    db: Database, size: int, add: Callable[[postroom.aio.Transaction, int], object]
) -> None:
    """Add ``size`` of something, in transactions of a thousand."""
    for first in range(0, size, FILLED_WITH):
        async with db.begin() as tx:
            for number in range(first, min(first + FILLED_WITH, size)):
                add(tx, number)


async def one_by_one(size: int, add: Callable[[int], Awaitable[object]]) -> None:
    """Add ``size`` of something by calls of their own, 64 of them in flight."""
    left = iter(range(size))

    async def some() -> None:
        for number in left:
            await add(number)

    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
