"""Many ranges that nobody uses: their nodes wake for heartbeats, and rarely else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Final

import pytest

from postroom.raft.interface import RaftOptions
from postroom.server.node import Node
from tests.server.hosting import MEMBERS, ThreeNodes

RANGES: Final = 200
HEARTBEAT_SECONDS: Final = 5.0
OPTIONS: Final = RaftOptions(
    heartbeat_seconds=HEARTBEAT_SECONDS, election_seconds_min=15.0, election_seconds_max=25.0
)
SETTLED_SECONDS: Final = 150.0
"""The time after which what a new leader has written is collected, too."""
OTHER_TURNS_A_MINUTE: Final = 120
"""The turns for rounds, for spreading leases, and for the protections that the root tells."""
LEAST_SECONDS: Final = 0.001


class IdleNodes(ThreeNodes):
    """Three nodes with many ranges. A node takes turns as its driver would let it."""

    raft = OPTIONS

    def __init__(self) -> None:
        self._woken = set[int]()
        self.turns = dict.fromkeys(MEMBERS, 0)
        super().__init__(*(b"%04d" % number for number in range(1, RANGES)))

    def _node(self, node_id: int) -> Node:
        node = super()._node(node_id)
        node.on_wake = lambda _: self._woken.add(node_id)
        return node

    def awaited_leader(self, range_id: int) -> int:
        return 0  # all of them are awaited together

    def pass_(self, seconds: float) -> None:
        """Let time pass, and count turns anew."""
        self.turns = dict.fromkeys(self.nodes, 0)
        deadlines: dict[int, float | None] = dict.fromkeys(self.nodes, 0.0)
        end = self.clock.seconds + seconds
        while self.clock.seconds < end:
            arrived = {
                to for at, _, _, to, _ in self.network._under_way if at <= self.clock.seconds
            }
            for node_id, node in self.nodes.items():
                due = deadlines[node_id]
                is_due = due is not None and due <= self.clock.seconds
                if is_due or node_id in self._woken or node_id in arrived:
                    self._woken.discard(node_id)
                    node.turn()
                    deadlines[node_id] = node.next_deadline()
                    self.turns[node_id] += 1
            first = self.network.next_arrival()
            coming = [at for at in (first, *deadlines.values()) if at is not None]
            least = self.clock.seconds + LEAST_SECONDS
            self.clock.seconds = least if self._woken else max(least, min(*coming, end))

    def served(self) -> set[int]:
        """Return the ranges whose leaseholder has begun to serve; the lease may have lapsed."""
        return {
            range_id for node_id, node in self.nodes.items() for range_id in node.replicas.hosted
            if self.hosted(node_id, range_id).services.running
        }  # fmt: skip

    def are_quiet(self) -> bool:
        """Return whether groups are quiet, but for the root and one whose lead is given away."""
        groups = [group for node in self.nodes.values() for group in node.groups()]
        return sum(not group.is_quiet for group in groups) <= 2 * len(self.nodes)

    def tasks(self) -> int:
        """Return how many tasks all nodes have."""
        return sum(len(node.tasks._alive) for node in self.nodes.values())

    def objects(self) -> int:
        """Return how many objects there are in this process that the collector may find."""
        gc.collect()
        return len(gc.get_objects())


@pytest.fixture(scope="module")
def idle() -> Iterator[IdleNodes]:
    nodes = IdleNodes()
    nodes.pass_(SETTLED_SECONDS)
    assert nodes.served() == set(nodes.range_ids)
    yield nodes
    nodes.close()


def test_a_node_with_many_ranges_at_rest_wakes_for_heartbeats_and_rarely_else(
    idle: IdleNodes,
) -> None:
    assert idle.are_quiet()
    idle.pass_(60.0)
    heartbeats = len(MEMBERS) * 60 / HEARTBEAT_SECONDS  # its own, and the frames of the others
    for turns in idle.turns.values():
        assert turns <= heartbeats + OTHER_TURNS_A_MINUTE


def test_ranges_at_rest_for_an_hour_keep_no_more_timers_tasks_or_objects(
    idle: IdleNodes,
) -> None:
    tasks, objects = idle.tasks(), idle.objects()
    idle.pass_(3600.0)
    assert idle.are_quiet()
    assert all(node.tasks.timers < 10 for node in idle.nodes.values())
    assert idle.tasks() == tasks
    assert idle.objects() < objects + len(MEMBERS) * RANGES, "not one for each replica"


def test_all_ranges_of_a_node_that_dies_are_served_and_at_rest_again(idle: IdleNodes) -> None:
    led = sum(group.is_leader for group in idle.nodes[1].groups())
    assert led > RANGES // 5
    idle.crash(1)
    idle.pass_(3 * OPTIONS.election_seconds_max)
    assert idle.served() == set(idle.range_ids)
    idle.pass_(SETTLED_SECONDS)
    assert idle.are_quiet()
    idle.pass_(60.0)
    for turns in idle.turns.values():
        assert turns <= 2 * 60 / HEARTBEAT_SECONDS + OTHER_TURNS_A_MINUTE
