"""The log's messages that no node leads, and which nodes are not heard: once for each such time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from postroom.log_once import shown
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.server.node import Node

PATIENCE_SECONDS: Final = 5.0
"""The time without a leader before that is logged. Elections take less, if there is a majority."""
SILENT_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Leaderless:
    """The watch for a leader on one node; see the module.

    Args:
        known_nodes: returns the nodes of the cluster, as far as this one knows.
        connection_error: returns why there is no connection to a node; empty: that is not known.
    """

    def __init__(
        self, known_nodes: Callable[[], Nodes | None], connection_error: Callable[[int], str]
    ) -> None:
        self._known_nodes = known_nodes
        self._connection_error = connection_error
        self._since: float | None = None
        self._is_told = False

    def look(self, node: Node) -> None:
        """Look at this ``node``, every now and then."""
        leader, now = node.leader(), node.monotonic()
        if leader is not None:
            if self._is_told:
                _log.info("node %d leads now", leader)
            self._since, self._is_told = None, False
            return
        self._since = now if self._since is None else self._since
        if not self._is_told and now - self._since >= PATIENCE_SECONDS:
            self._is_told = True
            self._tell(node)

    def _tell(self, node: Node) -> None:
        known = self._known_nodes()
        others = () if known is None else known.nodes
        silent = [each for each in others if self._is_silent(node, each)]
        _log.warning(
            "no node has led for %g s: waiting for a majority of the nodes; not heard: %s",
            PATIENCE_SECONDS, ", ".join(map(self._named, silent)) or "none, all others are there",
        )  # fmt: skip

    def _is_silent(self, node: Node, other: NodeDescriptor) -> bool:
        if other.node_id == node.node_id:
            return False
        heard_at = node.consensus.heard_at(other.node_id)
        return heard_at is None or node.monotonic() - heard_at > SILENT_SECONDS

    def _named(self, node: NodeDescriptor) -> str:
        connection_error = self._connection_error(node.node_id)
        return f"node {node.node_id} at {shown(node.address)}" + (
            f" ({connection_error})" if connection_error else ""
        )
