"""Benchmarks of metrics: what a scraper takes from transactions.

Rounds with and without a scraper alternate in one store. The scraper comes every second; Prometheus
comes every 15 s if nobody says otherwise. Processor time is compared, of all threads together.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import prometheus_client

import postroom.aio
import postroom.metrics
from benchmarks.harness import Measured, Settings, benchmark
from benchmarks.transactions import _in_flight, _outbox

ROUNDS = 10
SCRAPE_SECONDS = 1.0


@contextmanager
def _scraped(registry: prometheus_client.CollectorRegistry) -> Iterator[None]:
    """Render the metrics every second, in a thread."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(SCRAPE_SECONDS):
            prometheus_client.generate_latest(registry)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _share(settings: Settings, in_flight: int) -> Measured:
    async def processor_us(db: postroom.aio.Database) -> float:
        before = time.process_time()
        done, _, _ = await _in_flight(
            settings.seconds, in_flight, lambda number: _outbox(db, number)
        )
        return (time.process_time() - before) / done * 1e6

    async def run() -> Measured:
        async with await postroom.aio.open(settings.folder / "store", engine=settings.engine) as db:
            registry = prometheus_client.CollectorRegistry()
            registry.register(postroom.metrics.collector(db))
            await _in_flight(settings.seconds, in_flight, lambda number: _outbox(db, number))
            alone, scraped = [], []
            for _ in range(ROUNDS):
                alone.append(await processor_us(db))
                with _scraped(registry):
                    scraped.append(await processor_us(db))
            shares = [100 * one / other for one, other in zip(alone, scraped, strict=True)]
            found = {"alone_us": statistics.median(alone), "scraped_us": statistics.median(scraped)}
            return Measured(statistics.median(shares), found)

    return asyncio.run(run())


@benchmark("scraped every second: transactions, 64 in flight, of those alone", "%", 99.0)
def scraped_64(settings: Settings) -> Measured:
    """Measure the processor time of outbox transactions without metrics, as a part of with them."""
    return _share(settings, 64)


@benchmark("scraped every second: transactions, one at a time, of those alone", "%", 99.0)
def scraped_1(settings: Settings) -> Measured:
    """Measure the same with one transaction after the other."""
    return _share(settings, 1)
