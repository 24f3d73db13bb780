"""Leases: at any moment at most one replica of a range serves it; how one is got and given back.

A lease is a record of the range: a holder, a sequence number, and an interval of timestamps. The
holder answers reads from its own state, without a round. Every proposal names the sequence number
of the lease under which it was evaluated, and is applied only under that very lease. A proposal of
a deposed leaseholder therefore has no effect.

Two things must not overlap, and they are kept apart by different means:

* *Timestamps.* A holder reads and writes below its lease's expiration, and the lease of another
  holder starts there at the earliest. This holds whatever the clocks say.
* *Times.* The holder counts ``seconds`` on its monotonic clock from when it *proposed* the lease,
  or its extension. A successor counts a little more (``DRIFT_SHARE``) from when that *came in*,
  which is later. An extension that has not come in at the successor, being leader, was never
  committed, so the holder does not count on it. Wall clocks may stand and jump as they like; only
  the rates of monotonic clocks must not differ by more than the share.

::

    holder      propose ├────────── seconds ──────────┤ serves no longer
                  ╲
    successor    receive ├────────── seconds ── + drift ────┤ may ask for the lease

(The usual rule, as in Chubby and CockroachDB's expiration leases, trusts wall clocks; Gray and
Cheriton's paper of 1989, section 5, already counts from different ends like this.)

A lease that was given back (holder 0) needs no waiting. The same node may succeed itself at once:
its earlier life is over (the store is locked) and its clock starts above the timestamps of that.

``LeaseHolder`` is a replica's own view of the lease: whether it serves, until when, and when it may
ask. Its states, and the events between them (``TRANSITIONS``)::

    without ── asked for it, begin ──▶ held ◀── granted ── resting: only reads
       │ ▲                              │                    │ ▲
       │ └── end: given back · another one's · lead lost ────┘ │
       └── rest: its own, and alone ───────────────────────────┘

A lease that is *held* lapses with its time, and is good again when more of it is granted. Having
lapsed is no state: the clock is asked with each request.

A node that is alone in its group, and holds the stored lease from an earlier life, *rests*: it
reads under that lease without writing anything. No other node can take the lease: there is none,
and a second member could only come by an entry that this node proposes. It reads at the clock's
stored ceiling, which is above all that its earlier life has written or read. Before its first write
it asks for more of the lease, as if that had lapsed.

Everything but the record is in memory; a restart begins without the lease, as if the stored one had
been applied just now.

A leader asks for the lease of its range.

::

    leads, its own term's first entry applied, the last lease over ── ask ─▶ granted ─▶ serves

How it is given back (``HANDOVER_TRANSITIONS``)::

    keeping ── hand over ──▶ giving back ── its turn ──▶ given back: it asks for none
       ▲                          │                           │
       └── resume · deposed ──────┴── resume · deposed, elected ─┘

A new leader asks as soon as it may: there may be messages to deliver. After that it asks when there
is something to do, so an idle range lets its lease lapse. A node that is alone may serve reads
without asking (*rest*).

A leader whose leases are over when they are stored, three in a row, cannot hold the lease: its disk
is too slow. It hands over to another member, if there is one.

``LeaseHolder`` says what is held, and until when. ``LeaseAcquisition`` decides what to do about it;
the replica proposes that like any other command.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from postroom.kv.clock import HybridLogicalClock, from_seconds
from postroom.ranges.ports import Host

if TYPE_CHECKING:  # clients load this module, and nothing of consensus
    from postroom.raft.group import RaftGroup

LEASE_SECONDS: Final = 9.0
DRIFT_SHARE: Final = 0.1
NODE_ID_NOBODY: Final = 0
LEASE_RECORD: Final = "lease"


class RangeLease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The right of a holder to serve a range at ``start <= timestamp < expiration``.

    Attributes:
        sequence: the number of the lease.
        holder: the id of the node that holds it.
        start, expiration: the timestamps between which it serves.
        seconds: the time for which the lease lasts without an extension.
    """

    sequence: int
    holder: int
    start: int
    expiration: int
    seconds: float = LEASE_SECONDS

    def extends_after(self) -> int:
        """Return the timestamp after which less than half of the lease is left."""
        return self.expiration - (from_seconds(self.seconds) >> 1)

    def wait_seconds(self, node_id: int) -> float:
        """Return how long after it was applied ``node_id`` may ask for another lease."""
        if self.holder in (NODE_ID_NOBODY, node_id):
            return 0.0
        return self.seconds * (1 + DRIFT_SHARE)


NOBODY: Final = RangeLease(sequence=0, holder=NODE_ID_NOBODY, start=0, expiration=0)


