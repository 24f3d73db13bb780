"""Moving a snapshot: the leader sends chunk by chunk, the follower installs the whole at the end.

One chunk is under way at a time. It is sent again with each heartbeat until it is answered, and the
answer names the chunk wanted next, so lost, doubled and late messages do no harm::

    leader                        follower
       | -- Chunk 0 ---------------> |  begin
       | <-------- ChunkTaken 1 ---- |
       | -- Chunk 1, final --------> |  finish: state and log's beginning, in one write set
       | <-- Appended(index) ------- |

A follower that restarts in between asks for chunk 0 again; the leader then opens a new snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

from pysyncobj.node import Node

from postroom.kv.engine import WriteSet
from postroom.raft.election import Elections
from postroom.raft.membership import Members
from postroom.raft.messages import Appended, Chunk, ChunkTaken
from postroom.raft.snapshot import Snapshot, SnapshotSink
from postroom.raft.state_machine import NodeId, StateMachine
from postroom.raft.syncobj_core import LEADER, Core


@dataclass(slots=True)
class _Outgoing:
    """A transfer under way; the chunk after ``data`` is read ahead, to know which is the last."""

    number: int
    snapshot: Snapshot
    term: int
    members: Members
    data: bytes
    following: bytes | None
    ordinal: int = 0
    waits_for_answer: bool = False


class SnapshotSender:
    """The leader's transfers, at most one for each peer."""

    def __init__(self, core: Core, state_machine: StateMachine) -> None:
        """No transfer is under way."""
        self._core = core
        self._state_machine = state_machine
        self._transfers: dict[Node, _Outgoing] = {}
        self._opened = 0

    def feed(self, peer: Node, *, again: bool) -> None:
        """Send ``peer`` the chunk it lacks, unless that is under way and not to be repeated."""
        transfer = self._transfers.get(peer)
        if transfer is None:
            transfer = self._transfers[peer] = self._open()
        if again or not transfer.waits_for_answer:
            transfer.waits_for_answer = True
            self._core.send(peer.id, self._chunk(transfer))

    def on_taken(self, sender: NodeId, message: ChunkTaken) -> None:
        """A follower has all chunks before the one it names."""
        peer = self._core.peer(sender)
        transfer = None if peer is None else self._transfers.get(peer)
        if peer is None or transfer is None or message.transfer != transfer.number:
            return
        self._core.answered_at[peer] = self._core.now
        if message.next_ordinal == transfer.ordinal + 1 and transfer.following is not None:
            self._step(transfer, transfer.following)
        elif message.next_ordinal == 0 and transfer.ordinal > 0:
            self._end(peer)

    def is_under_way(self, peer: Node) -> bool:
        """Whether ``peer`` is being sent a snapshot."""
        return peer in self._transfers

    def forget(self, peer: Node, index: int | None) -> None:
        """``peer`` has the log up to ``index``, or is gone: no need for an older snapshot."""
        transfer = self._transfers.get(peer)
        if transfer is not None and (index is None or index >= transfer.snapshot.index):
            self._end(peer)

    def close(self) -> None:
        """End all transfers."""
        for peer in list(self._transfers):
            self._end(peer)

    def _open(self) -> _Outgoing:
        snapshot = self._state_machine.open_snapshot()
        log = self._core.journal
        term = log.term_at(snapshot.index)
        assert term is not None, f"the state ends at {snapshot.index}, before the log begins"
        data = next(snapshot.chunks, b"")
        following = next(snapshot.chunks, None)
        self._opened += 1
        members = log.members_at(snapshot.index)
        return _Outgoing(self._opened, snapshot, term, members, data, following)

    @staticmethod
    def _step(transfer: _Outgoing, data: bytes) -> None:
        transfer.data = data
        transfer.following = next(transfer.snapshot.chunks, None)
        transfer.ordinal += 1
        transfer.waits_for_answer = False

    def _chunk(self, transfer: _Outgoing) -> Chunk:
        return Chunk(
            self._core.term,
            transfer.number,
            transfer.snapshot.index,
            transfer.term,
            transfer.members,
            transfer.ordinal,
            transfer.data,
            transfer.following is None,
        )

    def _end(self, peer: Node) -> None:
        self._transfers.pop(peer).snapshot.close()


class SnapshotReceiver:
    """The follower's side: at most one snapshot on its way in."""

    def __init__(self, core: Core, elections: Elections, state_machine: StateMachine) -> None:
        """Nothing has arrived."""
        self._core = core
        self._elections = elections
        self._state_machine = state_machine
        self._sink: SnapshotSink | None = None
        self._arriving = (0, 0)
        self._next_ordinal = 0
        self.installed_index = 0
        """Proposals up to here whose entries were not seen have an unknown outcome."""

    def on_chunk(self, leader: NodeId, message: Chunk, staged: WriteSet) -> None:
        """InstallSnapshot of a term that is not behind (figure 13)."""
        core = self._core
        if core.role == LEADER and message.term == core.term:
            return
        self._elections.hear_leader(leader, message.term)
        if self._has(message):
            self.abort()
            core.commit_index = max(core.commit_index, message.index)
            core.send(leader, Appended(core.term, success=True, index=message.index))
        elif self._take(message):
            self._install(message, staged)
            core.send(leader, Appended(core.term, success=True, index=message.index))
        else:
            wanted = self._next_ordinal if self._arriving == _transfer(message) else 0
            core.send(leader, ChunkTaken(core.term, message.transfer, wanted))

    def abort(self) -> None:
        """Forget a snapshot that came in part."""
        if self._sink is not None:
            self._sink.abort()
        self._sink = None
        self._arriving = (0, 0)
        self._next_ordinal = 0

    def _has(self, message: Chunk) -> bool:
        """Whether the log holds the snapshot's last entry; what follows it then stays (step 6)."""
        core = self._core
        if message.index <= core.commit_index:
            return True
        return core.journal.term_at(message.index) == message.index_term

    def _take(self, message: Chunk) -> bool:
        """Take a chunk if it is the next one; whether the snapshot is complete."""
        arriving = _transfer(message)
        if message.ordinal == 0 and arriving > self._arriving:
            self.abort()
            self._sink = self._state_machine.snapshot_sink()
            self._sink.begin(message.index, message.index_term)
            self._arriving = arriving
        wanted = (self._arriving, self._next_ordinal)
        if self._sink is None or wanted != (arriving, message.ordinal):
            return False
        self._sink.chunk(message.data)
        self._next_ordinal += 1
        return message.final

    def _install(self, message: Chunk, staged: WriteSet) -> None:
        core = self._core
        assert self._sink is not None
        self._sink.finish(staged)
        self._sink = None
        self.abort()
        core.journal.restart(message.index, message.index_term, message.members)
        core.commit_index = core.applied_index = self.installed_index = message.index
        core.adopt_members()


def _transfer(message: Chunk) -> tuple[int, int]:
    """Which transfer: later ones are larger, as a term has one leader, which counts."""
    return message.term, message.transfer
