"""The description of a node without asking others: for ``status`` and the health check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from postroom.kv.engine import Engine
from postroom.raft.group import RaftGroup
from postroom.raft.state_machine import NodeId
from postroom.ranges.nodes import Nodes, NodeStatus, PeerStatus, StorageStatus
from postroom.server.damage import Damage
from postroom.server.node_options import NodeOptions
from postroom.server.process_memory import process_memory
from postroom.server.services import Services
from postroom.version import VERSION

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
LEARNER: Final = "learner"
OUTSIDER: Final = "outsider"


class DescribedNode(Protocol):
    """The parts of a node that its description is made of."""

    engine: Engine
    options: NodeOptions
    nodes: Nodes | None
    damage: Damage
    services: Services
    certificate: str

    @property
    def group(self) -> RaftGroup:
        """Return the consensus group of its range."""

    @property
    def node_id(self) -> int:
        """Return its id."""

    @property
    def serves(self) -> bool:
        """Return whether it answers clients."""

    @property
    def refused(self) -> str:
        """Return why it refuses writes; empty: it does not."""

    @property
    def link_error(self) -> Callable[[NodeId], str]:
        """Return what tells why there is no connection to a node."""

    def clock_offset_seconds(self) -> float:
        """Return how far its clock is ahead of those of most others."""


def describe(node: DescribedNode) -> NodeStatus:
    """Return the present state of ``node``."""
    group, known = node.group, node.nodes
    mine = None if known is None else known.by_id(node.node_id)
    return NodeStatus(
        node.node_id,
        "" if mine is None else mine.address,
        _role(node),
        int(group.leader or 0),
        group.term,
        group.applied_index,
        group.last_index,
        node.serves,
        _peers(node) if group.is_leader else (),
        node.engine.disk_bytes(),
        node.engine.free_bytes(),
        node.clock_offset_seconds(),
        node.damage.found,
        node.services.status() if node.serves else (),
        VERSION,
        storage_status(node),
        node.certificate,
        node.refused,
    )


def storage_status(node: DescribedNode) -> StorageStatus:
    """Return the sizes of the storage of ``node``."""
    return StorageStatus(*node.engine.table_files(), node.options.memory_bytes, *process_memory())


def _role(node: DescribedNode) -> str:
    group = node.group
    if group.is_leader:
        return LEADER
    if node.node_id in group.members:
        return FOLLOWER
    return LEARNER if node.node_id in group.learners else OUTSIDER


def _peers(node: DescribedNode) -> tuple[PeerStatus, ...]:
    return tuple(
        PeerStatus(
            int(peer),
            each.match_index,
            each.silent_seconds,
            each.snapshot_under_way,
            node.link_error(peer),
        )
        for peer, each in sorted(node.group.progress().items())
    )
