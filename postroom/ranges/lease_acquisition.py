"""When a leader asks for the lease of its range, and how it gives it back.

::

    leads, its own term's first entry applied, the last lease over ── ask ─▶ granted ─▶ serves

How it is given back (``TRANSITIONS``)::

    keeping ── hand over ──▶ giving back ── its turn ──▶ given back: it asks for none
       ▲                          │                           │
       └── resume · deposed ──────┴── resume · deposed, elected ─┘

A new leader asks as soon as it may: there may be messages to deliver. After that it asks when there
is something to do, so an idle range lets its lease lapse. A node that is alone may serve reads
without asking (*rest*).

:mod:`.lease` says what is held, and until when. Here it is decided what to do about it; the
replica proposes that like any other command.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, auto
from types import MappingProxyType
from typing import Final, Protocol

from postroom.raft.group import RaftGroup
from postroom.ranges import lease as leases
from postroom.ranges.lease import LeaseHolder
from postroom.ranges.ports import Host


class HandoverState(IntEnum):
    """The states of a lease that may be given away."""

    KEEPING = auto()
    GIVING_BACK = auto()
    GIVEN_BACK = auto()


class HandoverEvent(IntEnum):
    """The events that change them."""

    HAND_OVER = auto()
    GIVE_BACK = auto()
    """It is the turn in which that is done."""
    RESUME = auto()
    ELECTED = auto()
    """This member leads, in a new term."""
    DEPOSED = auto()
    """It leads no longer."""


TRANSITIONS: Final = MappingProxyType({
    HandoverState.KEEPING: {
        HandoverEvent.HAND_OVER: HandoverState.GIVING_BACK,
        HandoverEvent.RESUME: HandoverState.KEEPING,
        HandoverEvent.ELECTED: HandoverState.KEEPING,
        HandoverEvent.DEPOSED: HandoverState.KEEPING,
    },
    HandoverState.GIVING_BACK: {
        HandoverEvent.HAND_OVER: HandoverState.GIVING_BACK,
        HandoverEvent.GIVE_BACK: HandoverState.GIVEN_BACK,
        HandoverEvent.RESUME: HandoverState.KEEPING,
        HandoverEvent.ELECTED: HandoverState.GIVING_BACK,
        HandoverEvent.DEPOSED: HandoverState.KEEPING,
    },
    HandoverState.GIVEN_BACK: {
        HandoverEvent.HAND_OVER: HandoverState.GIVING_BACK,
        HandoverEvent.RESUME: HandoverState.KEEPING,
        HandoverEvent.ELECTED: HandoverState.KEEPING,
        HandoverEvent.DEPOSED: HandoverState.KEEPING,
    },
})  # fmt: skip
"""The state after each event; an event that is not in it cannot happen."""


class LeaseOwner(Protocol):
    """The replica, as this module sees it."""

    group: RaftGroup

    def propose_lease(
        self, lease: leases.RangeLease, after: Callable[[], None], until: float
    ) -> None:
        """Have the group agree on ``lease``; call ``after`` when it is applied."""

    def begin_with_fresh_memory(self) -> None:
        """Serve, with nothing in memory but what is stored."""

    def serve_again(self) -> None:
        """Let those have their turn that have waited for the lease."""

    def stop_serving(self) -> None:
        """Stop using the lease."""


class LeaseAcquisition:
    """The acquisition of the lease by its replica; see the module.

    Args:
        lease_holder: the lease of this node.
        host: the node.
        owner: the replica.

    Attributes:
        wanted: whether it is to be asked for, even if no call waits.
        state: the state of the drawing.
        hands_over: whether the lease is to be given back; each turn looks several times.
    """

    def __init__(self, lease_holder: LeaseHolder, host: Host, owner: LeaseOwner) -> None:
        self._lease_holder = lease_holder
        self._host = host
        self._owner = owner
        self.wanted = False
        self.state = HandoverState.KEEPING
        self.hands_over = False
        self._when_given_back: Callable[[], None] | None = None

    def _to(self, event: HandoverEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        self.hands_over = self.state is HandoverState.GIVING_BACK

    def _waiting(self) -> Callable[[], None] | None:
        """Take the function that waits for the lease to be given back."""
        waiting, self._when_given_back = self._when_given_back, None
        return waiting

    # --- when

    def _must_not_ask(self) -> bool:
        return self.state is not HandoverState.KEEPING or not self._owner.group.has_applied_own_term

    def deadline(self) -> float | None:
        """Return when this leader may ask; ``None``: it need not, or must not."""
        if self._lease_holder.has_lease or self._must_not_ask():
            return None
        return self._lease_holder.may_ask_at(self._owner.group.entries_received_at)

    def must_wait(self) -> bool:
        """Return whether this leader must not ask for the lease, or not yet."""
        group = self._owner.group
        if self._lease_holder.has_lease or not group.is_leader:
            return False
        if self._must_not_ask():
            return True
        return self._lease_holder.may_ask_at(group.entries_received_at) > self._host.monotonic()

    # --- asking

    def ask(self) -> None:
        """Ask for the same lease again, if it has lapsed, or for the next one."""
        if self._lease_holder.resting:
            lease, after = self._lease_holder.extended(), self._end_rest
        elif self._lease_holder.has_lease:
            lease, after = self._lease_holder.extended(), self._owner.serve_again
        else:
            lease, after = self._lease_holder.successor(), self._begin_to_serve
        self._owner.propose_lease(lease, after, self._lease_holder.until_if_granted())

    def rest(self) -> bool:
        """Read alone under the lease of an earlier life, until there is something to write."""
        group = self._owner.group
        if self._lease_holder.has_lease:
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
        """Begin to serve: the lease is ours, and memory starts afresh."""
        if not self._owner.group.is_leader:
            return  # it was another leader that had the entry committed after all
        self._owner.begin_with_fresh_memory()

    # --- giving it back

    def hand_over(self, done: Callable[[], None]) -> None:
        """Serve no longer, so that a successor can begin at once.

        ``done`` is called when that is so, or this member leads no longer; not if it is told to
        ``resume`` before. Until then, or until it leads anew, it asks for no lease.
        """
        if not self._owner.group.is_leader:
            done()
            return
        self._to(HandoverEvent.HAND_OVER)
        self._when_given_back = done
        self._host.wake(urgent=True)

    def resume(self) -> None:
        """Serve again, since no successor took over."""
        self._to(HandoverEvent.RESUME)
        self._waiting()
        self.wanted = self._owner.group.is_leader
        self._host.wake(urgent=True)

    def give_back(self) -> None:
        """Give the lease back, in its turn."""
        self._to(HandoverEvent.GIVE_BACK)
        done = self._waiting()
        assert done is not None
        if not self._lease_holder.has_lease:
            done()
            return
        # It stops before it says so: from here on nothing is read under this lease.
        self._owner.stop_serving()
        self._owner.propose_lease(self._lease_holder.given_back(), done, 0.0)

    def on_leadership(self, leads: bool) -> None:
        """Hear that this member has begun or ceased to lead."""
        self.wanted = leads
        self._to(HandoverEvent.ELECTED if leads else HandoverEvent.DEPOSED)
        if not leads:
            self._owner.stop_serving()
            done = self._waiting()
            if done is not None:
                done()


__all__ = ["TRANSITIONS", "HandoverEvent", "HandoverState", "LeaseAcquisition"]
