"""The replication of entries: the leader's side, which feeds each peer, and the follower's.

The leader knows of each peer where its log is thought to agree. While that is a guess it *probes*:
one message at a time, until the peer says yes. From then on it streams: several messages under
way, and back to probing when the peer says that something is missing::

            yes: the logs agree up to i
    probe ───────────────────────────────▶ stream        a peer behind the log's beginning
      ▲                                      │           gets a snapshot (.snapshots)
      └──────────────────────────────────────┘
            no: try again after i

A group with nothing to do goes *quiet*: when every peer has had everything for a while, the
heartbeats say that. The followers stop their timers and answer that they have. When all have, the
leader stops its timers, too. From then on the nodes' own heartbeats vouch for the leader
(:mod:`.frames`). Peers whose node is silent are not waited for. A proposal, a request for votes,
an answer of a peer that is not quiet, or a node that comes back wakes the leader, whose next
heartbeat wakes the followers::

    leader                        follower
       | -- Append, quiet -------> |  has all that the message speaks of: timers stop
       | <------ Appended, quiet - |
       timers stop                    ... any Append that is not quiet: timers run

Invariants:

* A follower removes an entry only if the leader's entry at that place has another term, and never
  one that is committed (section 5.3). A doubled or late append changes nothing.
* A follower commits no further than the message showed its log to agree (figure 2: "index of last
  new entry"), however long its log is.
* A leader commits by counting only entries of its own term (section 5.4.2).
* Only answers of the leader's own term, by members, are counted, and none that names more than
  the member was sent.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

from pysyncobj.node import Node

from postroom.log_once import LogOnce
from postroom.raft.election import Elections
from postroom.raft.frames import Liveness
from postroom.raft.interface import NodeId, StateMachine
from postroom.raft.messages import Append, Appended, Entry
from postroom.raft.snapshots import SnapshotSender
from postroom.raft.stored_log import ENTRIES_VERSION
from postroom.raft.syncobj_core import LEADER, Core

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """The report of a leader about a peer.

    Attributes:
        match_index: the entry up to which the logs are known to agree.
        silent_seconds: the time since the peer was last heard.
        snapshot_under_way: whether it is being sent a snapshot, or puts one in place.
        entries_version: the version of entries that it can read, as its node has said last.
        is_heard: whether its node was heard within an election time-out.
    """

    match_index: int
    silent_seconds: float
    snapshot_under_way: bool
    entries_version: int = ENTRIES_VERSION
    is_heard: bool = True


@dataclass(slots=True)
class _PeerState:
    """The leader's knowledge of one peer, besides next and match index."""

    probing: bool = True
    waits_for_answer: bool = False
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """The last index and the bytes of each message with entries that is not acknowledged."""
    bytes_in_flight: int = 0
    is_quiet: bool = False
    is_installing: bool = False
    offered: int = 0
    """The index up to which the peer can have this leader's log from messages of this term."""

    def sent(self, last_index: int, size: int) -> None:
        """Note that a message with entries is under way."""
        self.in_flight.append((last_index, size))
        self.bytes_in_flight += size

    def arrived(self, index: int) -> None:
        """Note that the peer has all entries up to ``index``."""
        while self.in_flight and self.in_flight[0][0] <= index:
            self.bytes_in_flight -= self.in_flight.popleft()[1]

    def lost(self) -> None:
        """Stop counting on the messages under way."""
        self.in_flight.clear()
        self.bytes_in_flight = 0


