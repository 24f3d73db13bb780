"""A member of one consensus group, as :mod:`postroom.ranges` uses it.

A turn has a fixed order, and only stages; nothing leaves before the node has synced it::

    messages ─▶ time-outs ─▶ append what is queued ─▶ commit ─▶ apply ─▶ messages out ─▶ truncate
    └────────────────────────────── stage ───────────────────────────────────────────────────────┘
                                  node: one synced write
    └─ release: messages leave, leadership and outcomes are told ─┘

A group of one is its own majority: an entry is appended, committed and applied in one turn and
its log stays empty. In a store that writes a turn atomically the entry is never even encoded: only
its effects and the applied index are written. In a store that replays state the entry is written,
too.

Invariants:

* A group stages into a write set of its own. If anything raises, the whole set and the messages of
  the turn are dropped. The replica is stopped, as if it had crashed before the turn. Durable state
  stays as it was; other groups go on.
* ``done`` of each proposal is called exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from postroom.kv.engine import WriteSet
from postroom.raft.election import Elections
from postroom.raft.frames import Liveness
from postroom.raft.incoming_messages import IncomingMessages
from postroom.raft.interface import NodeId, StateMachine
from postroom.raft.membership import Change
from postroom.raft.messages import Append, Appended, Message, PreVote
from postroom.raft.proposals import (
    Command,
    Done,
    LogApplication,
    MemberChanges,
    ProposalOutcome,
    Proposals,
)
from postroom.raft.replication import FollowerReplication, LeaderReplication, PeerProgress
from postroom.raft.snapshots import SnapshotReceiver, Spool
from postroom.raft.syncobj_core import LEADER, Core
from postroom.raft.transfer import LeadershipTransfer

logger = logging.getLogger(__name__)


class RaftGroup:
    """A member of a group; see the module.

    It is made by :meth:`postroom.raft.consensus.Consensus.create`.

    Attributes:
        group_id: the id of the group.
        stopped: why this replica does nothing any more; ``None`` while it works.
        hurries_until: the time on the monotonic clock up to which a hurried member expects to lead.
        on_leadership: called from ``release`` with whether this member leads, and the term, when
            either has changed.
        entries_received_at: a time on the monotonic clock. No entry of another leader, nor a part
            of a snapshot, has come in after it.
        proposed: the number of proposals that this member was given.
    """

    def __init__(
        self,
        group_id: int,
        core: Core,
        state_machine: StateMachine,
        wake: Callable[[RaftGroup], None],
        liveness: Liveness,
        spool: Spool,
    ) -> None:
        """Create a member over ``core``; ``wake`` asks for a turn."""
        self.group_id = group_id
        self.stopped: Exception | None = None
        self.on_leadership: Callable[[bool, int], None] | None = None
        self.core = core
        self.proposals = Proposals()
        self._wake = wake
        self._transfer_to: tuple[NodeId | None] | None = None
        self._liveness = liveness
        self._elections = Elections(core, liveness)
        self._feeding = LeaderReplication(core, state_machine, liveness)
        self._transfer = LeadershipTransfer(core, self._feeding)
        self._changes = MemberChanges(core, self.proposals, self._transfer, self._feeding)
        self._following = FollowerReplication(core, self._elections)
        self._application = LogApplication(
            core, self.proposals, state_machine, self._feeding, self._following, self._transfer
        )
        self._receiver = SnapshotReceiver(core, self._elections, state_machine, spool)
        self._incoming = IncomingMessages(
            core, self._elections, self._feeding, self._following, self._receiver, self.proposals
        )
        self._told = (False, 0)
        self.proposed = 0
        self.hurries_until = float("-inf")
        self.entries_received_at = liveness.monotonic()
        self._closed = self._is_alone = False
        self._say_that_it_is_back()

    # Queries.

    @property
    def is_leader(self) -> bool:
        """Return whether this member leads, as far as it knows. There may be a newer leader."""
        return self.core.role == LEADER and self.stopped is None

    @property
    def is_about_to_lead(self) -> bool:
        """Return whether this member expects to lead in a moment: it is hurried, or votes alone."""
        core = self.core
        if self.stopped is not None or not core.may_campaign():
            return False
        is_hurried = core.leader is None and self._liveness.monotonic() < self.hurries_until
        return core.is_only_voter or is_hurried

    @property
    def has_applied_own_term(self) -> bool:
        """Return whether this leader has applied an entry of its own term, and all earlier ones."""
        own = self.core.first_index_of_term
        return self.is_leader and own is not None and self.core.applied_index >= own

    @property
    def leader(self) -> NodeId | None:
        """Return the leader, as far as this member knows."""
        return self.core.leader

    @property
    def term(self) -> int:
        """Return the current term."""
        return self.core.term

    @property
    def last_index(self) -> int:
        """Return the index of the newest entry in the log."""
        return self.core.journal.last_index

    @property
    def applied_index(self) -> int:
        """Return the index of the newest entry that is applied."""
        return self.core.applied_index

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Return the voters, by the newest entry that changed the members, committed or not.

        While the members are joint, these are the former voters and the new ones.
        """
        return self.core.members.counted

    @property
    def is_joint(self) -> bool:
        """Return whether one voter is just being replaced by another one."""
        return self.core.members.is_joint

    @property
    def is_changing(self) -> bool:
        """Return whether members are to change, or have changed in an entry not applied yet."""
        core = self.core
        return bool(
            core.members.is_joint
            or self._changes.queued
            or core.journal.members_index > core.applied_index
        )

    @property
    def learners(self) -> tuple[NodeId, ...]:
        """Return the learners, by the newest entry that changed the members.

        They are fed and not counted.
        """
        return self.core.members.learners

    @property
    def is_transferring(self) -> bool:
        """Return whether this leader is handing over, and keeps proposals back."""
        return self._transfer.is_under_way or self._transfer_to is not None

    @property
    def is_installing(self) -> bool:
        """Return whether a snapshot is being put in place.

        The state is then a mixture of the old one and that of the snapshot.
        """
        return self.core.installing

    @property
    def holds_nothing(self) -> bool:
        """Return whether this replica has no state yet, nor any part of the log."""
        return self.core.journal.holds_nothing

    @property
    def needed_at(self) -> float:
        """Return when a leader spoke to this member, or another one asked it for a vote, at last.

        Minus infinity: neither has happened.
        """
        return max(self._elections.leader_heard_at, self._elections.asked_at)

    @property
    def campaigns(self) -> int:
        """Return the number of elections in which this member stood."""
        return self._elections.campaigns

    @property
    def is_quiet(self) -> bool:
        """Return whether this member has nothing to do, and its timers stand still."""
        return self.core.quiet

    def progress(self) -> dict[NodeId, PeerProgress]:
        """Return what this leader knows of each peer, or nothing if it does not lead."""
        return self._feeding.report() if self.is_leader else {}

    def propose(self, command: Command, context: object, done: Done) -> None:
        """Append ``command`` in the next turn, if this member leads then.

        Args:
            command: bytes, or a struct that is encoded when it must be.
            context: given to ``apply`` here, if this proposal is the one applied.
            done: told the outcome from ``release``; at once if the group is closed.
        """
        if self._closed:
            done(ProposalOutcome.SUPERSEDED)
            return
        self.proposed += 1
        self.proposals.queued.append((command, context, done))
        self._wake(self)

    def change_members(self, change: Change, done: Done) -> None:
        """Change who is in the group, by one member or one for another (dissertation, chapter 4).

        ``done`` of a replacement is told when the joint members are applied. This leader, or the
        next one, then makes them the new ones at once; ``is_joint`` is true until then.

        A leader that removes itself leads until that is committed, and then has another one
        campaign. ``done`` is told ``SUPERSEDED`` in these cases:

        * This member does not lead, is handing over, or has not applied an entry of its term yet.
        * A member that is heard cannot read such an entry yet, because its version is older.
        * An earlier change is under way.
        * The change is impossible: a learner that is a member already, a last voter removed.
        """
        if self._closed:
            done(ProposalOutcome.SUPERSEDED)
            return
        self._is_alone = False
        self._changes.queued.append((change, done))
        self._wake(self)

    def transfer_leadership(self, to: NodeId | None) -> None:
        """Hand over to ``to``, a voter, or with ``None`` to the one that has most of the log.

        Proposals wait meanwhile, and end as superseded once another member leads. This leader goes
        on after an election time-out, or if there is no member to hand over to.
        """
        if not self.core.is_sole:
            self._transfer_to = (to,)
            self._wake(self)

    def hurry(self) -> None:
        """Campaign in the next turn, unless a leader is known: nobody else is expected to."""
        self.core.now = now = self._liveness.monotonic()
        self.hurries_until = now + self.core.options.election_seconds_min
        self._elections.hurry()
        self._wake(self)

    def step_aside(self) -> None:
        """Stop leading for good, because the state here cannot be read.

        An only voter goes on all the same.
        """
        self.core.unfit = True

    def step_down(self) -> None:
        """Stop leading, and follow the member that is elected next."""
        core = self.core
        if core.role == LEADER and not core.is_only_voter:
            core.become_follower(core.term, None)
            core.quiet = False
            core.restart_election_timer()
            self._wake(self)

    # Calls of the node's set of groups.

    def deliver(self, sender: NodeId, message: Message) -> None:
        """Keep a message for the next turn."""
        if self.stopped is None:
            self._is_alone = False
            self._incoming.waiting.append((sender, message))
            self._wake(self)

    def is_late(self, sender: NodeId, message: Message) -> bool:
        """Return whether ``message`` is an answer that a leader at work need not hear now."""
        core = self.core
        return (
            type(message) is Appended and message.success and not message.quiet
            and core.role == LEADER and not core.quiet and message.term == core.term
            and message.index <= core.commit_index and self._feeding.has_sent_all(sender)
            and not self.is_transferring
        )  # fmt: skip

    def clear_spool(self, writes: WriteSet) -> None:
        """Stage the removal of a snapshot that was on its way."""
        self._receiver.clear(writes)

    def on_silence(self, node: NodeId, now: float) -> None:
        """Wake this member if it is quiet because of ``node``, which has fallen silent."""
        core = self.core
        if not core.quiet:
            return
        core.now = now
        if core.role == LEADER:
            if not self._feeding.hears_majority():
                self._feeding.wake()
                self._wake(self)
        elif core.leader in (node, None):
            self._elections.wake(self._liveness.seems_alive_at(node))
            self._wake(self)

    def on_return(self, node: NodeId, now: float) -> None:
        """Feed ``node``, which is heard again, if this leader went quiet without it."""
        core = self.core
        if core.quiet and core.role == LEADER and core.peer(node) is not None:
            core.now = now
            self._feeding.wake()
            self._wake(self)

    def stage_alone(self, writes: WriteSet, alone: list[Done]) -> bool:
        """Take the turn of a leader that is alone and has one proposal, and nothing else to do.

        It stages all of the proposal or nothing, and therefore uses the write set of the node's
        turn. It causes no message, no deadline and no change of leadership. The function to tell,
        from ``release``, that the proposal is applied, joins ``alone``.

        Returns:
            False: there is more to do, or the turn has failed; nothing was staged.
        """
        if len(self.proposals.queued) != 1 or not (self._is_alone or self._looks_alone()):
            return False
        try:
            alone.append(self._application.note_alone(writes))
        except Exception as error:
            self._stop_midway(error)
            return False
        return True

    def _looks_alone(self) -> bool:
        """Look whether this leader has no other member, and nothing to do but proposals.

        The answer stands until something else than a proposal is asked of it.
        """
        core = self.core
        self._is_alone = (
            core.is_sole and core.role == LEADER and self.stopped is None
            and not (self._incoming.waiting or self._changes.queued or core.outbox)
            and core.journal.is_at_rest
        )  # fmt: skip
        return self._is_alone

    def stage(self, now: float) -> WriteSet:
        """Take one turn, and return its writes, which must be durable before ``release``."""
        writes: WriteSet = {}
        self._is_alone = False
        self.core.now = now
        if self.stopped is None:
            self.core.journal.begin(writes)
            try:
                self._turn(writes)
                self.core.journal.end()
            except Exception as error:
                return self._stop_midway(error)
        else:
            self._refuse()
            self._resign()
        return writes

    def _stop_midway(self, error: Exception) -> WriteSet:
        """Stop this replica because of ``error``, and drop the writes of the turn."""
        logger.critical("group %d stops", self.group_id, exc_info=error)
        self.stop(error)
        self._resign()
        return {}

    @property
    def needs_sync(self) -> bool:
        """Return whether the writes of the turn, if any, must be synced before ``release``.

        Applied state need not be synced. Its entries are durable on a majority, and the engine
        loses only the newest writes. The loss includes the record that the entries were dropped
        from the log. An only voter has no majority elsewhere.
        """
        return self.core.has_single_voter or self.core.journal.needs_sync

    def replay(self) -> Iterator[WriteSet]:
        """Yield the writes that the state lacks of the committed entries, when the store is opened.

        Each piece is written before the next one is asked for. An only voter has committed all that
        its log contains; another member's entries are committed as far as its log says.
        """
        pieces = self._application.replay()
        while self.stopped is None:
            try:
                writes = next(pieces)
            except StopIteration:
                return
            except Exception as error:
                logger.critical("group %d stops", self.group_id, exc_info=error)
                self.stop(error)
            else:
                yield writes

    def take_early_messages(self) -> list[tuple[NodeId, Message]]:
        """Take a leader's append messages, which may leave before the turn is durable.

        None is taken of an only voter, or in the turn that enters the term.
        """
        core = self.core
        if not core.outbox or core.role != LEADER:
            return []
        if core.has_single_voter or core.journal.enters_term:
            return []
        early = [each for each in core.outbox if type(each[1]) is Append]
        core.outbox = [each for each in core.outbox if type(each[1]) is not Append]
        return early

    def take_messages(self) -> list[tuple[NodeId, Message]]:
        """Take the messages of the turn, which is durable now."""
        outbox = self.core.outbox
        if outbox:
            self.core.outbox = []
        return outbox

    def tell(self) -> None:
        """Report leadership and outcomes, which are durable now."""
        core = self.core
        leads = (core.role == LEADER and self.stopped is None, core.term)
        if leads != self._told:
            self._told = leads
            if self.on_leadership is not None:
                self.on_leadership(*leads)
        if self.proposals.ended:
            self.proposals.tell()

    def deadline(self) -> float | None:
        """Return when the next turn is due without new input, or ``None`` for never."""
        if self.core.is_sole and self.core.role == LEADER:
            goes_on = self._application.goes_on and self.stopped is None
            return self.core.now if goes_on else None
        if self.stopped is not None:
            leads = self.core.role == LEADER and not self._closed
            return self.core.now + self.core.options.election_seconds_max if leads else None
        if self.core.installing or self._application.goes_on:
            return self.core.now
        first = self._elections.deadline()
        for due in (
            self._feeding.deadline(), self._transfer.deadline(), self.proposals.give_up_at
        ):  # fmt: skip
            if due is not None and (first is None or due < first):
                first = due
        return first

    def stop(self, error: Exception) -> None:
        """Do nothing any more, because of ``error``; the writes of this turn are dropped."""
        self.stopped = self.stopped or error
        self._is_alone = False
        self.core.outbox = []
        self._incoming.waiting = []
        self._transfer_to = None
        self._feeding.close()
        self.proposals.abandon()
        self._refuse()

    def close(self) -> None:
        """End every proposal and release everything."""
        if not self._closed:
            self._closed = True
            self.stop(RuntimeError("closed"))
            self.proposals.tell()

    # A turn.

    def _turn(self, writes: WriteSet) -> None:
        core, changes = self.core, self._changes
        is_alone = core.is_sole and core.role == LEADER
        if is_alone and not self._incoming.waiting and not changes.queued:
            self._application.decide_alone(writes)
            return
        if core.installing:
            self._receiver.step(writes)
        self._incoming.work_off(writes)
        if self._incoming.has_entries:
            # Read the clock now: the messages may be younger than the beginning of the turn.
            self.entries_received_at = self._liveness.monotonic()
        if core.quiet and core.role == LEADER and self._has_work():
            self._feeding.wake()
        self._elections.tick()
        if core.is_sole and core.role == LEADER and not changes.queued:
            self._application.decide_alone(writes)
            return
        self._follow_leadership()
        if changes.queued:
            changes.append()
        if self.proposals.queued and (core.role != LEADER or not self._transfer.is_under_way):
            self._application.append_queued()
        if core.role == LEADER:
            self._feeding.advance_commit()
        self._application.apply(writes)
        if core.role == LEADER:
            changes.finish_replacement()
            self._feeding.send()
            self._transfer.send()
        self._application.truncate()

    def _has_work(self) -> bool:
        return bool(self.proposals.queued or self._changes.queued or self._transfer_to)

    def _follow_leadership(self) -> None:
        core = self.core
        if self._transfer_to is not None:
            self._transfer.begin(self._transfer_to[0])
            self._transfer_to = None
        self._transfer.tick()
        if core.role == LEADER:
            self.proposals.give_up_at = None  # applied entries end all proposals
            return
        self._feeding.close()
        self.proposals.leadership_lost(core.now + core.options.orphan_seconds)
        self.proposals.tick(core.now)

    def _say_that_it_is_back(self) -> None:
        """Tell all peers where this member wants to be fed from, whether it is quiet or not."""
        core = self.core
        for peer in core.peers:
            core.send(peer.id, Appended(core.term, success=False, index=core.commit_index))

    def _resign(self) -> None:
        """Tell peers that this leader has stopped, again and again, because its node lives.

        Quiet followers would wait for it for ever. A request for votes tells them that it does not
        lead. With an empty log it gets no votes.
        """
        core = self.core
        if core.role == LEADER:
            core.outbox = [(each.id, PreVote(core.term + 1, 0, 0)) for each in core.voters]

    def _refuse(self) -> None:
        """End the queued proposals and changes, because this replica does nothing any more."""
        self.proposals.refuse()
        self._changes.refuse()
