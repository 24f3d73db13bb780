"""A leader that cannot read a part of its data: others serve it, and it leads no more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.engine import BlockDamaged
from postroom.kv.memory import MemoryEngine
from postroom.server.assembly import NodeOptions
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine
from tests.sim.disks import write_gathered

BAD: bytes = keys.head_key(b"bad")


def cluster_of(size: int) -> Cluster:
    options = NodeOptions(disk_reserve_bytes=0, lease_seconds=1.0)
    made = Cluster(1, [options] * size, [(1.0, 0.0, 0.0)] * size)
    for machine in made.machines:
        assert machine.open()
    return made


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = cluster_of(3)
    yield made
    made.abandon()


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    """Return a function that damages the block of the key ``bad`` on a machine's disk."""
    damaged: list[Any] = []
    get = MemoryEngine.get

    def guarded(engine: MemoryEngine, key: bytes) -> bytes | None:
        if key == BAD and engine.disk in damaged:
            raise BlockDamaged("the store is damaged: a block cannot be read")
        return get(engine, key)

    monkeypatch.setattr(MemoryEngine, "get", guarded)

    def damages(machine: Machine) -> None:
        assert machine.node is not None
        write_gathered(machine.node)
        machine.node.root.replica.cache.clear()
        damaged.append(machine.disk)

    return damages


def leader_of(cluster: Cluster) -> Machine:
    leader = cluster.leader()
    assert leader is not None
    return leader


def connected(cluster: Cluster) -> Any:
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")
    cluster.run(db.put(b"bad", b"value"), "it is written")
    cluster.run(db.put(b"good", b"value"), "it is written")
    return db


def test_another_one_answers(
    cluster: Cluster, damage: Callable[[Machine], None], caplog: pytest.LogCaptureFixture
) -> None:
    db = connected(cluster)
    bad = leader_of(cluster)
    damage(bad)
    with caplog.at_level(logging.ERROR):
        assert cluster.run(db.get(b"bad"), "another one answers", 5.0) == b"value"
    assert leader_of(cluster) is not bad
    assert [record.message[:36] for record in caplog.records] == [
        "this node does not lead any more: re"
    ]
    assert bad.node is not None
    assert "cannot be read" in bad.node.describe().damage
    cluster.run(db.put(b"bad", b"again"), "it is written")
    cluster.run(db.put(b"good", b"again"), "it is written")
    cluster.agenda.run(3.0)
    assert not bad.node.root.replica.group.is_leader


def test_a_write_that_must_read_it_goes_elsewhere_too(
    cluster: Cluster, damage: Callable[[Machine], None]
) -> None:
    db = connected(cluster)
    bad = leader_of(cluster)
    damage(bad)
    cluster.run(db.put(b"bad", b"new"), "it is written", 5.0)
    assert cluster.run(db.get(b"bad"), "it is read") == b"new"
    assert leader_of(cluster) is not bad


def test_a_damaged_node_does_not_lead_after_a_restart(
    cluster: Cluster, damage: Callable[[Machine], None]
) -> None:
    db = connected(cluster)
    bad = leader_of(cluster)
    damage(bad)
    cluster.run(db.get(b"bad"), "another one answers", 5.0)
    bad.crash(power=True)
    assert bad.open()
    assert bad.node is not None
    assert "cannot be read" in bad.node.describe().damage
    cluster.run(db.put(b"good", b"again"), "it follows")
    leader = leader_of(cluster)
    assert leader.node is not None
    leader.node.hand_over(bad.node_id)
    cluster.agenda.run(5.0)
    assert not bad.node.root.replica.group.is_leader, "not even when it is asked to"
    cluster.run(db.put(b"good", b"and again"), "all goes on")


def test_a_damaged_node_alone_answers_for_readable_keys(
    damage: Callable[[Machine], None],
) -> None:
    cluster = cluster_of(1)
    try:
        db = connected(cluster)
        damage(leader_of(cluster))
        with pytest.raises(StoreCorrupted, match="cannot be read"):
            cluster.run(db.get(b"bad"), "it is refused")
        assert cluster.run(db.get(b"good"), "it is read") == b"value"
    finally:
        cluster.abandon()


def test_a_node_that_is_alone_does_not_give_its_lease_back_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(1)
    try:
        db = connected(cluster)
        node = leader_of(cluster).node
        cluster.run(db.put(b"key", b"value"), "it serves")
        with caplog.at_level(logging.INFO, "postroom.server.node"):
            leader_of(cluster).act(node.hand_over)
            cluster.agenda.run(5.0)
        assert caplog.messages == [], "it has not ceased to serve"
        assert node.serves
    finally:
        cluster.abandon()
