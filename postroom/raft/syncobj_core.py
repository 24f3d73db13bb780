"""The only file that touches pysyncobj's private names.

pysyncobj keeps a member's state and makes its transitions: term and vote, follower, candidate and
leader, counting votes. It also keeps the first entry of a new leader, the indices that each peer
has, and the set of peers. It is never ticked and never given a message as it came: :mod:`.election`
and :mod:`.replication` first decide whether it is sound. Its own clock, sockets, threads, pipe,
pickles, serializer and files stay unused.

The class below is called ``SyncObj`` like its base, because Python mangles ``self.__term`` by the
*name* of the class. Base and subclass thereby share private names, and a method defined here
replaces the base's. :data:`ATTRIBUTES` and :data:`METHODS` list each name with the reason; a test
holds them against the installed version, which is pinned.

Invariants:

* Time comes from ``now``, set once a turn; the base's clock is read only for values that are
  overwritten before they are used.
* Peers are walked in a fixed order, never in that of a set.
* The library knows voters only, and counts majorities of voters. Learners have their place in
  its dictionaries of indices, which it only looks up by name.
* Every change of term or vote goes through the journal, and is synced before it is told.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pysyncobj import SyncObj as _Base
from pysyncobj import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import _RAFT_STATE
from pysyncobj.transport import Transport

from postroom.raft.interface import NodeId, RaftOptions
from postroom.raft.journal import Journal
from postroom.raft.messages import Message
from postroom.raft.stored_log import LogEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set
    from random import Random  # noqa: TID251 (its type only)

Value = TypeVar("Value", int, float)

PYSYNCOBJ_VERSION: Final = "0.3.17"

FOLLOWER: Final[int] = _RAFT_STATE.FOLLOWER
CANDIDATE: Final[int] = _RAFT_STATE.CANDIDATE
LEADER: Final[int] = _RAFT_STATE.LEADER

ATTRIBUTES: Final = {
    "raftState": "follower, candidate or leader",
    "raftCurrentTerm": "set from the journal at start, read everywhere",
    "votedForNodeId": "set from the journal at start; a voter repeats its answer to the same one",
    "raftLeader": "the leader, as far as this member knows",
    "raftElectionDeadline": "restarted on the passed-in clock and random numbers",
    "raftLog": "replaced by the journal on the engine",
    "raftCommitIndex": "restored from the applied index; advanced by the rule of section 5.4.2",
    "raftLastApplied": "restored from the state machine; advanced by what was really applied",
    "raftNextIndex": "next entry to send to each peer",
    "raftMatchIndex": "highest entry known to be on each peer",
    "lastResponseTime": "when each peer last answered, on the passed-in clock",
    "otherNodes": "the voters besides this member, which the library counts",
    "selfNode": "this member",
    "noopIDx": "the leader's first entry; members change only after it is applied",
    "startTime": "read from the base's clock; overwritten",
    "lastSerializedTime": "read from the base's clock; overwritten",
}
"""The attributes in use, without the mangled prefix, and their purpose."""

METHODS: Final = {
    "onMessageReceived": "its handling of next_node_idx, once that is sound",
    "onBecomeLeader": "its transition, after which response times come from the passed-in clock",
    "setCurrentTerm": "enters a term, by way of the journal",
    "setState": "changes the role and reports it",
    "updateClusterConfiguration": "replaces the peers, keeping the indices of those that stay",
    "generateRaftTimeout": "replaced: random numbers are passed in",
    "sendAppendEntries": "replaced: sends pickles, on its own clock, in the order of a set",
    "onSetCodeVersion": "replaced: scans for replicated methods, of which there are none",
    "applyLogEntries": "barred: repeats an entry that failed for ever",
    "doApplyCommand": "barred: unpickles",
    "parseChangeClusterRequest": "barred: unpickles",
    "loadDumpFile": "barred: unpickles",
    "tryLogCompaction": "barred: pickles the whole object",
}
"""The methods that are called, replaced or barred, without the mangled prefix, and why."""

UNMANGLED: Final = {
    "_onTick": "barred: polls, and acts on what is not synced",
    "_applyCommand": "barred: proposals go through the group",
    "_checkCommandsToApply": "barred: forwards commands to the leader",
}
"""The single-underscore names that are barred."""


class _SilentTransport(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """A transport that drops pysyncobj's messages: this package makes its own."""

    def __init__(self) -> None:
        super().__init__(None, None, None)

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Node, message: object) -> bool:
        return True

    def addNode(self, node: Node) -> None:  # noqa: N802  # pysyncobj's name
        pass

    def dropNode(self, node: Node) -> None:  # noqa: N802  # pysyncobj's name
        pass


