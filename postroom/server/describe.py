"""The description of a node without asking others: for ``status`` and the health check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroom import __version__
from postroom.ranges.nodes import NodeStatus, PeerStatus, StorageStatus
from postroom.server.process_memory import process_memory

if TYPE_CHECKING:
    from postroom.server.node import Node

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
LEARNER: Final = "learner"
OUTSIDER: Final = "outsider"


def describe(node: Node) -> NodeStatus:
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
        __version__,
        storage_status(node),
        node.certificate,
        node.refused,
    )


def storage_status(node: Node) -> StorageStatus:
    """Return the sizes of the storage of ``node``."""
    return StorageStatus(*node.engine.table_files(), node.options.memory_bytes, *process_memory())


def _role(node: Node) -> str:
    group = node.group
    if group.is_leader:
        return LEADER
    if node.node_id in group.members:
        return FOLLOWER
    return LEARNER if node.node_id in group.learners else OUTSIDER


def _peers(node: Node) -> tuple[PeerStatus, ...]:
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
