"""Disks that are lost, and nodes that are replaced: an empty disk comes back as a new node.

A machine whose disk was wiped has forgotten what its node had promised, so it must not go on as
that node. It asks for admission and gets a new number; the keeper on the leaseholder feeds it,
counts it when it has caught up, and removes its predecessor. One machine at a time loses its disk,
until that is done: a minority.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any

from postroom.kv.memory import MemoryDisk
from postroom.ranges.calls import Call
from postroom.ranges.nodes import Admission, AdmitNode
from postroom.server.cluster.formation import FIRST_INDEX, become_writes
from tests.sim.cluster.cluster import Cluster, address_of, settle
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.replica_rules import applied_index


class _Asked(Call):
    """A request at one node, asked in passing."""

    __slots__ = ("_told",)

    def __init__(self, request: Any, told: Callable[[Any], object]) -> None:
        super().__init__(request)
        self._told = told

    def complete(self, result: Any, error: BaseException | None) -> None:
        self._told(None if error is not None else result)


class Joining:
    """See the module.

    Args:
        retry_seconds: how long a machine waits before it asks again.
    """

    def __init__(self, cluster: Cluster, randomness: Random, retry_seconds: float) -> None:
        self._cluster = cluster
        self._random = randomness
        self._retry_seconds = retry_seconds

    # --- losing a disk

    def lose_disk(self, machine: Machine) -> bool:
        """A machine's disk is empty from now on; false if another one is being replaced."""
        if not (self._has_begun() and self.is_settled()):
            return False
        if machine.node is not None:
            machine.crash(power=False)
        self._cluster.overseer.raft.wiped.add(machine.node_id)
        machine.disk = MemoryDisk()
        machine.is_homeless = True
        self._ask(machine, self._random.randbytes(16))
        return True

    def is_settled(self) -> bool:
        """Whether the members are exactly the nodes that live on the machines."""
        leader = self._cluster.leader()
        if (
            leader is None
            or leader.node is None
            or any(machine.is_homeless for machine in self._cluster.machines)
        ):
            return False
        node = leader.node
        everybody = sorted(machine.node_id for machine in self._cluster.machines)
        group = node.replica.group
        known = [] if node.nodes is None else [each.node_id for each in node.nodes.nodes]
        is_committed = group.applied_index >= group.core.journal.members_index
        is_wanted = sorted(group.members) == everybody == known and not group.learners
        return is_committed and is_wanted

    def _has_begun(self) -> bool:
        """Whether the founder's state, of which there was one copy at first, has got around."""
        disks = [machine.disk.durable for machine in self._cluster.machines]
        return all(applied_index(disk) >= FIRST_INDEX for disk in disks)

    # --- coming back

    def _ask(self, machine: Machine, store_id: bytes) -> None:
        request = AdmitNode(store_id, address_of(machine.name))

        def told(admission: Admission | None) -> None:
            if machine.is_homeless and admission is not None:
                self._admitted(machine, admission)

        self._at_leaseholder(request, told)
        self._cluster.agenda.after(
            self._retry_seconds,
            lambda: self._ask(machine, store_id) if machine.is_homeless else None,
        )

    def _admitted(self, machine: Machine, admission: Admission) -> None:
        machine.is_homeless = False
        machine.repair_disk()
        settle(machine, become_writes(admission.node_id, admission.nodes), admission.node_id)
        self._cluster.overseer.seen["nodes admitted"] += 1
        self._cluster.agenda.after(self._retry_seconds, lambda: self._open(machine))

    def _open(self, machine: Machine) -> None:
        if machine.node is None and not machine.open():
            self._cluster.agenda.after(self._retry_seconds, lambda: self._open(machine))

    def _at_leaseholder(self, request: Any, told: Callable[[Any], object]) -> None:
        for machine in self._cluster.machines:
            node = machine.node
            if node is not None and node.failed is None and node.replica.serves:
                machine.act(lambda node=node: node.submit(_Asked(request, told)))  # type: ignore[misc]
                return
