"""The record of the nodes: who is let in, moves, or has gone."""

from __future__ import annotations

import msgspec
import pytest

from postroom.errors import Invalid
from postroom.kv.memory import MemoryEngine
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.nodes import (
    AdmitNode,
    Admitted,
    NodeDescriptor,
    NodeRecords,
    Nodes,
    founding_writes,
)
from postroom.ranges.registry import Registry

CLUSTER = b"cluster".ljust(16)


def store(node_id: int) -> bytes:
    return b"store %010d" % node_id


def node(node_id: int, address: str = "", *, retired: bool = False) -> NodeDescriptor:
    return NodeDescriptor(node_id, address or f"host{node_id}:1", store(node_id), retired)


def admit(request: AdmitNode, *nodes: NodeDescriptor) -> Admitted:
    """What comes of a request, where ``nodes`` are the nodes and three numbers were given."""
    engine, registry = MemoryEngine(), Registry()
    NodeRecords(1).register(registry)
    engine.write(founding_writes(1, Nodes(CLUSTER, 4, nodes)), sync=True)
    ctx = Evaluation(engine, 1, 0)
    ctx.begin(1)
    admission: Admitted = registry.commands[AdmitNode](ctx, request)
    return admission


def test_a_new_store_gets_a_number_that_nobody_had() -> None:
    admission = admit(AdmitNode(store(9), "host9:1"), node(1), node(3))
    assert admission.node_id == 4
    assert admission.nodes == Nodes(
        CLUSTER, 5, (node(1), node(3), NodeDescriptor(4, "host9:1", store(9)))
    )


def test_a_store_that_is_known_moves() -> None:
    admission = admit(AdmitNode(store(2), "elsewhere:1", 2), node(1), node(2))
    assert admission == Admitted(2, Nodes(CLUSTER, 4, (node(1), node(2, "elsewhere:1"))))


def test_whose_disk_is_lost_is_replaced_at_its_address() -> None:
    admission = admit(AdmitNode(store(9), "host2:1"), node(1), node(2))
    assert [(each.node_id, each.retired) for each in admission.nodes.nodes] == [
        (1, False), (2, True), (4, False),
    ]  # fmt: skip


def test_who_is_retired_and_not_gone_yet_may_move() -> None:
    """Without its vote it might never be gone."""
    admission = admit(AdmitNode(store(2), "elsewhere:1", 2), node(1), node(2, retired=True))
    moved = node(2, "elsewhere:1", retired=True)
    assert admission == Admitted(2, Nodes(CLUSTER, 4, (node(1), moved)))


def test_who_is_gone_does_not_come_back_by_moving() -> None:
    """As a store that nobody knows it would get a new number, and act as the old one."""
    with pytest.raises(Invalid, match="node 2 has been removed for good"):
        admit(AdmitNode(store(2), "elsewhere:1", 2), node(1))


def test_asking_again_changes_nothing() -> None:
    request = AdmitNode(store(2), "host2:1", 2)
    assert admit(request, node(1), node(2)) == Admitted(2, Nodes(CLUSTER, 4, (node(1), node(2))))
    assert msgspec.structs.replace(request, node_id=0) == AdmitNode(store(2), "host2:1")
