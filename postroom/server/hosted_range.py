"""A hosted range: one range on this node, with everything that works for it here.

::

    node ─┬─ hosted range 1 (the root) ─┬─ replica, feed, consensus group
          ├─ hosted range 2             ├─ services: dispatcher, executor, ... membership
          └─ ...                        ├─ rest, while there is nothing to write
                                        └─ handing over of its lease and lead

The ranges of a node have its engine, clock, turns and tasks in common, and nothing else. A range
may lose its lead, and its services end here, while the others go on. Its replica knows this object
as its host. :mod:`.assembly` makes it; :mod:`.replicas` has all of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from postroom.kv.engine import BlockDamaged
from postroom.messaging.setup import Messaging
from postroom.raft.group import RaftGroup
from postroom.raft.interface import NodeId
from postroom.raft.membership import Change
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.calls import Call
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.nodes import Nodes
from postroom.ranges.replica import Replica
from postroom.ranges.split.records import halved_key
from postroom.server.disk_guard import Damage
from postroom.server.membership import HandingOver, check_successor
from postroom.server.services import NodeTasks, Pending, Rest, Services, WakeUps

WANTED_SECONDS: Final = 60.0
"""The time for which a lease stays where a user has moved it, unless its node ceases to lead."""

_log = logging.getLogger(__name__)


class NodeRounds(Protocol):
    """The rounds of the node (:mod:`.service_rounds`)."""

    def begin(self) -> None:
        """Begin, unless they have begun."""

    def wake_all(self) -> None:
        """Wake all services in the next round."""


class ClockQuestions(Protocol):
    """The questions of the node to others (:mod:`.range_calls`)."""

    def hear_clocks(self) -> bool:
        """Ask the leaders of other ranges for their clocks; return whether there are any."""


class HostingNode(Protocol):
    """The parts of its node that a hosted range uses.

    Attributes:
        on_lead_lost: called when the node leads a range no more.
    """

    @property
    def calls(self) -> ClockQuestions:
        """Return the questions to other nodes."""

    lease_seconds: float
    values_bytes: int
    tasks: NodeTasks
    nodes: Nodes | None
    on_lead_lost: Callable[[], None]

    @property
    def rounds(self) -> NodeRounds:
        """Return the rounds that wake services."""

    @property
    def node_id(self) -> int:
        """Return the node's id."""

    @property
    def monotonic(self) -> Callable[[], float]:
        """Return the source of seconds that never go back."""

    def wake(self, *, urgent: bool) -> None:
        """Take a turn, now or within a moment."""

    def on_damage(self, error: BlockDamaged, group: RaftGroup) -> bool:
        """Note that data of a range is unreadable; return whether another node is to serve it."""

    def may_have_member(self, node_id: NodeId, *, besides: int | None = None) -> bool:
        """Return whether a node may be a member of some range's group."""

    def may_have_member_behind(self, node_id: NodeId, range_id: int) -> bool:
        """Return whether a node may be a member of the younger range that follows a range."""

    def share_values(self, changed: HostedRange) -> None:
        """Divide the memory for values anew, since a range is served, or is not any more."""


class Waker(Protocol):
    """A function that asks for a turn."""

    def __call__(self, *, urgent: bool) -> None:
        """Take a turn, now or within a moment."""


class _Upkeep(Call):
    """A request of a service, whose task waits for it."""

    __slots__ = ("pending",)

    def __init__(self, request: Any) -> None:
        super().__init__(request, urgent=False)
        self.pending = Pending()

    def complete(self, result: Any, error: BaseException | None) -> None:
        self.pending.complete(result, error)


