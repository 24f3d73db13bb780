"""What those are told whose requests are not done here: where to go, or that nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroom.errors import CommitUnknown
from postroom.kv.engine import BlockDamaged
from postroom.raft.outcome import ProposalOutcome
from postroom.raft.state_machine import NodeId
from postroom.ranges.calls import Call, NotLeaseholder, Proposal
from postroom.ranges.host import Host


class Refusals:
    """See the module.

    Args:
        node_id: whose they are.
        leader: tells who leads, as far as this node knows.
        host: the node, which may have damaged data.
    """

    def __init__(self, node_id: int, leader: Callable[[], NodeId | None], host: Host) -> None:
        self._node_id = node_id
        self._leader = leader
        self._host = host

    def elsewhere_if_damaged(self, error: BaseException) -> BaseException:
        """What to tell whoever asked for something that cannot be read here."""
        if isinstance(error, BlockDamaged) and self._host.on_damage(error):
            return self.not_leaseholder()
        return error

    def fail(self, proposal: Proposal, outcome: ProposalOutcome) -> None:
        """``proposal`` has no effect, or nobody knows: answers its calls."""
        unknown = outcome is ProposalOutcome.UNKNOWN
        for call, _, error in proposal.results:
            if error is not None or not unknown:
                call.complete(None, self.not_leaseholder())
            else:
                call.complete(None, CommitUnknown(
                    "the write was under way when its node lost the lead, or stopped; it may or "
                    "may not be there: "
                    "commit again with the same transaction id, or read what it wrote"
                ))  # fmt: skip

    def turn_away(self, calls: Sequence[Call]) -> None:
        """Answers ``calls``: not here."""
        error = self.not_leaseholder()
        for call in calls:
            call.complete(None, error)

    def not_leaseholder(self) -> NotLeaseholder:
        """Another node serves, or none does."""
        leader = self._leader()
        return NotLeaseholder(None if leader == self._node_id else leader)
