"""A node's groups, driven together: one write set, one sync, one frame to each peer a turn.

The node calls, in this order, again and again::

    writes = consensus.stage()          frames in, time-outs, entries, effects: all staged
    consensus.send_early()              leaders' entries out (optional: saves the time of a sync)
    engine.write(writes, sync=...)      if there is anything; synced if consensus.needs_sync
    consensus.release()                 frames out, outcomes told
                                        or consensus.fail(error), once and for ever

A turn visits only groups with something to do: those with proposals, those with messages, and
those whose deadline has come. A group of one that has nothing to do costs nothing.

Invariants:

* No outcome is told, and no message leaves, before the state that it speaks of is durable. The one
  exception is argued at :meth:`Consensus.send_early`.
* Groups take their turns in the order in which they were woken: the same input, the same output.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from postroom.kv.engine import Engine, WriteSet
from postroom.kv.keys import raft_log_prefix
from postroom.kv.log_writer import RetainedLog
from postroom.log_once import LogOnce
from postroom.raft.frames import FrameIntake, Liveness, OutgoingMessages
from postroom.raft.group import RaftGroup
from postroom.raft.interface import NodeId, NoPeers, RaftOptions, StateMachine, Transport
from postroom.raft.journal import Journal
from postroom.raft.membership import Members
from postroom.raft.messages import (
    NO_CLOCKS,
    Clocks,
    Envelope,
    Frame,
    Message,
    beyond_reach,
    decode_frame,
    encode_frame,
)
from postroom.raft.proposals import Done, ProposalOutcome, tell
from postroom.raft.snapshots import Spool
from postroom.raft.stored_log import AppliedState, origins, read_hard_state, stage_beginning
from postroom.raft.syncobj_core import Core
from postroom.raft.tombstones import ClearedSpan, Tombstone, read_tombstone, stage_tombstone

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 (its type only)

logger = logging.getLogger(__name__)

_LATE_ANSWER_BYTES: Final = 64
"""The largest size of a frame that may be nothing but late answers of a follower."""


class Consensus:
    """The consensus groups of one node; see the module.

    Args:
        engine: the node's; read when a group is opened, never written here.
        transport: to the other nodes.
        node_id: this node.
        monotonic: seconds that never go back.
        random: for election time-outs.
        options: times and sizes.
        clocks_for: returns what a peer is told about wall clocks, with every frame.
        on_peer_clocks: called with a peer and what its frame tells about wall clocks.
        on_malformed: called with the sender of a frame that was dropped. It is malformed,
            or names a term or an index that no member can have reached.
        on_unknown: called with a group that is not open here, and a message that has come for it
            with its sender.
    """

    def __init__(  # noqa: PLR0913  # by keyword: what a node is made of
        self,
        engine: Engine,
        transport: Transport,
        *,
        node_id: NodeId,
        monotonic: Callable[[], float],
        random: Random,
        options: RaftOptions | None = None,
        clocks_for: Callable[[NodeId], Clocks] = lambda peer: NO_CLOCKS,
        on_peer_clocks: Callable[[NodeId, Clocks], None] = lambda peer, clocks: None,
        on_malformed: Callable[[NodeId], None] = lambda peer: None,
        on_unknown: Callable[[int, NodeId, Message], None] = lambda group, peer, message: None,
    ) -> None:
        """Create a set without open groups."""
        self._engine = engine
        self._transport = transport
        self._is_alone = isinstance(transport, NoPeers)
        self._node_id = node_id
        self._monotonic = monotonic
        self._random = random
        self._options = RaftOptions() if options is None else options
        self._clocks_for = clocks_for
        self._on_peer_clocks = on_peer_clocks
        self._on_malformed = on_malformed
        self._on_unknown = on_unknown
        self._liveness = Liveness(monotonic, self._options)
        self._said = LogOnce()
        self._peers_changed = self._has_peers = self._beats = False
        self._groups: dict[int, RaftGroup] = {}
        self._ready: dict[int, RaftGroup] = {}
        self._staged: list[RaftGroup] | None = None
        self._alone: list[Done] = []
        self._alarms: list[tuple[float, int]] = []
        self._alarm_of: dict[int, float] = {}
        self._outgoing = OutgoingMessages(self._encode_and_send)
        self._intake = FrameIntake(transport)
        self.failed: Exception | None = None
        self.needs_sync = False
        """True if the writes of the last ``stage`` must be synced before ``release``.

        They need no sync if they are only applied state and the removal of its log entries. A
        majority has the entries in durable logs, and the engine keeps the order of writes. A member
        that loses power merely applies them again.
        """

    @property
    def groups(self) -> dict[int, RaftGroup]:
        """Return the groups that are open, by id."""
        return self._groups

    @property
    def is_half_way(self) -> bool:
        """Return whether writes are staged that were neither released nor failed."""
        return self._staged is not None

    def create(
        self,
        group_id: int,
        members: Sequence[NodeId],
        state_machine: StateMachine,
        *,
        is_provisional: bool = False,
    ) -> RaftGroup:
        """Open this node's replica of a group, or make it if it is new.

        Args:
            group_id: the group.
            members: the first voters, for a new group. A node that is to join a group is not among
                them: it becomes a member when the leader adds it. It may pass none.
            state_machine: the state that the group replicates.
            is_provisional: whether a replica that holds nothing may be forgotten.

        Raises:
            StoreCorrupted: the log or the spool on the engine is damaged.
        """
        assert group_id not in self._groups, f"group {group_id} is open"
        prefix = raft_log_prefix(group_id)
        spool = Spool(self._engine, prefix)
        applied = AppliedState(state_machine.applied_index(), state_machine.applied_term())
        if (arrived := spool.complete) is not None:
            state_machine.may_install(spool.first(), is_whole=True)  # it was, before a crash
            # The applied state is a mixture of the old and the new one. The log is that of the new
            # one.
            applied = AppliedState(arrived.index, arrived.index_term, arrived.members)
        journal = Journal.open(self._engine, prefix, Members(tuple(members)), applied)
        journal.is_provisional = is_provisional
        core = Core(self._node_id, journal, applied.index, self._options, self._random)
        core.now = self._monotonic()
        core.restart_election_timer()
        core.on_members = self._members_changed
        group = RaftGroup(group_id, core, state_machine, self._wake, self._liveness, spool)
        self._groups[group_id] = group
        self._members_changed()
        self._wake(group)
        return group

    def stage_beginning(
        self, group_id: int, members: Members, origin_id: int, staged: WriteSet
    ) -> bool:
        """Stage the log of a group that begins here with a state, unless it has begun already.

        The state joins ``staged``, too. The group is opened (``create``) when that is written. A
        replica that holds nothing ends in this turn, if there is one. Its term and its vote, or
        those of one that was forgotten, are handed on.

        Args:
            group_id: the group.
            members: the first members.
            origin_id: the group whose next entry, which is being applied, begins this one.
            staged: the write set of that entry.

        Returns:
            False: an earlier replica was destroyed here, or there is one with a state. Its group
            does not begin, and the state is to go.
        """
        prefix, group = raft_log_prefix(group_id), self._groups.get(group_id)
        if group is not None and not group.holds_nothing:
            return False
        if read_tombstone(self._engine, prefix) is not None:
            return False
        hard = read_hard_state(self._engine, prefix)
        promised = (0, None) if hard is None else (hard.term, hard.vote)
        if group is not None:
            promised = group.term, group.core.vote
            group.clear_spool(staged)
            self._drop(group)
        if hard is None or not hard.base_index:  # else entries are being replayed
            origin = (origin_id, self._groups[origin_id].applied_index + 1)
            stage_beginning(prefix, members, origin, promised, staged)
        return True

    def replay(self) -> Iterator[WriteSet]:
        """Yield the writes that the states of all groups lack, in pieces.

        Each piece is written before the next one is asked for. Called once, when the groups are
        open, if entries are kept apart from the state. Groups that are opened meanwhile come last.
        An entry that has begun the log of another group is committed, whose state may be lost.
        """
        replayed, committed = set[int](), origins(self._engine)
        while left := [each for each in self._groups if each not in replayed]:
            for group_id in left:
                replayed.add(group_id)
                group = self._groups[group_id]
                group.core.journal.know_committed(committed.get(group_id, 0))
                yield from group.replay()

    def retained(self) -> list[RetainedLog]:
        """Return the parts of the logs that the groups keep."""
        return [group.core.journal.retained() for group in self._groups.values()]

    def destroy(self, group_id: int, least_index: int, clears: Iterable[ClearedSpan]) -> WriteSet:
        """Close a group's replica for good, since this node is no member any more.

        Args:
            group_id: the group.
            least_index: the applied index of the state that said so, here or at another member.
            clears: the spans of which the state has data.

        Returns:
            The writes that make it so: the log out, the tombstone in. The state goes afterwards.
        """
        journal = self._groups[group_id].core.journal
        least_index = max(least_index, journal.least_index)
        tombstone = Tombstone(least_index, journal.term, journal.vote, tuple(clears))
        writes = self.close(group_id, erase=True)
        stage_tombstone(raft_log_prefix(group_id), tombstone, writes)
        return writes

    def close(self, group_id: int, *, erase: bool = False) -> WriteSet:
        """Close a group's replica, ending its proposals.

        A leader is to hand over first: its node lives on, and quiet followers would not miss it.

        Returns:
            The writes of the node: with ``erase``, the removal of the log.
        """
        assert self._staged is None, "between stage and release"
        group = self._groups[group_id]
        self._drop(group)
        writes: WriteSet = {}
        if erase:
            group.core.journal.begin(writes)
            group.core.journal.erase(self._engine)
            group.clear_spool(writes)
        return writes

    def forget(self, group_id: int) -> WriteSet:
        """Close a replica that holds nothing, and return the writes that erase all but its vote."""
        writes = self.close(group_id, erase=True)
        del writes[raft_log_prefix(group_id) + b"h"]
        return writes

    def _drop(self, group: RaftGroup) -> None:
        del self._groups[group.group_id]
        self._members_changed()
        self._ready.pop(group.group_id, None)
        self._alarm_of.pop(group.group_id, None)
        group.close()

    def stage(self) -> WriteSet:
        """Let every group that has something to do take its turn.

        Returns:
            The writes that are to be made durable, in one write, before ``release``.
        """
        assert self._staged is None, "stage was called twice without release"
        if self.failed is not None:
            raise RuntimeError("consensus has failed; open the store again") from self.failed
        now = self._monotonic()
        if not self._is_alone:
            self._listen(now)
        if self._alarms:
            self._ring(now)
        writes: WriteSet = {}
        ready, self._ready = self._ready, {}
        alone = self._alone
        self._staged = [group for group in ready.values() if not group.stage_alone(writes, alone)]
        self.needs_sync = bool(writes)
        for group in self._staged:
            staged = group.stage(now)
            if staged and not self.needs_sync and group.needs_sync:
                self.needs_sync = True
            if writes:
                writes.update(staged)
            else:
                writes = staged
            deadline = group.deadline()
            if deadline is not None:
                self._set_alarm(group.group_id, deadline)
        if self._peers_changed:
            self._count_peers()
        return writes

    def _listen(self, now: float) -> None:
        """Receive the frames that have come, and look after peers that are silent."""
        self._outgoing.begin_turn()
        self._receive(now)
        if self._has_peers:
            self._look_around(now)

    def send_early(self) -> None:
        """Send the append messages of leaders, between ``stage`` and the write.

        Followers then sync an entry at the same time as the leader does (dissertation, section
        10.2.1).

        This is safe because the leader never counts itself for an entry that is not durable here.
        If a majority needs another member, an entry commits in the turn that receives that member's
        answer. This turn is later than the one that appended the entry, and it begins after the
        earlier turn's write has been synced. (If a majority needs no other member, nothing is sent
        early.)

        If that write fails, or the node dies before it, the leader has lost an entry that it never
        acknowledged, which any follower may do. It cannot put another entry in its place: it can
        lead again only in a new term, and terms are durable before they are used.

        These messages leave before those of ``release``: a peer sees the order of the turn.
        """
        assert self._staged is not None, "send_early without stage"
        envelopes: dict[NodeId, list[Envelope]] = {}
        for group in self._staged:
            for to, message in group.take_early_messages() if group.core.outbox else ():
                envelopes.setdefault(to, []).append((group.group_id, message))
        if envelopes:
            self._send(envelopes)

    def release(self) -> None:
        """Send the messages and tell the outcomes of the turn, which is durable now."""
        staged, self._staged = self._staged, None
        alone, self._alone = self._alone, []
        assert staged is not None, "release without stage"
        envelopes: dict[NodeId, list[Envelope]] = {}
        for group in staged:
            for to, message in group.take_messages() if group.core.outbox else ():
                envelopes.setdefault(to, []).append((group.group_id, message))
        if envelopes:
            self._send(envelopes)
        if self._beats:
            self._say_that_it_lives()
        for group in staged:
            group.tell()
        for done in alone:
            tell(done, ProposalOutcome.APPLIED)

    def fail(self, error: Exception) -> None:
        """End every proposal and stop every group, because the staged writes failed."""
        self.failed = error
        alone, self._alone, self._staged = self._alone, [], None
        self._ready.clear()
        self._outgoing.clear()
        self._intake.clear()
        self._alarms, self._alarm_of = [], {}
        for group in self._groups.values():
            group.stop(error)
        for done in alone:
            tell(done, ProposalOutcome.UNKNOWN)
        for group in self._groups.values():
            group.tell()
            group.close()

    def may_wait(self, sender: NodeId, received: bytes) -> bool:
        """Return whether a frame that has come needs no turn of its own.

        These are the late answers of followers to a leader that has a majority already. The next
        turn takes them in, which is that of a heartbeat at the latest.
        """
        if len(received) > _LATE_ANSWER_BYTES:
            return False
        frame, _ = decode_frame(received)
        addressed = [] if frame is None else self._addressed(frame)
        return bool(addressed) and all(
            group.is_late(sender, message) for group, message in addressed
        )

    def next_deadline(self) -> float | None:
        """Return when ``stage`` must be called without new input, or ``None`` for never.

        The time is one of the monotonic clock.
        """
        if self._ready or (not self._is_alone and (self._outgoing.waits or self._intake.waits)):
            return self._monotonic()
        if self._is_alone and not self._alarms:
            return None
        while self._alarms and self._alarm_of.get(self._alarms[0][1]) != self._alarms[0][0]:
            heapq.heappop(self._alarms)
        beat_at = None if self._is_alone else self._liveness.deadline()
        if not self._alarms:
            return beat_at
        return self._alarms[0][0] if beat_at is None else min(beat_at, self._alarms[0][0])

    def heard_at(self, node_id: NodeId) -> float | None:
        """Return when the last sound frame of a node came, on the monotonic clock."""
        return self._liveness.heard_at(node_id)

    def _send(self, envelopes: dict[NodeId, list[Envelope]]) -> None:
        for to, batch in envelopes.items():
            self._outgoing.send(to, batch)

    def _encode_and_send(self, to: NodeId, envelopes: Sequence[Envelope]) -> int:
        self._liveness.sent(to, self._monotonic())
        frame = encode_frame(envelopes, self._clocks_for(to))
        self._transport.send(to, frame)
        return len(frame)

    def _say_that_it_lives(self) -> None:
        """Send an empty frame to each peer that was sent nothing for half a heartbeat."""
        self._beats = False
        self._send({peer: [] for peer in self._liveness.unspoken(self._monotonic())})

    def _wake(self, group: RaftGroup) -> None:
        self._ready[group.group_id] = group

    def _receive(self, now: float) -> None:
        for sender, frame, problem in self._intake.take():
            addressed = [] if frame is None else self._addressed(frame)
            lie = _lie_in(addressed)
            if frame is None or lie is not None:
                self._distrust(sender, f"malformed: {problem}" if lie is None else lie)
                continue
            self._on_peer_clocks(sender, frame.clocks)
            if self._liveness.hear(sender, now, frame.entries_version):
                for group in self._groups.values():
                    group.on_return(sender, now)
            for group, message in addressed:
                group.deliver(sender, message)
            if len(addressed) < len(frame.envelopes):
                for group_id, message in frame.envelopes:
                    if group_id not in self._groups:
                        self._on_unknown(group_id, sender, message)

    def _addressed(self, frame: Frame) -> list[tuple[RaftGroup, Message]]:
        """Return the messages of ``frame`` for groups that are open here, with their groups."""
        groups = self._groups
        return [(groups[id_], message) for id_, message in frame.envelopes if id_ in groups]

    def _distrust(self, sender: NodeId, problem: str) -> None:
        """Log that a frame of ``sender`` was dropped, and report its sender."""
        self._said.log(
            logger, (sender, problem), self._monotonic(),
            "dropped a frame of node %s: %s", sender, problem,
        )  # fmt: skip
        self._on_malformed(sender)

    def _look_around(self, now: float) -> None:
        """Find silent nodes and decide to send beats, once a heartbeat."""
        beat_at = None if self._is_alone else self._liveness.deadline()
        if beat_at is None or now < beat_at:
            return
        self._beats = True
        for node in self._liveness.beat(now):
            for group in self._groups.values():
                group.on_silence(node, now)

    def _members_changed(self) -> None:
        self._peers_changed = True

    def _count_peers(self) -> None:
        """Count the nodes that share a group with this one."""
        self._peers_changed = False
        groups = self._groups.values()
        peers = {peer.id: None for group in groups for peer in group.core.peers}
        self._liveness.set_peers(peers)
        self._has_peers = len(peers) > 0

    def _ring(self, now: float) -> None:
        """Wake the groups whose deadline has come."""
        alarms = self._alarms
        while alarms and alarms[0][0] <= now:
            at, group_id = heapq.heappop(alarms)
            if self._alarm_of.get(group_id) == at:
                del self._alarm_of[group_id]
                self._wake(self._groups[group_id])

    def _set_alarm(self, group_id: int, deadline: float) -> None:
        """Set the alarm of a group, unless an earlier one is set.

        An alarm that is too early is left to ring, since deadlines mostly move back.
        """
        alarm = self._alarm_of.get(group_id)
        if alarm is None or deadline < alarm:
            self._alarm_of[group_id] = deadline
            heapq.heappush(self._alarms, (deadline, group_id))


def _lie_in(addressed: list[tuple[RaftGroup, Message]]) -> str | None:
    """Return the term or index in a message that no member can have reached, or ``None``."""
    for group, message in addressed:
        lie = beyond_reach(message, group.core.term, group.core.journal.last_index)
        if lie is not None:
            return lie
    return None
