"""The transport port: one stream of frames to each peer, shared by all groups of a node.

A frame holds the messages of every group to one peer in one turn (:mod:`.messages`). The port
promises little: a frame arrives whole or not at all; it may be lost, doubled, delayed or
overtaken, and consensus lives with that. What it must promise is *who* sent a frame: votes and
acknowledgements are counted by sender.

Implementations: :mod:`.memory_transport` (simulation and tests), the server's streams, and
:class:`NoPeers` for a node that is alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from postroom.raft.state_machine import NodeId


class Transport(Protocol):
    """Sends and receives frames. Never blocks, never raises for a peer that is away."""

    def send(self, to: NodeId, frame: bytes) -> None:
        """Hand ``frame`` over for delivery to ``to``, at most a few times, perhaps never."""

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """The frames that have arrived since the last call, with their true senders."""

    def connected(self, node: NodeId) -> bool:
        """Whether ``node`` seems reachable. A hint."""


class NoPeers:
    """The transport of a node that is the whole cluster."""

    def send(self, to: NodeId, frame: bytes) -> None:
        """Drop the frame: there is nobody to send it to."""

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Nothing ever arrives."""
        return ()

    def connected(self, node: NodeId) -> bool:
        """No node is reachable."""
        return False
