"""Many clients that want the same keys: the rate of work, and the wait of the slowest.

Each row tells beside its rate the latencies of all calls: ``p99_ms``, and ``slowest_ms``. The
latter shows whether a client waits until all others have ended.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - from a seed
from typing import Any

import postroom
import postroom.aio
from benchmarks.harness import Measured, Settings, benchmark, percentiles

ACCOUNTS = 10
KEYS = [b"contended/%d" % number for number in range(100)]
WRITERS = 8


def _measured(latencies: list[float], elapsed: float, **more: float) -> Measured:
    details = {**percentiles(latencies), "slowest_ms": round(max(latencies) * 1000, 1), **more}
    return Measured(len(latencies) / elapsed, details)


def _tasks(
    settings: Settings, tasks: int, call: Callable[[postroom.aio.Database, Random], Awaitable[Any]]
) -> Measured:
    """Measure this many tasks on one loop, each of which calls again and again."""

    async def run() -> Measured:
        latencies: list[float] = []
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            for number in range(ACCOUNTS):
                await db.increment(b"account/%d" % number, 1000)
            begun = time.perf_counter()

            async def work(task: int) -> None:
                randomness = Random(task)
                while (start := time.perf_counter()) < begun + settings.seconds or not latencies:
                    await call(db, randomness)
                    latencies.append(time.perf_counter() - start)

            await asyncio.gather(*map(work, range(tasks)))
            return _measured(latencies, time.perf_counter() - begun)

    return asyncio.run(run())


async def _add(db: postroom.aio.Database, _: Random) -> None:
    await db.run(lambda tx: tx.increment(b"counter"))


async def _locked_add(db: postroom.aio.Database, _: Random) -> None:
    async def add(tx: postroom.aio.Transaction) -> None:
        await tx.get_for_update(b"counter")
        await tx.increment(b"counter")

    await db.run(add)


async def _transfer(db: postroom.aio.Database, randomness: Random) -> None:
    source, target = randomness.sample(range(ACCOUNTS), 2)

    async def transfer(tx: postroom.aio.Transaction) -> None:
        await tx.increment(b"account/%d" % source, -1)
        await tx.increment(b"account/%d" % target, 1)

    await db.run(transfer)


@benchmark("contention: increment one key, 16 tasks", "/s", 3_500)
def increments_16(settings: Settings) -> Measured:
    """Measure transactions that read a key and write it, from 16 tasks."""
    return _tasks(settings, 16, _add)


@benchmark("contention: increment one key, 64 tasks", "/s", 3_500)
def increments_64(settings: Settings) -> Measured:
    """Measure these transactions from 64 tasks: the slowest below 200 ms."""
    return _tasks(settings, 64, _add)


@benchmark("contention: get_for_update and increment, 64 tasks", "/s")
def locked_increments_64(settings: Settings) -> Measured:
    """Measure these transactions with the key locked from the beginning, from 64 tasks."""
    return _tasks(settings, 64, _locked_add)


@benchmark("contention: transfers among ten accounts, 32 tasks", "/s")
def transfers_32(settings: Settings) -> Measured:
    """Measure transactions of two keys, from 32 tasks."""
    return _tasks(settings, 32, _transfer)


def _beside_writers(settings: Settings, keys: list[bytes], read: str) -> Measured:
    """Measure transactions of ``keys`` beside threads that write them without a lock."""
    stop, written, latencies = threading.Event(), [0] * WRITERS, list[float]()

    def write(db: postroom.Database, writer: int) -> None:
        randomness = Random(writer)
        while not stop.is_set():
            db.put(randomness.choice(keys), b"theirs")
            written[writer] += 1

    def change(tx: postroom.Transaction) -> None:
        for key in keys:
            getattr(tx, read)(key)
        for key in keys:
            tx.put(key, b"mine")

    with postroom.open(settings.folder / "store", engine=settings.engine) as db:
        threads = [threading.Thread(target=write, args=(db, each)) for each in range(WRITERS)]
        for thread in threads:
            thread.start()
        begun = time.perf_counter()
        try:
            while (start := time.perf_counter()) < begun + settings.seconds or not latencies:
                db.run(change)
                latencies.append(time.perf_counter() - start)
            elapsed = time.perf_counter() - begun
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    return _measured(latencies, elapsed, puts=round(sum(written) / elapsed))


@benchmark("contention: get_for_update and put, beside 8 who put the key", "/s")
def locked_beside_writers(settings: Settings) -> Measured:
    """Measure transactions of one key, locked from the beginning, beside writers."""
    return _beside_writers(settings, KEYS[:1], "get_for_update")


@benchmark("contention: 100 keys in one transaction, beside 8 who put them", "/s")
def many_beside_writers(settings: Settings) -> Measured:
    """Measure transactions of a hundred keys, read without a lock at first: each within 2 s."""
    return _beside_writers(settings, KEYS, "get")
