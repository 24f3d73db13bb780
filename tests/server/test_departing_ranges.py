"""Ranges that leave a node: their replicas are destroyed, and leave a tombstone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroom.kv import keys
from postroom.raft.membership import AddLearner, Change, Promote, Remove
from postroom.raft.proposals import ProposalOutcome
from postroom.raft.tombstones import Tombstone, read_tombstone
from postroom.ranges.descriptor import descriptor_key
from tests.server.split_cluster import SHORT_LOG, SplitCluster, splits_by_hand
from tests.server.test_incoming_ranges import filled, no_group


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    with splits_by_hand():
        yield


@pytest.fixture(params=[False, True], ids=["plain", "logged"])
def has_log(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def change(cluster: SplitCluster, range_id: int, asked: Change) -> None:
    """Change the members of a range."""
    outcomes = list[ProposalOutcome]()

    def is_done() -> bool:
        hosted = cluster.hosted(cluster.awaited_leader(range_id), range_id)
        assert hosted is not None
        outcomes.clear()
        hosted.group.change_members(asked, outcomes.append)
        cluster.until(lambda: outcomes)
        return outcomes == [ProposalOutcome.APPLIED]

    cluster.until(is_done)


def removed(cluster: SplitCluster, range_id: int = 2) -> int:
    """Remove node 3 from a range; return the index of the entry that did it."""
    cluster.lead(range_id, 1)
    change(cluster, range_id, Remove(3))
    group = cluster.nodes[1].replicas.hosted[range_id].group
    return group.core.journal.members_index


def tombstone(cluster: SplitCluster, range_id: int = 2) -> Tombstone | None:
    return read_tombstone(cluster.nodes[3].engine, keys.raft_log_prefix(range_id))


def is_gone(cluster: SplitCluster, range_id: int = 2) -> bool:
    """Return whether node 3 has cleared a range."""
    left = tombstone(cluster, range_id)
    return left is not None and not left.clears


def test_a_destroyed_replica_leaves_nothing_but_its_tombstone(has_log: bool) -> None:
    cluster = filled(SplitCluster(has_log=has_log))
    cluster.split(b"m")
    cluster.put(b"n", bytes(3_000_000))
    cluster.put(b"o", bytes(3_000_000))
    cluster.settle(1, 2)
    index = removed(cluster)
    before = cluster.nodes[3].replicas.hosted[2].group.core.journal
    cluster.nodes[3].departing.destroy(2, index)
    cluster.until(lambda: is_gone(cluster))
    assert tombstone(cluster) == Tombstone(index, before.term, before.vote)
    cluster.check()
    prefix = keys.raft_log_prefix(2)
    left = [key for key, _ in cluster.nodes[3].engine.iterate(prefix, keys.after_prefix(prefix))]
    assert left == [prefix + b"t"]
    assert cluster.nodes[3].replicas.by_key(b"n") is None
    cluster.put(b"n")
    cluster.close()


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_a_crash_before_every_write_while_a_replica_is_destroyed(power: bool) -> None:
    for number in range(1, 9):
        cluster = filled(SplitCluster(has_log=True, seed=number))
        cluster.split(b"m")
        cluster.put(b"n", bytes(1_500_000))
        cluster.until(lambda: cluster.is_level(1, 2))  # noqa: B023
        index = removed(cluster)
        cluster.crash_at(3, number, power=power)
        cluster.nodes[3].departing.destroy(2, index)
        cluster.run(1.0)
        is_destroyed = tombstone(cluster) is not None
        assert (cluster.hosted(3, 2) is None) is is_destroyed
        if not is_destroyed:  # it crashed before anything was written
            cluster.nodes[3].departing.destroy(2, index)
        cluster.until(lambda: is_gone(cluster))  # noqa: B023
        cluster.disks[3].at_write = None
        cluster.check()
        change(cluster, 2, AddLearner(3))
        cluster.settle(1, 2)
        cluster.close()


@pytest.mark.parametrize("seed", range(1, 5))
def test_the_data_has_gone_durably_when_the_tombstone_says_so(seed: int) -> None:
    cluster = filled(SplitCluster(has_log=True, seed=seed))
    cluster.split(b"m")
    cluster.put(b"n", bytes(1_500_000))
    cluster.until(lambda: cluster.is_level(1, 2))
    index = removed(cluster)
    cluster.nodes[3].departing.destroy(2, index)
    cluster.until(lambda: is_gone(cluster))
    cluster.disks[3]._unsynced.clear()
    cluster.crash(3, power=False)
    cluster.start(3)
    assert is_gone(cluster)
    cluster.check()
    cluster.close()


def test_the_state_goes_after_the_tombstone_is_durable() -> None:
    """Otherwise a crash could leave a log without a state."""
    cluster = filled(SplitCluster())
    cluster.split(b"m")
    cluster.settle(1, 2)
    index = removed(cluster)
    node = cluster.nodes[3]
    node.departing.destroy(2, index)
    staged = node.prepare()
    assert node.consensus.needs_sync
    assert keys.raft_log_prefix(2) + b"t" in staged
    assert not [key for key in staged if key[:1] >= keys.RANGE]
    node.finish(node.write(staged))
    assert descriptor_key(2) in node.prepare()
    cluster.nodes.pop(3)
    cluster.close()


def test_a_destroyed_replica_comes_back_by_a_snapshot(has_log: bool) -> None:
    cluster = filled(SplitCluster(SHORT_LOG, has_log=has_log))
    cluster.split(b"m")
    cluster.settle(1, 2)
    index = removed(cluster)
    cluster.nodes[3].departing.destroy(2, index)
    for number in range(20):
        cluster.put(b"n%d" % number)
    change(cluster, 2, AddLearner(3))
    cluster.settle(1, 2)
    change(cluster, 2, Promote(3))
    left = tombstone(cluster)
    assert left is not None
    assert left.least_index == index
    cluster.crash(3)
    cluster.start(3)
    cluster.put(b"n")
    cluster.settle(1, 2)
    cluster.lead(2, 3)
    cluster.put(b"n", b"under its lead")
    cluster.close()


def test_a_range_takes_no_snapshot_while_its_earlier_data_is_cleared() -> None:
    cluster = filled(SplitCluster(SHORT_LOG))
    cluster.split(b"m")
    for number in range(6):
        cluster.put(b"n%d" % number, bytes(1_500_000))
    cluster.settle(1, 2)
    index = removed(cluster)
    node = cluster.nodes[3]
    descriptor = node.replicas.by_id(2).bounds.descriptor
    node.departing.destroy(2, index)
    assert not node.may_take(2, descriptor)
    cluster.until(lambda: is_gone(cluster))
    assert node.may_take(2, descriptor)
    cluster.close()


def test_a_split_that_is_applied_late_does_not_bring_back_what_was_destroyed(has_log: bool) -> None:
    """The right half's data goes, which the left half had."""
    cluster = filled(SplitCluster(has_log=has_log))
    cluster.blocking = [no_group(1, 3)]
    cluster.split(b"m")
    cluster.put(b"n")
    index = removed(cluster)
    cluster.until(lambda: cluster.hosted(3, 2))
    cluster.nodes[3].departing.destroy(2, index)
    cluster.run(1.0)
    assert tombstone(cluster) is not None
    assert cluster.hosted(3, 1).replica.bounds.is_whole  # type: ignore[union-attr]
    cluster.blocking = [no_group(2, 3)]
    cluster.until(lambda: cluster.is_level(1))
    assert cluster.hosted(3, 2) is None
    cluster.until(lambda: is_gone(cluster))
    cluster.check()
    assert cluster.nodes[3].engine.get(descriptor_key(2)) is None
    cluster.blocking.clear()
    change(cluster, 2, AddLearner(3))
    cluster.settle(1, 2)
    cluster.close()
