"""Checks from outside, which see each violation that is planted in the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import PropertyMock, patch

import pytest

from postroom.kv import keys
from postroom.kv.memory import MemoryEngine
from postroom.raft.messages import Appended, Voted, encode_frame
from postroom.ranges import lease as leases
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.lease import LEASE_RECORD, RangeLease
from postroom.ranges.replica import Replica
from postroom.server.assembly import NodeOptions
from tests.sim.checkers import Broken
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.replica_rules import applied_index
from tests.sim.disks import write_gathered


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Run three nodes that have applied a few entries; nothing is wrong with them."""
    made = Cluster(1, [NodeOptions(disk_reserve_bytes=0)] * 3, [(1.0, 0.0, 0.0)] * 3)
    for machine in made.machines:
        assert machine.open()
    db = made.database("client")
    made.run(db._sender.connect(), "somebody answers")  # type: ignore[attr-defined]
    for number in range(5):
        made.run(db.put(b"key", b"%d" % number), "a put")
    made.agenda.run(2.0)
    made.overseer.look()
    yield made
    db._sender.die()  # type: ignore[attr-defined]


def leader_of(cluster: Cluster) -> Machine:
    leader = cluster.leader()
    assert leader is not None
    return leader


def followers_of(cluster: Cluster) -> list[Machine]:
    return [each for each in cluster.machines if each is not leader_of(cluster)]


def test_two_leaders_of_a_term(cluster: Cluster) -> None:
    leader, rules = leader_of(cluster), cluster.overseer.raft
    rules._leads.clear()
    rules.leaders[leader.node.root.replica.group.term] = 9  # type: ignore[union-attr]
    with pytest.raises(Broken, match="lead term"):
        cluster.overseer.acted(leader)


def test_a_leader_without_an_entry_that_was_applied(cluster: Cluster) -> None:
    rules = cluster.overseer.raft
    rules._leads.clear()
    rules.newest += 1
    with pytest.raises(Broken, match="was applied somewhere"):
        cluster.overseer.acted(leader_of(cluster))


def test_a_leader_of_an_earlier_term_need_not_have_it(cluster: Cluster) -> None:
    """Its votes were long on their way; a later leader had been elected meanwhile."""
    rules, leader = cluster.overseer.raft, leader_of(cluster)
    rules._leads.clear()
    rules.newest += 1
    rules.committed_by[rules.newest] = leader.node.root.replica.group.term + 1  # type: ignore[union-attr]
    cluster.overseer.acted(leader)


def test_a_leader_with_another_entry_than_was_applied(cluster: Cluster) -> None:
    rules, journal = cluster.overseer.raft, leader_of(cluster).node.root.replica.group.core.journal  # type: ignore[union-attr]
    rules._leads.clear()
    rules.newest = journal.last_index
    rules.applied[journal.last_index] = (77, b"")
    if journal.base_index == journal.last_index:
        journal._entries.insert(0, (b"", journal.base_index - 1, 1))
        journal.base_index -= 1
    with pytest.raises(Broken, match="has an entry of term"):
        cluster.overseer.acted(leader_of(cluster))


def test_members_that_apply_different_entries(cluster: Cluster) -> None:
    rules, machine = cluster.overseer.raft, cluster.machines[0]
    index = rules.newest
    rules.applies(machine, index, 1, {b"another": b"effect"})
    with pytest.raises(Broken, match="elsewhere it was"):
        rules.written(machine)


def test_logs_that_agree_and_differ_before(cluster: Cluster) -> None:
    for position, machine in enumerate(cluster.machines[:2]):
        journal = machine.node.root.replica.group.core.journal  # type: ignore[union-attr]
        other = b"%d" % position
        journal._entries = [(b"", 0, 0), (other, 1, 1), (b"", 2, 1)]
        journal.base_index, journal.last_index = 0, 2
    with pytest.raises(Broken, match="logs agree at 2"):
        cluster.overseer.look()


def test_an_applied_entry_that_only_a_minority_has_synced(cluster: Cluster) -> None:
    rules = cluster.overseer.raft
    rules.newest += 1
    rules.applied[rules.newest] = (1, b"")
    with pytest.raises(Broken, match="have it synced"):
        cluster.overseer.look()


@pytest.mark.parametrize(
    "message",
    [Appended(1, success=True, index=1000), Appended(50, success=True, index=1), Voted(50, True)],
)
def test_saying_what_could_be_forgotten(cluster: Cluster, message: Appended | Voted) -> None:
    frame = encode_frame([(ROOT_ID, message)])
    with pytest.raises(Broken, match="but its disk"):
        cluster.overseer.sends(followers_of(cluster)[0], 1, frame)


def test_two_that_serve(cluster: Cluster) -> None:
    everybody = patch.object(Replica, "serves", PropertyMock(return_value=True))
    with everybody, pytest.raises(Broken, match="serve at once"):
        cluster.overseer.acted(leader_of(cluster))


def test_leases_whose_timestamps_overlap(cluster: Cluster) -> None:
    rules = cluster.overseer.leases
    number, (holder, _, expiration) = max(rules.leases.items())
    early = RangeLease(number + 1, holder + 1, expiration - 1, expiration + 1)
    key = keys.record_key(ROOT_ID, LEASE_RECORD)
    machine = leader_of(cluster)
    rules.applies(machine, 1000, {key: leases.encode(early)})
    rules.crashed(machine)
    rules.written(machine)  # nothing: it was forgotten
    rules.applies(machine, 1000, {key: leases.encode(early)})
    with pytest.raises(Broken, match="starts before"):
        rules.written(machine)


def test_replicas_that_differ(cluster: Cluster) -> None:
    machines = cluster.machines
    for machine in machines:
        assert machine.node is not None
        write_gathered(machine.node)
    assert len({applied_index(each.disk.content) for each in machines}) == 1
    machines[0].close()
    engine = MemoryEngine(machines[0].disk)
    engine.write({keys.head_key(b"key"): None}, sync=True)
    engine.close()
    with pytest.raises(Broken, match="differ at entry"):
        cluster.overseer.look()


def test_the_reads_of_the_overseer_take_no_time_of_a_machine(cluster: Cluster) -> None:
    machine = leader_of(cluster)
    assert machine.node is not None
    engine, asleep_until = machine.node.engine.state, machine.asleep_until

    def look(_: Machine) -> None:
        for _ in range(1000):
            engine.get(b"")

    with patch.object(cluster.overseer, "acted", look):
        machine.act(lambda: None)
        machine.act(lambda: None)
    assert machine.asleep_until == asleep_until
