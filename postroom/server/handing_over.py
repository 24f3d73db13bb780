"""The handing over of a node's lease and lead: when it stops, or its disk or clock is faulty.

::

    begin ─▶ lease given back ─▶ lead transferred ─▶ another one leads ─▶ done
       └──────────── no successor in time ─────────────────────────────▶ done: goes on serving,
                                                        or steps down if it is damaged
"""

from __future__ import annotations

from typing import Final, Protocol

from postroom.raft.group import RaftGroup
from postroom.raft.state_machine import NodeId
from postroom.ranges.replica import Replica
from postroom.server.tasks import NodeTasks, Pending

HAND_OVER_SECONDS: Final = 2.0
"""The time for which a node that is to stop waits for a successor."""


class Health(Protocol):
    """The question about the node's disk."""

    @property
    def found(self) -> str:
        """Return the data that cannot be read, or an empty text."""


class HandingOver:
    """The handing over of one node's lease and lead; see the module.

    Args:
        replica: the replica with the lease and the lead.
        tasks: the node's, for the time-out.
        damage: the damage of the node's disk.
    """

    def __init__(self, replica: Replica, tasks: NodeTasks, damage: Health) -> None:
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
