"""The nodes of a cluster with three ranges change: each range gets the members that are wanted."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from postroom.ranges.calls import LeasedWrites
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.nodes import NodeDescriptor, Nodes, nodes_key
from postroom.server.membership import has_joined
from tests.server.split_cluster import SplitCluster, splits_by_hand
from tests.server.test_incoming_ranges import filled, no_group

RANGES = (1, 2, 3)


@pytest.fixture
def cluster() -> Iterator[SplitCluster]:
    """Return three nodes with three ranges, each of which leads one."""
    with splits_by_hand():
        made = filled(SplitCluster())
        made.split(b"m")
        made.split(b"t", 3, range_id=2)
        for range_id in RANGES:
            made.lead(range_id, range_id)
        made.settle(*RANGES)
        want(made, 1, 2, 3)
        yield made
        made.close()


def want(cluster: SplitCluster, *node_ids: int, retired: tuple[int, ...] = ()) -> None:
    """Have the record of the nodes name these."""
    nodes = tuple(
        NodeDescriptor(each, f"host{each}:1", bytes([each]) * 16, each in retired)
        for each in sorted((*node_ids, *retired))
    )
    hosted = cluster.hosted(cluster.awaited_leader(ROOT_ID), ROOT_ID)
    assert hosted is not None
    record = msgspec.msgpack.encode(Nodes(b"c" * 16, 100, nodes))
    outcomes = list[object]()
    command = LeasedWrites(hosted.replica.lease.sequence, {nodes_key(ROOT_ID): record})
    hosted.group.propose(command, None, outcomes.append)
    cluster.until(lambda: outcomes)


def voters(cluster: SplitCluster) -> list[tuple[object, ...]]:
    """Return the voters of each range, as its leader has them; joint ones are none."""
    found = []
    for range_id in RANGES:
        hosted = cluster.hosted(cluster.awaited_leader(range_id), range_id)
        assert hosted is not None
        group = hosted.group
        found.append(() if group.is_joint else tuple(sorted(group.members)))
    return found


def is_forgotten(cluster: SplitCluster, node_id: int) -> bool:
    nodes = cluster.nodes[cluster.awaited_leader(ROOT_ID)].nodes
    return nodes is not None and nodes.by_id(node_id) is None


def joined(cluster: SplitCluster, node_id: int) -> bool:
    node = cluster.nodes[node_id]
    nodes = node.nodes
    return nodes is not None and node.replicas.have_every_key and all(
        has_joined(node_id, group, nodes) for group in node.groups()
    )  # fmt: skip


def test_a_node_that_is_added_joins_every_range(cluster: SplitCluster) -> None:
    cluster.start(4)
    want(cluster, 1, 2, 3, 4)
    cluster.until(lambda: joined(cluster, 4))
    assert voters(cluster) == [(1, 2, 3, 4)] * 3
    cluster.settle(*RANGES)


def test_a_node_has_not_joined_before_it_has_all_keys(cluster: SplitCluster) -> None:
    cluster.start(4)
    cluster.blocking = [no_group(3, 4)]
    want(cluster, 1, 2, 3, 4)
    cluster.until(lambda: cluster.hosted(4, 2) and cluster.is_level(1, 2))
    cluster.run(3.0)
    assert not joined(cluster, 4)
    cluster.blocking.clear()
    cluster.until(lambda: joined(cluster, 4))


def test_a_node_that_is_removed_leaves_every_range_before_it_is_forgotten(
    cluster: SplitCluster,
) -> None:
    cluster.start(4)
    want(cluster, 1, 2, 3, 4)
    cluster.until(lambda: joined(cluster, 4))
    cluster.blocking = [no_group(3, 1), no_group(3, 2)]
    want(cluster, 1, 2, 3, retired=(4,))
    cluster.run(3.0)
    assert not is_forgotten(cluster, 4), "range 3 cannot let it go"
    left_half = cluster.hosted(cluster.awaited_leader(2), 2)
    assert left_half is not None
    assert 4 in left_half.group.members, "it may need the entry of the split"
    cluster.blocking.clear()
    cluster.until(lambda: is_forgotten(cluster, 4))
    assert voters(cluster) == [(1, 2, 3)] * 3


def test_a_node_takes_the_place_of_another_one_in_every_range(cluster: SplitCluster) -> None:
    """The node that is retired leads one of them."""
    cluster.start(4)
    want(cluster, 1, 2, 4, retired=(3,))
    cluster.until(lambda: is_forgotten(cluster, 3))
    assert voters(cluster) == [(1, 2, 4)] * 3
    cluster.crash(3)
    for key in (b"a", b"n", b"z"):
        cluster.put(key, b"later")
    cluster.settle(*RANGES)


def test_a_node_that_is_dead_is_replaced_in_every_range(cluster: SplitCluster) -> None:
    cluster.crash(3)
    cluster.start(4)
    want(cluster, 1, 2, 4, retired=(3,))
    cluster.until(lambda: is_forgotten(cluster, 3))
    assert voters(cluster) == [(1, 2, 4)] * 3
    cluster.settle(*RANGES)


def test_a_root_that_hears_no_leader_of_a_range_forgets_no_node(cluster: SplitCluster) -> None:
    node = cluster.nodes[1]
    assert not node.may_have_member(9)
    cluster.crash(2)
    cluster.crash(3)
    cluster.until(lambda: any(group.leader is None for group in node.groups()))
    assert node.may_have_member(9)
