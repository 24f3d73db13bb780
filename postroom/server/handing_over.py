"""Gives lease and lead of a node away: when it stops, or disk or clock are not to be trusted.

::

    begin ─▶ lease given back ─▶ lead transferred ─▶ another one leads ─▶ done
       └──────────── nobody has taken over in time ────────────────────▶ done: goes on serving,
                                                        or steps down if it is damaged
"""

from __future__ import annotations

from typing import Final, Protocol

from postroom.raft.group import Group
from postroom.raft.state_machine import NodeId
from postroom.ranges.replica import Replica
from postroom.server.tasks import Pending, Tasks

HAND_OVER_SECONDS: Final = 2.0
"""How long a node that is to stop waits for a successor."""


class Health(Protocol):
    """What this asks about the node's disk."""

    @property
    def found(self) -> str:
        """What cannot be read; empty: nothing."""


class HandingOver:
    """See the module.

    Args:
        replica: whose lease and lead.
        tasks: the node's, for the time-out.
        damage: of the node's disk.
    """

    def __init__(self, replica: Replica, tasks: Tasks, damage: Health) -> None:
        self._replica = replica
        self._tasks = tasks
        self._damage = damage
        self._pending: Pending | None = None
        self._time_out = Pending()

    @property
    def _group(self) -> Group:
        return self._replica.group

    def begin(self, to: NodeId | None = None) -> Pending:
        """Give lease and lead away, if they are here; completed when that is done, or hopeless.

        A node that is alone keeps them.

        Args:
            to: who is to have the lead; ``None``: whoever has come farthest.
        """
        if self._pending is None or self._pending.done:
            self._pending = Pending()
            if len(self._group.members) == 1:  # nobody could take the lease
                self._pending.complete(None)
                return self._pending
            self._tasks.cancel_timer(self._time_out)
            self._time_out = Pending()
            self._time_out.callback = self._give_up
            self._tasks.at(HAND_OVER_SECONDS, self._time_out)
            self._replica.hand_over(lambda: self._transfer(to))
        return self._pending

    def lost_lead(self) -> None:
        """This node does not lead any more: done."""
        if self._pending is not None:
            self._pending.complete(None)

    def _transfer(self, to: NodeId | None) -> None:
        """The lease is given back, or was not here; now the lead."""
        if self._group.is_leader and len(self._group.members) > 1:
            self._group.transfer_leadership(to)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Nobody has taken over in time: go on, or let the others elect somebody."""
        if self._pending is None or self._pending.done:
            return
        self._pending.complete(None)
        if self._damage.found and len(self._group.members) > 1:
            self._group.step_down()
        else:
            self._replica.resume()
