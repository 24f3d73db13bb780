"""Benchmarks of the outbox transaction, plain reads and writes, and scans.

The *outbox transaction* reads one key, writes it, sends one message and defers one increment, with
values of 100 bytes, synced before it counts.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import postroom
import postroom.aio
from benchmarks.harness import Measured, Settings, benchmark, percentiles

VALUE = b"x" * 100
KEYS = 10_000
INBOXES = 1_000
COUNTERS = 100


def _names(number: int) -> tuple[bytes, bytes, bytes]:
    return (
        b"account/%d" % (number % KEYS),
        b"inbox/%d" % (number % INBOXES),
        b"counter/%d" % (number % COUNTERS),
    )


async def _outbox(db: postroom.aio.Database, number: int) -> None:
    account, inbox, counter = _names(number)
    async with db.begin() as tx:
        await tx.get(account)
        tx.put(account, VALUE)
        tx.enqueue_message(inbox, VALUE)
        tx.enqueue_update(postroom.Increment(counter))


def _outbox_blocking(db: postroom.Database, number: int) -> None:
    account, inbox, counter = _names(number)
    with db.begin() as tx:
        tx.get(account)
        tx.put(account, VALUE)
        tx.enqueue_message(inbox, VALUE)
        tx.enqueue_update(postroom.Increment(counter))


async def _in_flight(
    seconds: float, in_flight: int, operation: Callable[[int], Awaitable[None]]
) -> tuple[int, float, list[float]]:
    """Repeat ``operation`` from ``in_flight`` tasks; return count, time and latencies."""
    latencies: list[float] = []
    start = time.perf_counter()
    end = start + seconds

    async def one(worker: int) -> None:
        for number in itertools.count(worker * 7919):
            begun = time.perf_counter()
            await operation(number)
            ended = time.perf_counter()
            latencies.append(ended - begun)
            if ended >= end:  # each task has done something, however busy the machine is
                return
            if in_flight > 1 and number % 16 == 15:
                await asyncio.sleep(0)

    await asyncio.gather(*(one(worker) for worker in range(in_flight)))
    return len(latencies), time.perf_counter() - start, latencies


def _outbox_asyncio(settings: Settings, in_flight: int, *, drained: bool = False) -> Measured:
    async def run() -> Measured:
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            await _in_flight(0.3, in_flight, lambda number: _outbox(db, number))
            done, elapsed, latencies = await _in_flight(
                settings.seconds, in_flight, lambda number: _outbox(db, number)
            )
            if drained:
                before = time.perf_counter()
                await db.drain(600)
                elapsed += time.perf_counter() - before
                counters = (await db.status()).counters
                assert counters.pending == 0, counters
                assert counters.delivered == counters.executed >= done, counters
            return Measured(done / elapsed, percentiles(latencies))

    return asyncio.run(run())


@benchmark("outbox transaction, 64 in flight (asyncio)", "/s", 30_000)
def outbox_64(settings: Settings) -> Measured:
    """Measure committed outbox transactions a second, from 64 tasks on one event loop."""
    return _outbox_asyncio(settings, 64)


@benchmark("outbox transaction, a minute, all delivered and executed", "/s", 20_000)
def outbox_minute(settings: Settings) -> Measured:
    """Measure ``outbox_64`` for twenty times as long (a minute by default), draining included."""
    longer = replace(settings, seconds=settings.seconds * 20)
    return _outbox_asyncio(longer, 64, drained=True)


@benchmark("outbox transaction, one at a time (asyncio)", "/s", 5_000)
def outbox_1(settings: Settings) -> Measured:
    """Measure outbox transactions from one task: each waits for its sync."""
    return _outbox_asyncio(settings, 1)


def _outbox_threads(settings: Settings, threads: int) -> Measured:
    latencies: list[list[float]] = [[] for _ in range(threads)]
    with postroom.open(settings.folder / "store", engine=settings.engine) as db:
        start = time.perf_counter()
        end = start + settings.seconds

        def work(worker: int) -> None:
            number = worker * 7919
            mine = latencies[worker]
            while not mine or time.perf_counter() < end:
                begun = time.perf_counter()
                _outbox_blocking(db, number)
                mine.append(time.perf_counter() - begun)
                number += 1

        workers = [threading.Thread(target=work, args=(worker,)) for worker in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = time.perf_counter() - start
    merged = [latency for mine in latencies for latency in mine]
    return Measured(len(merged) / elapsed, percentiles(merged))


@benchmark("outbox transaction, 16 threads (synchronous)", "/s", 12_000)
def outbox_16_threads(settings: Settings) -> Measured:
    """Measure committed outbox transactions a second, from 16 threads that share one Database."""
    return _outbox_threads(settings, 16)


@benchmark("outbox transaction, one thread (synchronous)", "/s", 5_000)
def outbox_1_thread(settings: Settings) -> Measured:
    """Measure outbox transactions from one thread: each waits for its sync."""
    return _outbox_threads(settings, 1)


def _asyncio_rate(settings: Settings, in_flight: int, kind: str) -> Measured:
    async def run() -> Measured:
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            for first in range(0, KEYS, 500):
                async with db.begin() as tx:
                    for number in range(first, first + 500):
                        tx.put(_names(number)[0], VALUE)

            async def get(number: int) -> None:
                await db.get(_names(number)[0])

            async def put(number: int) -> None:
                await db.put(_names(number)[0], VALUE)

            operation = get if kind == "get" else put
            done, elapsed, latencies = await _in_flight(settings.seconds, in_flight, operation)
            return Measured(done / elapsed, percentiles(latencies))

    return asyncio.run(run())


@benchmark("commits beside 10,000 watches (asyncio)", "/s")
def put_beside_watches(settings: Settings) -> Measured:
    """Measure ``await db.put(key)`` a second from one task, beside watches of others.

    Other keys, and spans of them, are watched. ``share``: of the rate in the same store before.
    """

    async def run() -> Measured:
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:

            async def put(number: int) -> None:
                await db.put(_names(number)[0], VALUE)

            async def rate() -> tuple[float, list[float]]:
                await _in_flight(settings.seconds / 10, 1, put)
                done, elapsed, latencies = await _in_flight(settings.seconds, 1, put)
                return done / elapsed, latencies

            alone, _ = await rate()
            watches = [db.watch(*_watched(number)) for number in range(settings.size(10_000))]
            waiting = [asyncio.ensure_future(anext(each)) for each in watches]
            beside, latencies = await rate()
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return Measured(beside, {**percentiles(latencies), "share": beside / alone})

    return asyncio.run(run())


def _watched(number: int) -> tuple[bytes, bytes | None]:
    """Return a key, or a span of keys, that is never written."""
    key = b"watched/%d" % number
    return key, None if number % 2 else key + b"~"


@benchmark("get (asyncio)", "/s", 60_000)
def get_asyncio(settings: Settings) -> Measured:
    """Measure ``await db.get(key)`` a second from one task; 10,000 keys of 100 bytes."""
    return _asyncio_rate(settings, 1, "get")


@benchmark("get (synchronous)", "/s")
def get_blocking(settings: Settings) -> Measured:
    """Measure ``db.get(key)`` a second from one thread; 10,000 keys of 100 bytes."""
    with postroom.open(settings.folder / "store", engine=settings.engine) as db:
        _fill(db, KEYS)
        done, end = 0, time.perf_counter() + settings.seconds
        while not done or time.perf_counter() < end:
            db.get(b"key/%08d" % (done * 7919 % KEYS))
            done += 1
        return Measured(done / settings.seconds)


@benchmark("put, one at a time (asyncio)", "/s")
def put_1(settings: Settings) -> Measured:
    """Measure ``await db.put(key, 100 bytes)`` a second from one task."""
    return _asyncio_rate(settings, 1, "put")


@benchmark("put, 64 in flight (asyncio)", "/s")
def put_64(settings: Settings) -> Measured:
    """Measure ``await db.put(key, 100 bytes)`` a second from 64 tasks."""
    return _asyncio_rate(settings, 64, "put")


def _fill(db: postroom.Database, pairs: int) -> None:
    for first in range(0, pairs, 2000):
        with db.begin() as tx:
            for number in range(first, min(first + 2000, pairs)):
                tx.put(b"key/%08d" % number, VALUE)


@benchmark("scan (synchronous)", "pairs/s", 500_000)
def scan_blocking(settings: Settings) -> Measured:
    """Measure pairs a second of ``db.scan`` over 1,000,000 pairs of 100 bytes, and peak memory."""
    pairs = settings.size(1_000_000)
    with postroom.open(settings.folder / "store", engine=settings.engine, durability="none") as db:
        _fill(db, pairs)
        start = time.perf_counter()
        seen = sum(1 for _ in db.scan(b"key/", b"key0"))
        elapsed = time.perf_counter() - start
    assert seen == pairs
    return Measured(seen / elapsed)


@benchmark("scan (asyncio)", "pairs/s")
def scan_asyncio(settings: Settings) -> Measured:
    """Measure pairs a second of ``async for`` over 100,000 pairs of 100 bytes."""
    pairs = settings.size(100_000)
    with postroom.open(settings.folder / "store", engine=settings.engine, durability="none") as db:
        _fill(db, pairs)

    async def run() -> float:
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            start = time.perf_counter()
            seen = 0
            async for _ in db.scan(b"key/", b"key0"):
                seen += 1
            assert seen == pairs
            return time.perf_counter() - start

    return Measured(pairs / asyncio.run(run()))