class LeaderReplication:
    """The leader's side: it feeds peers, counts answers and advances the commit index.

    Attributes:
        snapshots: the transfers to peers that are behind the log's beginning.
    """

    def __init__(self, core: Core, state_machine: StateMachine, liveness: Liveness) -> None:
        """Create it without knowledge of any peer."""
        self._core = core
        self._liveness = liveness
        self.snapshots = SnapshotSender(core, state_machine)
        self._progress: dict[Node, _PeerState] = {}
        self._peers: list[Node] | None = None
        self._heartbeat_at = 0.0
        self._settled_since: float | None = None
        self._term = -1
        self._said = LogOnce()

    def deadline(self) -> float | None:
        """Return when the next heartbeat is due, or ``None`` if no peer is to hear it."""
        core = self._core
        return self._heartbeat_at if core.role == LEADER and core.peers and not core.quiet else None

    def close(self) -> None:
        """Close the snapshots under way, because this member does not lead, or is closing."""
        if self._term < 0:
            return
        self.snapshots.close()
        self._progress, self._peers = {}, None
        self._settled_since = None
        self._term = -1

    def wake(self) -> None:
        """Let this leader's timers run again; the nodes have vouched for the peers meanwhile."""
        core = self._core
        if not core.quiet:
            return
        core.quiet = False
        self._settled_since = None
        self._heartbeat_at = core.now
        for peer in core.peers:
            alive_at = self._liveness.seems_alive_at(peer.id)
            core.answered_at[peer] = max(core.answered_at[peer], alive_at)
            self._of(peer).is_quiet = False

    def send(self) -> None:
        """End a leader's turn: send each peer the entries it lacks, or a heartbeat that is due."""
        core = self._core
        if self._term != core.term:
            self.close()
            self._term, self._heartbeat_at = core.term, core.now
        if self._peers is not core.peers:
            self._follow_peers()
        if core.quiet:
            return
        heartbeat = core.now >= self._heartbeat_at
        if heartbeat:
            self._heartbeat_at = core.now + core.options.heartbeat_seconds
        may_be_quiet = self._may_be_quiet()
        self.snapshots.begin_turn()
        next_index, last_index = core.next_index, core.journal.last_index
        for peer in core.peers:
            if heartbeat or next_index[peer] <= last_index:
                self._feed(peer, heartbeat=heartbeat, quiet=may_be_quiet)
        if may_be_quiet and all(self._is_quiet(peer) for peer in core.peers):
            core.quiet = True
            self.snapshots.close()

    def _may_be_quiet(self) -> bool:
        """Return whether nothing was to be done for long enough."""
        core, patience = self._core, self._core.options.quiet_after_seconds
        if not self._is_settled() or patience is None:
            self._settled_since = None
            return False
        if self._settled_since is None:
            self._settled_since = core.now
            for progress in self._progress.values():
                progress.is_quiet = False
        return core.now - self._settled_since >= patience and self.hears_majority()

    def _is_settled(self) -> bool:
        """Return whether all entries are applied, and at each peer that is heard."""
        core = self._core
        last_index = core.journal.last_index
        if not core.applied_index == core.commit_index == last_index or core.members.is_joint:
            return False
        match_index = core.match_index
        for peer in core.peers:
            if match_index[peer] != last_index and not self._liveness.is_silent(peer.id):
                return False
        return True

    def hears_majority(self) -> bool:
        """Return whether the nodes of a majority are heard, this one included."""
        core = self._core
        heard = {peer.id for peer in core.voters if not self._liveness.is_silent(peer.id)}
        return core.is_majority({core.node_id, *heard})

    def _is_quiet(self, peer: Node) -> bool:
        return self._liveness.is_silent(peer.id) or self._of(peer).is_quiet

    def on_appended(self, sender: NodeId, message: Appended) -> None:
        """Deal with a peer's answer in this term."""
        core = self._core
        peer = core.peer(sender)
        if peer is None or self._term != core.term or message.index > core.journal.last_index:
            return
        progress = self._of(peer)
        progress.is_quiet, progress.is_installing = message.quiet, message.installing
        if message.success and message.index > self._can_have(progress):
            self._said.log(
                logger, sender, core.now,
                "dropped what node %s says, that it has entry %d: it was sent no such entry",
                sender, message.index,
            )  # fmt: skip
        elif message.success:
            self._acknowledged(peer, progress, message.index)
        else:
            self._missed(peer, progress, message.index)

    def _can_have(self, progress: _PeerState) -> int:
        """Return up to where a peer can have this log.

        It has at most the entries that it was sent, and those before this term. It answers with its
        committed index, if that is more than a message showed. Those entries are of earlier terms,
        which this leader had when it was elected, or were sent by this leader.
        """
        first = self._core.first_index_of_term
        return max(progress.offered, 0 if first is None else first - 1)

    def has_sent_all(self, node: NodeId) -> bool:
        """Return whether all entries are on their way to a peer, or there."""
        peer = self._core.peer(node)
        return peer is not None and self._core.next_index[peer] > self._core.journal.last_index

    def advance_commit(self) -> None:
        """Commit the entries of this leader's term that a majority has (section 5.4.2)."""
        core = self._core
        if core.commit_index == core.journal.last_index:
            return
        have = {peer.id: core.match_index[peer] for peer in core.voters}
        have[core.node_id] = core.journal.last_index
        majority_has = core.majority_value(have)
        if majority_has > core.commit_index and core.journal.term_at(majority_has) == core.term:
            core.commit_index = majority_has

    def all_have(self) -> int:
        """Return the last index that every peer has, or will have with its snapshot."""
        return self._have(self._core.peers)

    def all_that_answer_have(self) -> int:
        """Return the last index that every peer has, or will have, of those that still answer."""
        core = self._core
        since = core.now - core.options.election_seconds_max
        return self._have([peer for peer in core.peers if core.answered_at[peer] >= since])

    def _have(self, peers: list[Node]) -> int:
        match_index, coming = self._core.match_index, self.snapshots.index_for
        have = map(match_index.__getitem__, peers)
        if self.snapshots.are_under_way:
            have = map(max, have, map(coming, peers))
        return min(have, default=self._core.journal.last_index)

    def report(self) -> dict[NodeId, PeerProgress]:
        """Return this leader's knowledge of each peer."""
        core, alive_at = self._core, self._liveness.seems_alive_at
        now = self._liveness.monotonic()
        # A peer's last answer tells less: a new leader takes it to be just now for all of them.
        return {
            peer.id: PeerProgress(
                core.match_index[peer],
                max(0.0, now - alive_at(peer.id)),
                self.snapshots.is_under_way(peer) or self.is_installing(peer),
                self._liveness.entries_version(peer.id),
                not self._liveness.is_silent(peer.id),
            )
            for peer in core.peers
        }

    def is_installing(self, peer: Node) -> bool:
        """Return whether ``peer`` has said that it puts a snapshot in place."""
        progress = self._progress.get(peer)
        return progress is not None and progress.is_installing

    def _acknowledged(self, peer: Node, progress: _PeerState, index: int) -> None:
        self._core.count_answer(peer, index + 1, success=True)
        progress.probing = progress.waits_for_answer = False
        progress.arrived(index)
        if self.snapshots.are_under_way:
            self.snapshots.forget(peer, index)

    def _missed(self, peer: Node, progress: _PeerState, index: int) -> None:
        core = self._core
        # A late refusal must not undo what the peer has acknowledged since.
        after = max(index, core.match_index[peer])
        core.count_answer(peer, after + 1, success=False)
        progress.probing, progress.waits_for_answer = True, False
        progress.lost()

    def _feed(self, peer: Node, *, heartbeat: bool, quiet: bool) -> None:
        core = self._core
        progress = self._of(peer)
        if heartbeat:
            progress.waits_for_answer = False
        if core.next_index[peer] <= core.journal.base_index:
            self._feed_snapshot(peer, heartbeat=heartbeat)
            return
        sent = self._stream(peer, progress)
        if heartbeat and not sent:
            self._append(peer, core.next_index[peer] - 1, (), quiet=quiet)

    def _feed_snapshot(self, peer: Node, *, heartbeat: bool) -> None:
        core = self._core
        if core.now - core.answered_at[peer] <= core.options.snapshot_silent_seconds_max:
            sent = self.snapshots.feed(peer)
            progress = self._progress[peer]
            progress.offered = max(progress.offered, self.snapshots.index_for(peer))
        else:
            self.snapshots.end(peer)
            sent = False
        if heartbeat and not sent:
            # The append will be refused. The refusal of a peer that was silent begins a transfer
            # anew.
            self._append(peer, core.journal.base_index, ())

    def _stream(self, peer: Node, progress: _PeerState) -> bool:
        core, options = self._core, self._core.options
        sent = False
        while core.next_index[peer] <= core.journal.last_index and not (
            progress.waits_for_answer
            or len(progress.in_flight) >= options.append_messages_in_flight_max
            or progress.bytes_in_flight >= options.append_bytes_in_flight_max
        ):
            first = core.next_index[peer]
            batch = core.journal.batch(first, options.append_bytes_max, options.append_entries_max)
            self._append(peer, first - 1, tuple([(term, payload) for payload, _, term in batch]))
            sent = True
            if progress.probing:
                progress.waits_for_answer = True
            else:
                core.next_index[peer] = batch[-1][1] + 1
                progress.sent(batch[-1][1], sum([len(payload) for payload, _, _ in batch]))
        return sent

    def _append(
        self, peer: Node, prev_index: int, entries: tuple[Entry, ...], *, quiet: bool = False
    ) -> None:
        core = self._core
        prev_term = core.journal.term_at(prev_index)
        assert prev_term is not None, f"entry {prev_index} is not in the log"
        base_index = core.journal.base_index
        message = Append(
            core.term, prev_index, prev_term, core.commit_index, base_index, entries, quiet
        )
        progress = self._progress[peer]
        progress.offered = max(progress.offered, prev_index + len(entries))
        core.send(peer.id, message)

    def _of(self, peer: Node) -> _PeerState:
        """Return what is known of a peer."""
        known = self._progress.get(peer)
        if known is None:
            known = self._progress[peer] = _PeerState()
        return known

    def _follow_peers(self) -> None:
        """Forget former peers."""
        self._peers = self._core.peers
        for peer in [peer for peer in self._progress if peer not in self._peers]:
            del self._progress[peer]
            self.snapshots.end(peer)


