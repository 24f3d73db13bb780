"""Benchmarks of reaping, delivery and deferred updates."""

from __future__ import annotations

import asyncio
import statistics
import time

import postroom
import postroom.aio
from benchmarks.harness import Measured, Settings, benchmark, percentiles

VALUE = b"x" * 100
QUEUE = b"queue"


async def _send(db: postroom.aio.Database, messages: int, key: bytes = QUEUE) -> None:
    for first in range(0, messages, 1000):
        async with db.begin() as tx:
            for _ in range(first, min(first + 1000, messages)):
                tx.enqueue_message(key, VALUE)
    await db.drain(600)


async def _reap(db: postroom.aio.Database, batch: int, consumer: int = 0) -> int:
    """Take up to ``batch`` messages and change a key in one transaction; return how many."""
    async with db.begin() as tx:
        taken = await tx.reap_queue(QUEUE, batch)
        if taken:
            tx.put(b"state/%d" % consumer, taken[-1].value)
    return len(taken)


def _reaping(settings: Settings, batch: int, consumers: int, full: int) -> Measured:
    async def run() -> Measured:
        messages = settings.size(full)
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            await _send(db, messages)
            latencies: list[float] = []

            async def consume(consumer: int) -> int:
                total = 0
                while True:
                    begun = time.perf_counter()
                    taken = await _reap(db, batch, consumer)
                    if not taken:
                        return total
                    latencies.append(time.perf_counter() - begun)
                    total += taken

            start = time.perf_counter()
            taken = sum(await asyncio.gather(*(consume(each) for each in range(consumers))))
            elapsed = time.perf_counter() - start
            assert taken == messages
            return Measured(taken / elapsed, percentiles(latencies))

    return asyncio.run(run())


@benchmark("reap 1 with a state change", "messages/s")
def reap_1(settings: Settings) -> Measured:
    """Measure messages a second that one consumer takes one by one, with a state change, synced."""
    return _reaping(settings, 1, 1, 10_000)


@benchmark("reap 10 with a state change", "messages/s")
def reap_10(settings: Settings) -> Measured:
    """Measure messages a second that one consumer takes, ten a transaction."""
    return _reaping(settings, 10, 1, 50_000)


@benchmark("reap 100 with a state change, one consumer", "messages/s", 100_000)
def reap_100(settings: Settings) -> Measured:
    """Measure messages a second that one consumer takes, a hundred a transaction."""
    return _reaping(settings, 100, 1, 300_000)


@benchmark("reap 100 with a state change, 8 consumers", "messages/s")
def reap_100_by_8(settings: Settings) -> Measured:
    """Measure a hundred messages a transaction with eight competing consumers on one event loop."""
    return _reaping(settings, 100, 8, 300_000)


@benchmark("hot counter: deferred increments, executed", "/s", 100_000)
def hot_counter(settings: Settings) -> Measured:
    """Measure deferred increments of one key a second (100 a transaction, 64 in flight)."""

    async def run() -> Measured:
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            start = time.perf_counter()
            end = start + settings.seconds
            done = 0

            async def defer() -> None:
                nonlocal done
                increment = postroom.Increment(b"counter")
                while not done or time.perf_counter() < end:
                    async with db.begin() as tx:
                        for _ in range(100):
                            tx.enqueue_update(increment)
                    done += 100

            await asyncio.gather(*(defer() for _ in range(64)))
            await db.drain(600)
            elapsed = time.perf_counter() - start
            assert postroom.integer(await db.get(b"counter")) == done
            return Measured(done / elapsed)

    return asyncio.run(run())


@benchmark("delivery, from commit to a waiting reaper", "ms")
def delivery(settings: Settings) -> Measured:
    """Measure the median time from the return of a commit to that of a waiting ``reap_queue``."""

    async def run() -> Measured:
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            latencies: list[float] = []
            for _ in range(settings.size(1000)):

                async def receive() -> float:
                    async with db.begin() as tx:
                        await tx.reap_queue(QUEUE, wait=10)
                        return time.perf_counter()

                waiting = asyncio.create_task(receive())
                await asyncio.sleep(0)
                async with db.begin() as tx:
                    tx.enqueue_message(QUEUE, VALUE)
                committed = time.perf_counter()
                latencies.append(max(await waiting - committed, 0.0))
            return Measured(1000 * statistics.median(latencies), percentiles(latencies))

    return asyncio.run(run())


async def _thousand(db: postroom.aio.Database) -> float:
    """Return the seconds that a thousand messages take, ten a transaction."""
    start = time.perf_counter()
    for _ in range(100):
        assert await _reap(db, 10) == 10
    return time.perf_counter() - start


@benchmark("reap after 1,000,000 reaped, against the first thousand", "ratio", 1.1, at_most=True)
def reap_after_million(settings: Settings) -> Measured:
    """Measure the time of a thousand messages of an inbox after a million, over that of the first.

    Medians of seven thousands each, taken right at the beginning and right at the end; the details
    have the same after the store was opened again.
    """

    async def run() -> Measured:
        path, messages = settings.folder / "store", settings.size(1_000_000)
        async with await postroom.aio.open(path, engine=settings.engine) as db:
            await _send(db, messages + 28_000)
            await _thousand(db)
            first = statistics.median([await _thousand(db) for _ in range(7)])
            left = messages
            while left > 0:
                left -= await _reap(db, min(1000, left))
            await _thousand(db)
            last = statistics.median([await _thousand(db) for _ in range(7)])
        async with await postroom.aio.open(path, engine=settings.engine) as db:
            opened = [await _thousand(db) for _ in range(7)]
        details = {
            "first_ms": round(1000 * first, 1),
            "last_ms": round(1000 * last, 1),
            "reopened_ratio": round(statistics.median(opened) / first, 2),
            "reopened_very_first_ms": round(1000 * opened[0], 1),
        }
        return Measured(last / first, details)

    return asyncio.run(run())


@benchmark("peak memory while reaping 1,000,000 messages", "MiB", 200, at_most=True)
def reap_memory(settings: Settings) -> Measured:
    """Measure the peak memory of a process that sends and takes a million messages of one inbox."""
    import resource  # noqa: PLC0415 - only here

    reaping = _reaping(settings, 100, 1, 1_000_000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(peak, {"messages_per_s": round(reaping.value)})
