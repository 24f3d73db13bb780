"""The messages that have arrived for one member of a group.

Two rules hold for every message. One of an earlier term is answered with the present term and
otherwise ignored (section 5.1 of the paper). A quiet leader wakes when it hears of a peer which is
not quiet.
"""

from __future__ import annotations

from postroom.kv.engine import WriteSet
from postroom.raft.election import Elections
from postroom.raft.interface import NodeId
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    ChunkTaken,
    Message,
    PreVote,
    PreVoted,
    TimeoutNow,
    Vote,
    Voted,
)
from postroom.raft.proposals import Proposals
from postroom.raft.replication import FollowerReplication, LeaderReplication
from postroom.raft.snapshots import SnapshotReceiver
from postroom.raft.syncobj_core import LEADER, Core


class IncomingMessages:
    """The messages that have arrived for one member, and the parts that deal with them."""

    def __init__(  # one for each kind of message
        self,
        core: Core,
        elections: Elections,
        feeding: LeaderReplication,
        following: FollowerReplication,
        receiver: SnapshotReceiver,
        proposals: Proposals,
    ) -> None:
        """Create an empty queue of messages."""
        self._core = core
        self._elections = elections
        self._feeding = feeding
        self._following = following
        self._receiver = receiver
        self._proposals = proposals
        self.waiting: list[tuple[NodeId, Message]] = []
        self.has_entries = False
        """True if the messages dealt with last had entries, or a part of a snapshot."""

    def work_off(self, writes: WriteSet) -> None:
        """Deal with all messages that have arrived, in order."""
        waiting, self.waiting = self.waiting, []
        self.has_entries = False
        for sender, message in waiting:
            self._receive(sender, message, writes)

    def _receive(self, sender: NodeId, message: Message, writes: WriteSet) -> None:
        match message:  # the most frequent ones come first
            case Append() | Chunk():
                self._hear(sender, message, writes)
            case Appended() | ChunkTaken():
                self._count(sender, message)
            case PreVote():
                self._be_woken(sender)
                self._elections.on_pre_vote(sender, message)
            case PreVoted():
                self._elections.on_pre_voted(sender, message)
            case Vote():
                self._be_woken(sender)
                self._elections.on_vote(sender, message)
            case Voted():
                self._elections.on_voted(sender, message)
            case TimeoutNow():
                self._elections.on_timeout_now(sender, message)

    def _hear(self, sender: NodeId, message: Append | Chunk, writes: WriteSet) -> None:
        """Deal with a leader's message. A leader of an earlier term is told so, and steps down."""
        core = self._core
        if message.term < core.term:
            core.send(sender, Appended(core.term, success=False, index=core.commit_index))
        elif isinstance(message, Append):
            self.has_entries = self.has_entries or bool(message.entries)
            self._following.on_append(sender, message)
            self._receiver.tidy(writes)
        else:
            self.has_entries = True
            self._receiver.on_chunk(sender, message, writes)
            self._proposals.covered(self._receiver.installed_index)

    def _count(self, sender: NodeId, message: Appended | ChunkTaken) -> None:
        """Deal with a follower's answer.

        An answer of an earlier term is ignored: it is about entries that may be gone.
        """
        core = self._core
        if not (isinstance(message, Appended) and message.quiet):
            self._be_woken(sender)
        self._elections.meet_term(message.term)
        if core.role != LEADER or message.term != core.term:
            return
        if isinstance(message, Appended):
            self._feeding.on_appended(sender, message)
        else:
            self._feeding.snapshots.on_taken(sender, message)

    def _be_woken(self, sender: NodeId) -> None:
        if self._core.quiet and self._core.role == LEADER and self._core.peer(sender) is not None:
            self._feeding.wake()