class FollowerReplication:
    """The follower's side: it takes entries, and answers."""

    def __init__(self, core: Core, elections: Elections) -> None:
        """Create it without knowledge of any leader."""
        self._core = core
        self._elections = elections
        self.leader_base_index = 0
        """The index at which the leader's log begins: entries up to it are no longer wanted."""

    def on_append(self, leader: NodeId, message: Append) -> None:
        """Take AppendEntries of a term that is not behind (figure 2, receiver implementation)."""
        core = self._core
        if core.role == LEADER and message.term == core.term:
            return
        self._elections.hear_leader(leader, message.term)
        if not self._agrees(message):
            self._answer(leader, success=False, index=self._try_after(message))
            return
        self.leader_base_index = message.base_index
        self._take(message)
        agreed = max(message.prev_index + len(message.entries), core.commit_index)
        core.commit_index = max(core.commit_index, min(message.commit_index, agreed))
        has_all = agreed == core.journal.last_index == core.commit_index
        core.quiet = message.quiet and has_all and not core.installing
        self._answer(leader, success=True, index=agreed)

    def _answer(self, leader: NodeId, *, success: bool, index: int) -> None:
        core = self._core
        core.send(leader, Appended(core.term, success, index, core.quiet, core.installing))

    def _agrees(self, message: Append) -> bool:
        """Return whether the logs agree before the entries of ``message``.

        Committed entries agree (section 5.4.3). After them, the entry before must be the same.
        """
        core, log = self._core, self._core.journal
        if message.prev_index > core.commit_index:
            return log.term_at(message.prev_index) == message.prev_term
        new = message.entries[core.commit_index - message.prev_index :]
        # Terms rise along a log: a true leader has no lower one after the committed entries.
        return not new or new[0][0] >= (log.term_at(core.commit_index) or 0)

    def _try_after(self, message: Append) -> int:
        """Return where the leader should try: after our log, or before the conflicting term."""
        core, log = self._core, self._core.journal
        if message.prev_index > log.last_index:
            return log.last_index
        return max(core.commit_index, log.first_index_of_term_at(message.prev_index) - 1)

    def _take(self, message: Append) -> None:
        """Append the new entries; cut only at a real conflict (figure 2, steps 3 and 4)."""
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
