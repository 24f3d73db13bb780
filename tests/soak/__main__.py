"""A soak of everything at once, for as long as you like: ``python -m tests.soak --minutes 30``.

An embedded store, and three nodes in processes of their own, run at the same time, each with half
of it. Their clients wait, die and come back, lock, transfer, watch, read snapshots, schedule
messages, count, write large values, and read slowly. Others work with queues
(:mod:`tests.soak.queue_work`). The nodes have floods and crowds besides (:mod:`tests.soak.crowd`).
A range is split every minute (:mod:`tests.soak.splits`).
The embedded store has a device that fills up and a clock that is set (:mod:`tests.soak.trouble`),
and signals whose handler raises (:mod:`tests.soak.signals`).

Every second somebody counts what was done, and what the store holds: memory, descriptors, files and
threads. Inside the embedded node it counts the timers, the calls that wait, all that is locked,
claimed, protected and leased, and the consumers of queues.

At the end there is a table, a tenth of the time in each column, and the verdict:

* throughput, and all that is held, are as they were;
* a snapshot that is read slows no consumer of queues, and idle consumers have nothing written;
* every client has got on all the time, and conservation holds to the unit;
* nothing is left of what belonged to those who have gone, and the files have no garbage that nobody
  will collect;
* the logs of the processes tell no failure that the soak has not caused (:mod:`tests.soak.logs`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random  # noqa: TID251 - instances are made, to be passed in
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

from postroom import aio
from postroom.messaging.queues.claim_requests import ClaimQueue
from postroom.messaging.queues.claiming import Claiming
from postroom.ranges.replica import Replica
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from postroom.server.node import Node
from tests.cluster.harness import INSECURE, cluster
from tests.soak import content
from tests.soak.control import Control
from tests.soak.logs import Logs
from tests.soak.measure import RANGES, TABLES, Measure, Processors, Sample
from tests.soak.queue_work import IDLE_CONSUMERS, PURGE_SECONDS
from tests.soak.work import Soak
from tests.soak.worker import EXPECTED, Worker

KINDS: Final = ("embedded", "three nodes")
SAMPLE_SECONDS: Final = 1.0
WARM_UP_SECONDS: Final = RECORD_SECONDS + 10.0
"""The time before anything is measured: from then on as much is collected as is written.

Until then there is more to store, and more to read over, every second, and nothing to collect.
"""
STUCK_SECONDS: Final = 20.0
"""The time after which a client that has got nothing done does not get on.

Pauses on purpose are shorter, and clients count them: one may fail, and the next round is in time.

Seconds count as far as there was a processor to be had: a cluster on a machine that stands still
stands still, too.
"""
MEMORY_BYTES: Final = 64 * 1024 * 1024
"""The budget of each node: memtables fill and empty, which is to be less than what growth is."""
IDLE_TIMES: Final = 4
IDLE_SECONDS: Final = 1.5
IDLE_ENTRIES_MAX: Final = 2
FORGOTTEN_SECONDS: Final = 10.0
"""The time by which nothing is left of what belonged to clients that are gone."""

Connect = Callable[[], Awaitable[aio.Database]]


def main() -> int:
    """Run what the command line asks for; return 1 if something was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        help="measured, in all (default: 30), half of it of each store; before that 85 s pass",
    )
    parser.add_argument("--only", choices=KINDS, help="only this one, for the whole time")
    parser.add_argument("--seed", type=int, default=0, help="what the clients choose")
    parser.add_argument(
        "--split-seconds",
        type=float,
        default=60.0,
        help="a range is split so often (default: 60); 0: never",
    )
    wanted = parser.parse_args()
    failed = alone(wanted) if wanted.only else together(wanted)
    print("passed" if not failed else f"{failed} failed")  # noqa: T201
    return 1 if failed else 0


def alone(wanted: argparse.Namespace) -> int:
    """Run one kind of store; return how much was wrong."""
    with TemporaryDirectory(prefix="postroom-soak-") as name:
        folder = Path(name)
        with Control(folder) as control:
            wrong = asyncio.run(soak(wanted, folder / "data", control))
        told, litter = content.look_through(folder)
        wrong += litter
    print(*told, *(f"  WRONG: {each}" for each in wrong), sep="\n", flush=True)  # noqa: T201
    return len(wrong)