class _JournalAsLog:
    """The part of pysyncobj's journal interface that the methods in use touch."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.add = journal.add
        self.setCurrentTerm = journal.set_term

    def __getitem__(self, index: int) -> LogEntry:
        assert index == -1, "only the newest entry is read"
        return b"", self._journal.last_index, self._journal.last_term


class Peer(Node):  # type: ignore[misc]  # pysyncobj has no types
    """A node as the library knows it, of which a member makes one object for each id.

    Therefore it is compared by identity, in C. The library's own nodes are compared by their ids,
    in Python, at each of some forty look-ups in a turn.
    """

    id: NodeId = 0  # in place of the library's property

    def __init__(self, node_id: NodeId) -> None:
        """Create the object of a node."""
        super().__init__(node_id)
        self.__dict__["id"] = node_id

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


def _kept_as(name: str) -> Any:
    """Return a private attribute of the library, kept under a public name.

    The public ones are read all the time, and are plain attributes; the library reads its own
    seldom.
    """

    def write(core: object, value: object) -> None:
        setattr(core, name, value)

    return property(attrgetter(name), write)


class SyncObj(_Base):  # type: ignore[misc]  # pysyncobj has no types
    """A member of a group: pysyncobj's state and transitions under public names."""

    role: int
    term: int
    vote: NodeId | None
    leader: NodeId | None
    commit_index: int
    applied_index: int
    next_index: dict[Node, int]
    match_index: dict[Node, int]
    answered_at: dict[Node, float]
    election_deadline: float
    first_index_of_term: int | None

    __raftState = _kept_as("role")
    __raftCurrentTerm = _kept_as("term")
    __votedForNodeId = _kept_as("vote")
    __raftCommitIndex = _kept_as("commit_index")
    __raftLastApplied = _kept_as("applied_index")
    __raftNextIndex = _kept_as("next_index")
    __raftMatchIndex = _kept_as("match_index")
    __lastResponseTime = _kept_as("answered_at")
    __raftElectionDeadline = _kept_as("election_deadline")
    __noopIDx = _kept_as("first_index_of_term")

    def __init__(
        self,
        node_id: NodeId,
        journal: Journal,
        applied_index: int,
        options: RaftOptions,
        rng: Random,
    ) -> None:
        """Restore the member from ``journal``, which has been opened."""
        self.options = options
        self.now = 0.0
        self._rng = rng
        self._nodes: dict[NodeId, Peer] = {}
        members = [self._node(voter) for voter in journal.members.counted]
        own = self._node(node_id)
        super().__init__(own, members, _configuration(), transport=_SilentTransport())
        self.node_id = node_id
        self.journal = journal
        self.outbox: list[tuple[NodeId, Message]] = []
        self.quiet = False
        """True if there is nothing to do: the timers stand still (:mod:`.replication`)."""
        self.installing = False
        """True if a snapshot is being put in place: nothing is applied; no leading."""
        self.unfit = False
        """True if the state cannot be read: this member votes, and does not lead."""
        self.on_members: Callable[[], None] = _nothing
        self.__restore(applied_index)
        self.__settle_members()

    def __restore(self, applied_index: int) -> None:
        self.__raftLog = _JournalAsLog(self.journal)
        self.term, self.vote = self.journal.term, self.journal.vote
        self.commit_index = self.applied_index = applied_index
        self.__startTime = self.__lastSerializedTime = 0.0
        self.election_deadline = 0.0

    def _node(self, node_id: NodeId) -> Peer:
        """Return the one object of a node."""
        known = self._nodes.get(node_id)
        if known is None:
            known = self._nodes[node_id] = Peer(node_id)
        return known

    def __settle_members(self) -> None:
        """Fix the order of the peers, and the role of this node in the group."""
        self.members = self.journal.members
        voters, learners = self.members.counted, self.members.learners
        self.voters = self.__in_order(voters)
        self.peers = self.__in_order((*voters, *learners)) if learners else self.voters
        self._peers_by_id = {peer.id: peer for peer in self.peers}
        self.is_voter = self.node_id in voters
        self.is_only_voter = voters == (self.node_id,)
        self.is_sole = self.is_only_voter and not learners
        both = (self.members.voters, self.members.outgoing)
        self.voter_sets = [frozenset(voters) for voters in both if voters]
        self.has_single_voter = any(len(voters) == 1 for voters in self.voter_sets)
        self.on_members()

    def __in_order(self, members: tuple[NodeId, ...]) -> list[Node]:
        others = [self._node(member) for member in members if member != self.node_id]
        return sorted(others, key=lambda node: str(node.id))

    # State of this member.

    @property
    def __raftLeader(self) -> Node | None:  # noqa: N802  # pysyncobj's name
        """Return the leader as the library knows it."""
        return None if self.leader is None else self._node(self.leader)

    @__raftLeader.setter
    def __raftLeader(self, node: Node | None) -> None:  # noqa: N802  # pysyncobj's name
        self.leader = None if node is None else node.id

    def may_campaign(self) -> bool:
        """Return whether this member may ask for votes.

        A former voter must, while the entry that removed it may not be committed (dissertation,
        section 4.2.2). The others may need its vote, and cannot get it otherwise because their
        logs lack that entry.
        """
        if self.installing or (self.unfit and not self.is_only_voter):
            return False
        if self.commit_index < self.journal.least_index:
            return False
        if self.is_voter:
            return True
        log = self.journal
        uncommitted = log.members_index > self.commit_index
        return uncommitted and self.node_id in log.members_at(log.members_index - 1).counted

    def may_vote(self) -> bool:
        """Return whether this member may vote for another one.

        A former member that comes back has forgotten what it has acknowledged. It may vote once it
        has all that was committed when it was removed (the *least index*). A replica that never
        held anything has acknowledged nothing, and may vote.
        """
        return self.commit_index >= self.journal.least_index

    def is_majority(self, nodes: Set[NodeId]) -> bool:
        """Return whether ``nodes`` are a majority of the voters; of both sets, if joint."""
        return all(2 * len(voters & nodes) > len(voters) for voters in self.voter_sets)

    def majority_value(self, values: Mapping[NodeId, Value]) -> Value:
        """Return the greatest value that a majority has reached; of both sets, if joint.

        Args:
            values: the progress of each voter.
        """
        reached = [
            sorted(map(values.__getitem__, voters))[(len(voters) - 1) // 2]
            for voters in self.voter_sets
        ]
        return reached[0] if len(reached) == 1 else min(reached)

    def peer(self, node_id: NodeId) -> Node | None:
        """Return the peer with that id, if it is a voter or a learner."""
        return self._peers_by_id.get(node_id)

    def voter(self, node_id: NodeId) -> Node | None:
        """Return the peer with that id, if it is a voter."""
        peer = self._peers_by_id.get(node_id)
        return peer if peer in self.voters else None

    def send(self, to: NodeId, message: Message) -> None:
        """Queue ``message``; it leaves once the turn's writes are durable."""
        self.outbox.append((to, message))

    # Transitions.

    def become_follower(self, term: int, leader: NodeId | None) -> None:
        """Follow ``leader`` in ``term``; entering a new term forgets the vote (section 5.1)."""
        if term > self.term:
            self.__setCurrentTerm(term, None)
        self.__setState(FOLLOWER)
        self.leader = leader

    def become_candidate(self) -> None:
        """Enter the next term, voting for oneself (section 5.2)."""
        self.leader = None
        self.__setState(CANDIDATE)
        self.__setCurrentTerm(self.term + 1, self.node_id)

    def become_leader(self) -> None:
        """Lead, since a majority has voted for this candidate (section 5.2)."""
        self.__onBecomeLeader()

    def may_lead_again(self) -> bool:
        """Return whether this member led its term alone before it was stopped, and is still alone.

        No other member was, or can be, elected in that term then, and none has its entries.
        """
        log = self.journal
        is_applied = not len(log) and log.last_index == self.applied_index
        return self.is_sole and log.won_alone and is_applied and not self.installing

    def lead_again(self) -> None:
        """Go on leading the same term: nothing is entered, voted or appended."""
        self.leader = self.node_id
        self.__setState(LEADER)
        self.first_index_of_term = self.journal.last_index

    def vote_for(self, candidate: NodeId) -> None:
        """Give this term's vote to ``candidate``."""
        self.__setCurrentTerm(self.term, candidate)

    def applied_alone(self, index: int) -> None:
        """Count the entries up to ``index`` as committed and applied, as an only member."""
        self.commit_index = self.applied_index = index

    def count_answer(self, peer: Node, next_index: int, *, success: bool) -> None:
        """Count an answer of this term to an append.

        Args:
            peer: the member that has answered.
            next_index: the index after those for which the logs agree, or where to retry.
            success: whether the logs agree.
        """
        answer = {
            "type": "next_node_idx",
            "next_node_idx": next_index,
            "success": success,
            "reset": not success,
        }
        in_flight = self.next_index[peer]
        super().__onMessageReceived(peer, answer)
        if success:
            # The base goes back to the acknowledged index, and would send again the messages under
            # way.
            self.next_index[peer] = max(in_flight, next_index)
        self.answered_at[peer] = self.now

    def restart_election_timer(self) -> None:
        """Wait a whole time-out, drawn anew, before campaigning (section 5.2)."""
        self.election_deadline = self.now + self.__generateRaftTimeout()

    def adopt_members(self) -> None:
        """Use the newest set of members in the log, as soon as it is there (section 6)."""
        if self.journal.members == self.members:
            return
        known = {node: (self.match_index[node], self.next_index[node]) for node in self.match_index}
        former = set(self.peers)
        voters = self.journal.members.counted
        self.__updateClusterConfiguration([
            self._node(node) for node in voters if node != self.node_id
        ])  # fmt: skip
        self.__settle_members()
        for node in self.peers:
            # The base knows no learners, begins a promoted one anew, and leaves response times out.
            fresh = (0, self.journal.last_index + 1)
            self.match_index[node], self.next_index[node] = known.get(node, fresh)
            self.answered_at.setdefault(node, self.now)
        for node in former.difference(self.peers):
            self.__forget(node)

    def __forget(self, node: Node) -> None:
        for table in (self.match_index, self.next_index, self.answered_at):
            table.pop(node, None)

    # Replaced methods of the base.

    def __generateRaftTimeout(self) -> float:  # noqa: N802  # pysyncobj's name
        shortest = self.options.election_seconds_min
        return shortest + self._rng.random() * (self.options.election_seconds_max - shortest)

    def __onBecomeLeader(self) -> None:  # noqa: N802  # pysyncobj's name
        super().__onBecomeLeader()
        for node in self.peers:
            self.match_index[node], self.answered_at[node] = 0, self.now
            self.next_index[node] = self.journal.last_index

    def __sendAppendEntries(self) -> None:  # noqa: N802  # pysyncobj's name
        """Send nothing: replication sends at the end of the turn."""

    def __onSetCodeVersion(self, version: int) -> None:  # noqa: N802  # pysyncobj's name
        """Do nothing: there are no replicated methods."""

    def __barred(self, *_: object, **__: object) -> Any:
        raise AssertionError("this part of pysyncobj must not run")

    _onTick = _applyCommand = _checkCommandsToApply = __barred  # noqa: N815  # its names
    __applyLogEntries = __doApplyCommand = __parseChangeClusterRequest = __barred
    __loadDumpFile = __tryLogCompaction = __barred


def _nothing() -> None:
    pass


Core = SyncObj
"""The name that the rest of the package uses."""


def _configuration() -> Any:
    """Return options: no threads (autoTick), no pipe (appendEntriesUseBatch), no files."""
    return SyncObjConf(autoTick=False, appendEntriesUseBatch=True, dynamicMembershipChange=True)