class HostedRange:
    """A range on a node, the host of its replica; see the module.

    Args:
        range_id: the id of the range.
        node: the node.
        may_rest: whether it may write nothing at first, while it is alone.

    Attributes:
        replica: the replica.
        messaging: the messaging of the range.
        services: the services, which run while the replica serves.
        wake_ups: the wake-ups of its services.
        nodes_changed: set whenever the record of the nodes has changed.
        wake: asks for a turn in which the replica has its part.
        lease_seconds, values_bytes, monotonic: see ``Host``.
        is_serving: whether the replica has memory as the leaseholder.
        wanted_until: the time until which a user wants this node to lead the range.
    """

    replica: Replica
    messaging: Messaging
    services: Services
    wake: Waker

    def __init__(self, range_id: int, node: HostingNode, *, may_rest: bool) -> None:
        self.range_id = range_id
        self.lease_seconds = node.lease_seconds
        self.values_bytes = node.values_bytes
        self.monotonic = node.monotonic
        self.wake = node.wake
        self.wake_ups = WakeUps(node.tasks)
        self.nodes_changed = self.wake_ups.create()
        self.wanted_until = -math.inf
        self.is_serving = False
        self._node = node
        self._may_rest = may_rest

    def equip(
        self, replica: Replica, messaging: Messaging, services: Services, rest: Rest, damage: Damage
    ) -> None:
        """Take the components, of which the replica has its consensus group already."""
        self.replica, self.messaging = replica, messaging
        self.services, self._rest = services, rest
        self._handing_over = HandingOver(replica, self._node.tasks, damage)
        replica.group.on_leadership = self.on_leadership

    def resize_cache(self, bytes_max: int) -> None:
        """Have the replica keep so many bytes of values."""
        if bytes_max != self.values_bytes:
            self.values_bytes = bytes_max
            self.replica.resize_cache(bytes_max)

    def share_turns(self, note: Callable[[Replica], None] | None) -> None:
        """Have ``note`` called with each wake-up; ``None``: the node has no other range."""
        wake = self._node.wake
        if note is None:
            self.wake = wake
            return

        def note_and_wake(*, urgent: bool) -> None:
            note(self.replica)
            wake(urgent=urgent)

        self.wake = note_and_wake

    @property
    def group(self) -> RaftGroup:
        """Return the consensus group that this node is, or is to be, a member of."""
        return self.replica.group

    # --- a host

    def may_rest(self) -> bool:
        """Return whether a replica that is alone may only read, without a lease."""
        return self._may_rest and self._rest.is_possible()

    def on_serving(self, serves: bool) -> None:
        """Start or stop the services, since the lease has come here, or is not used any more."""
        self.is_serving = serves
        self._node.share_values(self)
        said = "serves" if serves else "ceases to serve"
        _log.info("node %d %s range %d", self.node_id, said, self.range_id)
        if not serves:
            self.services.stop()
        elif self.replica.rests:
            self._rest.watch_over(self.replica)
        else:
            self.services.start()
            self._node.rounds.begin()

    def hear_clocks(self) -> bool:
        """Ask the leaders of other ranges for their clocks; return whether there are any."""
        return self._node.calls.hear_clocks()

    def on_late_leases(self) -> None:
        """Hand over, since another node may be able to hold the lease."""
        _log.warning(
            "node %d cannot hold the lease of range %d, since its disk is too slow: it hands over",
            self.node_id, self.range_id,
        )  # fmt: skip
        self.hand_over()

    def on_damage(self, error: BlockDamaged) -> bool:
        """Note that data is unreadable; return whether another node is to serve instead."""
        return self._node.on_damage(error, self.group)

    def rouse_to_collect(self) -> None:
        """End the rest of a range that may have garbage."""
        if self.replica.memory.garbage.has_left_some:
            self.replica.rouse()

    def on_leadership(self, leads: bool, term: int) -> None:
        """Note that this node has begun or ceased to lead the range."""
        _log.info(
            "node %d %s range %d in term %d",
            self.node_id, "leads" if leads else "follows", self.range_id, term,
        )  # fmt: skip
        self.replica.on_leadership(leads, term)
        if not leads:
            self._handing_over.lost_lead()
            self._node.on_lead_lost()

    # --- calls of its services

    @property
    def node_id(self) -> int:
        """Return this node's id."""
        return self._node.node_id

    @property
    def nodes(self) -> Nodes | None:
        """Return the nodes of the cluster, as applied here."""
        return self._node.nodes

    @property
    def is_root(self) -> bool:
        """Return whether it contains the records of which the store has one each."""
        return self.range_id == ROOT_ID

    def may_have_member(self, node_id: NodeId) -> bool:
        """Return whether a node may be a member of some range's group."""
        return self._node.may_have_member(node_id)

    @property
    def is_splitting(self) -> bool:
        """Return whether the entry of a split is under way."""
        proposal = self.replica.proposal
        return proposal is not None and halved_key(self.range_id) in proposal.command.writes

    def has_to_stay(self, node_id: NodeId) -> bool:
        """Return whether a node may be a member of a range that it has to leave before."""
        if self.is_root:
            return self._node.may_have_member(node_id, besides=ROOT_ID)
        return self._node.may_have_member_behind(node_id, self.range_id)

    def upkeep(self, request: Any) -> Pending:
        """Submit a service's request, evaluated with the next turn, which is not hurried for it."""
        call = _Upkeep(request)
        self.replica.submit(call)
        return call.pending

    async def change_members(self, change: Change) -> ProposalOutcome:
        """Change the group by one member, and answer how that ended."""
        ended = Pending()
        self.group.change_members(change, ended.complete)
        self.wake(urgent=True)
        outcome: ProposalOutcome = await ended
        return outcome

    def hand_over(self, to: NodeId | None = None) -> Pending:
        """Give lease and lead away, if they are here; the result completes when that has ended.

        Args:
            to: the node that is to lead; ``None``: the one that has most of the log.
        """
        return self._handing_over.begin(to)

    # --- the wish of a user

    def check_successor(self, node_id: NodeId) -> None:
        """Check that a node can lead the range; see :func:`.check_successor`."""
        check_successor(self.group, self.nodes, node_id)

    def is_wanted_here(self) -> None:
        """Note that a user wants this node to lead."""
        self.wanted_until = self.monotonic() + WANTED_SECONDS
