"""Nodes that come and go: disks that are lost, machines that are added, nodes that are retired.

A machine whose disk was wiped has forgotten what its node had promised, so it must not go on as
that node. It asks for admission and gets a new number, as one that is added does. The membership
service on the leaseholder feeds it, counts it when it has caught up, and removes its predecessor.
One machine at a time loses its disk, until that is done: a minority.

A node that is retired, perhaps the one that leads, perhaps while it or others are down, goes on for
a while after it was removed: nobody tells it. It may not be in anybody's way. Machines are added
and retired whatever else is under way; some are gone for good before they are retired.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any, Final

import msgspec

from postroom.kv.memory import MemoryDisk
from postroom.ranges.nodes import AdmitNode, Admitted, RetireNode
from postroom.server.cluster.formation import FIRST_INDEX, become_writes
from tests.sim.clock import MachineClock
from tests.sim.cluster.asking import Asked
from tests.sim.cluster.cluster import Cluster, address_of, settle
from tests.sim.cluster.machine import Machine

STAYING_MIN_WITH_LOSSES: Final = 3
"""The fewest machines that stay: a lost disk must not be half of those that count."""
MACHINES_MAX: Final = 6
MACHINES_MIN: Final = 3
"""The smallest number of nodes: of fewer, a lost one would be half of those that count."""
NOTICED_SECONDS: Final = 1.5
"""The time by which the leader knows of a dead machine. One that is removed before is bad luck."""


class Joining:
    """Machines that join and leave a simulated cluster.

    Args:
        cluster: what grows and shrinks.
        randomness: for the ids of disks, and when who was removed ends.
        retry_seconds: how long a machine waits before it asks again.

    Attributes:
        leaving: the machines whose nodes are retired and that still run.
        staying_min: how many voters stay at least, whoever is retired.
    """

    def __init__(self, cluster: Cluster, randomness: Random, retry_seconds: float) -> None:
        self._cluster = cluster
        self._random = randomness
        self._retry_seconds = retry_seconds
        self.leaving: list[Machine] = []
        self.staying_min = 1
        self._died_at = -math.inf

    # --- losing a disk

    def lose_disk(self, machine: Machine) -> bool:
        """Empty a machine's disk; return false if another one is being replaced."""
        must_stay = machine in self.leaving or len(self._cluster.machines) < MACHINES_MIN
        if must_stay or not (self._has_begun() and self.is_settled()):
            return False
        if machine.node is not None:
            machine.crash(power=False)
        self._cluster.overseer.wiped.add(machine.node_id)
        machine.disk = MemoryDisk()
        machine.is_homeless = True
        self._ask(machine, self._random.randbytes(16))
        return True

    def is_settled(self) -> bool:
        """Return whether the members are exactly the nodes that live on the machines."""
        leader = self._cluster.leader()
        if (
            leader is None
            or leader.node is None
            or any(machine.is_homeless for machine in self._cluster.machines)
        ):
            return False
        node = leader.node
        everybody = sorted(machine.node_id for machine in self._cluster.machines)
        group = node.root.replica.group
        known = everybody  # an embedded store has no record of nodes
        if node.nodes is not None:
            known = [each.node_id for each in node.nodes.nodes]
        is_committed = group.applied_index >= group.core.journal.members_index
        is_wanted = sorted(group.members) == everybody == known and not group.learners
        return is_committed and is_wanted

    def _has_begun(self) -> bool:
        """Return whether other nodes have the founder's state, of which there was one copy."""
        disks = [machine.disk for machine in self._cluster.machines]
        durable_logs = self._cluster.overseer.durable_logs
        return all(durable_logs.of(disk).begins_after >= FIRST_INDEX for disk in disks)

    # --- adding and retiring

    def add_node(self) -> bool:
        """Add one more machine; return false if there are enough."""
        cluster = self._cluster
        if len(cluster.machines) >= MACHINES_MAX:
            return False
        like = self._random.choice(cluster.machines)
        clock = MachineClock(cluster.agenda, self._random.uniform(0.98, 1.02), 0.0, 0.00001)
        machine = cluster.add_machine(msgspec.structs.replace(like.options, node_id=0), clock)
        machine.in_parts, machine.on_crash = like.in_parts, like.on_crash
        machine.is_homeless = True
        self._ask(machine, self._random.randbytes(16))
        return True

    def retire_node(self, machine: Machine) -> bool:
        """Let a machine's node leave for good; return false if it must stay, or others are too few.

        Machine 1 stays: a client that is cut off while all that it knows of leave is lost.
        """
        if self._cluster.agenda.now < self._died_at + NOTICED_SECONDS:
            return False
        staying = [each for each in self._cluster.machines if self._counts(each)]
        must_stay = machine not in staying or machine.name == "machine 1"
        if must_stay or len(staying) <= self.staying_min:
            return False
        self.leaving.append(machine)
        self._retire(machine, machine.node_id)
        return True

    def die(self, machine: Machine) -> bool:
        """Remove a machine for good; after a while its node is removed, too.

        Returns:
            False if others come or go, or it must stay.
        """
        cluster = self._cluster
        must_stay = machine.name == "machine 1" or len(cluster.machines) < MACHINES_MIN
        if must_stay or self.leaving or not (self._has_begun() and self.is_settled()):
            return False
        machine.is_homeless = True
        if machine.node is not None:
            machine.crash(power=True)
        self._died_at = cluster.agenda.now
        wait = NOTICED_SECONDS * (1 + 2 * self._random.random())

        def remove() -> None:
            self.leaving.append(machine)
            self._retire(machine, machine.node_id)

        cluster.agenda.after(wait, remove)
        return True

    def _counts(self, machine: Machine) -> bool:
        """Return whether its node votes, and is to stay."""
        leader = self._cluster.leader()
        if leader is None or leader.node is None:
            return False
        voters = leader.node.root.replica.group.members
        is_there = machine not in self.leaving and not machine.is_homeless
        return is_there and machine.node_id in voters

    def _retire(self, machine: Machine, node_id: int) -> None:
        """Ask until it is out, as 'postroom remove-node' does."""
        if self._is_out(node_id):
            wait = self._retry_seconds * self._random.choice([0, 3, 30])
            self._cluster.agenda.after(wait, lambda: self._take_away(machine))
        else:
            self._at_leaseholder(RetireNode(node_id), lambda _: None)
            self._cluster.agenda.after(self._retry_seconds, lambda: self._retire(machine, node_id))

    def _is_out(self, node_id: int) -> bool:
        """Return whether the leader has forgotten it, and that can not be undone."""
        leader = self._cluster.leader()
        if leader is None or leader.node is None or leader.node.nodes is None:
            return False
        group = leader.node.root.replica.group
        is_committed = group.applied_index >= group.core.journal.members_index
        is_member = node_id in (*group.members, *group.learners)
        return is_committed and not is_member and leader.node.nodes.by_id(node_id) is None

    def _take_away(self, machine: Machine) -> None:
        self.leaving.remove(machine)
        self._cluster.machines.remove(machine)
        machine.is_homeless = True
        if machine.node is not None:
            machine.crash(power=False)
        self._cluster.overseer.seen["nodes taken away"] += 1

    # --- coming back

    def _ask(self, machine: Machine, store_id: bytes) -> None:
        request = AdmitNode(store_id, address_of(machine.name))

        def told(admission: Admitted | None) -> None:
            if machine.is_homeless and admission is not None:
                self._admitted(machine, admission)

        self._at_leaseholder(request, told)
        self._cluster.agenda.after(
            self._retry_seconds,
            lambda: self._ask(machine, store_id) if machine.is_homeless else None,
        )

    def _admitted(self, machine: Machine, admission: Admitted) -> None:
        machine.is_homeless = False
        machine.repair_disk()
        settle(machine, become_writes(admission.node_id, admission.nodes), admission.node_id)
        self._cluster.overseer.seen["nodes admitted"] += 1
        self._cluster.agenda.after(self._retry_seconds, lambda: self._open(machine))

    def _open(self, machine: Machine) -> None:
        if machine.node is None and not machine.open():
            self._cluster.agenda.after(self._retry_seconds, lambda: self._open(machine))

    def _at_leaseholder(self, request: Any, told: Callable[[Any], object]) -> None:
        machine = self._cluster.leader()  # its lease may have lapsed; the request renews it
        node = None if machine is None else machine.node
        if machine is not None and node is not None and node.failed is None:
            machine.act(lambda: node.replicas.submit(Asked(request, told)))
