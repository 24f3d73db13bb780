"""The election of a leader: time-outs, the straw poll, votes, and stepping down.

::

                 silence                   majority would             majority did
    follower ───────────────▶ straw poll ───────────────▶ candidate ───────────────▶ leader
        ▲ │   (PreVote)           │          (Vote)           ▲                         │
        │ └── the leader says so: TimeoutNow ─────────────────┘                         │
        └─────────────────────────┴───────────────────────────┴─────────────────────────┘
             a leader speaks, or a higher term is met; a leader also: no majority answers

A member that comes back with an old log does not disturb the others: it asks before it enters a new
term (dissertation, section 9.6). A member that hears a leader neither says yes nor adopts the term
that it is asked about (section 6 of the paper; dissertation, 4.2.3). Two requests are answered
all the same. One comes from a member which the leader has told to take over. The other comes from
the very node that is believed to lead: it was started again, since a leader does not ask.

Learners do not campaign, are not asked and not counted. They do answer: a learner that is
asked has been promoted by an entry which the candidate has and the learner has not. (Servers answer
whatever their own configuration says: dissertation, section 4.1. In etcd learners do, too.)

A *quiet* member's timers stand still, and its leader counts as heard as long as that node is
(:mod:`.frames`). A member that asks for votes wakes it; if the leader is well it will say so.

Invariants:

* One vote a term, given to the same candidate however often it asks (section 5.2). It is given only
  to one whose log is at least as up to date (section 5.4.1).
* Each voter is counted once an election, and only if it is a voter by this member's log.
* Term and vote are synced before any other member hears of them.
* A member that was elected as the only voter goes on in its term when it is started again alone.
  No other member can have been elected in it, and nothing needs to be written.
* A member whose state is not in place (:mod:`.snapshots`) does not campaign: it votes.
* A replica that never held anything votes, as one with an empty log. A former member that comes
  back has forgotten what it acknowledged; it votes again when it has all that was committed by its
  removal.
"""

from __future__ import annotations

from postroom.raft.frames import Liveness
from postroom.raft.interface import NodeId
from postroom.raft.membership import Members
from postroom.raft.messages import PreVote, PreVoted, TimeoutNow, Vote, Voted
from postroom.raft.syncobj_core import CANDIDATE, FOLLOWER, LEADER, Core


