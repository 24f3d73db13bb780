"""Who leads: time-outs, the straw poll before an election, votes, and when to step down.

::

                 silence                   majority would             majority did
    follower ───────────────▶ straw poll ───────────────▶ candidate ───────────────▶ leader
        ▲     (PreVote)           │          (Vote)           │                         │
        └─────────────────────────┴───────────────────────────┴─────────────────────────┘
             a leader speaks, or a higher term is met; a leader also: no majority answers

A member that comes back with an old log does not disturb the others: it asks before it enters a new
term (dissertation, section 9.6), and whoever hears a leader neither says yes nor takes over the
term that it is asked about (section 6 of the paper; dissertation, 4.2.3).

Invariants:

* One vote a term, given to the same candidate however often it asks (section 5.2), and only to one
  whose log is at least as up to date (section 5.4.1).
* Each voter is counted once an election, and only if it is a member.
* Term and vote are synced before anybody hears of them.
"""

from __future__ import annotations

from postroom.raft.messages import PreVote, PreVoted, Vote, Voted
from postroom.raft.state_machine import NodeId
from postroom.raft.syncobj_core import CANDIDATE, LEADER, Core


class Elections:
    """The rules of one member."""

    def __init__(self, core: Core) -> None:
        """Rules over ``core``, whose state they change."""
        self._core = core
        self._would_vote: set[NodeId] | None = None
        self._voted: set[NodeId] = set()
        self._heard_leader_at = float("-inf")

    def deadline(self) -> float | None:
        """When ``tick`` has something to do; ``None`` for never."""
        core = self._core
        if core.role == LEADER:
            return None if core.is_sole else self._majority_answered_at() + self._patience
        return core.election_deadline if core.is_member else None

    def tick(self) -> None:
        """Campaign after a silence; as a leader, step down when no majority answers."""
        core = self._core
        if core.role == LEADER:
            self._check_quorum()
        elif core.is_sole or (core.is_member and core.now >= core.election_deadline):
            self._begin()

    def hear_leader(self, leader: NodeId, term: int) -> None:
        """``leader`` of ``term``, which is not behind, spoke to this member."""
        core = self._core
        if core.role != LEADER or term > core.term:
            core.become_follower(term, leader)
        self._would_vote = None
        self._heard_leader_at = core.now
        core.restart_election_timer()

    def meet_term(self, term: int) -> None:
        """Whoever meets a higher term follows, and forgets its leader (section 5.1)."""
        if term > self._core.term:
            self._core.become_follower(term, None)
            self._would_vote = None

    # Campaigning.

    def _begin(self) -> None:
        core = self._core
        core.restart_election_timer()
        if core.is_sole:
            core.become_candidate()
            return
        core.become_follower(core.term, None)
        self._would_vote = {core.node_id}
        log = core.journal
        for peer in core.peers:
            core.send(peer.id, PreVote(core.term + 1, log.last_index, log.last_term))

    def _campaign(self) -> None:
        core, log = self._core, self._core.journal
        self._would_vote = None
        self._voted = {core.node_id}
        core.restart_election_timer()
        core.become_candidate()
        for peer in core.peers:
            core.send(peer.id, Vote(core.term, log.last_index, log.last_term))

    def on_pre_voted(self, sender: NodeId, message: PreVoted) -> None:
        """An answer to the straw poll; a refusal may tell of a higher term."""
        core = self._core
        if not message.granted:
            self.meet_term(message.term)
            return
        if self._would_vote is None or message.term != core.term + 1 or core.peer(sender) is None:
            return
        self._would_vote.add(sender)
        if len(self._would_vote) >= core.quorum:
            self._campaign()

    def on_voted(self, sender: NodeId, message: Voted) -> None:
        """An answer to a vote request, of this term or a higher one."""
        core = self._core
        self.meet_term(message.term)
        peer = core.peer(sender)
        if not message.granted or message.term != core.term or core.role != CANDIDATE:
            return
        if peer is not None and sender not in self._voted:
            self._voted.add(sender)
            core.count_vote(peer)

    # Voting.

    def on_pre_vote(self, sender: NodeId, message: PreVote) -> None:
        """Say whether ``sender`` would get this member's vote. Nothing changes here."""
        core = self._core
        willing = message.term > core.term and not self._hears_leader()
        if willing and self._is_up_to_date(message):
            core.send(sender, PreVoted(message.term, granted=True))
        else:
            core.send(sender, PreVoted(core.term, granted=False))

    def on_vote(self, sender: NodeId, message: Vote) -> None:
        """RequestVote (figure 2), unanswered while a leader is heard."""
        core = self._core
        if message.term > core.term and self._hears_leader():
            return
        self.meet_term(message.term)
        granted = (
            message.term == core.term
            and core.vote in (None, sender)
            and self._is_up_to_date(message)
        )
        if granted:
            core.vote_for(sender)
            core.restart_election_timer()
        core.send(sender, Voted(core.term, granted))

    def _is_up_to_date(self, asking: PreVote | Vote) -> bool:
        log = self._core.journal
        return (asking.last_term, asking.last_index) >= (log.last_term, log.last_index)

    def _hears_leader(self) -> bool:
        core = self._core
        if core.role == LEADER:
            return True
        silence = core.now - self._heard_leader_at
        return core.leader is not None and silence < core.options.election_seconds_min

    # Stepping down.

    @property
    def _patience(self) -> float:
        return self._core.options.election_seconds_max

    def _check_quorum(self) -> None:
        core = self._core
        if not core.is_sole and core.now >= self._majority_answered_at() + self._patience:
            core.become_follower(core.term, None)
            core.restart_election_timer()

    def _majority_answered_at(self) -> float:
        """Since when a majority has been silent, this member included."""
        core = self._core
        times = [core.answered_at[peer] for peer in core.peers]
        if core.is_member:
            times.append(core.now)
        return sorted(times, reverse=True)[core.quorum - 1]