def extended(lease: RangeLease, now: int, seconds: float) -> RangeLease:
    """Return the same lease, for longer."""
    expiration = max(lease.expiration, now + from_seconds(seconds))
    return RangeLease(lease.sequence, lease.holder, lease.start, expiration, seconds)


def successor(lease: RangeLease, node_id: int, now: int, seconds: float) -> RangeLease:
    """Return the next lease, for ``node_id``, whose clock is past ``lease`` and reads ``now``."""
    return RangeLease(lease.sequence + 1, node_id, now, now + from_seconds(seconds), seconds)


def given_back(lease: RangeLease, now: int) -> RangeLease:
    """Return a lease without a holder: the last one, whose clock reads ``now``, stops serving."""
    return RangeLease(lease.sequence + 1, NODE_ID_NOBODY, now, now, 0.0)


_decoder = msgspec.msgpack.Decoder(RangeLease)


def encode(lease: RangeLease) -> bytes:
    """Return the record of a lease."""
    return msgspec.msgpack.encode(lease)


def decode(stored: bytes | None) -> RangeLease:
    """Return the lease in a record; without a record it has no holder."""
    return NOBODY if stored is None else _decoder.decode(stored)


class LeaseState(IntEnum):
    """The state of this node: whether it has the lease."""

    WITHOUT = auto()
    RESTING = auto()
    HELD = auto()


class LeaseEvent(IntEnum):
    """The events that change it."""

    REST = auto()
    """The node is alone, and serves reads under the lease of an earlier life."""
    BEGIN = auto()
    """Memory has been begun afresh for the lease that is applied."""
    GRANTED = auto()
    """A proposal that asked for the lease, or for more of it, is applied."""
    END = auto()
    """The replica serves no longer under this lease."""


TRANSITIONS: Final = MappingProxyType({
    LeaseState.WITHOUT: {
        LeaseEvent.REST: LeaseState.RESTING,
        LeaseEvent.BEGIN: LeaseState.HELD,
        LeaseEvent.GRANTED: LeaseState.WITHOUT,
        LeaseEvent.END: LeaseState.WITHOUT,
    },
    LeaseState.RESTING: {
        LeaseEvent.BEGIN: LeaseState.RESTING,
        LeaseEvent.GRANTED: LeaseState.HELD,
        LeaseEvent.END: LeaseState.WITHOUT,
    },
    LeaseState.HELD: {
        LeaseEvent.GRANTED: LeaseState.HELD,
        LeaseEvent.END: LeaseState.WITHOUT,
    },
})  # fmt: skip
"""The state after each event; an event that is not in it cannot happen."""

_HELD, _RESTING, _WITHOUT = LeaseState.HELD, LeaseState.RESTING, LeaseState.WITHOUT


