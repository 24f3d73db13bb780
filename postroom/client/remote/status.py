"""The status of a cluster, put together from what its leader says."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.client.sender import Sender
from postroom.client.values import NodeInfo, Status, service_infos
from postroom.errors import Invalid
from postroom.kv.clock import Timestamp
from postroom.messaging.counters import Counters
from postroom.messaging.requests import ReadCounters
from postroom.protocol.requests import DescribeNode
from postroom.ranges.nodes import NodeDescriptor, Nodes, NodeStatus, ReadNodes
from postroom.ranges.requests import Now


class StatusReader:
    """Reads the status of a store elsewhere.

    Args:
        sender: how to ask.
        addresses: what the application connected to.
    """

    def __init__(self, sender: Sender, addresses: Sequence[str]) -> None:
        self._sender = sender
        self._addresses = addresses

    async def __call__(self) -> Status:
        """How the store is now."""
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
        )

    async def _nodes(self) -> Sequence[NodeDescriptor]:
        try:
            nodes: Nodes = await self._sender.send(ReadNodes())
        except Invalid:  # a store that stands alone
            return ()
        return nodes.nodes


def _info(node: NodeDescriptor, leader: NodeStatus) -> NodeInfo:
    if node.node_id == leader.node_id:
        return NodeInfo(node.node_id, node.address, 0, 0.0, node.retired)
    peer = next((each for each in leader.peers if each.node_id == node.node_id), None)
    if peer is None:
        return NodeInfo(node.node_id, node.address, None, None, node.retired)
    behind = max(leader.last_index - peer.match_index, 0)
    return NodeInfo(node.node_id, node.address, behind, peer.silent_seconds, node.retired)
