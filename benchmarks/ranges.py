"""Ranges that split: what a split, many ranges and the loss of their leader cost, on three nodes.

Keys and inboxes of the range with the number 7 begin with ``0007/``. A transaction has all of its
keys in one range.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import postroom
import postroom.aio
from benchmarks.cluster import Nodes, connect, started_nodes
from benchmarks.harness import Measured, Settings, benchmark, percentiles
from benchmarks.transactions import VALUE, _in_flight

IN_FLIGHT: Final = 64
FILLED_WITH: Final = 1000
VALUE_BYTES: Final = 1000
FULL_BYTES: Final = 512 * 1024 * 1024
WRITERS, READERS = 32, 4
BESIDE_SECONDS: Final = 1.0
"""The time before and after a split in which requests are measured."""
SPLIT_AT_ONCE: Final = 8
SERVING_SECONDS_MAX: Final = 60.0


def _prefix(number: int) -> bytes:
    return b"%04d/" % number


async def _split(db: postroom.aio.Database, ranges: int) -> None:
    """Split the first range until there are so many, several at a time."""
    await db.put(b"ready", b"")
    gate = asyncio.Semaphore(SPLIT_AT_ONCE)

    async def split(number: int) -> None:
        async with gate:
            await db.split(_prefix(number))

    step = 1 << max(ranges - 1, 1).bit_length()
    while step := step // 2:  # halves first: others can be split meanwhile
        numbers = range(step, ranges, 2 * step)
        await asyncio.gather(*(split(number) for number in numbers))


async def _spread(db: postroom.aio.Database) -> None:
    """Have each node lead as many ranges as the others."""
    status = await db.status()
    nodes = sorted(each.node_id for each in status.nodes)
    for number, each in enumerate(await db.ranges()):
        await db.move_lease(each.id, nodes[number % len(nodes)])


async def _transaction(db: postroom.aio.Database, number: int, ranges: int) -> None:
    """Read and write a value, send a message and defer an increment, within one range."""
    prefix = _prefix(number % ranges)
    key = prefix + b"%05d" % (number % 10_007)
    async with db.begin() as tx:
        await tx.get(key)
        tx.put(key, VALUE)
        tx.enqueue_message(prefix + b"inbox/%d" % (number % 16), VALUE)
        tx.enqueue_update(postroom.Increment(prefix + b"count/%d" % (number % 16)))


def _on_three_nodes(
    settings: Settings, measure: Callable[[Nodes, postroom.aio.Database], Awaitable[Measured]]
) -> Measured:
    async def run(nodes: Nodes) -> Measured:
        async with await connect(nodes.addresses) as db:
            return await measure(nodes, db)

    with started_nodes(settings.folder, 3) as nodes:
        return asyncio.run(run(nodes))


def _few(settings: Settings, full: int) -> int:
    """Return a number of ranges, scaled down."""
    return max(int(full * settings.scale), 3)


# --- the load on the nodes


@benchmark("3 nodes, 12 ranges: busiest node, against one range", "ratio", 0.7, at_most=True)
def busiest_node(settings: Settings) -> Measured:
    """Measure the processor time a transaction of the node that has most of it.

    Value: that with twelve ranges, which all nodes lead, divided by that with one range.
    """

    async def measure(nodes: Nodes, db: postroom.aio.Database) -> Measured:
        async def used(ranges: int) -> tuple[float, float]:
            async def once(number: int) -> None:
                await _transaction(db, number, ranges)

            await _in_flight(min(0.5, settings.seconds), IN_FLIGHT, once)
            before = nodes.processor_seconds()
            done, elapsed, _ = await _in_flight(settings.seconds, IN_FLIGHT, once)
            after = nodes.processor_seconds()
            most = max(end - begin for begin, end in zip(before, after, strict=True))
            return 1e6 * max(most, 0.01) / max(done, 1), done / elapsed

        await db.put(b"ready", b"")
        one_us, one_rate = await used(1)
        await _split(db, 12)
        await _spread(db)
        many_us, many_rate = await used(12)
        details = {
            "one_us": round(one_us, 1), "twelve_us": round(many_us, 1),
            "one_per_s": round(one_rate), "twelve_per_s": round(many_rate),
        }  # fmt: skip
        return Measured(many_us / one_us, details)

    return _on_three_nodes(settings, measure)


# --- transactions over two ranges


async def _over(db: postroom.aio.Database, number: int, ranges: int) -> None:
    """Read and write a value in the first of ``ranges`` ranges, and write one in the last."""
    first, last = _prefix(number % 3), _prefix((number + ranges - 1) % 3)
    name = b"%07d" % (number % 1_000_003)
    async with db.begin() as tx:
        await tx.get(first + name)
        tx.put(first + name, VALUE)
        tx.put(last + name + b"/too", VALUE)


@benchmark("3 nodes: transaction over two ranges, 64 in flight", "/s", 3_000.0)
def over_two_ranges(settings: Settings) -> Measured:
    """Measure transactions that read and write in one range and write in another one.

    Three ranges, each led by its own node, are first and second alike. ``node_us`` is the processor
    time of all nodes for a transaction; ``one_range_*`` is the same with both keys in one range.
    """

    async def measure(nodes: Nodes, db: postroom.aio.Database) -> Measured:
        async def rate(ranges: int) -> tuple[float, float, list[float]]:
            async def once(number: int) -> None:
                await _over(db, number, ranges)

            await _in_flight(min(0.5, settings.seconds), IN_FLIGHT, once)
            before, mine = sum(nodes.processor_seconds()), time.process_time()
            done, elapsed, latencies = await _in_flight(settings.seconds, IN_FLIGHT, once)
            used = sum(nodes.processor_seconds()) - before
            client_us.append(round(1e6 * (time.process_time() - mine) / max(done, 1), 1))
            return done / elapsed, round(1e6 * used / max(done, 1), 1), latencies

        client_us: list[float] = []
        await _split(db, 3)
        await _spread(db)
        one_rate, one_us, _ = await rate(1)
        two_rate, two_us, latencies = await rate(2)
        return Measured(two_rate, percentiles(latencies) | {
            "node_us": two_us, "client_us": client_us[1],
            "one_range_per_s": round(one_rate), "one_range_node_us": one_us,
        })  # fmt: skip

    return _on_three_nodes(settings, measure)


@benchmark("3 nodes: transaction over two ranges, against one range", "ratio", 3.0, at_most=True)
def over_two_ranges_alone(settings: Settings) -> Measured:
    """Measure the median time of a transaction over two ranges, one at a time.

    Value: that time divided by that of the same transaction with both keys in one range. Both are
    measured by turns.
    """
    rounds = 4

    async def measure(_: Nodes, db: postroom.aio.Database) -> Measured:
        await _split(db, 3)
        await _spread(db)
        took: dict[int, list[float]] = {1: [], 2: []}
        for ranges in (1, 2) * rounds:

            async def once(number: int, ranges: int = ranges) -> None:
                await _over(db, number, ranges)

            _, _, latencies = await _in_flight(settings.seconds / rounds, 1, once)
            took[ranges] += latencies
        one, two = (percentiles(took[ranges])["p50_ms"] for ranges in (1, 2))
        return Measured(two / one, {"two_ranges_ms": two, "one_range_ms": one})

    return _on_three_nodes(settings, measure)


# --- messages between ranges


SENT_AT_ONCE: Final = 100


@benchmark("3 nodes: messages handed over to other ranges", "/s", 20_000.0)
def handed_over(settings: Settings) -> Measured:
    """Measure messages a second from three ranges, each led by its own node, to the other two.

    A transaction sends 100. The time ends when all of them are in their inboxes. ``processor_us``
    is the processor time of all nodes for a message.
    """

    async def measure(nodes: Nodes, db: postroom.aio.Database) -> Measured:
        await _split(db, 3)
        await _spread(db)

        async def once(number: int) -> None:
            async with db.begin() as tx:
                tx.put(_prefix(number % 3) + b"%05d" % (number % 10_007), VALUE)
                for each in range(SENT_AT_ONCE):
                    prefix = _prefix((number + 1 + each % 2) % 3)
                    tx.enqueue_message(prefix + b"inbox/%d" % (each % 16), VALUE)

        await _in_flight(min(0.5, settings.seconds), 1, once)
        await db.drain()
        handed = (await db.status()).counters.handed
        used, begun = sum(nodes.processor_seconds()), time.perf_counter()
        _, sending, _ = await _in_flight(settings.seconds, IN_FLIGHT // 4, once)
        await db.drain(60.0)
        elapsed = time.perf_counter() - begun
        used = sum(nodes.processor_seconds()) - used
        handed = max((await db.status()).counters.handed - handed, 1)
        details = {
            "sent_per_s": round(handed / sending), "processor_us": round(1e6 * used / handed, 1),
        }  # fmt: skip
        return Measured(handed / elapsed, details)

    return _on_three_nodes(settings, measure)


# --- a split


@benchmark("3 nodes: split of 512 MiB, writes beside it, p99", "ms", 100.0, at_most=True)
def split_beside_load(settings: Settings) -> Measured:
    """Measure how long 99 of 100 writes take while a range is split, and a second around that.

    32 tasks write and 4 read, one request after the other. ``reads_p99_ms`` (goal 20) is of these,
    ``before_p99_ms`` of the writes of the second before. ``split_ms`` is the time of the call.
    """
    keys = settings.size(FULL_BYTES // VALUE_BYTES)

    async def measure(_: Nodes, db: postroom.aio.Database) -> Measured:
        value = os.urandom(VALUE_BYTES)
        for first in range(0, keys, FILLED_WITH):
            async with db.begin() as tx:
                for number in range(first, min(first + FILLED_WITH, keys)):
                    tx.put(b"%09d" % number, value)
        writes: list[tuple[float, float]] = []
        reads: list[tuple[float, float]] = []
        is_over = False

        async def work(worker: int, took: list[tuple[float, float]]) -> None:
            number = worker
            while not is_over:
                number = (number * 7919 + 13) % keys
                begun = time.perf_counter()
                if took is writes:
                    await db.put(b"%09d" % number, value)
                else:
                    await db.get(b"%09d" % number)
                took.append((begun, time.perf_counter() - begun))

        tasks = [asyncio.ensure_future(work(each, writes)) for each in range(WRITERS)]
        tasks += [asyncio.ensure_future(work(each, reads)) for each in range(READERS)]
        seconds = min(BESIDE_SECONDS, settings.seconds)
        await asyncio.sleep(2 * seconds)
        begun = time.perf_counter()
        await db.split(b"%09d" % (keys // 2))
        ended = time.perf_counter()
        await asyncio.sleep(seconds)
        is_over = True
        await asyncio.gather(*tasks)
        beside = [took for at, took in writes if begun - 0.1 <= at]
        before = [took for at, took in writes if begun - seconds <= at < begun - 0.1]
        reads_beside = [took for at, took in reads if begun - 0.1 <= at]
        p99 = percentiles(beside)["p99_ms"]
        return Measured(p99, {
            "reads_p99_ms": percentiles(reads_beside).get("p99_ms", 0.0),
            "before_p99_ms": percentiles(before).get("p99_ms", 0.0),
            "slowest_write_ms": round(1000 * max(beside), 1),
            "split_ms": round(1000 * (ended - begun), 1),
        })  # fmt: skip

    return _on_three_nodes(settings, measure)


# --- many ranges


@benchmark("3 nodes, 1,000 idle ranges: share of a core a node", "%", 5.0, at_most=True)
def idle_ranges(settings: Settings) -> Measured:
    """Measure the processor time of a node with a thousand ranges that nobody uses.

    The node is the busiest one. ``memory_mib`` (goal 300) is the resident memory of the largest
    node, ``split_ms`` the time of a split.
    """
    ranges = _few(settings, 1000)

    async def measure(nodes: Nodes, db: postroom.aio.Database) -> Measured:
        begun = time.perf_counter()
        await _split(db, ranges)
        split = time.perf_counter() - begun
        await asyncio.sleep(min(10.0, 4 * settings.seconds))
        seconds = max(2 * settings.seconds, 0.2)
        before = nodes.processor_seconds()
        await asyncio.sleep(seconds)
        after = nodes.processor_seconds()
        most = max(end - begin for begin, end in zip(before, after, strict=True))
        memory = max(_resident_mib(process.pid) for process in nodes.processes)
        details = {"memory_mib": memory, "split_ms": round(1000 * split / ranges, 2)}
        return Measured(100 * max(most, 0.001) / seconds, details)

    return _on_three_nodes(settings, measure)


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


@benchmark("3 nodes, 300 ranges: all serve after kill -9 of their leader", "s", 5.0, at_most=True)
def failover_of_many(settings: Settings) -> Measured:
    """Measure the time from ``kill -9`` of the node that leads all until each takes a write."""
    ranges = _few(settings, 300)

    async def measure(nodes: Nodes, db: postroom.aio.Database) -> Measured:
        await _split(db, ranges)
        led = await db.ranges()
        leaders = [each.leader for each in led]
        first = max(set(leaders), key=leaders.count)
        for each in led:
            await db.move_lease(each.id, first)
        status = await db.status()
        nodes.kill(next(each.address for each in status.nodes if each.node_id == first))
        begun = time.perf_counter()
        await asyncio.gather(*(db.put(_prefix(number) + b"after", b"") for number in range(ranges)))
        return Measured(time.perf_counter() - begun)

    return _on_three_nodes(settings, measure)


@benchmark("1,000 ranges: opening of an embedded store", "s", 3.0, at_most=True)
def opening_of_many(settings: Settings) -> Measured:
    """Measure the time to open a store with a thousand ranges, until the first of them is read."""
    ranges = _few(settings, 1000)
    folder = settings.folder / "store"

    async def fill() -> None:
        async with await postroom.aio.open(folder, engine=settings.engine) as db:
            await _split(db, ranges)
            for number in range(ranges):
                await db.put(_prefix(number), VALUE)

    asyncio.run(fill())
    begun = time.perf_counter()
    with postroom.open(folder) as db:
        db.get(_prefix(1))
        return Measured(time.perf_counter() - begun)
