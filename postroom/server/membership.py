"""The membership service: one change at a time, the group gets the members that the record names.

::

    admitted ──▶ learner ── has caught up ─┬─▶ voter, in the place of one that is to leave
                                           └─▶ voter, if no node is to leave
    retired ──▶ replaced, or removed ──▶ forgotten

A node that joins is fed first and counted afterwards, and thereby delays no commit (Raft
dissertation, section 4.2.1). If another node is retired, the new one takes its place in one change
(joint consensus, section 4.3): at no moment must more nodes live than before and after. A retired
node therefore stays until the joining ones have caught up, unless none joins.

The root is left last. A node that is a member of other ranges must hear there that it is retired.
A range is left after the right half that was split from it. A node that lags begins the right half
with the entry of the split, and only a member hears of that.

No node leaves if those that keep up would be no majority then: the group could agree on nothing
more, perhaps not even on that change (etcd's strict reconfiguration check). A leader that is to
leave hands over first, to a node that is to stay, and its successor does the rest.

The service runs on the leaseholder only, and sleeps while there is nothing to change.

:class:`HandingOver` gives the lease and the lead of a node to another one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable
from typing import Any, Final, Protocol

from postroom.counted import counted
from postroom.errors import CommitUnknown, Invalid, Retryable, Unavailable
from postroom.limits import MEMBERS_MAX, VOTERS_MAX
from postroom.raft.group import RaftGroup
from postroom.raft.interface import NodeId
from postroom.raft.membership import AddLearner, Change, Promote, Remove, Replace
from postroom.raft.proposals import ProposalOutcome
from postroom.raft.replication import PeerProgress
from postroom.ranges.nodes import ForgetNode, Nodes
from postroom.ranges.replica import Replica
from postroom.server.disk_guard import Damage
from postroom.server.services import NodeTasks, Pending, WakeUp

CAUGHT_UP_ENTRIES: Final = 64
LOOK_SECONDS: Final = 0.25
SILENT_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class MembershipHost(Protocol):
    """The hosted range, as the service sees it."""

    @property
    def nodes(self) -> Nodes | None:
        """Return the nodes of the cluster, as applied here."""

    @property
    def node_id(self) -> int:
        """Return this node's id."""

    @property
    def is_root(self) -> bool:
        """Return whether the range contains the record of the nodes."""

    def may_have_member(self, node_id: NodeId) -> bool:
        """Return whether a node may be a member of some range's group."""

    @property
    def is_splitting(self) -> bool:
        """Return whether the entry of a split is under way."""

    def has_to_stay(self, node_id: NodeId) -> bool:
        """Return whether a node may be a member of a range that it has to leave before."""

    def change_members(self, change: Change) -> Awaitable[ProposalOutcome]:
        """Have the range's group change, and answer how that ended."""

    def upkeep(self, request: Any) -> Awaitable[Any]:
        """Send a request to the range."""

    def hand_over(self, to: NodeId | None = None) -> object:
        """Give the lease and the lead away."""


