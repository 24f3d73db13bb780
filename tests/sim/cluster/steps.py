"""Steps of schedules: a cluster of three nodes, and what may happen to it.

A schedule tells its story with them, step by step (:mod:`.schedules`, :mod:`.range_schedules`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from postroom.server.assembly import NodeOptions
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine
from tests.sim.disks import SEGMENT_BYTES
from tests.sim.generators import closed_quietly

PATIENCE_SECONDS: Final = 20.0
"""The most that a step may take."""
LEASE_SECONDS: Final = 1.0


@contextmanager
def three_nodes(seed: int, *, segment_bytes: int = SEGMENT_BYTES, **more: Any) -> Iterator[Cluster]:
    """Run three nodes; the first one leads."""
    settings = {"disk_reserve_bytes": 0, "lease_seconds": LEASE_SECONDS, **more}
    options = NodeOptions(**settings)
    cluster = Cluster(seed, [options] * 3, [(1.0, 0.0, 0.0)] * 3)
    with closed_quietly():
        try:
            for machine in cluster.machines:
                machine.segment_bytes = segment_bytes
                assert machine.open()
            until(cluster, lambda: serves(cluster.machines[0]))
            cluster.agenda.run(2.0)
            yield cluster
        finally:
            cluster.abandon()


def client(cluster: Cluster, name: str) -> Any:
    db: Any = cluster.database(name)
    cluster.run(db._sender.connect(), "somebody answers")
    return db


def group_of(machine: Machine) -> Any:
    assert machine.node is not None
    return machine.node.root.replica.group


def log_of(machine: Machine) -> Any:
    return group_of(machine).core.journal


def has_entry(machine: Machine, index: int) -> bool:
    return machine.node is not None and log_of(machine).last_index >= index


def serves(machine: Machine) -> bool:
    return machine.node is not None and machine.node.root.replica.serves


def until(cluster: Cluster, condition: Callable[[], object]) -> None:
    cluster.agenda.run_until(condition, "the schedule goes on", PATIENCE_SECONDS)


def cut_off(cluster: Cluster, machine: Machine) -> None:
    """Cut a machine off from the other nodes; clients still reach it."""
    for other in cluster.machines:
        if other is not machine:
            cluster.network.cut(machine.name, other.name)
            cluster.network.cut(other.name, machine.name)


def held_packets(cluster: Cluster, source: Machine, target: Machine) -> Callable[[], None]:
    """Hold packets between two machines from now on; return what lets them arrive."""
    carry = cluster.network.carry
    held: list[Callable[[], object]] = []

    def slow(from_: str, to: str, arrive: Callable[[], object]) -> None:
        if (from_, to) == (source.name, target.name):
            held.append(arrive)
        else:
            carry(from_, to, arrive)

    def release() -> None:
        cluster.network.carry = carry  # type: ignore[method-assign]
        for arrive in held:
            arrive()

    cluster.network.carry = slow  # type: ignore[method-assign]
    return release


def come_to_rest(cluster: Cluster) -> None:
    """Mend everything, and check that all machines hold the same."""
    cluster.network.mend_all()
    for machine in cluster.machines:
        if machine.node is None:
            assert machine.open()
    cluster.agenda.run(5.0)
    # At this moment an entry may be on its way.
    cluster.run_until(
        lambda: len({group_of(machine).applied_index for machine in cluster.machines}) == 1,
        "all have applied the same entries",
    )
    cluster.overseer.look()
