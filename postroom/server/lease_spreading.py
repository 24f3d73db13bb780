"""The spreading of leases: the nodes of a cluster lead about as many ranges each.

::

    node 1 leads 7 ──┐ gives one away, every 10 s, while it leads
    node 2 leads 4   │ two more than the member that leads least
    node 3 leads 1 ◀─┘

Every node has a replica of each range, and so knows who leads it. No node asks another one, and
each leader decides for itself. A node is given no lease in these cases:

* It does not answer, lags behind, or is to leave.
* It has ceased to lead a range lately, or has not taken a lease that it was given. Perhaps it is
  about to stop.

A lease stays for a minute where a user has moved it (:mod:`postroom.ranges.lease_moves`), and while
its range is protected as a whole: backups and exports would have to begin anew. In this time a node
that leads too many gives others away.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from postroom.raft.interface import NodeId
from postroom.ranges.nodes import Nodes
from postroom.server.hosted_range import HostedRange
from postroom.server.membership import has_caught_up
from postroom.server.replicas import Replicas
from postroom.server.services import NodeTasks

MORE_MIN: Final = 2
"""The number of ranges that a leader has more than another one when it gives one away."""
REST_SECONDS: Final = 30.0
"""The time for which a node that has ceased to lead a range is given none."""
_JITTER: Final = 0.1
"""The part of the time between looks by which these differ, so that nodes do not act at once."""

_log = logging.getLogger(__name__)


class Lead(NamedTuple):
    """A range that this node leads, and the nodes that could lead it instead."""

    range_id: int
    heirs: tuple[NodeId, ...]


class Gift(NamedTuple):
    """A range whose lease is to be given away, and the node that gets it."""

    range_id: int
    to: NodeId


def lease_to_give(leads: Collection[Lead], led_by: Mapping[NodeId, int]) -> Gift | None:
    """Return which lease a node is to give away, and to whom; ``None``: it keeps all.

    The node that leads least gets it, of those that can lead the range. The root comes last.

    Args:
        leads: the ranges that the node leads.
        led_by: the number of ranges that each node leads; none: it is not listed.
    """
    gifts = [Gift(lead.range_id, heir) for lead in leads for heir in lead.heirs]
    best = min(gifts, key=lambda gift: (led_by.get(gift.to, 0), -gift.range_id), default=None)
    if best is None or led_by.get(best.to, 0) + MORE_MIN > len(leads):
        return None
    return best


class SpreadingNode(Protocol):
    """The node, as the service sees it."""

    tasks: NodeTasks
    nodes: Nodes | None
    replicas: Replicas
    chance: Callable[[], float]

    @property
    def node_id(self) -> int:
        """Return the node's id."""

    @property
    def monotonic(self) -> Callable[[], float]:
        """Return the source of seconds that never go back."""


class LeaseSpreading:
    """The service of a node that gives leases away; see the module.

    Args:
        node: the node.
        look_seconds: the time from one look to the next, each of which gives one lease away.
    """

    def __init__(self, node: SpreadingNode, look_seconds: float) -> None:
        self._node = node
        self._look_seconds = look_seconds
        self._leaders: dict[int, NodeId] = {}
        self._rests_until: dict[NodeId, float] = {}

    async def run(self) -> None:
        """Give leases away, for ever."""
        while True:
            await self._node.tasks.sleep(self._look_seconds * (1 + _JITTER * self._node.chance()))
            await self.look()

    async def look(self) -> None:
        """Give one lease away, if another node leads too few ranges."""
        hosted = self._node.replicas.hosted
        self._note_leaders(hosted.values())
        gift = self._next_gift(hosted.values())
        if gift is None:
            return
        _log.info("node %s leads less: it is to lead range %d", gift.to, gift.range_id)
        given = hosted[gift.range_id]
        await given.hand_over(gift.to)
        if given.group.is_leader:
            self._let_rest(gift.to)

    def _next_gift(self, hosted: Collection[HostedRange]) -> Gift | None:
        own = [each for each in hosted if each.group.is_leader]
        led_by = Counter(self._leaders.values())
        if len(own) < MORE_MIN or not self._leads_too_many(own, led_by):
            return None
        return lease_to_give([Lead(each.range_id, self._heirs(each)) for each in own], led_by)

    def _leads_too_many(self, own: list[HostedRange], led_by: Mapping[NodeId, int]) -> bool:
        """Return whether a member leads so few ranges that it is to get one, if it is able to."""
        members = {member for each in own for member in each.group.members}
        return min(led_by.get(member, 0) for member in members) <= len(own) - MORE_MIN

    def _heirs(self, hosted: HostedRange) -> tuple[NodeId, ...]:
        """Return the nodes that can lead a range instead of this one; none if it is to stay."""
        now, group = self._node.monotonic(), hosted.group
        has_snapshots = hosted.replica.protections.has_snapshots()
        if hosted.wanted_until > now or group.is_joint or has_snapshots:
            return ()
        return tuple(
            member
            for member in group.members
            if member != self._node.node_id
            and self._rests_until.get(member, now) <= now
            and self._stays(member)
            and has_caught_up(group, member)
        )

    def _stays(self, member: NodeId) -> bool:
        """Return whether a node is not to leave, as far as is known."""
        nodes = self._node.nodes
        known = None if nodes is None or not isinstance(member, int) else nodes.by_id(member)
        return known is None or not known.retired

    def _note_leaders(self, hosted: Iterable[HostedRange]) -> None:
        """Note who leads; let a node rest that has ceased to since the last look."""
        before = self._leaders
        leaders = {each.range_id: each.group.leader for each in hosted}
        self._leaders = {id_: leader for id_, leader in leaders.items() if leader is not None}
        for range_id, leader in before.items():
            if leaders.get(range_id) != leader:
                self._let_rest(leader)

    def _let_rest(self, node_id: NodeId) -> None:
        self._rests_until[node_id] = self._node.monotonic() + REST_SECONDS
