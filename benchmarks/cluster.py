"""A cluster of three nodes, and a client in Python, all on this machine, everything synced.

Nodes are processes of their own on loopback, started by the command that users start them with. The
details tell where the time goes. They are processor time an operation of the client, the leader and
a follower, and the share of both cores. The rest is waiting, mostly for the device.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import postroom
import postroom.aio
from benchmarks.harness import Measured, Settings, benchmark, percentiles
from benchmarks.transactions import VALUE, _in_flight, _names, _outbox

_TICKS: Final = os.sysconf("SC_CLK_TCK")
CONNECT_SECONDS: Final = 120.0
"""The time that nodes may take to start on a busy machine."""
_START: Final = "from postroom.cli.main import main; main()"


class Nodes:
    """The running nodes."""

    def __init__(self, addresses: list[str], processes: list[subprocess.Popen[bytes]]) -> None:
        self.addresses = ",".join(addresses)
        self.processes = processes
        self._by_address = dict(zip(addresses, processes, strict=True))

    def kill(self, address: str) -> None:
        """Kill a node, as ``kill -9`` does."""
        self._by_address[address].kill()

    def shut_down(self, address: str) -> None:
        """End a node, as ``kill`` does: it hands over first."""
        self._by_address[address].terminate()

    def processor_seconds(self) -> list[float]:
        """Return the processor time that each node has used so far."""
        return [_processor_seconds(process.pid) for process in self.processes]


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def free_addresses(number: int) -> list[str]:
    """Return addresses on loopback at which no program listens now."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


