"""One member of one consensus group: what :mod:`postroom.ranges` holds of it.

A turn has a fixed order, and only stages; nothing leaves before the node has synced it::

    messages ─▶ time-outs ─▶ append what is queued ─▶ commit ─▶ apply ─▶ messages out ─▶ truncate
    └────────────────────────────── stage ───────────────────────────────────────────────────────┘
                                  node: one synced write
    └─ release: messages leave, leadership and outcomes are told ─┘

A group of one is its own majority, so an entry is appended, committed and applied in one turn and
its log stays empty. Where a turn is one atomic write the entry is never even encoded: its effects
and the applied index are all that is written. Where state is replayed the entry is written, too.

Invariants:

* A group stages into a write set of its own. If anything raises, the set is dropped whole, the
  messages of the turn are too, and the replica is stopped: as if it had crashed before the turn.
  What is durable stays as it was; other groups go on.
* ``done`` of each proposal is called exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from postroom.kv.engine import WriteSet
from postroom.raft.changes import MemberChanges
from postroom.raft.election import Elections
from postroom.raft.incoming import IncomingMessages
from postroom.raft.liveness import Liveness
from postroom.raft.log_application import LogApplication
from postroom.raft.membership import Change
from postroom.raft.messages import Append, Appended, Message, PreVote
from postroom.raft.outcome import Outcome
from postroom.raft.proposals import Command, Done, Proposals
from postroom.raft.reach import beyond_reach
from postroom.raft.replication import Feeding, Following, Progress
from postroom.raft.snapshot_receiver import SnapshotReceiver
from postroom.raft.spool import Spool
from postroom.raft.state_machine import NodeId, StateMachine
from postroom.raft.syncobj_core import LEADER, Core
from postroom.raft.transfer import Transfer

logger = logging.getLogger(__name__)


class Group:
    """See the module. Made by :meth:`postroom.raft.consensus.Consensus.create`.

    Attributes:
        group_id: which group.
        stopped: why this replica does nothing any more; ``None`` while it works.
        on_leadership: called from ``release`` with whether this member leads, and the term, when
            either has changed.
        entries_received_at: on the monotonic clock, no entry of another leader, nor a part of a
            snapshot, has come in after that.
    """

    def __init__(
        self,
        group_id: int,
        core: Core,
        state_machine: StateMachine,
        wake: Callable[[Group], None],
        liveness: Liveness,
        spool: Spool,
    ) -> None:
        """A member over ``core``; ``wake`` asks for a turn."""
        self.group_id = group_id
        self.stopped: Exception | None = None
        self.on_leadership: Callable[[bool, int], None] | None = None
        self.core = core
        self.proposals = Proposals()
        self._wake = wake
        self._transfer_to: tuple[NodeId | None] | None = None
        self._liveness = liveness
        self._elections = Elections(core, liveness)
        self._feeding = Feeding(core, state_machine, liveness)
        self._transfer = Transfer(core, self._feeding)
        self._changes = MemberChanges(core, self.proposals, self._transfer, self._feeding)
        self._following = Following(core, self._elections)
        self._application = LogApplication(
            core, self.proposals, state_machine, self._feeding, self._following, self._transfer
        )
        self._receiver = SnapshotReceiver(core, self._elections, state_machine, spool)
        self._incoming = IncomingMessages(
            core, self._elections, self._feeding, self._following, self._receiver, self.proposals
        )
        self._told = (False, 0)
        self.entries_received_at = liveness.monotonic()
        self._closed = False
        self._say_that_it_is_back()

    # What others see.

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows. There may be a newer leader."""
        return self.core.role == LEADER and self.stopped is None

    @property
    def has_applied_own_term(self) -> bool:
        """Whether this leader has applied an entry of its own term, and so all earlier ones."""
        own = self.core.first_index_of_term
        return self.is_leader and own is not None and self.core.applied_index >= own

    @property
    def leader(self) -> NodeId | None:
        """Who leads, as far as this member knows."""
        return self.core.leader

    @property
    def term(self) -> int:
        """The current term."""
        return self.core.term

    @property
    def last_index(self) -> int:
        """Index of the newest entry in the log."""
        return self.core.journal.last_index

    @property
    def applied_index(self) -> int:
        """Index of the newest entry that is applied."""
        return self.core.applied_index

    @property
    def members(self) -> tuple[NodeId, ...]:
        """The voters, by the newest entry that changed the members, committed or not.

        While they are joint: the former ones and the new ones.
        """
        return self.core.members.counted

    @property
    def is_joint(self) -> bool:
        """Whether one voter is just being replaced by another one."""
        return self.core.members.is_joint

    @property
    def learners(self) -> tuple[NodeId, ...]:
        """The members that are fed and not counted, likewise."""
        return self.core.members.learners

    @property
    def is_transferring(self) -> bool:
        """Whether this leader is handing over, and holds proposals back."""
        return self._transfer.is_under_way or self._transfer_to is not None

    @property
    def may_replace(self) -> bool:
        """Whether this leader's group can replace a voter in one change: all know how."""
        return self.is_leader and self._changes.may_replace()

    @property
    def is_installing(self) -> bool:
        """Whether a snapshot is being put in place: the state is neither what it was nor that."""
        return self.core.installing

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be done, so that this member's timers stand still."""
        return self.core.quiet

    def progress(self) -> dict[NodeId, Progress]:
        """What this leader knows of each peer; nothing if it does not lead."""
        return self._feeding.report() if self.is_leader else {}

    def propose(self, command: Command, context: object, done: Done) -> None:
        """Append ``command`` in the next turn, if this member leads then.

        Args:
            command: bytes, or a struct that is encoded when it must be.
            context: given to ``apply`` here, if this proposal is what is applied.
            done: told the outcome from ``release``; at once if the group is closed.
        """
        if self._closed:
            done(Outcome.SUPERSEDED)
            return
        self.proposals.queued.append((command, context, done))
        self._wake(self)

    def change_members(self, change: Change, done: Done) -> None:
        """Change who is in the group, by one member or one for another (dissertation, chapter 4).

        ``done`` of a replacement is told when the joint members are applied; this leader, or the
        next one, makes them the new ones at once, which ``is_joint`` tells.

        A leader that removes itself leads until that is committed, and then has another one
        campaign. ``done`` is told ``SUPERSEDED`` if this member does not lead or is handing over,
        if it has not applied an entry of its term yet, if an earlier change is under way, or if the
        change makes no sense: a learner that is a member already, a last voter removed.
        """
        if self._closed:
            done(Outcome.SUPERSEDED)
            return
        self._changes.queued.append((change, done))
        self._wake(self)

    def transfer_leadership(self, to: NodeId | None) -> None:
        """Hand over to ``to``, a voter; ``None``: to the one that has most of the log.

        Proposals wait meanwhile, and end as superseded once another one leads. After an election
        time-out, or if there is nobody to hand over to, this leader goes on.
        """
        if not self.core.is_sole:
            self._transfer_to = (to,)
            self._wake(self)

    def step_aside(self) -> None:
        """Never lead again: the state here cannot be read. An only voter goes on all the same."""
        self.core.unfit = True

    def step_down(self) -> None:
        """Follow, in the same term, whoever is elected next."""
        core = self.core
        if core.role == LEADER and not core.is_only_voter:
            core.become_follower(core.term, None)
            core.quiet = False
            core.restart_election_timer()
            self._wake(self)

    # What the node's set of groups calls.

    def beyond_reach(self, message: Message) -> str | None:
        """What ``message`` names that nobody can have reached; ``None``: nothing."""
        return beyond_reach(message, self.core.term, self.core.journal.last_index)

    def deliver(self, sender: NodeId, message: Message) -> None:
        """A message for the next turn."""
        if self.stopped is None:
            self._incoming.waiting.append((sender, message))
            self._wake(self)

    def on_silence(self, node: NodeId, now: float) -> None:
        """``node`` has fallen silent: who is quiet because of it wakes."""
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
        """``node`` is heard again: a leader that went quiet without it feeds it."""
        core = self.core
        if core.quiet and core.role == LEADER and core.peer(node) is not None:
            core.now = now
            self._feeding.wake()
            self._wake(self)

    def stage_alone(self, writes: WriteSet) -> bool:
        """The turn of a leader that is alone and has one proposal, and nothing else to do: into the
        write set of the node's turn, since it stages all of it or nothing. No message, no deadline,
        no change of leadership comes of it.

        Returns:
            False: there is more to do, or it has failed; nothing was staged.
        """
        core = self.core
        if (
            not core.is_sole or len(self.proposals.queued) != 1 or core.role != LEADER
            or self.stopped is not None or self._incoming.waiting or self._changes.queued
            or core.outbox or not core.journal.is_at_rest
        ):  # fmt: skip
            return False
        try:
            self._application.note_alone(writes)
        except Exception as error:
            self._stop_midway(error)
            return False
        return True

    def stage(self, now: float) -> WriteSet:
        """One turn. What it writes must be durable before ``release``."""
        writes: WriteSet = {}
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
        """A turn could not be finished: nothing of it is written."""
        logger.critical("group %d stops", self.group_id, exc_info=error)
        self.stop(error)
        self._resign()
        return {}

    @property
    def needs_sync(self) -> bool:
        """Whether what the turn staged, if anything, must be synced before ``release``.

        Applied state need not: its entries are durable on a majority, and the engine loses only
        the newest writes, so what is lost with it is that they were dropped from the log. A member
        that is the only voter has no majority elsewhere.
        """
        return self.core.has_single_voter or self.core.journal.needs_sync

    def replay(self) -> Iterator[WriteSet]:
        """At opening: what the state lacks of the entries that are known to be committed.

        Each piece is written before the next one is asked for. An only voter has committed all that
        its log holds; what others have is committed as far as the log itself says so.
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
        """A leader's append messages, which may leave before the turn is durable.

        Not those of a term that is entered in this very turn, nor those of an only voter.
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
        """The messages of the turn, now that it is durable."""
        outbox = self.core.outbox
        if outbox:
            self.core.outbox = []
        return outbox

    def tell(self) -> None:
        """Tell of leadership and outcomes, now that they are durable."""
        core = self.core
        leads = (core.role == LEADER and self.stopped is None, core.term)
        if leads != self._told:
            self._told = leads
            if self.on_leadership is not None:
                self.on_leadership(*leads)
        if self.proposals.ended:
            self.proposals.tell()

    def deadline(self) -> float | None:
        """When the next turn is due without new input; ``None`` for never."""
        if self.core.is_sole and self.core.role == LEADER:
            goes_on = self._application.goes_on and self.stopped is None
            return self.core.now if goes_on else None
        if self.stopped is not None:
            leads = self.core.role == LEADER and not self._closed
            return self.core.now + self.core.options.election_seconds_max if leads else None
        if self.core.installing or self._application.goes_on:
            return self.core.now
        due = (
            self._elections.deadline(),
            self._feeding.deadline(),
            self._transfer.deadline(),
            self.proposals.give_up_at,
        )
        return min((at for at in due if at is not None), default=None)

    def stop(self, error: Exception) -> None:
        """Do nothing any more, because of ``error``; what this turn staged is dropped."""
        self.stopped = self.stopped or error
        self.core.outbox = []
        self._incoming.waiting = []
        self._transfer_to = None
        self._feeding.close()
        self.proposals.abandon()
        self._refuse()

    def close(self) -> None:
        """End every proposal and let go of everything."""
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
            # Read now: what arrived may be younger than the beginning of the turn.
            self.entries_received_at = self._liveness.monotonic()
        if core.quiet and core.role == LEADER and self._has_work():
            self._feeding.wake()
        self._elections.tick()
        if core.is_sole and core.role == LEADER and not changes.queued:
            self._application.decide_alone(writes)
            return
        self._follow_leadership()
        changes.append()
        if not self._transfer.is_under_way or core.role != LEADER:
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
        if core.role != LEADER:
            self._feeding.close()
            self.proposals.leadership_lost(core.now + core.options.orphan_seconds)
        else:
            self.proposals.give_up_at = None  # what this leader applies tells the fate of all
        self.proposals.tick(core.now)

    def _say_that_it_is_back(self) -> None:
        """A leader, quiet or not, learns at once from where this member wants to be fed."""
        core = self.core
        for peer in core.peers:
            core.send(peer.id, Appended(core.term, success=False, index=core.commit_index))

    def _resign(self) -> None:
        """A leader that has stopped says so, again and again, for its node lives.

        Followers that are quiet would wait for it for ever. That a leader would ask for votes tells
        them that it does not lead; with an empty log it gets none.
        """
        core = self.core
        if core.role == LEADER:
            core.outbox = [(each.id, PreVote(core.term + 1, 0, 0)) for each in core.voters]

    def _refuse(self) -> None:
        """End what is queued: this replica does nothing any more."""
        self.proposals.refuse()
        self._changes.refuse()
