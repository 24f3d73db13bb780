"""Queues, watches and protections over many ranges, on three nodes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

import postroom.aio
from benchmarks.cluster import Nodes
from benchmarks.harness import Measured, Settings, benchmark, percentiles
from benchmarks.ranges import _few, _on_three_nodes, _prefix, _split, _spread
from benchmarks.transactions import VALUE

QUEUE: Final = "queue"
RANGES: Final = 12
WATCHED_RANGES: Final = 100
IN_FLIGHT: Final = 64
CREDIT: Final = 512
FILLED_WITH: Final = 1000
"""The messages of a transaction that only fills a queue."""
MESSAGES: Final = 1_000_000
CONSUMERS: Final = 16
CLAIMED_AT_ONCE: Final = 10
CHANGES: Final = 200
PROTECTIONS: Final = 200


def _group(number: int) -> str:
    return f"{number % RANGES:04d}/group"


# --- the way through a queue


class _Way:
    """Messages of twelve groups on their way through a queue, one by one.

    Tasks enqueue them, a consumer gets them, and other tasks acknowledge them. Each transaction
    writes a value beside its message, with the prefix of the group.
    """

    def __init__(self, db: postroom.aio.Database) -> None:
        self._db = db
        self._room = asyncio.Semaphore(CREDIT)
        self._settling: set[asyncio.Task[None]] = set()
        self._enqueued = 0
        self.done = 0

    async def run(self) -> None:
        """Do so until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._consume())
            for _ in range(IN_FLIGHT):
                tasks.create_task(self._produce())

    async def _produce(self) -> None:
        while True:
            await self._room.acquire()
            self._enqueued += 1
            group = _group(self._enqueued)
            async with self._db.begin() as tx:
                tx.put(group.encode() + b"/in", VALUE)
                tx.enqueue(QUEUE, VALUE, group=group)

    async def _consume(self) -> None:
        async for message in self._db.queue(QUEUE).receive(credit=CREDIT):
            task = asyncio.ensure_future(self._settle(message))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def _settle(self, message: postroom.aio.QueueMessage) -> None:
        async with self._db.begin() as tx:
            tx.put(message.group.encode() + b"/out/%d" % (self.done % 100), VALUE)
            tx.acknowledge(QUEUE, [message])
        message.settled()
        self.done += 1
        self._room.release()


@benchmark(
    "3 nodes, 12 ranges: queue, busiest node, against one range",
    "ratio", 0.7, at_most=True,
)  # fmt: skip
def queue_of_groups(settings: Settings) -> Measured:
    """Measure the processor time a message of the node that has most of it.

    Messages of twelve groups are enqueued, pushed to a consumer and acknowledged, one by one.
    Value: that time with twelve ranges, one for each group, divided by that with one range.
    """

    async def measure(nodes: Nodes, db: postroom.aio.Database) -> Measured:
        async def used() -> tuple[float, float]:
            way = _Way(db)
            running = asyncio.ensure_future(way.run())
            await asyncio.sleep(min(1.0, settings.seconds))
            done, begun, before = way.done, time.perf_counter(), nodes.processor_seconds()
            while (elapsed := time.perf_counter() - begun) < settings.seconds or way.done == done:
                await asyncio.sleep(0.01)
            after, done = nodes.processor_seconds(), way.done - done
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            most = max(end - begin for begin, end in zip(before, after, strict=True))
            return 1e6 * max(most, 0.01) / done, done / elapsed

        await db.create_queue(QUEUE, batch_size=100)
        one_us, one_rate = await used()
        await _split(db, RANGES)
        await _spread(db)
        many_us, many_rate = await used()
        return Measured(many_us / one_us, {
            "one_us": round(one_us, 1), "twelve_us": round(many_us, 1),
            "one_per_s": round(one_rate), "twelve_per_s": round(many_rate),
        })  # fmt: skip

    return _on_three_nodes(settings, measure)


# --- a split of a queue


