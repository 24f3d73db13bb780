"""The nodes that are heard: one frame a heartbeat between two nodes, for all their groups.

A group that has nothing to do stops its own heartbeats (:mod:`.replication`); it must still know
whether its leader's node lives. Every node therefore sends each of its peers a frame at least
once a heartbeat, an empty one if there is nothing to say. It remembers when it heard each peer::

    heard ── nothing for election_seconds_min ──▶ silent      groups that were quiet are told
      ▲                                              │
      └───────────────── any frame ──────────────────┘        and again

A peer that was never heard counts as heard when it became a peer: it has an election time-out to
say something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from postroom.raft.journal import ENTRIES_VERSION_MIN
from postroom.raft.options import RaftOptions
from postroom.raft.state_machine import NodeId


class Liveness:
    """The times at which one node has heard its peers, and sent to them."""

    def __init__(self, monotonic: Callable[[], float], options: RaftOptions) -> None:
        """Create a record without peers."""
        self.monotonic = monotonic
        self._options = options
        self._peers: dict[NodeId, float] = {}
        self._heard_at: dict[NodeId, float] = {}
        self._sent_at: dict[NodeId, float] = {}
        self._silent: set[NodeId] = set()
        self._entries_versions: dict[NodeId, int] = {}
        self._beat_at = 0.0

    def set_peers(self, peers: Iterable[NodeId]) -> None:
        """Set the nodes that share a group with this one."""
        now, before = self.monotonic(), self._peers
        self._peers = {peer: before.get(peer, now) for peer in peers}
        self._silent &= set(self._peers)
        self._sent_at = {peer: at for peer, at in self._sent_at.items() if peer in self._peers}

    def heard_at(self, node: NodeId) -> float | None:
        """Return when the last frame of ``node`` came, on the monotonic clock."""
        return self._heard_at.get(node)

    def seems_alive_at(self, node: NodeId) -> float:
        """Return when ``node`` was last heard, or else when it became a peer."""
        return self._heard_at.get(node, self._peers.get(node, float("-inf")))

    def is_silent(self, node: NodeId) -> bool:
        """Return whether the last ``beat`` found ``node`` silent for an election time-out."""
        return node in self._silent

    def entries_version(self, node: NodeId) -> int:
        """Return the version of the entries that ``node`` can read, by its last frame."""
        return self._entries_versions.get(node, ENTRIES_VERSION_MIN)

    def hear(self, node: NodeId, now: float, entries_version: int) -> bool:
        """Note a frame of ``node``, and return whether it ends a silence."""
        self._heard_at[node] = now
        self._entries_versions[node] = entries_version
        if node in self._silent:
            self._silent.remove(node)
            return True
        return False

    def sent(self, node: NodeId, now: float) -> None:
        """Note that a frame was sent to ``node``."""
        self._sent_at[node] = now

    def deadline(self) -> float | None:
        """Return when ``beat`` has something to do, or ``None`` without peers."""
        return self._beat_at if self._peers else None

    def beat(self, now: float) -> list[NodeId]:
        """Return the nodes that have fallen silent since the last heartbeat."""
        if not self._peers or now < self._beat_at:
            return []
        self._beat_at = now + self._options.heartbeat_seconds
        patience = self._options.election_seconds_min
        fallen = [
            peer
            for peer in self._peers
            if peer not in self._silent and now - self.seems_alive_at(peer) >= patience
        ]
        self._silent.update(fallen)
        return fallen

    def unspoken(self, now: float) -> list[NodeId]:
        """Return the peers that were sent nothing for half a heartbeat: they want a frame."""
        due = now - self._options.heartbeat_seconds / 2
        never = float("-inf")
        return [peer for peer in self._peers if self._sent_at.get(peer, never) <= due]