class Elections:
    """The election rules of one member.

    Attributes:
        campaigns: the number of elections in which this member stood.
    """

    def __init__(self, core: Core, liveness: Liveness) -> None:
        """Create the rules over ``core``, whose state they change."""
        self._core = core
        self._liveness = liveness
        self.campaigns = 0
        self._would_vote: set[NodeId] | None = None
        self._voted: set[NodeId] = set()
        self._heard_leader_at = float("-inf")
        self.asked_at = float("-inf")
        """The time when a member has asked for a vote; minus infinity: never."""
        self._looked_at: tuple[int, Members] | None = None
        self._led_until = 0.0

    def deadline(self) -> float | None:
        """Return when ``tick`` has something to do, or ``None`` for never."""
        core = self._core
        if core.quiet:
            return None
        if core.role == LEADER:
            return None if core.is_only_voter else self._leads_until()
        return core.election_deadline if core.may_campaign() else None

    def hurry(self) -> None:
        """Let the next ``tick`` campaign, if this member does not follow a leader."""
        core = self._core
        if core.role == FOLLOWER and core.leader is None:
            core.quiet = False
            core.election_deadline = core.now

    def tick(self) -> None:
        """Campaign after a silence; as a leader, step down when no majority answers."""
        core = self._core
        if core.quiet:
            return
        if core.role == LEADER:
            self._check_quorum()
        elif core.is_only_voter or core.now >= core.election_deadline:
            self._begin()

    @property
    def leader_heard_at(self) -> float:
        """Return when a leader spoke to this member; minus infinity: never."""
        return self._heard_leader_at

    def hear_leader(self, leader: NodeId, term: int) -> None:
        """Follow ``leader`` of ``term``, which is not behind and spoke to this member."""
        core = self._core
        is_followed = core.role == FOLLOWER and core.term == term and core.leader == leader
        if not is_followed and (core.role != LEADER or term > core.term):
            core.become_follower(term, leader)
        core.quiet = False
        self._would_vote = None
        self._heard_leader_at = core.now
        core.restart_election_timer()

    def meet_term(self, term: int) -> None:
        """Follow a higher ``term``, and forget the leader of this one (section 5.1)."""
        if term > self._core.term:
            self.wake(self._core.now)
            self._core.become_follower(term, None)
            self._would_vote = None

    def wake(self, heard_at: float) -> None:
        """Let the timers run again, as if the leader had last been heard at ``heard_at``."""
        core = self._core
        if core.quiet:
            core.quiet = False
            self._heard_leader_at = heard_at
            core.restart_election_timer()
            core.election_deadline -= core.now - heard_at

    # Campaigning.

    def _begin(self) -> None:
        core = self._core
        if not core.may_campaign():
            return
        if core.may_lead_again():
            core.lead_again()
            return
        if core.is_only_voter:
            self._campaign()
            return
        core.restart_election_timer()
        core.become_follower(core.term, None)
        self._would_vote = self._own_vote()
        log = core.journal
        for peer in core.voters:
            core.send(peer.id, PreVote(core.term + 1, log.last_index, log.last_term))

    def _campaign(self, *, transfer: bool = False) -> None:
        core, log = self._core, self._core.journal
        self.campaigns += 1
        self._would_vote = None
        self._voted = self._own_vote()
        core.restart_election_timer()
        core.become_candidate()
        if core.is_only_voter:
            log.won_alone = True
            core.become_leader()
        for peer in core.voters:
            core.send(peer.id, Vote(core.term, log.last_index, log.last_term, transfer))

    def _own_vote(self) -> set[NodeId]:
        """Return this member's own vote, which counts only if it is still a voter."""
        return {self._core.node_id} if self._core.is_voter else set()

    def on_pre_voted(self, sender: NodeId, message: PreVoted) -> None:
        """Count an answer to the straw poll. A refusal may tell of a higher term."""
        core = self._core
        if not message.granted:
            self.meet_term(message.term)
            return
        if self._would_vote is None or message.term != core.term + 1 or core.voter(sender) is None:
            return
        self._would_vote.add(sender)
        if core.is_majority(self._would_vote):
            self._campaign()

    def on_voted(self, sender: NodeId, message: Voted) -> None:
        """Count an answer to a vote request, of this term or a higher one."""
        core = self._core
        self.meet_term(message.term)
        if not message.granted or message.term != core.term or core.role != CANDIDATE:
            return
        if core.voter(sender) is not None:
            self._voted.add(sender)
            if core.is_majority(self._voted):
                core.become_leader()

    def on_timeout_now(self, sender: NodeId, message: TimeoutNow) -> None:
        """Campaign at once, since the leader wants to hand over (dissertation, section 3.10)."""
        core = self._core
        if message.term != core.term or sender != core.leader or core.role != FOLLOWER:
            return
        if core.may_campaign():
            core.quiet = False
            self._campaign(transfer=True)

    # Voting.

    def on_pre_vote(self, sender: NodeId, message: PreVote) -> None:
        """Say whether ``sender`` would get this member's vote. Nothing durable changes."""
        core = self._core
        if not core.may_vote():
            return
        self._be_asked(sender, message)
        willing = message.term > core.term and not self._hears_leader()
        if willing and self._is_up_to_date(message):
            core.send(sender, PreVoted(message.term, granted=True))
        else:
            core.send(sender, PreVoted(core.term, granted=False))

    def on_vote(self, sender: NodeId, message: Vote) -> None:
        """Answer RequestVote (figure 2), unless a leader is heard."""
        core = self._core
        if not core.may_vote():
            return
        self._be_asked(sender, message)
        if message.term > core.term and self._hears_leader() and not message.transfer:
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

    def _be_asked(self, sender: NodeId, asking: PreVote | Vote) -> None:
        """Wake a quiet member because ``sender``, a voter, has not heard from the leader."""
        core = self._core
        self.asked_at = core.now
        if core.role == LEADER:
            return
        heard_at = core.now if core.leader is None else self._leader_heard_at(core.leader)
        led = sender == core.leader and asking.term > core.term
        if led:
            core.leader = None
        if led or core.voter(sender) is not None:
            self.wake(heard_at)

    def _is_up_to_date(self, asking: PreVote | Vote) -> bool:
        log = self._core.journal
        return (asking.last_term, asking.last_index) >= (log.last_term, log.last_index)

    def _hears_leader(self) -> bool:
        core = self._core
        if core.role == LEADER:
            return True
        if core.leader is None:
            return False
        return core.now - self._leader_heard_at(core.leader) < core.options.election_seconds_min

    def _leader_heard_at(self, leader: NodeId) -> float:
        node_heard_at = self._liveness.seems_alive_at(leader) if self._core.quiet else float("-inf")
        return max(self._heard_leader_at, node_heard_at)

    # Stepping down.

    @property
    def _patience(self) -> float:
        return self._core.options.election_seconds_max

    def _check_quorum(self) -> None:
        core = self._core
        if not core.is_only_voter and core.now >= self._leads_until():
            core.become_follower(core.term, None)
            core.restart_election_timer()

    def _leads_until(self) -> float:
        """Return until when a leader leads at least: answers only make that later.

        It is looked at again when that time has come, or the voters have changed.
        """
        core = self._core
        known = core.term, core.members
        if known != self._looked_at or core.now >= self._led_until:
            self._looked_at = known
            self._led_until = self._majority_answered_at() + self._patience
        return self._led_until

    def _majority_answered_at(self) -> float:
        """Return since when a majority, this member included, has been silent."""
        core = self._core
        times = {peer.id: core.answered_at[peer] for peer in core.voters}
        times[core.node_id] = core.now
        return core.majority_value(times)
