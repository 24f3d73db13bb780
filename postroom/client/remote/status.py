"""The status of a cluster, built from the answers of its leader."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.client.sender import Sender
from postroom.client.values import (
    NodeInfo,
    Status,
    position_infos,
    service_infos,
    storage_info,
)
from postroom.errors import Invalid
from postroom.kv.clock import Timestamp
from postroom.messaging.requests import Counters, ReadCounters
from postroom.ranges.nodes import DescribeNode, NodeDescriptor, Nodes, NodeStatus, ReadNodes
from postroom.ranges.protections import Position, ReadPositions
from postroom.ranges.requests import Now


class ClusterStatusReader:
    """A reader of the status of a remote store.

    Args:
        sender: the client's sender.
        addresses: those that the application connected to.
    """

    def __init__(self, sender: Sender, addresses: Sequence[str]) -> None:
        self._sender = sender
        self._addresses = addresses

    async def __call__(self) -> Status:
        """Return the status of the store now."""
        counters: Counters = await self._sender.send(ReadCounters())
        now: int = await self._sender.send(Now())
        node: NodeStatus = await self._sender.send(DescribeNode())
        return Status(
            ",".join(self._addresses),
            node.node_id,
            node.term,
            node.applied_index,
            Timestamp(now),
            node.disk_bytes,
            counters,
            node.leader or None,
            tuple(_info(each, node) for each in await self._nodes()),
            service_infos(node.services),
            storage_info(node.storage),
            node.refused,
            position_infos(await self._positions(), now),
        )

    async def _nodes(self) -> Sequence[NodeDescriptor]:
        try:
            nodes: Nodes = await self._sender.send(ReadNodes())
        except Invalid:  # a store that stands alone
            return ()
        return nodes.nodes

    async def _positions(self) -> Sequence[Position]:
        found: list[Position] = await self._sender.send(ReadPositions())
        return found


def _info(node: NodeDescriptor, leader: NodeStatus) -> NodeInfo:
    if node.node_id == leader.node_id:
        return NodeInfo(node.node_id, node.address, 0, 0.0, node.retired)
    peer = next((each for each in leader.peers if each.node_id == node.node_id), None)
    if peer is None:
        return NodeInfo(node.node_id, node.address, None, None, node.retired)
    behind = max(leader.last_index - peer.match_index, 0)
    return NodeInfo(node.node_id, node.address, behind, peer.silent_seconds, node.retired)
