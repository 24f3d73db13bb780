"""How entries travel: the leader's side, which feeds each peer, and the follower's.

The leader knows of each peer where its log is thought to agree. While that is a guess it *probes*:
one message at a time, until the peer says yes. From then on it streams: several messages under
way, and back to probing when the peer says that something is missing::

            yes: the logs agree up to i
    probe ───────────────────────────────▶ stream        a peer behind the log's beginning
      ▲                                      │           gets a snapshot (.snapshot_transfer)
      └──────────────────────────────────────┘
            no: try again after i

Invariants:

* A follower removes an entry only if the leader's entry at that place has another term, and never
  one that is committed (section 5.3). A doubled or late append changes nothing.
* A follower commits no further than the message showed its log to agree (figure 2: "index of last
  new entry"), however long its log is.
* A leader commits by counting only entries of its own term (section 5.4.2).
* Only answers of the leader's own term, by members, are counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pysyncobj.node import Node

from postroom.raft.election import Elections
from postroom.raft.messages import Append, Appended, Entry
from postroom.raft.snapshot_transfer import SnapshotSender
from postroom.raft.state_machine import NodeId, StateMachine
from postroom.raft.syncobj_core import LEADER, Core


@dataclass(slots=True)
class _Progress:
    """What the leader knows of one peer, besides next and match index."""

    probing: bool = True
    waits_for_answer: bool = False
    in_flight: deque[int] = field(default_factory=deque)
    """Last index of each message with entries that is not acknowledged."""


class Feeding:
    """The leader's side: sends what each peer lacks, counts answers, advances the commit index."""

    def __init__(self, core: Core, state_machine: StateMachine) -> None:
        """Nothing is known of any peer yet."""
        self._core = core
        self._snapshots = SnapshotSender(core, state_machine)
        self._progress: dict[Node, _Progress] = {}
        self._heartbeat_at = 0.0
        self._term = -1

    def deadline(self) -> float | None:
        """When the next heartbeat is due; ``None`` if there is nobody to hear it."""
        core = self._core
        return self._heartbeat_at if core.role == LEADER and core.peers else None

    def close(self) -> None:
        """No longer the leader, or closing: let go of snapshots under way."""
        self._snapshots.close()
        self._progress = {}
        self._term = -1

    def send(self) -> None:
        """End a leader's turn: to each peer what it lacks, or a heartbeat if one is due."""
        core = self._core
        if self._term != core.term:
            self.close()
            self._term, self._heartbeat_at = core.term, core.now
        heartbeat = core.now >= self._heartbeat_at
        if heartbeat:
            self._heartbeat_at = core.now + core.options.heartbeat_seconds
        self._forget_former_peers()
        for peer in core.peers:
            self._feed(peer, heartbeat=heartbeat)

    def on_appended(self, sender: NodeId, message: Appended) -> None:
        """A peer's answer in this term."""
        core = self._core
        peer = core.peer(sender)
        if peer is None or self._term != core.term or message.index > core.journal.last_index:
            return
        progress = self._progress.setdefault(peer, _Progress())
        if message.success:
            self._acknowledged(peer, progress, message.index)
        else:
            self._missed(peer, progress, message.index)

    def advance_commit(self) -> None:
        """Commit what a majority has, if it is of this leader's term (section 5.4.2)."""
        core = self._core
        have = [core.match_index[peer] for peer in core.peers]
        if core.is_member:
            have.append(core.journal.last_index)
        majority_has = sorted(have, reverse=True)[core.quorum - 1]
        if majority_has > core.commit_index and core.journal.term_at(majority_has) == core.term:
            core.commit_index = majority_has

    def all_have(self) -> int:
        """The last index that every peer which still answers has."""
        core = self._core
        since = core.now - core.options.election_seconds_max
        return min(
            (core.match_index[peer] for peer in core.peers if core.answered_at[peer] >= since),
            default=core.journal.last_index,
        )

    @property
    def snapshots(self) -> SnapshotSender:
        """The transfers to peers that are behind the log's beginning."""
        return self._snapshots

    def _acknowledged(self, peer: Node, progress: _Progress, index: int) -> None:
        self._core.count_answer(peer, index + 1, success=True)
        progress.probing = progress.waits_for_answer = False
        while progress.in_flight and progress.in_flight[0] <= index:
            progress.in_flight.popleft()
        self._snapshots.forget(peer, index)

    def _missed(self, peer: Node, progress: _Progress, index: int) -> None:
        core = self._core
        # A late refusal must not take back what the peer has acknowledged since.
        after = max(index, core.match_index[peer])
        core.count_answer(peer, after + 1, success=False)
        progress.probing, progress.waits_for_answer = True, False
        progress.in_flight.clear()

    def _feed(self, peer: Node, *, heartbeat: bool) -> None:
        core = self._core
        progress = self._progress.setdefault(peer, _Progress())
        if heartbeat:
            progress.waits_for_answer = False
        if core.next_index[peer] <= core.journal.base_index:
            self._snapshots.feed(peer, again=heartbeat)
            return
        sent = self._stream(peer, progress)
        if heartbeat and not sent:
            self._append(peer, core.next_index[peer] - 1, ())

    def _stream(self, peer: Node, progress: _Progress) -> bool:
        core, options = self._core, self._core.options
        sent = False
        while core.next_index[peer] <= core.journal.last_index and not (
            progress.waits_for_answer
            or len(progress.in_flight) >= options.append_messages_in_flight_max
        ):
            first = core.next_index[peer]
            batch = core.journal.batch(first, options.append_bytes_max)
            self._append(peer, first - 1, tuple((term, payload) for payload, _, term in batch))
            sent = True
            if progress.probing:
                progress.waits_for_answer = True
            else:
                core.next_index[peer] = batch[-1][1] + 1
                progress.in_flight.append(batch[-1][1])
        return sent

    def _append(self, peer: Node, prev_index: int, entries: tuple[Entry, ...]) -> None:
        core = self._core
        prev_term = core.journal.term_at(prev_index)
        assert prev_term is not None, f"entry {prev_index} is not in the log"
        base_index = core.journal.base_index
        message = Append(core.term, prev_index, prev_term, core.commit_index, base_index, entries)
        core.send(peer.id, message)

    def _forget_former_peers(self) -> None:
        for peer in [peer for peer in self._progress if peer not in self._core.match_index]:
            del self._progress[peer]
            self._snapshots.forget(peer, None)


