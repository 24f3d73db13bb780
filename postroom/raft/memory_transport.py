"""A network in memory: the transport port's twin, for simulation and tests.

::

    MemoryTransport(1) ── send ──▶ MemoryNetwork: frames under way, each with ──▶ receive ── (2)
                                   its time of arrival, on the clock passed in

Every choice (which frames are lost, doubled or delayed, and thereby overtaken) comes from the
``random.Random`` and the :class:`NetworkFaults` given, which lets a run repeat from its seed.
Frames are copied as bytes and never looked into.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.raft.state_machine import NodeId

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 (its type only)


@dataclass(slots=True)
class NetworkFaults:
    """The faults of a network. Shares are between 0 and 1.

    Attributes:
        lost_share: the share of frames that never arrive.
        doubled_share: the share of frames that arrive twice, each time after its own delay.
        delay_seconds_min: the least time under way.
        delay_seconds_max: the longest time; frames overtake each other if it is larger.
    """

    lost_share: float = 0.0
    doubled_share: float = 0.0
    delay_seconds_min: float = 0.001
    delay_seconds_max: float = 0.001


class MemoryNetwork:
    """The network between the nodes. Attach each node, and again after it has crashed."""

    def __init__(
        self, random: Random, monotonic: Callable[[], float], faults: NetworkFaults | None = None
    ) -> None:
        """Create a network without nodes; ``faults`` may be changed at any time."""
        self.faults = NetworkFaults() if faults is None else faults
        self._random = random
        self._monotonic = monotonic
        self._under_way: list[tuple[float, int, NodeId, NodeId, bytes]] = []
        self._sent = 0
        self._attached: set[NodeId] = set()
        self._side_of: dict[NodeId, int] = {}

    def attach(self, node: NodeId) -> MemoryTransport:
        """Attach ``node``, which is up, and return its end of the network."""
        self._attached.add(node)
        return MemoryTransport(self, node)

    def detach(self, node: NodeId) -> None:
        """Detach ``node``, which is down: frames under way to it are lost."""
        self._attached.discard(node)
        self._under_way = [frame for frame in self._under_way if frame[3] != node]
        heapq.heapify(self._under_way)

    def partition(self, *sides: Collection[NodeId]) -> None:
        """Let only nodes of one side reach each other. A node that is not named stands alone."""
        self._side_of = {node: number for number, side in enumerate(sides) for node in side}
        for number, node in enumerate(sorted(self._attached - set(self._side_of), key=str)):
            self._side_of[node] = -1 - number

    def heal(self) -> None:
        """Let all nodes reach each other."""
        self._side_of = {}

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Return whether frames between the two arrive, as far as partitions and crashes decide."""
        return {one, other} <= self._attached and self._same_side(one, other)

    def next_arrival(self) -> float | None:
        """Return when the next frame arrives, or ``None`` if none is under way."""
        return self._under_way[0][0] if self._under_way else None

    def carry(self, sender: NodeId, to: NodeId, frame: bytes) -> None:
        """Send ``frame`` on its way. Only :class:`MemoryTransport` calls this."""
        copies = 1 + (self._random.random() < self.faults.doubled_share)
        for _ in range(copies):
            if self._random.random() >= self.faults.lost_share:
                self._set_out(sender, to, frame)

    def arrived(self, node: NodeId) -> list[tuple[NodeId, bytes]]:
        """Return the frames that have arrived at ``node``, for :class:`MemoryTransport`."""
        now = self._monotonic()
        due = sorted(each for each in self._under_way if each[0] <= now and each[3] == node)
        if due:
            taken = {number for _, number, *_ in due}
            self._under_way = [each for each in self._under_way if each[1] not in taken]
            heapq.heapify(self._under_way)
        # A frame outlives its sender: it still arrives if its sender has crashed.
        return [(each[2], each[4]) for each in due if self._same_side(each[2], node)]

    def _same_side(self, one: NodeId, other: NodeId) -> bool:
        return self._side_of.get(one) == self._side_of.get(other)

    def _set_out(self, sender: NodeId, to: NodeId, frame: bytes) -> None:
        faults = self.faults
        spread = faults.delay_seconds_max - faults.delay_seconds_min
        delay = faults.delay_seconds_min + spread * self._random.random()
        self._sent += 1
        arrival = (self._monotonic() + delay, self._sent, sender, to, bytes(frame))
        if self.connected(sender, to):
            heapq.heappush(self._under_way, arrival)


class MemoryTransport:
    """The end of one node of a :class:`MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, node: NodeId) -> None:
        """Create the end of ``node``; see :meth:`MemoryNetwork.attach`."""
        self._network = network
        self._node = node

    def send(self, to: NodeId, frame: bytes) -> None:
        """Hand ``frame`` to the network."""
        self._network.carry(self._node, to, frame)

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Return the frames that have arrived by now, in the order of arrival."""
        return self._network.arrived(self._node)

    def connected(self, node: NodeId) -> bool:
        """Return whether ``node`` is up and on the same side of any partition."""
        return self._network.connected(self._node, node)
