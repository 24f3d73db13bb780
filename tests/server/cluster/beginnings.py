"""Clusters that form in memory: nodes start in any order, crash at any write, and lose disks.

Nothing of a node is real here but the decision and what it writes. A cluster has a leader as long
as a majority of its members runs and the founder's state has got around. Members of a running
cluster get that state at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random  # noqa: TID251 (seeded)

import msgspec

from postroom.errors import Invalid
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.nodes import NodeDescriptor, Nodes, founding_writes
from postroom.server.cluster import formation
from postroom.server.cluster.formation import (
    Become,
    FoundCluster,
    Join,
    SelfDescription,
    WaitDecision,
    decide,
)
from postroom.server.opening import read_store

FIRST = ("a:1", "b:1", "c:1")
LATER = ("d:1", "e:1")


class Crash(Exception):
    """The process ends here; what was written is there."""


@dataclass
class Machine:
    """One address, its disk, and whether a process runs on it."""

    address: str
    first: tuple[str, ...]
    engine: MemoryEngine = field(default_factory=MemoryEngine)
    runs: bool = False
    store_id: bytes = b""

    @property
    def node_id(self) -> int:
        record = read_store(self.engine)
        return 0 if record is None else record.node_id

    @property
    def cluster_id(self) -> bytes:
        record = read_store(self.engine)
        return b"" if record is None else record.cluster_id

    def nodes(self) -> Nodes | None:
        return None if read_store(self.engine) is None else formation.known_nodes(self.engine)

    def has_state(self) -> bool:
        return self.engine.get(formation.nodes_key(ROOT_ID)) is not None

    def hello(self) -> SelfDescription:
        return SelfDescription(self.store_id, self.first, self.nodes())


class Beginning:
    """The machines, and their histories."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.machines = {each: Machine(each, FIRST) for each in FIRST}
        later_list = random.choice([FIRST, FIRST[:1], FIRST[1:]])
        self.machines |= {each: Machine(each, later_list) for each in LATER}
        if random.random() < 0.3:  # somebody is told another list at first
            self.machines[random.choice(FIRST)].first = tuple(random.sample(FIRST, 2))
        self.founded: set[bytes] = set()
        self.held: dict[tuple[bytes, int], bytes] = {}
        self.crash_chance = 0.1
        self.wipes, self.hears = 1, 0.9

    # --- events

    def disturb(self, steps: int) -> None:
        for _ in range(steps):
            machine = self.random.choice(list(self.machines.values()))
            what = self.random.random()
            if not machine.runs:
                self._guarded(machine, self._start)
            elif what < 0.1:
                machine.runs = False
            elif what < 0.13 and self._may_wipe(machine):
                self.wipes -= 1
                machine.engine, machine.runs = MemoryEngine(), False
            else:
                self._guarded(machine, self._step)
            self._check()

    def heal(self) -> None:
        self.crash_chance, self.hears = 0.0, 1.0
        for machine in self.machines.values():
            machine.first = FIRST if machine.address in FIRST else machine.first
        for _ in range(12):
            for machine in self.machines.values():
                self._guarded(machine, self._step if machine.runs else self._start)
                self._check()

    def _may_wipe(self, machine: Machine) -> bool:
        """Return whether this disk may be wiped: it must not be the only one that has the state."""
        holders = [each for each in self.machines.values() if each.has_state()]
        return self.wipes > 0 and (not machine.has_state() or len(holders) > 2)

    def _guarded(self, machine: Machine, act: object) -> None:
        try:
            act(machine)  # type: ignore[operator]
        except Crash:
            machine.runs = False

    def _start(self, machine: Machine) -> None:
        identity = formation.read_identity(machine.engine)
        if identity is None:
            store_id = self.random.randbytes(16)
            self._write(machine, formation.identity_writes(store_id))
        else:
            store_id = identity.store_id
        machine.store_id, machine.runs = store_id, True

    def _step(self, machine: Machine) -> None:
        if machine.nodes() is not None:
            self._follow(machine)
            return
        heard = {
            each: self.machines[each].hello()
            for each in machine.first
            if each != machine.address
            and self.machines[each].runs
            and self.random.random() < self.hears
        }
        name = self.random.randbytes(16)
        decision = decide(machine.address, machine.store_id, machine.first, heard, name)
        match decision:
            case WaitDecision():
                pass
            case FoundCluster():
                self.founded.add(decision.nodes.cluster_id)
                self._write(machine, formation.found_writes(decision.nodes))
            case Become():
                self._write(machine, formation.become_writes(decision.node_id, decision.nodes))
            case Join():
                self._join(machine, decision.addresses)

    def _write(self, machine: Machine, writes: WriteSet) -> None:
        """Write, or end the process before the write, or right after it."""
        if self.random.random() < self.crash_chance:
            raise Crash
        machine.engine.write(writes, sync=True)
        if self.random.random() < self.crash_chance:
            raise Crash

    # --- a cluster that runs

    def _leader(self, cluster_id: bytes) -> Machine | None:
        """Return the machine with the newest state, if a majority of the members has a process."""
        holders = [
            m for m in self.machines.values() if m.cluster_id == cluster_id and m.has_state()
        ]
        if not holders:
            return None
        newest = max(holders, key=lambda each: each.nodes().next_node_id)  # type: ignore[union-attr]
        nodes = newest.nodes()
        assert nodes is not None
        members = [each for each in nodes.nodes if self._counts(each, cluster_id)]
        up = [each for each in members if self._runs(each, cluster_id)]
        return newest if newest.runs and 2 * len(up) > len(members) else None

    def _counts(self, node: NodeDescriptor, cluster_id: bytes) -> bool:
        """Return whether a machine votes: a founder, or one that was admitted later."""
        has_come = node.node_id <= len(FIRST) or (cluster_id, node.node_id) in self.held
        return has_come and not node.retired

    def _runs(self, node: NodeDescriptor, cluster_id: bytes) -> bool:
        machine = self.machines[node.address]
        is_it = machine.cluster_id == cluster_id and machine.node_id == node.node_id
        return machine.runs and is_it

    def _follow(self, machine: Machine) -> None:
        """Bring the leader's state to a machine."""
        leader = self._leader(machine.cluster_id)
        if leader is not None and leader is not machine:
            nodes = leader.nodes()
            assert nodes is not None
            machine.engine.write(founding_writes(ROOT_ID, nodes), sync=True)

    def _join(self, machine: Machine, addresses: tuple[str, ...]) -> None:
        asked = [self.machines[each] for each in addresses if self.machines[each].runs]
        leaders = [self._leader(each.cluster_id) for each in asked if each.cluster_id]
        leader = next((each for each in leaders if each is not None), None)
        if leader is None:
            return
        nodes = leader.nodes()
        assert nodes is not None
        known = nodes.by_store(machine.store_id)
        if known is not None and known.retired:
            raise Invalid("removed")
        if known is None:
            known = NodeDescriptor(nodes.next_node_id, machine.address, machine.store_id)
            others = tuple(
                msgspec.structs.replace(each, retired=True) if each.address == machine.address
                else each for each in nodes.nodes
            )  # fmt: skip
            nodes = Nodes(nodes.cluster_id, nodes.next_node_id + 1, (*others, known))
            for each in self.machines.values():  # the majority that runs
                if each.runs and each.cluster_id == nodes.cluster_id:
                    each.engine.write(founding_writes(ROOT_ID, nodes), sync=True)
        self._write(machine, formation.become_writes(known.node_id, nodes))

    # --- checks

    def clusters(self) -> set[bytes]:
        """Return the ids of the clusters that a running node is in."""
        return {machine.cluster_id for machine in self.machines.values() if machine.runs}

    def _check(self) -> None:
        """Check that there are never two clusters with a state, and never one node on two disks."""
        with_state = {each.cluster_id for each in self.machines.values() if each.has_state()}
        assert len(with_state) <= 1, "two clusters"
        for machine in self.machines.values():
            if machine.node_id:
                name = (machine.cluster_id, machine.node_id)
                identity = formation.read_identity(machine.engine)
                assert identity is not None
                holder = self.held.setdefault(name, identity.store_id)
                assert holder == identity.store_id, f"node {name[1]} is on two disks"
