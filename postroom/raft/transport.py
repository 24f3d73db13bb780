"""The transport port: one stream of frames to each peer, shared by all groups of a node.

A frame holds the messages of every group to one peer in one turn (:mod:`.messages`). The port
promises little: a frame arrives whole or not at all; it may be lost, doubled, delayed or
overtaken, and consensus lives with that. It must promise the true *sender* of a frame: votes and
acknowledgements are counted by sender.

Implementations: :mod:`.memory_transport` (simulation and tests), the server's streams, and
:class:`NoPeers` for a node that is alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from postroom.raft.state_machine import NodeId


class Transport(Protocol):
    """The sending and receiving of frames. It never blocks, nor raises for a peer that is away."""

    def send(self, to: NodeId, frame: bytes) -> None:
        """Hand ``frame`` over for delivery to ``to``, at most a few times, perhaps never."""

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Return the frames that have arrived since the last call, with their true senders.

        They are taken one by one, perhaps in later turns: this is called again when all are taken.
        Frames that arrive meanwhile may be among them.
        """

    def connected(self, node: NodeId) -> bool:
        """Return whether ``node`` seems reachable. A hint."""


class NoPeers:
    """The transport of a node that is the whole cluster."""

    def send(self, to: NodeId, frame: bytes) -> None:
        """Drop the frame: there is no other node."""

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Return no frames."""
        return ()

    def connected(self, node: NodeId) -> bool:
        """Return false: there is no other node."""
        return False
