"""A replica's own view of the lease: whether it serves, until when, and when it may ask.

::

    nobody, or another one ── may ask ─▶ asked ── applied ─▶ serves ─┬─ lapsed ── asked ─▶ serves
            ▲    ╲                                                   │ ▲
            │     ╲─ its own, alone ─▶ rests: only reads ── asked ───┼─┘
            └─────────────── given back · another one's · lead lost ─┘

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

from postroom.kv.clock import HybridLogicalClock
from postroom.ranges import lease as leases
from postroom.ranges.lease import Lease


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
        resting: it serves reads only, and has written nothing.
        serves_from: where this node's lease began, once memory has been begun afresh for it; 0:
            it does not serve under the lease that is applied.
    """

    __slots__ = (
        "_applied_at",
        "_clock",
        "_monotonic",
        "_node_id",
        "_seconds",
        "_until",
        "lease",
        "resting",
        "serves_from",
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
        self.serves_from = 0
        self.resting = False
        self._node_id = node_id
        self._clock = clock
        self._monotonic = monotonic
        self._seconds = seconds
        self._until = 0.0
        self._applied_at = monotonic()

    # --- serving

    def serves(self, now: int) -> bool:
        """Whether this replica may read and write at ``now``, at this moment."""
        if self.resting:
            return True
        return (
            self.serves_from != 0
            and self.lease.expiration > now
            and self._until > self._monotonic()
        )

    def rest(self) -> bool:
        """Serve reads under the stored lease; false if it is not this node's. For a node alone."""
        if self.lease.holder != self._node_id or not self._clock.rests:
            return False
        self.resting = True
        return True

    def begin(self) -> int:
        """Memory is fresh: serve. Answers from which timestamp on."""
        self.serves_from = self.lease.start
        return self.serves_from

    def granted(self, until: float) -> None:
        """A proposal that asked for the lease, or for more of it, is applied."""
        self._until = max(self._until, until)
        if until:
            self.resting = False

    def end(self) -> bool:
        """Serve no longer under this lease; whether it did."""
        served, self.serves_from = self.serves_from != 0, 0
        self.resting = False
        return served

    def applied(self, stored: bytes | None) -> bool:
        """Another state of the lease is applied; whether it is the same node's same lease."""
        before, self.lease = self.lease, leases.decode(stored)
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
        if self.lease.wants_extension(now):
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
