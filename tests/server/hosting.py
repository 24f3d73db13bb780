"""Nodes with several ranges, which are cut by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.raft.interface import MemoryNetwork, NetworkFaults, RaftOptions
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.server.assembly import NodeOptions
from postroom.server.hosted_range import HostedRange
from postroom.server.node import Node
from tests.client.hand_driver import HandClock
from tests.messaging.one_range import Asked

MEMBERS: Final = (1, 2, 3)
IDLE_SECONDS: Final = 0.01
"""The longest pause between two turns."""


def cut(node: Node, *cuts: bytes, members: tuple[int, ...] = (1,)) -> list[HostedRange]:
    """Cut the only range of a node: further ones, with ids from 2 on, begin at the cuts."""
    bound(node, ROOT_ID, b"", cuts[0])
    for range_id, (start, end) in enumerate(pairwise((*cuts, None)), ROOT_ID + 1):
        assert start is not None
        bound(node, range_id, start, end)
        node.host_range(range_id, members)
    return list(node.replicas.hosted.values())


def bound(node: Node, range_id: int, start: bytes, end: bytes | None) -> None:
    """Give a range other bounds, as an entry of its log would."""
    descriptor = RangeDescriptor(range_id, start, end, generation=2)
    key, stored = descriptor_key(range_id), encode_descriptor(descriptor)
    node.engine.write({key: stored}, sync=True)
    if range_id in node.replicas.hosted:
        node.replicas.by_id(range_id).registry.observers[key](stored)


class ThreeNodes:
    """Three nodes that have several ranges; their clock is moved by hand.

    Args:
        cuts: the first keys of the ranges from range 2 on; none are made for an empty one.
        seed: the seed of the network's faults.

    Attributes:
        nodes: the nodes that run, by id.
        range_ids: the ids of the ranges.
        faults: the faults of the network between the nodes.
        turn_seconds: the time between two turns.
        raft: the times of their groups.
    """

    raft: RaftOptions | None = None

    def __init__(self, *cuts: bytes, seed: int = 1) -> None:
        self.turn_seconds = 0.001
        starts = [start for start in cuts or (b"m",) if start]
        self.clock = HandClock()
        self.faults = NetworkFaults()
        self.network = MemoryNetwork(Random(seed), self.clock.monotonic, self.faults)
        self._disks = {node_id: MemoryDisk() for node_id in MEMBERS}
        self.nodes = {node_id: self._node(node_id) for node_id in MEMBERS}
        for node in self.nodes.values():
            node.start()
            if starts:
                cut(node, *starts, members=MEMBERS)
        self.range_ids = list(self.nodes[1].replicas.hosted)
        for range_id in self.range_ids:
            self.awaited_leader(range_id)

    def _node(self, node_id: int) -> Node:
        options = NodeOptions(node_id=node_id, members=MEMBERS, lease_seconds=1.0, raft=self.raft)
        transport = self.network.attach(node_id)
        engine = MemoryEngine(self._disks[node_id])
        return Node(engine, self.clock, Random(node_id), transport, options)

    def crash(self, node_id: int) -> None:
        """Stop a node at once; what is not synced is lost."""
        self._disks[node_id].crash()
        self.network.detach(node_id)
        del self.nodes[node_id]

    def open(self, node_id: int) -> None:
        """Start a node again."""
        self.nodes[node_id] = self._node(node_id)
        self.nodes[node_id].start()

    def hosted(self, node_id: int, range_id: int) -> HostedRange:
        return self.nodes[node_id].replicas.hosted[range_id]

    def leader(self, range_id: int) -> int | None:
        """Return the node that serves a range."""
        serving = (each for each in self.nodes if self.hosted(each, range_id).replica.serves)
        return next(serving, None)

    def awaited_leader(self, range_id: int) -> int:
        """Return the node that serves a range, once one does."""
        self.until(lambda: self.leader(range_id))
        return self.leader(range_id) or 0

    def lead(self, range_id: int, node_id: int) -> None:
        """Have a node lead a range."""
        for each in self.nodes:
            if each != node_id and self.hosted(each, range_id).group.is_leader:
                self.hosted(each, range_id).hand_over(node_id)
        self.until(lambda: self.leader(range_id) == node_id)

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        """Take turns until ``condition`` holds."""
        end = self.clock.seconds + seconds
        while not condition():
            assert self.clock.seconds < end, "it does not happen"
            self._turn(self.turn_seconds)

    def pass_time(self, seconds: float, meanwhile: Callable[[], Any] = lambda: None) -> None:
        """Take turns for a time, and few of them while nothing is due.

        Args:
            seconds: the time.
            meanwhile: called before each turn.
        """
        end, pause = self.clock.seconds + seconds, 0.0
        while self.clock.seconds < end:
            meanwhile()
            due = self._turn(min(max(pause, self.turn_seconds), end - self.clock.seconds + 1e-6))
            pause = min(due - self.clock.seconds, IDLE_SECONDS)

    def _turn(self, seconds: float) -> float:
        """Have each node take a turn after a pause; return when the next one is due."""
        self.clock.seconds += seconds
        due: list[float | None] = []
        for node in self.nodes.values():
            node.turn()
            due.append(node.next_deadline())  # a driver asks after each turn
        due.append(self.network.next_arrival())
        return min((each for each in due if each is not None), default=math.inf)

    def ask(self, node_id: int, request: Any) -> Any:
        """Return the answer of a node, or raise its error."""
        asked = Asked(request)
        self.nodes[node_id].replicas.submit(asked)
        self.until(lambda: asked.answers)
        result, error = asked.answers[0]
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
