"""The record of the nodes: who is let in, moves, or has gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroom.errors import AccessDenied, Invalid
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.nodes import (
    AdmitNode,
    Admitted,
    BindKey,
    NodeDescriptor,
    NodeRecords,
    Nodes,
    RebindNode,
    RetireNode,
    decode,
    founding_writes,
    nodes_key,
    secret_key,
)
from postroom.ranges.ports import Registry

CLUSTER = b"cluster".ljust(16)


def store(node_id: int) -> bytes:
    return b"store %010d" % node_id


def node(node_id: int, address: str = "", *, retired: bool = False) -> NodeDescriptor:
    return NodeDescriptor(node_id, address or f"host{node_id}:1", store(node_id), retired)


def admit(request: AdmitNode, *nodes: NodeDescriptor) -> Admitted:
    """Admit a request among ``nodes``, after three numbers were given."""
    admission: Admitted = evaluate(request, *nodes)[0]
    return admission


def evaluate(request: Any, *nodes: NodeDescriptor, secret: bytes = b"") -> tuple[Any, WriteSet]:
    """Return the answer, and what is written."""
    engine, registry = MemoryEngine(), Registry()
    NodeRecords(1).register(registry)
    engine.write(founding_writes(1, Nodes(CLUSTER, 4, nodes), secret), sync=True)
    ctx = Evaluation(engine, 1, 0)
    ctx.begin(1)
    return registry.commands[type(request)](ctx, request), ctx.writes


def test_a_new_store_gets_a_number_that_nobody_had() -> None:
    admission = admit(AdmitNode(store(9), "host9:1"), node(1), node(3))
    assert admission.node_id == 4
    assert admission.nodes == Nodes(
        CLUSTER, 5, (node(1), node(3), NodeDescriptor(4, "host9:1", store(9)))
    )


def test_a_store_that_is_known_moves() -> None:
    admission = admit(AdmitNode(store(2), "elsewhere:1", 2), node(1), node(2))
    assert admission == Admitted(2, Nodes(CLUSTER, 4, (node(1), node(2, "elsewhere:1"))))


def test_a_node_whose_disk_is_lost_is_replaced_at_its_address() -> None:
    admission = admit(AdmitNode(store(9), "host2:1"), node(1), node(2))
    assert [(each.node_id, each.retired) for each in admission.nodes.nodes] == [
        (1, False), (2, True), (4, False),
    ]  # fmt: skip


def test_a_retired_node_that_is_still_a_member_may_move() -> None:
    """Without its vote it might never be gone."""
    admission = admit(AdmitNode(store(2), "elsewhere:1", 2), node(1), node(2, retired=True))
    moved = node(2, "elsewhere:1", retired=True)
    assert admission == Admitted(2, Nodes(CLUSTER, 4, (node(1), moved)))


def test_a_removed_node_cannot_come_back_by_moving() -> None:
    """A store that nobody knows would get a new number, and act as the old one."""
    with pytest.raises(Invalid, match="node 2 has been removed for good"):
        admit(AdmitNode(store(2), "elsewhere:1", 2), node(1))


def test_asking_again_changes_nothing() -> None:
    request = AdmitNode(store(2), "host2:1", 2)
    assert admit(request, node(1), node(2)) == Admitted(2, Nodes(CLUSTER, 4, (node(1), node(2))))
    assert msgspec.structs.replace(request, node_id=0) == AdmitNode(store(2), "host2:1")


def test_a_node_that_is_retired_already_is_retired_without_a_write() -> None:
    """An administrator may ask until it is gone. Each entry would delay those that join."""
    nodes, writes = evaluate(RetireNode(2), node(1), node(2, retired=True))
    assert nodes.by_id(2).retired
    assert not writes
    assert evaluate(RetireNode(2), node(1), node(2))[1]


# --- keys -----------------------------------------------------------------------------------------

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32


def bound(node_id: int, key: bytes = OLD, following: bytes = b"", **other: Any) -> NodeDescriptor:
    made = msgspec.structs.replace(node(node_id), fingerprint=key, next_fingerprint=following)
    return msgspec.structs.replace(made, **other)


def key_of(answer: Any, node_id: int) -> tuple[bytes, bytes]:
    nodes: Nodes = answer.nodes if isinstance(answer, Admitted) else answer
    found = nodes.by_id(node_id)
    assert found is not None
    return found.fingerprint, found.next_fingerprint


def test_a_new_store_needs_an_administrators_word() -> None:
    request = AdmitNode(store(9), "host9:1", fingerprint=OTHER)
    with pytest.raises(AccessDenied, match="an administrator must vouch for it"):
        admit(request, bound(1))
    vouched = msgspec.structs.replace(request, vouched=True)
    assert key_of(admit(vouched, bound(1)), 4) == (OTHER, b"")


def test_a_node_whose_disk_is_lost_needs_the_key_of_its_address() -> None:
    request = AdmitNode(store(9), "host2:1", fingerprint=OLD)
    admission = admit(request, bound(1, OTHER), bound(2))
    assert [(each.node_id, each.retired) for each in admission.nodes.nodes] == [
        (1, False), (2, True), (4, False),
    ]  # fmt: skip
    for there in (bound(2, NEW), bound(2, b""), bound(2, retired=True), bound(2, address="a:1")):
        with pytest.raises(AccessDenied, match="is no node"):
            admit(request, bound(1), there)


def test_only_the_node_itself_moves_or_announces_a_key() -> None:
    request = AdmitNode(store(2), "elsewhere:1", 2, OTHER, NEW)
    with pytest.raises(AccessDenied, match=r"node 2 has the key sha256:6f6f.*, not sha256:7878"):
        admit(request, bound(1), bound(2))
    assert key_of(admit(msgspec.structs.replace(request, fingerprint=OLD), bound(2)), 2) == (
        OLD, NEW,
    )  # fmt: skip


def test_a_key_that_was_announced_takes_the_place_of_the_old_one() -> None:
    announced = bound(2, OLD, NEW)
    assert key_of(admit(AdmitNode(store(2), "host2:1", 2, NEW), announced), 2) == (NEW, b"")
    assert key_of(admit(AdmitNode(store(2), "host2:1", 2, OLD), announced), 2) == (OLD, NEW)
    stays = AdmitNode(store(2), "host2:1", 2, OLD, OLD)
    assert key_of(admit(stays, announced), 2) == (OLD, b""), "it has changed its mind"


def test_a_seen_key_is_bound_only_to_a_node_without_a_key() -> None:
    for there, after in (
        (bound(2, b""), (NEW, b"")),
        (bound(2, OLD, NEW), (NEW, b"")),
        (bound(2, OLD), (OLD, b"")),
        (bound(2, OLD, OTHER), (OLD, OTHER)),
    ):
        assert key_of(evaluate(BindKey(2, NEW), there)[0], 2) == after
    assert evaluate(BindKey(3, NEW), bound(2))[0] == Nodes(CLUSTER, 4, (bound(2),))


def test_a_cluster_has_one_secret() -> None:
    request = BindKey(2, NEW, b"s" * 32)
    assert evaluate(request, bound(2))[1][secret_key(1)] == b"s" * 32
    assert secret_key(1) not in evaluate(request, bound(2), secret=b"t" * 32)[1]


def test_an_administrator_gives_any_key() -> None:
    answer, writes = evaluate(RebindNode(2, NEW), bound(1), bound(2, OLD, OTHER))
    assert key_of(answer, 2) == (NEW, b"")
    assert decode(writes[nodes_key(1)]) == answer
    with pytest.raises(Invalid, match="there is no node 3"):
        evaluate(RebindNode(3, NEW), bound(2))


def test_removing_a_node_again_changes_nothing_also_when_it_has_left() -> None:
    retired, writes = evaluate(RetireNode(3), node(1), node(3))
    assert retired.nodes == (node(1), node(3, retired=True))
    assert decode(writes[nodes_key(1)]) == retired
    assert evaluate(RetireNode(3), *retired.nodes)[0] == retired
    assert evaluate(RetireNode(3), node(1)) == (Nodes(CLUSTER, 4, (node(1),)), {})
    for never_given in (0, 4):
        with pytest.raises(Invalid, match=f"there is no node {never_given}"):
            evaluate(RetireNode(never_given), node(1))


def test_without_tls_nothing_is_asked_for_and_keys_stay() -> None:
    assert key_of(admit(AdmitNode(store(2), "elsewhere:1", 2), bound(2, OLD, NEW)), 2) == (OLD, NEW)
    assert key_of(admit(AdmitNode(store(9), "host9:1"), bound(2)), 4) == (b"", b"")


def test_a_record_of_before_is_read() -> None:
    before = msgspec.msgpack.encode([CLUSTER, 3, [[2, "host2:1", store(2), False]]])
    assert decode(before) == Nodes(CLUSTER, 3, (node(2),))


def test_the_version_before_reads_a_record_with_keys() -> None:
    class Descriptor(msgspec.Struct, frozen=True, array_like=True):
        node_id: int
        address: str
        store_id: bytes
        retired: bool = False

    stored = msgspec.msgpack.encode(bound(2, OLD, NEW))
    assert msgspec.msgpack.decode(stored, type=Descriptor) == Descriptor(2, "host2:1", store(2))
