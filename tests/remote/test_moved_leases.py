"""Leases that users move: the node that they name leads, or they are told why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import AccessDenied, Invalid, Unavailable
from postroom.raft.replication import PeerProgress
from postroom.ranges.contract import Role
from postroom.ranges.lease_moves import MoveLease
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.ranges.requests import Get, Now
from postroom.server.hosted_range import WANTED_SECONDS
from postroom.server.membership import check_successor
from tests.client.stores import Store
from tests.remote.streams import Streams
from tests.server.hosting import MEMBERS, ThreeNodes


@pytest.fixture
def three() -> Iterator[ThreeNodes]:
    nodes = ThreeNodes()
    yield nodes
    nodes.close()


def test_a_lease_goes_to_the_node_that_a_user_names(three: ThreeNodes) -> None:
    three.lead(1, 1)
    three.lead(2, 2)
    client = Streams(three, Role.ADMIN)
    assert client.ask(Now())
    client.put(1, b"z", b"value")
    for node_id in (3, 1, 1):
        moved = client.ask(MoveLease(2, node_id))
        assert (moved.id, moved.start, moved.leader) == (2, b"m", node_id)
        assert three.leader(2) == node_id
    assert three.leader(1) == 1
    assert client.ask(Get(b"z")).value == b"value"


def test_the_only_range_is_moved_as_well() -> None:
    nodes = ThreeNodes(b"")
    nodes.lead(1, 1)
    client = Streams(nodes, Role.ADMIN)
    assert client.ask(MoveLease(1, 2)).leader == 2
    with pytest.raises(Invalid, match="there is no range 2"):
        client.ask(MoveLease(2, 1))
    nodes.close()


def test_the_node_that_leads_notes_that_a_user_wants_it_to(three: ThreeNodes) -> None:
    three.lead(2, 1)
    client = Streams(three, Role.ADMIN)
    client.ask(MoveLease(2, 3))
    wanted = {node: three.hosted(node, 2).wanted_until for node in MEMBERS}
    assert wanted[3] == pytest.approx(three.clock.seconds + WANTED_SECONDS, abs=1.0)
    assert max(wanted[1], wanted[2]) < 0


def test_a_node_that_is_no_member_is_refused(three: ThreeNodes) -> None:
    client = Streams(three, Role.ADMIN)
    leader = three.leader(2)
    with pytest.raises(Invalid, match=r"name a voter of this range \(1, 2, 3\)"):
        client.ask(MoveLease(2, 9))
    assert three.leader(2) == leader


@pytest.mark.parametrize("range_id", [77, 0, -1])
def test_a_range_that_does_not_exist_is_told(three: ThreeNodes, range_id: int) -> None:
    client = Streams(three, Role.ADMIN)
    client.ask(Get(b"z"))
    with pytest.raises(Invalid, match=f"there is no range {range_id}; "):
        client.ask(MoveLease(range_id, 1))


def test_a_node_that_does_not_answer_gets_no_lease(three: ThreeNodes) -> None:
    three.lead(2, 1)
    client = Streams(three, Role.ADMIN)
    client.ask(Get(b"z"))
    began = three.clock.seconds
    stopped = three.nodes.pop(3)
    three.until(lambda: three.clock.seconds > began + 2)
    with pytest.raises(Unavailable, match="node 3 does not answer"):
        client.ask(MoveLease(2, 3))
    assert three.hosted(1, 2).group.is_leader
    three.nodes[3] = stopped


class _Group:
    """A group of three nodes, as its leader, node 1, knows it."""

    members, last_index = (1, 2, 3), 1000

    def __init__(self, progress: PeerProgress) -> None:
        self._progress = progress

    def progress(self) -> dict[int, PeerProgress]:
        return {2: self._progress, 3: PeerProgress(1000, 0.0, snapshot_under_way=False)}


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        (PeerProgress(900, 0.0, snapshot_under_way=False), "node 2 lags 100 entries behind"),
        (PeerProgress(999, 0.0, snapshot_under_way=True), "node 2 lags 1 entry behind"),
        (PeerProgress(1000, 9.0, snapshot_under_way=False), "node 2 does not answer"),
    ],
)
def test_a_node_that_does_not_keep_up_is_told(progress: PeerProgress, told: str) -> None:
    group: Any = _Group(progress)
    with pytest.raises(Unavailable, match=told):
        check_successor(group, None, 2)
    check_successor(group, None, 3)


def test_a_node_that_is_to_leave_gets_no_lease() -> None:
    group: Any = _Group(PeerProgress(1000, 0.0, snapshot_under_way=False))
    nodes = Nodes(b"cluster", 4, (NodeDescriptor(2, "b:1", bytes(16), retired=True),))
    with pytest.raises(Invalid, match="node 2 is to leave"):
        check_successor(group, nodes, 2)


def test_only_an_administrator_moves_leases(three: ThreeNodes) -> None:
    client = Streams(three)
    with pytest.raises(AccessDenied):
        client.ask(MoveLease(2, 3))


def test_the_node_of_an_embedded_store_leads_already() -> None:
    store = Store()
    moved = store.driver.run(store.core.move_lease(1, 1))
    assert (moved.id, moved.leader) == (1, 1)
    with pytest.raises(Invalid, match="node 2 has no copy"):
        store.db.move_lease(1, 2)
    with pytest.raises(Invalid, match="there is no range 5"):
        store.db.move_lease(5, 1)
    with pytest.raises(TypeError, match="node_id"):
        store.db.move_lease(1, "2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="range_id is at least 1"):
        store.db.move_lease(0, 1)
    store.db.close()
