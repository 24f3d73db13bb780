"""A node's groups, driven together: one write set, one sync, one frame to each peer a turn.

The node calls, in this order, again and again::

    writes = consensus.stage()          frames in, time-outs, entries, effects: all staged
    consensus.send_early()              leaders' entries out (optional: saves the time of a sync)
    engine.write(writes, sync=...)      if there is anything; synced if consensus.needs_sync
    consensus.release()                 frames out, outcomes told
                                        or consensus.fail(error), once and for ever

Only groups with something to do are looked at: those that were proposed to, those with messages,
and those whose deadline has come. A group of one that has nothing to do costs nothing.

Invariants:

* No outcome is told, and nothing leaves, before what it speaks of is durable. The one exception
  is argued at :meth:`Consensus.send_early`.
* Groups take their turns in the order in which they were woken: the same input, the same output.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from postroom.kv.engine import Engine, WriteSet
from postroom.kv.keys import raft_log_prefix
from postroom.raft.group import Group
from postroom.raft.journal import Journal
from postroom.raft.messages import Envelope, decode_frame, encode_frame
from postroom.raft.options import RaftOptions
from postroom.raft.state_machine import NodeId, StateMachine
from postroom.raft.syncobj_core import Core
from postroom.raft.transport import Transport

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 (its type only)


class Consensus:
    """See the module.

    Args:
        engine: the node's; read when a group is opened, never written here.
        transport: to the other nodes.
        node_id: this node.
        monotonic: seconds that never go back.
        random: for election time-outs.
        options: times and sizes.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        *,
        node_id: NodeId,
        monotonic: Callable[[], float],
        random: Random,
        options: RaftOptions | None = None,
    ) -> None:
        """Open no group yet."""
        self._engine = engine
        self._transport = transport
        self._node_id = node_id
        self._monotonic = monotonic
        self._random = random
        self._options = RaftOptions() if options is None else options
        self._groups: dict[int, Group] = {}
        self._ready: dict[int, Group] = {}
        self._staged: list[Group] | None = None
        self._alarms: list[tuple[float, int]] = []
        self._alarm_of: dict[int, float] = {}
        self.failed: Exception | None = None
        self.needs_sync = False
        """After ``stage``: whether what was staged must be synced before ``release``.

        Not if it is applied state and what was dropped from logs for it: a majority has the entries
        in durable logs, and the engine keeps the order of writes, so a member that loses power
        merely applies them again.
        """

    @property
    def groups(self) -> dict[int, Group]:
        """The groups that are open, by id."""
        return self._groups

    def create(
        self, group_id: int, members: Sequence[NodeId], state_machine: StateMachine
    ) -> Group:
        """Open this node's replica of a group, or make it if it is new.

        Args:
            group_id: which group.
            members: the first members, for a new group. A node that is to join a group is not among
                them: it becomes a member when the leader adds it.
            state_machine: what the group replicates.

        Raises:
            StoreCorrupted: the log on the engine is not sound.
        """
        assert group_id not in self._groups, f"group {group_id} is open"
        applied_index = state_machine.applied_index()
        prefix = raft_log_prefix(group_id)
        journal = Journal.open(self._engine, prefix, tuple(members), applied_index)
        core = Core(self._node_id, journal, applied_index, self._options, self._random)
        core.now = self._monotonic()
        core.restart_election_timer()
        group = Group(group_id, core, state_machine, self._wake)
        self._groups[group_id] = group
        self._wake(group)
        return group

    def close(self, group_id: int, *, erase: bool = False) -> WriteSet:
        """Close a group's replica, ending its proposals.

        Returns:
            What the node is to write: with ``erase``, the removal of the log.
        """
        assert self._staged is None, "between stage and release"
        group = self._groups.pop(group_id)
        self._ready.pop(group_id, None)
        self._alarm_of.pop(group_id, None)
        group.close()
        writes: WriteSet = {}
        if erase:
            group.core.journal.begin(writes)
            group.core.journal.erase(self._engine)
        return writes

    def stage(self) -> WriteSet:
        """Let every group that has something to do take its turn.

        Returns:
            What is to be made durable, in one write, before ``release``.
        """
        assert self._staged is None, "stage was called twice without release"
        if self.failed is not None:
            raise RuntimeError("consensus has failed; open the store again") from self.failed
        now = self._monotonic()
        self._receive()
        if self._alarms:
            self._ring(now)
        self._staged = list(self._ready.values())
        self._ready.clear()
        self.needs_sync = False
        writes: WriteSet = {}
        for group in self._staged:
            staged = group.stage(now)
            if staged and group.needs_sync:
                self.needs_sync = True
            if writes:
                writes.update(staged)
            else:
                writes = staged
            self._set_alarm(group)
        return writes

    def send_early(self) -> None:
        """Between ``stage`` and the write: let leaders' append messages leave already.

        So followers sync an entry at the same time as the leader does (dissertation, section
        10.2.1). It is safe because the leader never counts itself for an entry that is not durable
        here: where a majority needs another member (and only there), an entry commits in the turn
        that receives that member's answer, which is a later turn than the one that appended it,
        and a later turn begins after this one's write has been synced. If that write fails or the
        node dies before it, the leader has lost an entry that it never acknowledged, as any
        follower may; it cannot put another one in its place, because it can lead again only in
        a new term, and terms are durable before they are used.

        What leaves here leaves before anything of ``release``: a peer sees the order of the turn.
        """
        assert self._staged is not None, "send_early without stage"
        envelopes: dict[NodeId, list[Envelope]] = {}
        for group in self._staged:
            for to, message in group.take_early_messages():
                envelopes.setdefault(to, []).append((group.group_id, message))
        self._send(envelopes)

    def release(self) -> None:
        """What was staged is durable: send, then tell."""
        staged, self._staged = self._staged, None
        assert staged is not None, "release without stage"
        envelopes: dict[NodeId, list[Envelope]] = {}
        for group in staged:
            for to, message in group.take_messages():
                envelopes.setdefault(to, []).append((group.group_id, message))
        self._send(envelopes)
        for group in staged:
            group.tell()

    def fail(self, error: Exception) -> None:
        """What was staged could not be written: every proposal ends, every group stops."""
        self.failed = error
        self._staged = None
        self._ready.clear()
        self._alarms, self._alarm_of = [], {}
        for group in self._groups.values():
            group.stop(error)
        for group in self._groups.values():
            group.tell()
            group.close()

    def next_deadline(self) -> float | None:
        """When ``stage`` must be called without new input, on the clock; ``None`` for never."""
        if self._ready:
            return self._monotonic()
        while self._alarms and self._alarm_of.get(self._alarms[0][1]) != self._alarms[0][0]:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def _send(self, envelopes: dict[NodeId, list[Envelope]]) -> None:
        for to, batch in envelopes.items():
            self._transport.send(to, encode_frame(batch))

    def _wake(self, group: Group) -> None:
        self._ready[group.group_id] = group

    def _receive(self) -> None:
        for sender, frame in self._transport.receive():
            for group_id, message in decode_frame(frame, sender):
                group = self._groups.get(group_id)
                if group is not None:
                    group.deliver(sender, message)

    def _ring(self, now: float) -> None:
        """Wake the groups whose deadline has come."""
        alarms = self._alarms
        while alarms and alarms[0][0] <= now:
            at, group_id = heapq.heappop(alarms)
            if self._alarm_of.get(group_id) == at:
                del self._alarm_of[group_id]
                self._wake(self._groups[group_id])

    def _set_alarm(self, group: Group) -> None:
        """An alarm that is too early is left to ring: deadlines mostly move back."""
        deadline = group.deadline()
        if deadline is None:
            return
        alarm = self._alarm_of.get(group.group_id)
        if alarm is None or deadline < alarm:
            self._alarm_of[group.group_id] = deadline
            heapq.heappush(self._alarms, (deadline, group.group_id))
