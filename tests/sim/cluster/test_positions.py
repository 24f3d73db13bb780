"""The position of a reader outlives leaders, restarts and disks: what came after it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import SnapshotTooOld
from postroom.raft.interface import RaftOptions
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from postroom.server.assembly import NodeOptions
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine

PATIENCE_SECONDS = 20.0
OLD_SECONDS = RECORD_SECONDS + 15.0
KEY = b"key"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    options = NodeOptions(
        disk_reserve_bytes=0, lease_seconds=1.0, gc_ttl_seconds=1.0,
        raft=RaftOptions(log_entries_max=4),
    )  # fmt: skip
    cluster = Cluster(1, [options] * 3, [(1.0, 0.0, 0.0)] * 3)
    for machine in cluster.machines:
        assert machine.open()
    cluster.agenda.run(3.0)
    yield cluster
    cluster.abandon()


@pytest.fixture
def db(cluster: Cluster) -> Any:
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")
    return db


def leader(cluster: Cluster) -> Machine:
    found = cluster.leader()
    assert found is not None
    return found


def write(cluster: Cluster, db: Any, *values: bytes) -> None:
    for value in values:
        cluster.run(db.put(KEY, value), "a put", PATIENCE_SECONDS)


def hand_over(cluster: Cluster, to: Machine) -> None:
    """Have the leader hand over to a node that has caught up, which it may not have done yet."""
    cluster.agenda.run(5.0)
    old = leader(cluster)
    assert old.node is not None
    group = old.node.root.replica.group
    old.act(lambda: group.transfer_leadership(to.node_id))
    cluster.agenda.run(5.0)


def read_after(cluster: Cluster, db: Any, at: int) -> list[bytes]:
    found = cluster.run(db.bulk.recent_changes(b"", None, at), "changes are read", PATIENCE_SECONDS)
    return [each.value for each in found.changes]


def test_without_a_position_what_was_overwritten_is_collected(cluster: Cluster, db: Any) -> None:
    """If it were not, the test below could not fail."""
    write(cluster, db, b"0")
    at = cluster.run(db.now(), "the time")
    write(cluster, db, b"1", b"2")
    cluster.agenda.run(OLD_SECONDS)
    with pytest.raises(SnapshotTooOld):
        read_after(cluster, db, at)


def test_a_position_outlives_leaders_restarts_and_disks(cluster: Cluster, db: Any) -> None:
    write(cluster, db, b"0")
    at = cluster.run(db.now(), "the time")
    cluster.run(db.keep_position("reader", at), "a position is kept", PATIENCE_SECONDS)
    write(cluster, db, b"1", b"2")
    cluster.agenda.run(OLD_SECONDS)

    first = leader(cluster)
    first.crash(power=True)
    cluster.agenda.run_until(
        lambda: cluster.leader() not in {None, first}, "another one leads", PATIENCE_SECONDS
    )
    write(cluster, db, b"3", *[b"4"] * 10)
    cluster.agenda.run(OLD_SECONDS)
    installed = cluster.overseer.seen["snapshots installed"]
    assert first.open()
    cluster.agenda.run_until(
        lambda: cluster.overseer.seen["snapshots installed"] > installed,
        "the log does not reach back, so it gets a snapshot", PATIENCE_SECONDS,
    )  # fmt: skip

    for _ in range(3):
        if cluster.leader() is not first:
            hand_over(cluster, first)
    assert leader(cluster) is first, "who has it from the snapshot leads"
    cluster.agenda.run(OLD_SECONDS)
    assert read_after(cluster, db, at) == [b"1", b"2", b"3", *[b"4"] * 10]

    later = cluster.run(db.now(), "the time")
    cluster.run(db.keep_position("reader", later), "it moves", PATIENCE_SECONDS)
    cluster.agenda.run(OLD_SECONDS)
    with pytest.raises(SnapshotTooOld):
        read_after(cluster, db, at)
    assert read_after(cluster, db, later) == []
