"""The leader's side of a snapshot: chunks are read as they are sent, a few at a time.

::

    engine snapshot ──▶ read ──▶ window: sent, not acknowledged ──▶ forgotten
                                    │          ▲
                    no news for long└─ again ──┘ from the first, which must be answered before more

Every answer names the chunk that is wanted next, and lost, doubled and late messages do no harm. A
follower that wants a chunk which is forgotten here, and goes on wanting it, has lost what it had:
a new snapshot is begun. The same follower back after a break goes on where it was. *Long* is an
election time-out: frames are rarely lost unless a stream breaks, and a repetition would make a slow
transfer slower.

A transfer takes no more than its share of a turn (``snapshot_bytes_per_turn_max``, all peers
together), and does not slow the group's entries.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pysyncobj.node import Node

from postroom.raft.membership import Members
from postroom.raft.messages import Chunk, ChunkTaken
from postroom.raft.state_machine import NodeId, StateMachine, StateSnapshot
from postroom.raft.syncobj_core import Core


@dataclass(slots=True)
class _OutgoingSnapshot:
    """A transfer under way. One chunk is read ahead, to know which is the last."""

    number: int
    snapshot: StateSnapshot
    term: int
    members: Members
    ahead: bytes | None
    window: deque[bytes] = field(default_factory=deque)
    first_ordinal: int = 0
    sent: int = 0
    news_at: float = 0.0
    probing: bool = False
    wants_earlier_since: float | None = None

    def read(self) -> bool:
        """Put the next chunk into the window, if there is one."""
        if self.ahead is None:
            return False
        self.window.append(self.ahead)
        self.ahead = next(self.snapshot.chunks, None)
        return True

    def taken(self, next_ordinal: int, now: float) -> None:
        """Note that the follower has the chunks before ``next_ordinal``."""
        while self.first_ordinal < next_ordinal and self.window:
            self.window.popleft()
            self.first_ordinal += 1
            self.sent = max(self.sent - 1, 0)
            self.news_at, self.probing = now, False


class SnapshotSender:
    """The leader's transfers, at most one for each peer."""

    def __init__(self, core: Core, state_machine: StateMachine) -> None:
        """Create it without a transfer under way."""
        self._core = core
        self._state_machine = state_machine
        self._transfers: dict[Node, _OutgoingSnapshot] = {}
        self._opened = 0
        self._room_bytes = 0

    def begin_turn(self) -> None:
        """Begin a turn, which may send its share anew."""
        self._room_bytes = self._core.options.snapshot_bytes_per_turn_max

    def feed(self, peer: Node) -> bool:
        """Send ``peer`` the chunks it lacks, as far as there is room.

        Returns:
            Whether any chunk was sent.
        """
        core, options = self._core, self._core.options
        transfer = self._transfers.get(peer)
        if transfer is None:
            transfer = self._transfers[peer] = self._open()
        elif core.now - transfer.news_at >= options.election_seconds_max:
            transfer.news_at, transfer.sent, transfer.probing = core.now, 0, True
        in_flight_max = 1 if transfer.probing else options.snapshot_chunks_in_flight_max
        before = transfer.sent
        while transfer.sent < in_flight_max and self._room_bytes > 0:
            if transfer.sent == len(transfer.window) and not transfer.read():
                break
            self._room_bytes -= len(transfer.window[transfer.sent])
            core.send(peer.id, self._chunk(transfer, transfer.sent))
            transfer.sent += 1
        return transfer.sent > before

    def on_taken(self, sender: NodeId, message: ChunkTaken) -> None:
        """Note that a follower has all chunks before the one it names."""
        core = self._core
        peer = core.peer(sender)
        transfer = None if peer is None else self._transfers.get(peer)
        if peer is None or transfer is None or message.transfer != transfer.number:
            return
        core.answered_at[peer] = core.now
        if message.next_ordinal >= transfer.first_ordinal:
            transfer.wants_earlier_since = None
            transfer.taken(message.next_ordinal, core.now)
        elif transfer.wants_earlier_since is None:
            transfer.wants_earlier_since = core.now
        elif core.now >= transfer.wants_earlier_since + 2 * core.options.heartbeat_seconds:
            self.end(peer)

    def is_under_way(self, peer: Node) -> bool:
        """Return whether ``peer`` is being sent a snapshot."""
        return peer in self._transfers

    def index_for(self, peer: Node) -> int:
        """Return the last entry that the snapshot on its way to ``peer`` includes, or 0."""
        transfer = self._transfers.get(peer)
        return 0 if transfer is None else transfer.snapshot.index

    def forget(self, peer: Node, index: int) -> None:
        """End an older snapshot to ``peer``, which has the log up to ``index``."""
        if index >= self.index_for(peer):
            self.end(peer)

    def end(self, peer: Node) -> None:
        """End the transfer to ``peer``."""
        transfer = self._transfers.pop(peer, None)
        if transfer is not None:
            transfer.snapshot.close()

    def close(self) -> None:
        """End all transfers."""
        for peer in list(self._transfers):
            self.end(peer)

    def _open(self) -> _OutgoingSnapshot:
        snapshot = self._state_machine.open_snapshot()
        log = self._core.journal
        term = log.term_at(snapshot.index)
        assert term is not None, f"the state ends at {snapshot.index}, before the log begins"
        self._opened += 1
        transfer = _OutgoingSnapshot(
            self._opened,
            snapshot,
            term,
            log.members_at(snapshot.index),
            next(snapshot.chunks, b""),
        )
        transfer.news_at = self._core.now
        return transfer

    def _chunk(self, transfer: _OutgoingSnapshot, index: int) -> Chunk:
        return Chunk(
            self._core.term,
            transfer.number,
            transfer.snapshot.index,
            transfer.term,
            transfer.members,
            transfer.first_ordinal + index,
            transfer.window[index],
            transfer.ahead is None and index == len(transfer.window) - 1,
        )