def together(wanted: argparse.Namespace) -> int:
    """Run both at the same time, each in a process of its own; return how many of them failed."""
    running = []
    for kind in KINDS:
        command = [sys.executable, "-m", "tests.soak", "--only", kind]
        command += ["--minutes", str(wanted.minutes / len(KINDS)), "--seed", str(wanted.seed)]
        command += ["--split-seconds", str(wanted.split_seconds)]
        running.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        for each in running:
            print(each.communicate()[0], end="", flush=True)  # noqa: T201
    finally:
        for each in running:
            each.terminate()
            each.wait()
    return sum(each.returncode != 0 for each in running)


async def soak(wanted: argparse.Namespace, folder: Path, control: Control) -> list[str]:
    """Run one soak and print it; return what was not as it must be."""
    with Logs() as logs:
        wrong = await _soak(wanted, folder, control, logs)
    return wrong + logs.verdicts()


async def _soak(
    wanted: argparse.Namespace, folder: Path, control: Control, logs: Logs
) -> list[str]:
    kind, seconds = wanted.only, wanted.minutes * 60
    async with _store(kind, folder, logs) as (connect, processes, addresses, node):
        soak = Soak(connect, random.Random(wanted.seed), addresses, node, wanted.split_seconds)
        await soak.setup()
        tasks = [asyncio.create_task(each.run(lambda: soak.goes_on)) for each in soak.workers]
        measure, stuck = Measure(seconds), dict[str, float]()
        await asyncio.wait(tasks, timeout=WARM_UP_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        held = _Held(processes, folder, node, soak.db)
        await _measure(soak, tasks, seconds, measure, stuck, held, control)
        wrong = measure.verdicts() + [
            f"{each.name} got nothing done for {stuck[each.name]:.0f} s; "
            f"its last error: {each.last_error!r}"
            for each in soak.workers
            if each.name in stuck
        ]
        soak.goes_on = False
        wrong += await _ended(soak, tasks)
        wrong += await soak.reckon()
        if node is not None:
            wrong += await _idle(soak, node)
        await soak.close()
        if node is not None:
            wrong += await _forgotten(node)
        done = sum(worker.done for worker in soak.workers)
        deaths = soak.deaths + soak.queues.deaths
        print(f"{kind}: {seconds:.0f} s, {done} operations, {deaths} consumers have died")  # noqa: T201
        print(measure, flush=True)  # noqa: T201
        await soak.db.close()
    return wrong


async def _measure(
    soak: Soak,
    tasks: list[asyncio.Task[None]],
    seconds: float,
    measure: Measure,
    stuck: dict[str, float],
    held: _Held,
    control: Control,
) -> None:
    """Take a sample each second, until the time is up or a client has failed."""
    until = time.monotonic() + seconds
    processors = Processors(held.processes)
    clock = most = 0.0
    seen: dict[str, tuple[int, float]] = {}
    before, began = _done(soak.workers), time.monotonic()
    queued_before, price = _done(soak.queue_workers), 0.0
    while time.monotonic() < until and not any(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=SAMPLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        now, done = time.monotonic(), _done(soak.workers)
        queued = _done(soak.queue_workers)
        seconds_passed = now - began
        used, idle = processors.look()
        price = min(control.prices(), default=price)
        measure.samples.append(Sample(
            (done - before) / seconds_passed, await held(), used, idle, price,
            (queued - queued_before) / seconds_passed, soak.queues.is_read,
        ))  # fmt: skip
        most = max(most, used, 1e-9)
        clock += seconds_passed * min((used + idle) / most, 1.0)
        before, queued_before, began = done, queued, now
        for worker in soak.workers:
            if seen.get(worker.name, (-1, 0.0))[0] != worker.done:
                seen[worker.name] = worker.done, clock
            silent = clock - seen[worker.name][1]
            if silent > STUCK_SECONDS:
                stuck[worker.name] = max(stuck.get(worker.name, 0.0), silent)


def _done(workers: list[Worker]) -> int:
    return sum(worker.done for worker in workers)


async def _ended(soak: Soak, tasks: list[asyncio.Task[None]]) -> list[str]:
    """Check that every client comes to its end."""
    await soak.db.put(b"soak/lock/last", b"")  # watchers wait for something
    done, pending = await asyncio.wait(tasks, timeout=STUCK_SECONDS)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    wrong = [f"{len(pending)} clients do not end"] if pending else []
    errors = [task.exception() for task in done if not task.cancelled()]
    return wrong + [f"a client has failed: {error!r}" for error in errors if error is not None]


async def _forgotten(node: Node) -> list[str]:
    """Check that nothing is left of what belonged to clients that are gone."""
    until = time.monotonic() + FORGOTTEN_SECONDS
    while time.monotonic() < until:
        inside = _inside(node)
        if not any(inside[name] for name in ("waiting", "held", "leases", "consumers")):
            return []
        await asyncio.sleep(0.1)
    return [f"left when all clients have gone: {_inside(node)}"]


async def _idle(soak: Soak, node: Node) -> list[str]:
    """Check that consumers that wait write nothing: without them as much is written for upkeep.

    A consumer that had something written would do so all the time, so the least with them is
    compared with the most without.
    """
    await asyncio.sleep(PURGE_SECONDS)
    waiting, with_them = _inside(node)["consumers"], await _written(node)
    await soak.queues.finish()
    without = await _written(node)
    if waiting < IDLE_CONSUMERS or min(with_them) > max(without) + IDLE_ENTRIES_MAX:
        return [f"{waiting} idle consumers: {with_them} entries; without them: {without}"]
    return []


async def _written(node: Node) -> list[int]:
    """Return how many entries the log gets in each of some times."""
    counts = []
    for _ in range(IDLE_TIMES):
        before = _entries(node)
        await asyncio.sleep(IDLE_SECONDS)
        counts.append(_entries(node) - before)
    return counts


def _entries(node: Node) -> int:
    return sum(each.group.last_index for each in node.replicas.hosted.values())


# --- the stores -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _store(
    kind: str, folder: Path, logs: Logs
) -> AsyncIterator[tuple[Connect, list[psutil.Process], list[str], Node | None]]:
    """Yield a way to connect, the processes, the nodes' addresses, and the node if it is here."""
    process = psutil.Process()
    if kind == "embedded":
        database = await aio.open(folder / "store", memory_bytes=MEMORY_BYTES)
        node: Node = database._sender.node  # type: ignore[attr-defined]
        yield (lambda: _same(database)), [process], [], node
        return
    budget = ("--memory", str(MEMORY_BYTES))
    with cluster(folder, 3, options=(*INSECURE, *budget)) as processes:
        logs.lines |= {f"node {each.number}": each.lines for each in processes.nodes}
        nodes = [psutil.Process(each.pid) for each in processes.nodes]
        addresses = processes.addresses.split(",")

        async def connect() -> aio.Database:
            return await aio.connect(addresses, insecure=True)

        yield connect, [process, *nodes], addresses, None


async def _same(database: aio.Database) -> aio.Database:
    """Return the database: all clients of an embedded store share it."""
    return database


class _Held:
    """The amounts that are held by processes, in files, and by the node if it is here."""

    def __init__(
        self, processes: list[psutil.Process], folder: Path, node: Node | None, db: aio.Database
    ) -> None:
        self.processes = processes
        self._folder = folder
        self._node = node
        self._db = db
        self._ranges = 1

    async def __call__(self) -> dict[str, float]:
        processes = self.processes
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        tables = sum(content.is_table(path) for path in files)
        memory = [each.memory_info() for each in processes]
        inside = {} if self._node is None else _inside(self._node)
        with contextlib.suppress(*EXPECTED):
            self._ranges = len(await self._db.ranges())
        return {
            RANGES: self._ranges,
            "memory MB": sum(each.rss - each.shared for each in memory) / 1e6,
            "descriptors": sum(each.num_fds() for each in processes),
            "threads": sum(each.num_threads() for each in processes),
            "files": len(files) - tables,
            TABLES: tables,
            **inside,
        }


def _inside(node: Node) -> dict[str, float]:
    """Return what the node keeps in memory for its clients, by its own tables."""
    sizes = node.sizes()
    queues = [_claiming(each.replica) for each in node.replicas.hosted.values()]
    return {
        "timers": sizes["timers"],
        "waiting": sizes["parked"],
        "held": sizes["locks"] + sizes["claims"] + sizes["protections"],
        "leases": sum(len(each.leases.all()) for one in queues for each in one.by_name.values()),
        "consumers": sizes["queue waits"],
    }


def _claiming(replica: Replica) -> Claiming:
    owner: Claiming = replica.registry.reads[ClaimQueue].__self__  # type: ignore[attr-defined]
    return owner


if __name__ == "__main__":
    sys.exit(main())