class Following:
    """The follower's side: takes entries, and answers."""

    def __init__(self, core: Core, elections: Elections) -> None:
        """Nothing is known of any leader yet."""
        self._core = core
        self._elections = elections
        self.leader_base_index = 0
        """Where the leader's log begins: entries up to here are no longer wanted."""

    def on_append(self, leader: NodeId, message: Append) -> None:
        """AppendEntries of a term that is not behind (figure 2, receiver implementation)."""
        core = self._core
        if core.role == LEADER and message.term == core.term:
            return
        self._elections.hear_leader(leader, message.term)
        if not self._agrees(message):
            core.send(leader, Appended(core.term, success=False, index=self._try_after(message)))
            return
        self.leader_base_index = message.base_index
        self._take(message)
        agreed = max(message.prev_index + len(message.entries), core.commit_index)
        core.commit_index = max(core.commit_index, min(message.commit_index, agreed))
        core.send(leader, Appended(core.term, success=True, index=agreed))

    def _agrees(self, message: Append) -> bool:
        """What is committed agrees (section 5.4.3); past it, the entry before must be the same."""
        if message.prev_index <= self._core.commit_index:
            return True
        return self._core.journal.term_at(message.prev_index) == message.prev_term

    def _try_after(self, message: Append) -> int:
        """Where the leader should try: past our log, or before the whole conflicting term."""
        core, log = self._core, self._core.journal
        if message.prev_index > log.last_index:
            return log.last_index
        return max(core.commit_index, log.first_index_of_term_at(message.prev_index) - 1)

    def _take(self, message: Append) -> None:
        """Append what is new; cut only at a real conflict (figure 2, steps 3 and 4)."""
        core, log = self._core, self._core.journal
        index = message.prev_index
        for term, payload in message.entries:
            index += 1
            if index <= core.commit_index or log.term_at(index) == term:
                continue
            if index <= log.last_index:
                log.cut(index)
            log.add(payload, index, term)
        core.adopt_members()
