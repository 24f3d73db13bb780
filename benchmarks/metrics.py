"""A benchmark of metrics: the processor time that a scrape takes from a busy store."""

from __future__ import annotations

import asyncio
import statistics
import time

import prometheus_client

import postroom.aio
import postroom.metrics
from benchmarks.harness import Measured, Settings, benchmark
from benchmarks.transactions import _in_flight, _outbox

IN_FLIGHT = 64
SCRAPES = 20


@benchmark("metrics: a scrape beside transactions, 64 in flight", "ms", 10.0, at_most=True)
def scrape(settings: Settings) -> Measured:
    """Measure the processor time of the thread that renders the metrics of a busy store.

    The goal is 1 % of a core if somebody scrapes every second. ``idle``: of all threads, while
    nothing else happens.
    """

    async def run() -> Measured:
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            registry = prometheus_client.CollectorRegistry()
            registry.register(postroom.metrics.collector(db))

            def scraped(clock: str) -> float:
                read = getattr(time, clock)
                before = read()
                prometheus_client.generate_latest(registry)
                return 1000.0 * (read() - before)

            async def busy() -> list[float]:
                found = []
                for _ in range(SCRAPES):
                    await asyncio.sleep(settings.seconds / SCRAPES)
                    found.append(await asyncio.to_thread(scraped, "thread_time"))
                return found

            beside, _ = await asyncio.gather(
                busy(),
                _in_flight(settings.seconds, IN_FLIGHT, lambda number: _outbox(db, number)),
            )
            idle = [await asyncio.to_thread(scraped, "process_time") for _ in range(SCRAPES)]
        return Measured(statistics.median(beside), {"idle_ms": round(statistics.median(idle), 3)})

    return asyncio.run(run())
