"""When a leader asks for the lease of its range, and how it gives it back.

::

    leads, its own term's first entry applied, the last lease over ── ask ─▶ granted ─▶ serves
                                                                               │
    hand over ─▶ serves no longer ─▶ the lease is nobody's ─▶ resume, or another leader's

A new leader asks as soon as it may: there may be messages to deliver. After that it asks when there
is something to do, so an idle range lets its lease lapse. A node that is alone may serve reads
without asking (*rest*).

:mod:`.lease_holder` says what is held, and until when. Here it is decided what to do about it; the
replica proposes that like any other command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from postroom.raft.group import Group
from postroom.ranges import lease as leases
from postroom.ranges.host import Host
from postroom.ranges.lease_holder import LeaseHolder


class Owner(Protocol):
    """What this asks of its replica."""

    group: Group

    def propose_lease(self, lease: leases.Lease, after: Callable[[], None], until: float) -> None:
        """Have the group agree on ``lease``; call ``after`` when it is applied."""

    def begin_with_fresh_memory(self) -> None:
        """Serve, with nothing in memory but what is stored."""

    def serve_again(self) -> None:
        """Those that have waited for the lease have their turn."""

    def stop_serving(self) -> None:
        """The lease is not used any more."""


class LeaseAcquisition:
    """See the module.

    Args:
        lease_holder: what this node holds.
        host: the node.
        owner: the replica.

    Attributes:
        wanted: it is to be asked for, whether or not anybody waits for something.
    """

    def __init__(self, lease_holder: LeaseHolder, host: Host, owner: Owner) -> None:
        self._lease_holder = lease_holder
        self._host = host
        self._owner = owner
        self.wanted = False
        self._hands_over: Callable[[], None] | None = None
        self._is_handing_over = False

    # --- when

    def _must_not_ask(self) -> bool:
        return self._is_handing_over or not self._owner.group.has_applied_own_term

    def deadline(self) -> float | None:
        """When this leader may ask; ``None``: it need not, or must not."""
        if self._lease_holder.serves_from or self._must_not_ask():
            return None
        return self._lease_holder.may_ask_at(self._owner.group.entries_received_at)

    def must_wait(self) -> bool:
        """Whether this is a leader who must not ask for the lease, or not yet."""
        group = self._owner.group
        if self._lease_holder.serves_from or not group.is_leader:
            return False
        if self._must_not_ask():
            return True
        return self._lease_holder.may_ask_at(group.entries_received_at) > self._host.monotonic()

    # --- asking

    def ask(self) -> None:
        """For the same lease again, if it has lapsed; or for the next one."""
        if self._lease_holder.resting:
            lease, after = self._lease_holder.extended(), self._end_rest
        elif self._lease_holder.serves_from:
            lease, after = self._lease_holder.extended(), self._owner.serve_again
        else:
            lease, after = self._lease_holder.successor(), self._begin_to_serve
        self._owner.propose_lease(lease, after, self._lease_holder.until_if_granted())

    def rest(self) -> bool:
        """Alone, and with the lease of an earlier life: read, until there is something to write."""
        group = self._owner.group
        if self._lease_holder.serves_from:
            return False
        if group.learners or len(group.members) > 1 or not self._host.may_rest():
            return False
        if not self._lease_holder.rest():
            return False
        self._owner.begin_with_fresh_memory()
        return True

    def _end_rest(self) -> None:
        self.wanted = False
        self._host.on_serving(True)
        self._owner.serve_again()

    def _begin_to_serve(self) -> None:
        """The lease is ours: memory starts afresh from what is stored."""
        if not self._owner.group.is_leader:
            return  # it was another leader that had the entry committed after all
        self._owner.begin_with_fresh_memory()

    # --- giving it back

    @property
    def hands_over(self) -> bool:
        """Whether the lease is to be given back with the next turn."""
        return self._hands_over is not None

    def hand_over(self, done: Callable[[], None]) -> None:
        """Serve no longer, so that a successor can begin at once; ``done`` is called in any case.

        From then on this replica asks for no lease until it is told to ``resume``, or leads anew.
        """
        if not self._owner.group.is_leader:
            done()
            return
        self._hands_over = done
        self._is_handing_over = True
        self._host.wake(urgent=True)

    def resume(self) -> None:
        """Nobody took over: serve again."""
        self._is_handing_over = False
        self.wanted = self._owner.group.is_leader
        self._host.wake(urgent=True)

    def give_back(self) -> None:
        """It is the turn in which the lease is given back."""
        done, self._hands_over = self._hands_over, None
        assert done is not None
        if not self._lease_holder.serves_from:
            done()
            return
        # It stops before it says so: from here on nothing is read under this lease.
        self._owner.stop_serving()
        self._owner.propose_lease(self._lease_holder.given_back(), done, 0.0)

    def on_leadership(self, leads: bool) -> None:
        """This member has begun or ceased to lead."""
        self.wanted = leads
        self._is_handing_over = False
        if not leads:
            self._owner.stop_serving()
            done, self._hands_over = self._hands_over, None
            if done is not None:
                done()


__all__ = ["LeaseAcquisition"]
