"""Benchmarks of queues: enqueueing, whole ways through, claims, lateness, and lasting rates.

Every transaction here also writes a value of 100 bytes, as work does. Payloads have 100 bytes. The
queue keeps what is done, by its default settings.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, NamedTuple

import postroom.aio
from benchmarks.cluster import connect, started_nodes
from benchmarks.harness import Measured, Settings, benchmark, percentiles
from benchmarks.transactions import VALUE, _in_flight
from postroom.kv.clock import SystemClock

QUEUE: Final = "queue"
IN_FLIGHT: Final = 64
FILLED_WITH: Final = 1000
"""The messages of a transaction that only fills a queue."""
ROUNDS: Final = 10
"""The rounds in which a used queue and a new one are compared."""
PURGE_AFTER_SECONDS: Final = 86_400
HANDED_OUT_MAX: Final = 8
"""The batches on their way through, for each of those in flight."""

Database = postroom.aio.Database
Work = Callable[[Database, Settings], Awaitable[Measured]]


def _embedded(settings: Settings, work: Work) -> Measured:
    async def run() -> Measured:
        folder = settings.folder / "store"
        async with await postroom.aio.open(folder, engine=settings.engine, gc_ttl=5) as db:
            return await work(db, settings)

    return asyncio.run(run())


def _on_three_nodes(settings: Settings, work: Work) -> Measured:
    async def run(addresses: str) -> Measured:
        async with await connect(addresses) as db:
            return await work(db, settings)

    with started_nodes(settings.folder, 3) as nodes:
        return asyncio.run(run(nodes.addresses))


async def _fill(db: Database, messages: int, queue: str = QUEUE) -> None:
    for first in range(0, messages, FILLED_WITH):
        async with db.begin() as tx:
            for _ in range(min(FILLED_WITH, messages - first)):
                tx.enqueue(queue, VALUE)


# --- enqueueing


async def _enqueueing(db: Database, settings: Settings) -> Measured:
    await db.create_queue(QUEUE)

    async def once(number: int) -> None:
        async with db.begin() as tx:
            tx.put(b"state/%d" % (number % 1000), VALUE)
            tx.enqueue(QUEUE, VALUE)

    await _in_flight(min(0.3, settings.seconds), IN_FLIGHT, once)
    done, elapsed, latencies = await _in_flight(settings.seconds, IN_FLIGHT, once)
    return Measured(done / elapsed, percentiles(latencies))


@benchmark("queue: enqueue in a transaction, 64 in flight", "messages/s", 25_000)
def enqueue(settings: Settings) -> Measured:
    """Measure transactions a second, each of which writes a value and enqueues a message."""
    return _embedded(settings, _enqueueing)


@benchmark("3 nodes: queue: enqueue in a transaction, 64 in flight", "messages/s", 8_333)
def enqueue_3(settings: Settings) -> Measured:
    """Measure ``enqueue`` on three nodes, by one client."""
    return _on_three_nodes(settings, _enqueueing)


# --- through


class _Way:
    """The messages on their way through a queue.

    A group of tasks enqueues them, one consumer gets them, and other tasks acknowledge them in
    transactions that write a value each.
    """

    def __init__(self, db: Database, batch: int) -> None:
        self._db = db
        self._batch = batch
        self._room = asyncio.Semaphore(IN_FLIGHT * HANDED_OUT_MAX if batch == 1 else IN_FLIGHT)
        self._settling: set[asyncio.Task[None]] = set()
        self.done = 0

    async def produce(self) -> None:
        while True:
            await self._room.acquire()
            async with self._db.begin() as tx:
                for _ in range(self._batch):
                    tx.enqueue(QUEUE, VALUE)

    async def consume(self) -> None:
        queue = self._db.queue(QUEUE)
        batch: list[postroom.aio.QueueMessage] = []
        credit = IN_FLIGHT * self._batch * HANDED_OUT_MAX
        async for message in queue.receive(credit=credit):
            batch.append(message)
            if len(batch) == self._batch:
                settling = asyncio.ensure_future(self._settle(batch))
                self._settling.add(settling)
                settling.add_done_callback(self._settling.discard)
                batch = []

    async def _settle(self, batch: list[postroom.aio.QueueMessage]) -> None:
        async with self._db.begin() as tx:
            tx.put(b"state/%d" % (self.done % 1000), VALUE)
            tx.acknowledge(QUEUE, batch)
        for message in batch:
            message.settled()
        self.done += len(batch)
        self._room.release()


async def _through(db: Database, settings: Settings, batch: int) -> Measured:
    queue = await db.create_queue(QUEUE, batch_size=max(100, batch))
    way = _Way(db, batch)
    tasks = [asyncio.ensure_future(way.consume())]
    producers = IN_FLIGHT if batch == 1 else IN_FLIGHT // 8
    tasks += [asyncio.ensure_future(way.produce()) for _ in range(producers)]
    await asyncio.sleep(min(0.5, settings.seconds))
    before, start = way.done, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < settings.seconds or way.done == before:
        await asyncio.sleep(0.01)
    done = way.done - before
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, asyncio.CancelledError), error
    stats = await queue.stats()
    assert stats.retried == 0, stats
    lateness = round(1000 * (stats.lateness_p50 or 0), 1)
    return Measured(done / elapsed, {"median_lateness_ms": lateness})


@benchmark("queue: through, one by one", "messages/s", 12_000)
def through_1(settings: Settings) -> Measured:
    """Measure messages a second that are enqueued, pushed to a consumer, and acknowledged.

    Each enqueueing and each acknowledgement is a transaction, 64 and more in flight.
    """
    return _embedded(settings, lambda db, chosen: _through(db, chosen, 1))


@benchmark("queue: through, by hundreds", "messages/s", 40_000)
def through_100(settings: Settings) -> Measured:
    """Measure ``through_1`` with a hundred messages in each transaction."""
    return _embedded(settings, lambda db, chosen: _through(db, chosen, 100))


@benchmark("3 nodes: queue: through, one by one", "messages/s", 4_000)
def through_1_3(settings: Settings) -> Measured:
    """Measure ``through_1`` on three nodes, by one client."""
    return _on_three_nodes(settings, lambda db, chosen: _through(db, chosen, 1))


@benchmark("3 nodes: queue: through, by hundreds", "messages/s", 13_333)
def through_100_3(settings: Settings) -> Measured:
    """Measure ``through_100`` on three nodes, by one client."""
    return _on_three_nodes(settings, lambda db, chosen: _through(db, chosen, 100))


# --- claims


async def _claimed(db: Database, messages: int, queue: str = QUEUE, tasks: int = IN_FLIGHT) -> None:
    """Claim and acknowledge so many messages, by tens."""
    q, left = db.queue(queue), messages
    numbers = itertools.count()

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 10
            found = await q.claim(10, wait=30.0)
            left += 10 - len(found)  # a claim takes what is ready
            async with db.begin() as tx:
                tx.put(b"state/%d" % (next(numbers) % 1000), VALUE)
                tx.acknowledge(queue, found)

    await asyncio.gather(*(work() for _ in range(tasks)))


async def _claims(db: Database, settings: Settings) -> Measured:
    await db.create_queue(QUEUE)
    messages = settings.size(60_000)
    await _fill(db, messages)
    start = time.perf_counter()
    await _claimed(db, messages)
    return Measured(messages / (time.perf_counter() - start))


@benchmark("queue: claim and acknowledge by tens", "messages/s", 40_000)
def claim_10(settings: Settings) -> Measured:
    """Measure claimed messages a second, of 60,000 that wait.

    64 tasks claim them by tens, and acknowledge them by tens in transactions that write a value.
    """
    return _embedded(settings, _claims)


@benchmark("3 nodes: queue: claim and acknowledge by tens", "messages/s", 13_333)
def claim_10_3(settings: Settings) -> Measured:
    """Measure ``claim_10`` on three nodes, by one client."""
    return _on_three_nodes(settings, _claims)


# --- lateness


def _now() -> float:
    """Return the seconds of the wall clock, to the millisecond."""
    return SystemClock().wall_milliseconds() / 1000


async def _late(db: Database, each_seconds: float, messages: int) -> list[float]:
    """Return how late messages are received, due one after the other, by the wall clock."""
    queue = await db.create_queue(QUEUE)
    late: list[float] = []

    async def consume() -> None:
        async for message in queue.receive(credit=1000):
            late.append(_now() - message.scheduled.datetime.timestamp())
            settling.append(message)
            if len(late) == messages:
                return

    settling: list[postroom.aio.QueueMessage] = []
    consuming = asyncio.ensure_future(consume())
    lead = 0.5 + messages * 0.0001
    begin = _now() + lead
    for first in range(0, messages, 100):
        async with db.begin() as tx:
            for number in range(first, min(first + 100, messages)):
                due = begin + number * each_seconds - _now()
                tx.enqueue(QUEUE, VALUE, deliver_at=max(due, 0.0))
    while not consuming.done():
        await asyncio.sleep(0.01)
        batch = settling[:100]
        del settling[: len(batch)]
        if batch:
            await queue.acknowledge(batch)
    await consuming
    return late


@benchmark("queue: lateness at 1,000 due a second, p99", "ms", 50.0, at_most=True)
def lateness(settings: Settings) -> Measured:
    """Measure the time from when a message is due until its consumer has it."""

    async def work(db: Database, chosen: Settings) -> Measured:
        found = percentiles(await _late(db, 0.001, max(int(chosen.seconds * 1000), 100)))
        return Measured(found["p99_ms"], found)

    return _embedded(settings, work)


@benchmark("queue: lateness when idle, median", "ms", 10.0, at_most=True)
def lateness_idle(settings: Settings) -> Measured:
    """Measure the lateness with one message due every 100 ms, and nothing else to do."""

    async def work(db: Database, chosen: Settings) -> Measured:
        late = await _late(db, 0.1, max(int(chosen.seconds * 10), 5))
        return Measured(1000 * statistics.median(late), percentiles(late))

    return _embedded(settings, work)


# --- lasting rates


class _Taken(NamedTuple):
    """The time of each message, by the wall clock and by the processor, in seconds.

    The processor time is that of the store's thread, without that of the storage engine's.
    """

    wall: float
    processor: float


async def _taken(work: Coroutine[None, None, None], messages: int) -> _Taken:
    wall, processor = time.perf_counter(), time.thread_time()
    await work
    wall, processor = time.perf_counter() - wall, time.thread_time() - processor
    return _Taken(wall / messages, processor / messages)


async def _enqueue_by_hundreds(db: Database, queue: str, messages: int) -> None:
    for _ in range(messages // 100):
        async with db.begin() as tx:
            for _ in range(100):
                tx.enqueue(queue, VALUE)


async def _compared(db: Database, settings: Settings, used: str) -> Measured:
    """Compare the rates in a used queue with those in a new one with the same settings, by turns.

    Each is first in every other round: enqueued by hundreds, and claimed and acknowledged by tens.
    The value is the lesser of both medians.
    """
    await db.create_queue("new")
    messages = min(settings.size(1_000_000), 10_000) // 100 * 100
    taken: dict[str, list[tuple[_Taken, _Taken]]] = {"new": [], used: []}
    for number in range(ROUNDS):
        for queue in ("new", used) if number % 2 else (used, "new"):
            enqueued = await _taken(_enqueue_by_hundreds(db, queue, messages), messages)
            claimed = await _taken(_claimed(db, messages, queue), messages)
            taken[queue].append((enqueued, claimed))
    details: dict[str, float] = {}
    for what, name in enumerate(("enqueue", "claim")):
        for clock, of in enumerate(("", "_processor")):
            ratios = (
                new[what][clock] / old[what][clock]
                for new, old in zip(taken["new"], taken[used], strict=True)
            )
            details[name + of] = round(statistics.median(ratios), 3)
    return Measured(min(details["enqueue"], details["claim"]), details)


def _with_waiting(settings: Settings, waiting: int) -> Measured:
    async def work(db: Database, chosen: Settings) -> Measured:
        await db.create_queue(QUEUE)
        await _fill(db, chosen.size(waiting))
        return await _compared(db, chosen, QUEUE)

    return _embedded(settings, work)


@benchmark("queue: rates with 1,000,000 waiting, against none", "ratio", 0.9)
def waiting_1m(settings: Settings) -> Measured:
    """Measure rates in a queue in which a million messages wait, over those of a new queue.

    The rates are enqueueing, and claiming and acknowledging by tens, by turns. ``_processor`` has
    the ratios of the processor time of the store's own thread.
    """
    return _with_waiting(settings, 1_000_000)


@benchmark("queue: rates with 10,000,000 waiting, against none", "ratio", 0.9)
def waiting_10m(settings: Settings) -> Measured:
    """Measure ``waiting_1m`` with ten million messages; --scale makes it less."""
    return _with_waiting(settings, 10_000_000)


@benchmark("queue: rates after 10,000,000 acknowledged and purged, against none", "ratio", 0.9)
def after_10m(settings: Settings) -> Measured:
    """Measure these rates in an empty queue that ten million messages have passed.

    --scale makes it less.
    """

    async def work(db: Database, chosen: Settings) -> Measured:
        queue = await db.create_queue(QUEUE, purge_after=0)
        left = chosen.size(10_000_000) // 10 * 10
        messages = left
        while left > 0:
            number = min(left, 100_000)
            await _fill(db, number)
            await _claimed(db, number)
            left -= number
        while (await queue.stats()).purged < messages:
            await asyncio.sleep(0.2)
        # set as in the new queue: neither purges meanwhile
        await queue.update(purge_after=PURGE_AFTER_SECONDS)
        return await _compared(db, chosen, QUEUE)

    return _embedded(settings, work)