class LeaseHolder:
    """A replica's view of the lease; see the module.

    Args:
        node_id: the id of this node, the holder of its leases.
        lease: the lease that is applied.
        clock: the node's clock.
        monotonic: a function that returns seconds that never go back.
        seconds: the length of this node's leases, for which another node has to wait.

    Attributes:
        lease: the lease that is applied.
        state: the state of the module's drawing.
        has_lease: whether the lease that is applied is this node's, and has begun; it may have
            lapsed.
        resting: whether it serves reads only, and has written nothing.
        late: the number of leases, or extensions, in a row that were over when they were stored.
    """

    __slots__ = (
        "_applied_at",
        "_clock",
        "_extends_after",
        "_monotonic",
        "_node_id",
        "_seconds",
        "_until",
        "has_lease",
        "late",
        "lease",
        "resting",
        "state",
    )

    def __init__(
        self,
        node_id: int,
        lease: RangeLease,
        clock: HybridLogicalClock,
        monotonic: Callable[[], float],
        seconds: float,
    ) -> None:
        self.lease = lease
        self.state = LeaseState.WITHOUT
        self.has_lease = self.resting = False
        self._node_id = node_id
        self._clock = clock
        self._monotonic = monotonic
        self._seconds = seconds
        self._until = 0.0
        self.late = 0
        self._applied_at = monotonic()
        self._extends_after = lease.extends_after()

    def _to(self, event: LeaseEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        self.has_lease = self.state is not _WITHOUT
        self.resting = self.state is _RESTING

    # --- serving

    def serves(self, now: int) -> bool:
        """Return whether this replica may read and write at ``now``, at this moment."""
        if self.state is not _HELD:
            return self.state is _RESTING
        return self.lease.expiration > now and self._until > self._monotonic()

    def rest(self) -> bool:
        """Serve reads under the stored lease, alone; return false if it is not this node's."""
        if self.lease.holder != self._node_id or not self._clock.rests:
            return False
        self._to(LeaseEvent.REST)
        return True

    def begin(self) -> int:
        """Serve with fresh memory; return the timestamp from which on."""
        self._to(LeaseEvent.BEGIN)
        return self.lease.start

    def granted(self, until: float) -> None:
        """Serve until a time: a proposal that asked for that is applied."""
        self._until = max(self._until, until)
        self.late = self.late + 1 if self._until <= self._monotonic() else 0
        if until:
            self._to(LeaseEvent.GRANTED)

    def end(self) -> bool:
        """Stop serving under this lease; return whether it did."""
        had = self.has_lease
        self._to(LeaseEvent.END)
        return had

    def applied(self, stored: bytes | None) -> bool:
        """Take the lease that is applied; return whether it is still the same one of this node."""
        before, self.lease = self.lease, decode(stored)
        self._extends_after = self.lease.extends_after()
        # Every replica's clock follows the holders': a client may hear any of them.
        self._clock.pass_over(self.lease.start)
        self._applied_at = self._monotonic()
        return self.lease.holder == self._node_id and self.lease.sequence == before.sequence

    # --- asking

    def until_if_granted(self) -> float:
        """Return until when a lease lasts, on the monotonic clock, that is proposed now."""
        return self._monotonic() + self._seconds

    def may_ask_at(self, received_at: float) -> float:
        """Return when the last lease is over, by this node's clock, so that another may begin.

        Args:
            received_at: a time after which no entry of another leader has come in. It counts if
                it is earlier than the lease was applied, which may be as late as the election.
        """
        known_at = min(self._applied_at, received_at)
        return known_at + self.lease.wait_seconds(self._node_id)

    def wants_extension(self, now: int) -> bool:
        """Return whether less than half of the lease is left."""
        if now > self._extends_after:
            return True
        return self._until - self._monotonic() < self._seconds / 2

    def extended(self) -> RangeLease:
        """Return the same lease, for longer."""
        return extended(self.lease, self._clock.now(), self._seconds)

    def successor(self) -> RangeLease:
        """Return the next lease, for this node."""
        if self.lease.holder != self._node_id:  # its own clock is past its own earlier life
            self._clock.pass_over(self.lease.expiration)
        return successor(self.lease, self._node_id, self._clock.now(), self._seconds)

    def given_back(self) -> RangeLease:
        """Return a lease without a holder."""
        return given_back(self.lease, self._clock.now())


class HandoverState(IntEnum):
    """The states of a lease that may be given away."""

    KEEPING = auto()
    GIVING_BACK = auto()
    GIVEN_BACK = auto()


class HandoverEvent(IntEnum):
    """The events that change them."""

    HAND_OVER = auto()
    GIVE_BACK = auto()
    """The turn in which that is done."""
    RESUME = auto()
    ELECTED = auto()
    """This member leads, in a new term."""
    DEPOSED = auto()
    """The state of a replica that leads no longer."""


HANDOVER_TRANSITIONS: Final = MappingProxyType({
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

    @property
    def group(self) -> RaftGroup:
        """Return the member of the consensus group."""

    def propose_lease(self, lease: RangeLease, after: Callable[[], None], until: float) -> None:
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
        self.state = HANDOVER_TRANSITIONS[self.state][event]
        self.hands_over = self.state is HandoverState.GIVING_BACK

    def _waiting(self) -> Callable[[], None] | None:
        """Take the function that waits for the lease to be given back."""
        waiting, self._when_given_back = self._when_given_back, None
        return waiting

    # --- when

    def _must_not_ask(self) -> bool:
        return self.state is not HandoverState.KEEPING or not self._owner.group.has_applied_own_term

    def deadline(self) -> float | None:
        """Return when this leader may ask, or ceases to expect to lead.

        ``None``: it need not, or must not.
        """
        if self._lease_holder.has_lease:
            return None
        group = self._owner.group
        if not group.is_leader and group.is_about_to_lead:
            return max(group.hurries_until, 0.0) or None
        if self._must_not_ask():
            return None
        return self._lease_holder.may_ask_at(self._owner.group.entries_received_at)

    def must_wait(self) -> bool:
        """Return whether this member must not ask for the lease, or not yet.

        One that does not lead, nor is about to, need not wait to refuse what it is asked.
        """
        group = self._owner.group
        if self._lease_holder.has_lease:
            return False
        if not group.is_leader:
            return group.is_about_to_lead
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
