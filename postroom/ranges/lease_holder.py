"""A replica's own view of the lease: whether it serves, until when, and when it may ask.

Its states, and what leads from one to the next (``TRANSITIONS``)::

    without ── asked for it, begin ──▶ held ◀── granted ── resting: only reads
       │ ▲                              │                    │ ▲
       │ └── end: given back · another one's · lead lost ────┘ │
       └── rest: its own, and alone ───────────────────────────┘

A lease that is *held* lapses with its time, and is good again when more of it is granted: that is
asked of the clock whenever something is to be served, and is no state.

A node that is alone in its group, and holds the stored lease from an earlier life, *rests*: it
reads under that lease without writing anything. Nobody else can take the lease: there is nobody,
and a second member could only come by an entry that this node proposes. It reads at the clock's
stored ceiling, which is above all that its earlier life has written or read. Before its first write
it asks for more of the lease, as if that had lapsed.

:mod:`.lease` says why this is safe. Everything here is in memory; a restart begins with nobody, as
if the stored lease had been applied just now.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, auto
from types import MappingProxyType
from typing import Final

from postroom.kv.clock import HybridLogicalClock
from postroom.ranges import lease as leases
from postroom.ranges.lease import Lease


class State(IntEnum):
    """Whether this node has the lease."""

    WITHOUT = auto()
    RESTING = auto()
    HELD = auto()


class Event(IntEnum):
    """What happens to that."""

    REST = auto()
    """Alone, under the lease of an earlier life: reads are served."""
    BEGIN = auto()
    """Memory has been begun afresh for the lease that is applied."""
    GRANTED = auto()
    """A proposal that asked for the lease, or for more of it, is applied."""
    END = auto()
    """It serves no longer under this lease."""


TRANSITIONS: Final = MappingProxyType({
    State.WITHOUT: {
        Event.REST: State.RESTING,
        Event.BEGIN: State.HELD,
        Event.GRANTED: State.WITHOUT,
        Event.END: State.WITHOUT,
    },
    State.RESTING: {
        Event.BEGIN: State.RESTING,
        Event.GRANTED: State.HELD,
        Event.END: State.WITHOUT,
    },
    State.HELD: {
        Event.GRANTED: State.HELD,
        Event.END: State.WITHOUT,
    },
})  # fmt: skip
"""What each event leads to; what is not in it cannot happen."""

_HELD, _RESTING, _WITHOUT = State.HELD, State.RESTING, State.WITHOUT


class LeaseHolder:
    """See the module.

    Args:
        node_id: this node, the holder of its leases.
        lease: the one that is applied.
        clock: the node's clock.
        monotonic: seconds that never go back.
        seconds: how long this node's leases last, and so how long another one waits for them.

    Attributes:
        lease: the one that is applied.
        state: see above.
        has_lease: whether the lease that is applied is this node's, and has begun; it may have
            lapsed.
        resting: whether it serves reads only, and has written nothing.
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
        "lease",
        "resting",
        "state",
    )

    def __init__(
        self,
        node_id: int,
        lease: Lease,
        clock: HybridLogicalClock,
        monotonic: Callable[[], float],
        seconds: float,
    ) -> None:
        self.lease = lease
        self.state = State.WITHOUT
        self.has_lease = self.resting = False
        self._node_id = node_id
        self._clock = clock
        self._monotonic = monotonic
        self._seconds = seconds
        self._until = 0.0
        self._applied_at = monotonic()
        self._extends_after = lease.extends_after()

    def _to(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state][event]
        self.has_lease = self.state is not _WITHOUT
        self.resting = self.state is _RESTING

    # --- serving

    def serves(self, now: int) -> bool:
        """Whether this replica may read and write at ``now``, at this moment."""
        if self.state is not _HELD:
            return self.state is _RESTING
        return self.lease.expiration > now and self._until > self._monotonic()

    def rest(self) -> bool:
        """Serve reads under the stored lease; false if it is not this node's. For a node alone."""
        if self.lease.holder != self._node_id or not self._clock.rests:
            return False
        self._to(Event.REST)
        return True

    def begin(self) -> int:
        """Memory is fresh: serve. Answers from which timestamp on."""
        self._to(Event.BEGIN)
        return self.lease.start

    def granted(self, until: float) -> None:
        """A proposal that asked for the lease, or for more of it, is applied."""
        self._until = max(self._until, until)
        if until:
            self._to(Event.GRANTED)

    def end(self) -> bool:
        """Serve no longer under this lease; whether it did."""
        had = self.has_lease
        self._to(Event.END)
        return had

    def applied(self, stored: bytes | None) -> bool:
        """Another state of the lease is applied; whether it is the same node's same lease."""
        before, self.lease = self.lease, leases.decode(stored)
        self._extends_after = self.lease.extends_after()
        # Every replica's clock follows the holders': a client may hear any of them.
        self._clock.pass_over(self.lease.start)
        self._applied_at = self._monotonic()
        return self.lease.holder == self._node_id and self.lease.sequence == before.sequence

    # --- asking

    def until_if_granted(self) -> float:
        """Until when a lease lasts, on the monotonic clock, that is proposed now."""
        return self._monotonic() + self._seconds

    def may_ask_at(self, received_at: float) -> float:
        """When the last lease is over, by this node's clock, so that another one may begin.

        Args:
            received_at: no entry of another leader has come in after that. It counts if it is
                earlier than the lease was applied, which may be as late as this node's election.
        """
        known_at = min(self._applied_at, received_at)
        return known_at + self.lease.wait_seconds(self._node_id)

    def wants_extension(self, now: int) -> bool:
        """Whether less than half of the lease is left."""
        if now > self._extends_after:
            return True
        return self._until - self._monotonic() < self._seconds / 2

    def extended(self) -> Lease:
        """The same lease, for longer."""
        return leases.extended(self.lease, self._clock.now(), self._seconds)

    def successor(self) -> Lease:
        """The next lease, for this node."""
        if self.lease.holder != self._node_id:  # its own clock is past its own earlier life
            self._clock.pass_over(self.lease.expiration)
        return leases.successor(self.lease, self._node_id, self._clock.now(), self._seconds)

    def given_back(self) -> Lease:
        """Nobody's lease."""
        return leases.given_back(self.lease, self._clock.now())