class MembershipService:
    """The membership service of one range; see the module.

    Args:
        host: the range on this node.
        group: the range's.
        changed: set whenever the record of the nodes has changed.
    """

    def __init__(self, host: MembershipHost, group: RaftGroup, changed: WakeUp) -> None:
        self._host = host
        self._group = group
        self._changed = changed
        self._told: set[NodeId] = set()
        self._logged: tuple[Change, ProposalOutcome] | None = None

    async def run(self) -> None:
        """Make changes, for ever."""
        while True:
            settled = await self.step()
            await self._changed.wait(math.inf if settled else LOOK_SECONDS)

    async def step(self) -> bool:
        """Make one change, if one is due; return whether nothing is left to change."""
        nodes = self._host.nodes
        if nodes is None:
            return True
        if self._group.is_joint or self._host.is_splitting:
            return False  # the group finishes that by itself
        change = self._next_change(nodes)
        if change is not None:
            outcome = await self._host.change_members(change)
            if (change, outcome) != self._logged:
                self._logged = (change, outcome)
                _log.info("%s: %s", change, outcome.value)
            return False
        if self._retires_itself(nodes) and not self._is_feeding(nodes):
            successor = self._successor(nodes)
            if successor is not None:
                self._host.hand_over(successor)
                return False
        self._tell_who_stays(nodes)
        return await self._forget(nodes) and not self._group.learners

    def _tell_who_stays(self, nodes: Nodes) -> None:
        staying = set(self._group.members) - set(_wanted(nodes))
        for member in sorted(staying - self._told):
            _log.info(
                "node %s is to leave, and stays until a majority of the others keeps up and those "
                "that join have caught up", member,
            )  # fmt: skip
        self._told = staying

    def _next_change(self, nodes: Nodes) -> Change | None:
        group = self._group
        voters, learners = set(group.members), set(group.learners)
        wanted = _wanted(nodes)
        leaving = (voters | learners) - set(wanted)
        staying = {each for each in leaving if self._host.has_to_stay(each)}
        leaving -= staying
        # Three of four voters must live, two of three: without a silent one that is easier.
        if len(voters) % 2 == 0 and (removal := self._removal(self._silent(leaving))):
            return removal
        for member in wanted:
            is_new = member not in voters and member not in learners
            if is_new and len(voters) + len(learners) < MEMBERS_MAX:
                return AddLearner(member)
        ready = [each for each in sorted(learners & set(wanted)) if self._has_caught_up(each)]
        if ready and not staying and (change := self._count(ready[0], leaving & voters, nodes)):
            return change
        return None if self._is_feeding(nodes) else self._removal(leaving)

    def _count(self, joining: NodeId, leaving: set[NodeId], nodes: Nodes) -> Change | None:
        """Return the change that makes ``joining`` a voter, perhaps in a leaving one's place."""
        others = leaving - {self._host.node_id}
        if others:
            silent = self._silent(others)
            return self._replacement(min(silent or others), joining)
        if leaving - others and self._successor(nodes) is not None:
            return None  # the successor of this leader replaces it
        return Promote(joining) if len(self._group.members) < VOTERS_MAX else None

    def _replacement(self, leaving: NodeId, joining: NodeId) -> Change | None:
        """Return the replacement, if members that keep up are a majority before and after it."""
        before, able = set(self._group.members), self._able()
        after = before - {leaving} | {joining}
        enough = 2 * len(able & before) > len(before) and 2 * len(able & after) > len(after)
        return Replace(leaving, joining) if enough else None

    def _removal(self, leaving: set[NodeId]) -> Change | None:
        """Return the removal of a leaving member that leaves a majority which keeps up."""
        voters, able = set(self._group.members), self._able()
        silent = self._silent(leaving)
        for member in (*sorted(silent), *sorted(leaving - silent - {self._host.node_id})):
            staying = voters - {member}
            if 2 * len(able & staying) > len(staying):
                return Remove(member)
        return None

    def _able(self) -> set[NodeId]:
        """Return the members that keep up, this one included."""
        members = {*self._group.members, *self._group.learners}
        return {each for each in members if each == self._host.node_id or self._has_caught_up(each)}

    def _silent(self, members: set[NodeId]) -> set[NodeId]:
        return {member for member in members if not self._answers(member)}

    def _successor(self, nodes: Nodes) -> NodeId | None:
        """Return a member that can lead instead of this node, and is to stay."""
        staying = set(self._group.members) & set(_wanted(nodes)) - {self._host.node_id}
        return next(filter(self._has_caught_up, sorted(staying)), None)

    def _is_feeding(self, nodes: Nodes) -> bool:
        """Return whether a member that answers is catching up, to be counted then."""
        wanted, voters = set(_wanted(nodes)), set(self._group.members)
        joining = set(self._group.learners) & wanted
        has_room = len(voters & wanted) < VOTERS_MAX
        return has_room and any(
            self._answers(each) and not self._has_caught_up(each) for each in joining
        )

    def _answers(self, member: NodeId) -> bool:
        return member == self._host.node_id or answers(self._group.progress().get(member))

    def _has_caught_up(self, member: NodeId) -> bool:
        return has_caught_up(self._group, member)

    def _retires_itself(self, nodes: Nodes) -> bool:
        mine = nodes.by_id(self._host.node_id)
        return (mine is None or mine.retired) and len(self._group.members) > 1

    async def _forget(self, nodes: Nodes) -> bool:
        """Remove the descriptors of retired nodes that have left all groups, if this is the root.

        Returns:
            Whether nothing is left to remove.
        """
        if not self._host.is_root:
            return True
        gone = [n for n in nodes.nodes if n.retired and not self._host.may_have_member(n.node_id)]
        for node in gone:
            try:
                await self._host.upkeep(ForgetNode(node.node_id))
            except (Retryable, CommitUnknown):
                return False
        return not any(node.retired for node in nodes.nodes if node not in gone)


