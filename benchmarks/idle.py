"""The cost of unused things, which should be nothing: a thousand idle groups, and idle nodes."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - makes an instance, seeded
import time
from collections.abc import Iterable

from benchmarks.cluster import Nodes, connect, started_nodes
from benchmarks.harness import Measured, Settings, benchmark
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.raft.consensus import Consensus
from postroom.raft.interface import CommittedEntry, MemoryNetwork

NODES = (1, 2, 3)
SETTLING_SECONDS = 10.0
"""The simulated time until all groups are quiet."""
TICK_SECONDS = 0.01
"""The steps in which the system counts processor time: less use shows as none."""
SPEAKING_SECONDS = 2.0
"""The time until all messages about a write are sent; at most as long as the measurement."""


class _Nothing:
    """The state of a group that is only the applied index and its term, in memory."""

    applied = 0
    term = 0

    def applied_index(self) -> int:
        """Return the applied index."""
        return self.applied

    def applied_term(self) -> int:
        """Return the term of the applied entry."""
        return self.term

    def apply(self, entries: Iterable[CommittedEntry], staged: object) -> None:
        """Apply each leader's first entry, the only one here."""
        del staged
        for self.applied, self.term, _, _ in entries:
            pass


class _Nodes:
    """The consensus of three nodes in one thread, in simulated time."""

    def __init__(self, groups: int) -> None:
        self.now = 0.0
        seeded = random.Random(1)
        self.network = MemoryNetwork(seeded, lambda: self.now)
        self.nodes: list[tuple[Consensus, MemoryEngine]] = []
        for node in NODES:
            engine = MemoryEngine(MemoryDisk())
            consensus = Consensus(
                engine, self.network.attach(node),
                node_id=node, monotonic=lambda: self.now, random=seeded,
            )  # fmt: skip
            for group in range(1, groups + 1):
                consensus.create(group, NODES, _Nothing())  # type: ignore[arg-type]
            self.nodes.append((consensus, engine))

    def run(self, seconds: float) -> None:
        """Let a time pass, as quickly as it goes."""
        until = self.now + seconds
        while self.now < until:
            for consensus, engine in self.nodes:
                writes = consensus.stage()
                consensus.send_early()
                if writes:
                    engine.write(writes, sync=consensus.needs_sync)
                consensus.release()
            waits = [self.network.next_arrival()]
            waits += [consensus.next_deadline() for consensus, _ in self.nodes]
            due = min((at for at in waits if at is not None), default=self.now + 0.01)
            self.now = max(due, self.now + 1e-6)


@benchmark("1,000 idle groups, share of a core a node", "%", 5.0, at_most=True)
def idle_groups(settings: Settings) -> Measured:
    """Measure the processor time of three nodes with a thousand unused groups, a node and second.

    It is that of consensus alone: time and network are simulated, without the transport.
    """
    nodes = _Nodes(settings.size(1000))
    nodes.run(SETTLING_SECONDS)
    quiet = sum(
        group.is_quiet for consensus, _ in nodes.nodes for group in consensus.groups.values()
    )
    seconds = max(5.0, 20 * settings.seconds)
    begin = time.process_time()
    nodes.run(seconds)
    used = time.process_time() - begin
    return Measured(100 * used / seconds / len(NODES), {"quiet_groups": quiet})


@benchmark("3 nodes: idle, share of a core a node", "%", 5.0, at_most=True)
def idle_nodes(settings: Settings) -> Measured:
    """Measure the processor time of three unused real nodes, a node and second, with heartbeats."""
    seconds = 2 * settings.seconds

    async def run(nodes: Nodes) -> float:
        async with await connect(nodes.addresses) as db:
            await db.put(b"key", b"value")
        await asyncio.sleep(min(SPEAKING_SECONDS, seconds))
        before, began = sum(nodes.processor_seconds()), time.perf_counter()
        await asyncio.sleep(seconds)
        while (used := sum(nodes.processor_seconds()) - before) < TICK_SECONDS / 2:
            await asyncio.sleep(TICK_SECONDS)
        return used / (time.perf_counter() - began)

    with started_nodes(settings.folder, 3) as nodes:
        used = asyncio.run(run(nodes))
    return Measured(100 * used / len(NODES))