@contextmanager
def started_nodes(folder: Path, number: int) -> Iterator[Nodes]:
    """Start nodes in folders of their own, and stop them at the end of the block."""
    addresses = free_addresses(number)
    processes = []
    try:
        for place, address in enumerate(addresses):
            command = [sys.executable, "-c", _START, "serve", "--insecure", "--listen", address]
            command += ["--data", str(folder / f"node{place}"), "--join", ",".join(addresses)]
            command += ["--split-bytes", "0", "--split-load", "0"]  # unless a benchmark splits
            log = (folder / f"node{place}.log").open("wb")
            processes.append(subprocess.Popen(command, stderr=log, stdout=log))
        yield Nodes(addresses, processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def connect(addresses: str) -> postroom.aio.Database:
    """Return a client of nodes that may just be starting."""
    return await postroom.aio.connect(
        addresses, insecure=True, timeout=CONNECT_SECONDS, connect_timeout=CONNECT_SECONDS
    )


async def _rate(
    nodes: Nodes,
    seconds: float,
    in_flight: int,
    operation: Callable[[postroom.aio.Database, int], Awaitable[object]],
) -> tuple[float, dict[str, float]]:
    """Return operations a second, and where the time went."""
    async with await connect(nodes.addresses) as db:
        await db.put(b"ready", b"")

        async def once(number: int) -> None:
            await operation(db, number)

        await _in_flight(min(0.5, seconds), in_flight, once)
        before, mine = nodes.processor_seconds(), time.process_time()
        done, elapsed, latencies = await _in_flight(seconds, in_flight, once)
        used = [end - begin for begin, end in zip(before, nodes.processor_seconds(), strict=True)]
        client = time.process_time() - mine
    leader, *followers = sorted(used, reverse=True)
    per_operation = 1e6 / max(done, 1)
    details = percentiles(latencies)
    details["client_cpu_us"] = round(client * per_operation, 1)
    details["leader_cpu_us"] = round(leader * per_operation, 1)
    for number, follower in enumerate(followers, 1):
        details[f"follower{number}_cpu_us"] = round(follower * per_operation, 1)
    details["cores_used"] = round((client + sum(used)) / elapsed, 2)
    return done / elapsed, details


def _measured(
    settings: Settings,
    number: int,
    in_flight: int,
    operation: Callable[[postroom.aio.Database, int], Awaitable[object]],
) -> Measured:
    with started_nodes(settings.folder, number) as nodes:
        value, details = asyncio.run(_rate(nodes, settings.seconds, in_flight, operation))
    return Measured(value, details)


async def _get(db: postroom.aio.Database, number: int) -> None:
    await db.get(_names(number)[0])


async def _put(db: postroom.aio.Database, number: int) -> None:
    await db.put(_names(number)[0], VALUE)


@benchmark("3 nodes: outbox transaction, 64 in flight", "/s", 10_000)
def outbox_64(settings: Settings) -> Measured:
    """Measure outbox transactions a second, from 64 tasks of one client."""
    return _measured(settings, 3, 64, _outbox)


@benchmark("3 nodes: outbox transaction, one at a time", "ms", 1.5, at_most=True)
def outbox_1(settings: Settings) -> Measured:
    """Measure the median time of a transaction from a single task: a read, and a commit."""
    measured = _measured(settings, 3, 1, _outbox)
    return Measured(measured.details["p50_ms"], {**measured.details, "rate": measured.value})


@benchmark("3 nodes: put, 64 in flight", "/s", 12_000)
def put_64(settings: Settings) -> Measured:
    """Measure puts a second, from 64 tasks of one client."""
    return _measured(settings, 3, 64, _put)


@benchmark("3 nodes: put, one at a time", "/s")
def put_1(settings: Settings) -> Measured:
    """Measure puts a second, from a single task."""
    return _measured(settings, 3, 1, _put)


@benchmark("3 nodes: linearizable get, 64 in flight", "/s", 15_000)
def get_64(settings: Settings) -> Measured:
    """Measure reads of the newest value a second, from 64 tasks of one client."""
    return _measured(settings, 3, 64, _get)


@benchmark("3 nodes: from commit to a waiting reaper", "ms", 5.0, at_most=True)
def delivery(settings: Settings) -> Measured:
    """Measure the median time from the beginning of a commit to the arrival of its message.

    The receiver is another client of the cluster, which waits for it; one message at a time.
    """

    async def run(addresses: str) -> list[float]:
        latencies: list[float] = []
        async with (
            await connect(addresses) as sender,
            await connect(addresses) as receiver,
        ):

            async def reap_one() -> float:
                async with receiver.begin() as tx:
                    assert await tx.reap_queue(b"inbox", 1, wait=30.0)
                    return time.perf_counter()

            await sender.put(b"ready", b"")
            end = time.perf_counter() + settings.seconds
            while not latencies or time.perf_counter() < end:
                waiting = asyncio.create_task(reap_one())
                await asyncio.sleep(0.01)
                now = time.perf_counter()
                async with sender.begin() as tx:
                    tx.enqueue_message(b"inbox", VALUE)
                latencies.append(await waiting - now)
        return latencies

    with started_nodes(settings.folder, 3) as nodes:
        latencies = asyncio.run(run(nodes.addresses))
    shares = percentiles(latencies)
    return Measured(shares["p50_ms"], shares)


@benchmark("1 node with a remote client: outbox transaction, 64 in flight", "/s")
def remote_64(settings: Settings) -> Measured:
    """Measure ``outbox_64`` on one node, to be compared with the embedded store."""
    return _measured(settings, 1, 64, _outbox)


@benchmark("1 node with a remote client against the embedded store", "share", 0.5)
def remote_share(settings: Settings) -> Measured:
    """Measure outbox transactions a second with 64 in flight, over those of the embedded store.

    Both are taken one after the other in this very run.
    """

    async def embedded() -> float:
        async with await postroom.aio.open(
            settings.folder / "embedded", engine=settings.engine
        ) as db:
            await _in_flight(min(0.5, settings.seconds), 64, lambda number: _outbox(db, number))
            done, elapsed, _ = await _in_flight(
                settings.seconds, 64, lambda number: _outbox(db, number)
            )
        return done / elapsed

    remote = _measured(settings, 1, 64, _outbox)
    alone = asyncio.run(embedded())
    return Measured(remote.value / alone, {**remote.details, "remote": round(remote.value)})


@benchmark("3 nodes: without a leader after kill -9", "s", 2.0, at_most=True)
def failover(settings: Settings) -> Measured:
    """Measure the time from ``kill -9`` of the leader to the answer to a client's next write."""

    async def run(nodes: Nodes) -> float:
        async with await connect(nodes.addresses) as db:
            await db.put(b"before", b"")
            await asyncio.sleep(1.0)
            status = await db.status()
            nodes.kill(next(each.address for each in status.nodes if each.node_id == status.leader))
            begin = time.perf_counter()
            await db.put(b"after", b"")
            return time.perf_counter() - begin

    with started_nodes(settings.folder, 3) as nodes:
        return Measured(asyncio.run(run(nodes)))


@benchmark("3 nodes: the longest write while the leader is shut down", "ms", 200.0, at_most=True)
def shutdown(settings: Settings) -> Measured:
    """Measure the longest write around the end of a leader that is told to end (SIGTERM).

    One client writes one value after the other, from half a second before to two seconds after.
    """

    async def run(nodes: Nodes) -> float:
        longest, told = 0.0, False
        async with await connect(nodes.addresses) as db:
            status = await db.status()
            leader = next(each.address for each in status.nodes if each.node_id == status.leader)
            begin = time.perf_counter()
            while time.perf_counter() < begin + 2.5:
                if not told and time.perf_counter() > begin + 0.5:
                    told = True
                    nodes.shut_down(leader)
                started = time.perf_counter()
                await db.put(b"key", b"value")
                longest = max(longest, time.perf_counter() - started)
        return longest

    with started_nodes(settings.folder, 3) as nodes:
        return Measured(1000 * asyncio.run(run(nodes)))