def answers(progress: PeerProgress | None) -> bool:
    """Return whether a member was heard lately, as the leader knows it."""
    return progress is not None and progress.silent_seconds < SILENT_SECONDS


def has_caught_up(group: RaftGroup, member: NodeId) -> bool:
    """Return whether another member answers and has nearly all entries, as the leader knows it."""
    progress = group.progress().get(member)
    return (
        progress is not None
        and not progress.snapshot_under_way
        and answers(progress)
        and progress.match_index > 0  # it has answered at all
        and progress.match_index + CAUGHT_UP_ENTRIES >= group.last_index
    )


def check_successor(group: RaftGroup, nodes: Nodes | None, node_id: NodeId) -> None:
    """Check that another node can lead the group instead of this one.

    Raises:
        Invalid: it does not vote in the group, or is to leave.
        Unavailable: it does not keep up.
    """
    known = None if nodes is None or not isinstance(node_id, int) else nodes.by_id(node_id)
    if node_id not in group.members or (known is not None and known.retired):
        why = "is to leave" if node_id in group.members else "has no copy that votes"
        raise Invalid(
            f"node {node_id} {why}; nothing was changed: name a voter of this range "
            f"({', '.join(map(str, sorted(group.members)))})"
        )
    progress = group.progress().get(node_id)
    if progress is None or not answers(progress):
        raise Unavailable(
            f"node {node_id} does not answer; nothing was changed: try again when it runs"
        )
    if not has_caught_up(group, node_id):
        behind = group.last_index - progress.match_index
        raise Unavailable(
            f"node {node_id} lags {counted(behind, 'entry', 'entries')} behind; nothing was "
            "changed: try again when it has caught up"
        )


def has_joined(node_id: NodeId, group: RaftGroup, nodes: Nodes) -> bool:
    """Return whether a node has its intended place in the group, as far as it knows.

    The intended place is that of a voter, when no replacement is under way; or of a learner, if
    enough others vote.
    """
    mine = next((node for node in nodes.nodes if node.node_id == node_id), None)
    if mine is None or mine.retired:
        return True
    if group.is_joint or node_id not in group.members:
        staying = set(group.members) & set(_wanted(nodes)) - {node_id}
        return len(staying) >= VOTERS_MAX
    return True


def _wanted(nodes: Nodes) -> list[NodeId]:
    return [node.node_id for node in nodes.nodes if not node.retired]


HAND_OVER_SECONDS: Final = 2.0
"""The time for which a node that is to stop waits for a successor."""


class HandingOver:
    """The handing over of lease and lead of one range on this node.

    ::

        begin ─▶ lease given back ─▶ lead transferred ─▶ another one leads ─▶ done
           └──────────── no successor in time ─────────────────────────────▶ done: goes on serving,
                                                            or steps down if it is damaged

    Args:
        replica: the replica with the lease and the lead.
        tasks: the node's, for the time-out.
        damage: the damage of the node's disk.
    """

    def __init__(self, replica: Replica, tasks: NodeTasks, damage: Damage) -> None:
        self._replica = replica
        self._tasks = tasks
        self._damage = damage
        self._pending: Pending | None = None
        self._time_out = Pending()

    @property
    def _group(self) -> RaftGroup:
        return self._replica.group

    def begin(self, to: NodeId | None = None) -> Pending:
        """Give lease and lead away, if they are here; the result completes when that has ended.

        A node that is alone keeps them.

        Args:
            to: the node that is to lead; ``None``: the one that has most of the log.
        """
        if self._pending is None or self._pending.done:
            self._pending = Pending()
            if len(self._group.members) == 1:  # no other node could take the lease
                self._pending.complete(None)
                return self._pending
            self._tasks.cancel_timer(self._time_out)
            self._time_out = Pending()
            self._time_out.callback = self._give_up
            self._tasks.at(HAND_OVER_SECONDS, self._time_out)
            self._replica.hand_over(lambda: self._transfer(to))
        return self._pending

    def lost_lead(self) -> None:
        """Complete the handing over, since this node does not lead any more."""
        if self._pending is not None:
            self._pending.complete(None)

    def _transfer(self, to: NodeId | None) -> None:
        """Transfer the lead, since the lease is given back, or was not here."""
        if self._group.is_leader and len(self._group.members) > 1:
            self._group.transfer_leadership(to)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Go on, or let the others elect a leader, since no node has taken over in time."""
        if self._pending is None or self._pending.done:
            return
        self._pending.complete(None)
        if self._damage.found and len(self._group.members) > 1:
            self._group.step_down()
        else:
            self._replica.resume()
