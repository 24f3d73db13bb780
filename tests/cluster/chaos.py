"""A run of chaos: real nodes, clients with workloads, faults; then calm, and the reckoning.

It has the workloads and the judges of :mod:`tests.sim.cluster.simulation`, but real time: a seed
repeats the choice of nodes, workloads and faults, and not what comes of it.

::

    form ─▶ set up ─▶ clients at work ······· strikes fall ·······▶ calm: all end, outboxes drain
                                                                             │
      disks are read: replicas equal, history true, counters right ◀─ workloads look
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251 - made from the seed
from typing import Final

from postroom.client.database import CoreDatabase
from postroom.client.values import Status
from postroom.errors import Error
from postroom.kv import keys
from postroom.kv.clock import SystemClock
from postroom.kv.memory import SortedMap
from postroom.kv.storage import Storage
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.node import Node
from postroom.server.opening import open_storage, read_store
from tests.cluster.disks import small_disks_work
from tests.cluster.fault_injector import FaultInjector
from tests.cluster.harness import NodeProcess, cluster
from tests.cluster.places import Namespaces, namespaces_work
from tests.cluster.queue_work import QueueWork
from tests.cluster.strikes import Strike, draw, possible_kinds
from tests.cluster.witness import WitnessedSender, connect
from tests.sim import checkers
from tests.sim.cluster import replica_rules
from tests.sim.history import History
from tests.sim.recorded.operations import Record
from tests.sim.workloads.appends import Appends
from tests.sim.workloads.drawn import WORKLOADS
from tests.sim.workloads.registers import Registers
from tests.sim.workloads.watchers import Watchers
from tests.sim.workloads.workload import Client, Workload

QUEUES_SHARE: Final = 0.5
STRIKES_SECONDS: Final = 20.0
CALM_SECONDS: Final = 90.0
"""The most that the last client may take when nothing breaks any more: it retries for a minute."""
DISK_BYTES: Final = 256 << 20
WATCH_SECONDS: Final = 0.2
STALL_SECONDS: Final = 1.0
"""The length of a look at the cluster after which a node counts as stalled, a fault as well."""
QUIET_SECONDS: Final = 2.0
DUE_SECONDS: Final = 1.0


@dataclass
class Report:
    """The results of a run."""

    seed: int
    nodes: int
    workloads: list[str]
    faults: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.nodes} nodes; {' '.join(self.workloads)}; "
            f"commits: {told(self.commits)}; {told(self.seen)}; faults: {told(self.faults)}"
        )


def told(counted: Counter[str]) -> str:
    """Return counts as text for people."""
    return ", ".join(f"{number} {name}" for name, number in sorted(counted.items())) or "none"


def repeat(seed: int, seconds: float, kinds: list[str] | None = None) -> str:
    """Return the command that repeats a choice."""
    command = f"make chaos SEED={seed} RUNS=1"
    if seconds != STRIKES_SECONDS:
        command += f" SECONDS={seconds:g}"
    if kinds is not None:
        command += f" ARGS=\"--kinds '{','.join(kinds)}'\""
    return command


class Chaos:
    """One run. See the module.

    Args:
        seed: for the choice of everything.
        folder: for the nodes' data.
        seconds: how long strikes fall.
        kinds: which ones there may be; all that are possible if ``None``, and none if it is empty.
        with_queues: whether there are queues; by chance if ``None``.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        seconds: float = STRIKES_SECONDS,
        kinds: list[str] | None = None,
        with_queues: bool | None = None,
    ) -> None:
        self.random = Random(f"chaos {seed}")
        self.seed = seed
        self._folder = folder
        self.size = self.random.choice([3, 3, 3, 5])
        self.history = History()
        self.record = Record(time.monotonic)
        self.workloads = self._drawn_workloads(self.random.choice([2, 3, 3, 4]))
        self.strikes: tuple[Strike, ...] = ()
        if kinds is None or kinds:
            self.strikes = draw(
                self.random, self.size, seconds, possible_kinds() if kinds is None else kinds
            )
        # By a chance of its own: the other choices of a seed stay as they were.
        if with_queues or (
            with_queues is None and Random(f"queues {seed}").random() < QUEUES_SHARE
        ):
            has_skew = any(strike.kind == "clock" for strike in self.strikes)
            self.workloads.append(QueueWork(self._has_faults, has_skew))
        names = [type(each).__name__.lower() for each in self.workloads]
        self.report = Report(seed, self.size, names)
        self.log: list[str] = []
        self._seconds = seconds
        self._injector: FaultInjector | None = None
        self._is_over = False
        self._lives = 0
        self._clients: dict[tuple[int, int], tuple[asyncio.Task[None], CoreDatabase]] = {}
        self._leader: NodeProcess | None = None
        self._status: tuple[float, Status] | None = None
        self._leads: set[tuple[int, int]] = set()
        self._looked_at = math.inf  # no look has begun
        self._has_stood_still = False

    def _drawn_workloads(self, number: int) -> list[Workload]:
        recorded: list[Callable[[], Workload]] = [
            lambda: Registers(self.record),
            lambda: Appends(self.record),
        ]
        return [make() for make in self.random.sample([*WORKLOADS, *recorded], number)]

    def run(self) -> Report:
        """Carry out the whole run.

        Raises:
            AssertionError: something is not as it must be.
        """
        place = Namespaces(self.size) if namespaces_work() else None
        disk_bytes = DISK_BYTES if small_disks_work() else None
        with cluster(self._folder, self.size, place=place, disk_bytes=disk_bytes) as processes:
            self._cluster = processes
            asyncio.run(self._run())
            self._compare_disks()
        return self.report

    async def _run(self) -> None:
        self._database = await self._connect("somebody who looks")
        for workload in self.workloads:
            await workload.setup(self._database)
        for index, workload in enumerate(self.workloads):
            for number in range(workload.clients):
                await self._begin_client(index, number)
        observer = asyncio.create_task(self._observe())
        self._injector = injector = FaultInjector(self._cluster, self)
        self.log = injector.told
        try:
            if self.strikes:
                await injector.run(self.strikes)
            else:
                await asyncio.sleep(self._seconds)
            injector.note("calm")
            await self._calm()
            await self._reckon()
        finally:
            observer.cancel()
            await asyncio.gather(observer, return_exceptions=True)
            for task, database in self._clients.values():
                await _end(task, database)
            await self._database.close()
        await asyncio.sleep(QUIET_SECONDS)  # meanwhile followers hear of the last entry
        injector.note("everybody has ended")
        self.report.faults = injector.seen
        injector.verdict()

    # --- clients

    async def _connect(self, name: str) -> CoreDatabase:
        randomness = Random(f"{name} {self.seed}")
        addresses = [node.address for node in self._cluster.nodes]
        return await connect(addresses, randomness, self.history)

    async def _begin_client(self, index: int, number: int) -> None:
        self._lives += 1
        workload = self.workloads[index]
        name = f"{type(workload).__name__} {number} ({self._lives})"
        database = await self._connect(name)
        randomness = Random(f"{name} {self.seed}")
        client = Client(database, randomness, number, self._lives, lambda: self._is_over)
        task = asyncio.create_task(workload.start(client), name=name)  # type: ignore[arg-type]
        self._clients[index, number] = task, database

    async def kill_a_client(self) -> bool:
        """Kill a client, and let another one take its place."""
        place = self.random.choice(sorted(self._clients))
        task, database = self._clients[place]
        if self._is_over or task.done():
            return False
        del self._clients[place]
        await _end(task, database)
        with contextlib.suppress(Error):  # if no node leads there is one less
            await self._begin_client(*place)
        return True

    # --- facts for the injector

    def leader(self) -> NodeProcess | None:
        """Return the leader, as far as is known."""
        return self._leader

    def is_settled(self) -> bool:
        """Return whether all nodes are there and have everything."""
        if self._status is None or time.monotonic() - self._status[0] > 1.0:
            return False
        nodes = self._status[1].nodes
        return len(nodes) == self.size and all(
            not node.retired
            and node.entries_behind is not None
            and node.entries_behind < 100
            and node.silent_seconds is not None
            and node.silent_seconds < 1.0
            for node in nodes
        )

    def _has_faults(self) -> bool:
        """Return whether anything has been broken so far, if only by a machine that stood still."""
        self._note_stall()
        return self._has_stood_still or (self._injector is not None and bool(self._injector.seen))

    def _note_stall(self) -> None:
        if time.monotonic() - self._looked_at > STALL_SECONDS:
            self._has_stood_still = True

    async def _observe(self) -> None:
        self._looked_at = time.monotonic()
        while True:
            self._note_stall()
            self._looked_at = time.monotonic()
            try:
                status = await self._database.status()
            except Error:
                self._leader = None
            else:
                self._status = time.monotonic(), status
                addresses = {node.node_id: node.address for node in status.nodes}
                address = addresses.get(status.leader or 0)
                self._leader = next((n for n in self._cluster.nodes if n.address == address), None)
                if status.leader is not None:
                    self._leads.add((status.term, status.leader))
            await asyncio.sleep(WATCH_SECONDS)

    # --- calm

    async def _calm(self) -> None:
        """Break nothing any more, and let all clients come to an end."""
        self._is_over = True
        tasks = {
            task
            for (index, _), (task, _) in self._clients.items()
            if not isinstance(self.workloads[index], Watchers)  # no changes come for these
        }
        for task in tasks:
            if task.done():
                task.result()
        done, waiting = await asyncio.wait(
            tasks, timeout=CALM_SECONDS, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
        names = [task.get_name() for task in waiting]
        assert not waiting, f"do not come to an end: {names}, status: {self._status}"
        for task, database in self._clients.values():
            if task.done():
                task.result()
            await _end(task, database)
        await asyncio.sleep(DUE_SECONDS)
        await self._database.drain(60.0)

    async def _reckon(self) -> None:
        for workload in self.workloads:
            await workload.check(self._database)
        self.counters = (await self._database.status()).counters
        await self._settled()
        outcomes = (each.outcome for each in self.history.attempts.values())
        self.report.commits = Counter(outcome.name.lower() for outcome in outcomes)
        self.report.seen["terms led"] = len(self._leads)
        self.report.seen["recorded operations"] = len(self.record.operations)
        self.report.seen["recorded transactions"] = len(self.record.transactions)
        for workload in self.workloads:
            if isinstance(workload, QueueWork):
                self.report.seen.update(workload.seen)
        assert self._status is not None
        self.report.seen["entries"] = self._status[1].applied_index

    async def _settled(self) -> None:
        """Wait until every node has all entries."""
        give_up = time.monotonic() + CALM_SECONDS
        while not self._has_everything():
            assert time.monotonic() < give_up, f"some stay behind: {self._status}"
            await asyncio.sleep(WATCH_SECONDS)

    def _has_everything(self) -> bool:
        assert self._status is not None
        nodes = self._status[1].nodes
        return self.is_settled() and all(node.entries_behind == 0 for node in nodes)

    # --- the disks

    def _compare_disks(self) -> None:
        for node in self._cluster.nodes:
            node.kill()
        disks = read_disks({node.number: node.disk.folder for node in self._cluster.nodes})
        indexes = {number: replica_rules.applied_index(disk) for number, disk in disks.items()}
        # Upkeep goes on until the nodes are killed: one of them may have applied an entry more.
        common = max(Counter(indexes.values()).items(), key=lambda each: (each[1], each[0]))[0]
        equal = [number for number, index in indexes.items() if index == common]
        checkers.require(len(equal) * 2 > self.size, f"no majority is equally far: {indexes}")
        first = disks[equal[0]]
        for number in equal[1:]:
            replica_rules.require_equal(str(equal[0]), first, str(number), disks[number])
        content = checkers.read_content(first)
        for checker in replica_rules.CHECKERS:
            checker(content)
        self.history.check(content)
        checkers.require(
            self.counters == content.counters,
            f"told {self.counters}, stored {content.counters}",
        )
        self.report.seen["replicas compared"] = len(equal)


async def _end(task: asyncio.Task[None], database: CoreDatabase) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    sender = database._sender
    assert isinstance(sender, WitnessedSender)
    await sender.abandon()


def read_disks(folders: dict[int, Path]) -> dict[int, SortedMap]:
    """Return all that nodes that were killed have stored.

    A state is some turns behind its log, and a log does not say what is committed: what a majority
    of them has is. (It was calm when they were killed: no log has a tail that others contradict.)
    """
    with contextlib.ExitStack() as open_ones:
        nodes = {
            number: open_ones.enter_context(_opened(folder)) for number, folder in folders.items()
        }
        last = sorted(node.root.group.core.journal.last_index for node in nodes.values())
        committed = last[(len(last) - 1) // 2]
        return {number: _content(node, committed) for number, node in nodes.items()}


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[Node]:
    storage = open_storage(folder, Random(0))
    try:
        record = read_store(storage)
        assert record is not None
        options = NodeOptions(node_id=record.node_id, members=())
        yield Node(storage, SystemClock(), Random(0), NoPeers(), options)
    finally:
        storage.close()


def _content(node: Node, committed: int) -> SortedMap:
    core, storage = node.root.group.core, node.engine
    assert isinstance(storage, Storage)
    core.journal.committed_index = min(committed, core.journal.last_index)
    for writes in node.consensus.replay():
        storage.write_turn(writes, sync=False)
    storage.applied.flush()
    snapshot = storage.state.snapshot()
    content = SortedMap().updated(dict(snapshot.iterate(b"", keys.DATA_END)))
    snapshot.close()
    return content
