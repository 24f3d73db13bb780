"""The parts of a node that the sessions of clients use, and the frame that greets a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from postroom.errors import Error
from postroom.kv.clock import HybridLogicalClock
from postroom.protocol import frames
from postroom.protocol.revisions import REVISION
from postroom.raft.state_machine import NodeId
from postroom.ranges.calls import Call
from postroom.ranges.nodes import Nodes, NodeStatus
from postroom.server.replicas import Replicas


class SessionNode(Protocol):
    """The parts of their node that sessions use."""

    failed: Error | None
    nodes: Nodes | None
    clock: HybridLogicalClock
    monotonic: Callable[[], float]
    replicas: Replicas

    @property
    def node_id(self) -> int:
        """Return the node's id."""

    def submit(self, call: Call) -> None:
        """Take a request."""

    def wake(self, *, urgent: bool) -> None:
        """Ask for a turn."""

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits."""

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after a time."""

    def leader(self) -> NodeId | None:
        """Return the leader, as far as this node knows."""

    def describe(self) -> NodeStatus:
        """Return the node's description of itself."""


def welcome_of(node: SessionNode, requests_max: int) -> bytes:
    """Return the frame that names the leader and the nodes.

    Args:
        node: the node that sends it.
        requests_max: how many requests a client may have unanswered.
    """
    nodes = () if node.nodes is None else node.nodes.nodes
    addresses = [(each.node_id, each.address) for each in nodes if not each.retired]
    leader = node.leader()
    return frames.encode(
        frames.Welcome(
            frames.PROTOCOL_VERSION, node.clock.reading(), node.node_id,
            leader if isinstance(leader, int) else 0, addresses, requests_max,
            REVISION,
        )
    )  # fmt: skip