@benchmark("3 nodes: split of a queue with 1,000,000 ready messages", "s", 60.0, at_most=True)
def divided(settings: Settings) -> Measured:
    """Measure how long the call takes that splits a range in the middle of a queue.

    16 consumers claim by tens and acknowledge, before and meanwhile. ``longest_claim_ms`` (goal
    100) and ``rate_kept`` (goal 0.8, of the rate before) are theirs.
    """
    messages = settings.size(MESSAGES)

    async def measure(_: Nodes, db: postroom.aio.Database) -> Measured:
        queue = await db.create_queue(QUEUE)

        async def fill(first: int) -> None:
            async with db.begin() as tx:
                for number in range(first, min(first + FILLED_WITH, messages)):
                    tx.enqueue(QUEUE, VALUE, key=b"%09d" % (number * 7919 % messages))

        for first in range(0, messages, 4 * FILLED_WITH):
            await asyncio.gather(*(fill(first + each * FILLED_WITH) for each in range(4)))
        claims: list[tuple[float, float]] = []

        async def consume() -> None:
            while True:
                begun = time.perf_counter()
                found = await queue.claim(CLAIMED_AT_ONCE, wait=30.0)
                claims.append((begun, time.perf_counter() - begun))
                await queue.acknowledge(found)

        consumers = [asyncio.ensure_future(consume()) for _ in range(CONSUMERS)]
        seconds = min(5.0, 2 * settings.seconds)
        await asyncio.sleep(min(1.0, settings.seconds))
        before = len(claims)
        await asyncio.sleep(seconds)
        rate_before = (len(claims) - before) / seconds
        before, begun = len(claims), time.perf_counter()
        await db.split(b"%09d" % (messages // 2))
        took = time.perf_counter() - begun
        rate = (len(claims) - before) / took
        for each in consumers:
            each.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        meanwhile = [seconds for at, seconds in claims if at >= begun] or [took]
        return Measured(took, {
            "longest_claim_ms": round(1000 * max(meanwhile), 1),
            "claim_p99_ms": percentiles(meanwhile)["p99_ms"],
            "rate_kept": round(rate / rate_before, 2),
            "claims_per_s_before": round(rate_before),
        })  # fmt: skip

    return _on_three_nodes(settings, measure)


# --- watches


@benchmark("3 nodes, 100 ranges: from a put to a watcher of all", "ms", 10.0, at_most=True)
def watch_of_many(settings: Settings) -> Measured:
    """Measure the median time from the begin of a put until a watcher of all ranges has it.

    ``idle_percent`` (goal 1) is the share of a core that the busiest node needs while nothing
    changes, beyond what it needs without the watcher.
    """
    ranges = _few(settings, WATCHED_RANGES)

    async def measure(nodes: Nodes, db: postroom.aio.Database) -> Measured:
        async def idle() -> float:
            seconds = max(3 * settings.seconds, 0.2)
            before = nodes.processor_seconds()
            await asyncio.sleep(seconds)
            after = nodes.processor_seconds()
            most = max(end - begin for begin, end in zip(before, after, strict=True))
            return 100 * most / seconds

        await _split(db, ranges)
        await _spread(db)
        await asyncio.sleep(min(5.0, 2 * settings.seconds))
        without = await idle()
        seen: asyncio.Queue[float] = asyncio.Queue()

        async def watch(after: int) -> None:
            async for _ in db.watch(b"", b"\xff", after=after):
                seen.put_nowait(time.perf_counter())

        watching = asyncio.ensure_future(watch(await db.now()))
        await db.put(_prefix(0) + b"first", VALUE)
        await seen.get()
        await asyncio.sleep(min(2.0, settings.seconds))
        watched = await idle()
        took = []
        for number in range(settings.size(CHANGES)):
            begun = time.perf_counter()
            await db.put(_prefix(number % ranges) + b"key", VALUE)
            took.append(await seen.get() - begun)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        found = percentiles(took)
        idle_percent = round(max(watched - without, 0.0), 2)
        return Measured(found["p50_ms"], found | {"idle_percent": idle_percent})

    return _on_three_nodes(settings, measure)


# --- protections


@benchmark("3 nodes: protection of a timestamp", "ms", 5.0, at_most=True)
def protection(settings: Settings) -> Measured:
    """Measure the median time until the present is protected in twelve ranges.

    ``whole_p50_ms`` is that of one with outboxes and sums.
    """

    async def measure(_: Nodes, db: postroom.aio.Database) -> Measured:
        async def protect(*, whole: bool) -> float:
            begun = time.perf_counter()
            async with db.hold(whole=whole):
                return time.perf_counter() - begun

        await _split(db, RANGES)
        await _spread(db)
        count = settings.size(PROTECTIONS)
        took = percentiles([await protect(whole=False) for _ in range(count)])
        whole = percentiles([await protect(whole=True) for _ in range(count // 10)])
        return Measured(took["p50_ms"], took | {"whole_p50_ms": whole["p50_ms"]})

    return _on_three_nodes(settings, measure)
