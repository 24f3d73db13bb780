"""Leases do not overlap: not in the moments at which they are used, not in their timestamps.

* At no moment do two nodes serve. A node stops serving by itself, but never begins to, so
  it is enough to look at all others whenever one has done something and serves.
* A lease has one holder; the next one starts where all that was granted before it ends, at the
  earliest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.ranges import lease as leases
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.lease import LEASE_RECORD
from tests.sim.checkers import require

if TYPE_CHECKING:
    from tests.sim.cluster.machine import Machine


class LeaseRules:
    """The rules of leases, checked over all machines, for one range.

    Args:
        range_id: the id of the range.

    Attributes:
        leases: by sequence number: holder, first timestamp, and the last end that was granted.
    """

    def __init__(self, range_id: int = ROOT_ID) -> None:
        self.range_id = range_id
        self._key = keys.record_key(range_id, LEASE_RECORD)
        self.leases: dict[int, tuple[int, int, int]] = {}
        self._by_index: dict[int, leases.RangeLease] = {}
        self._applying: dict[str, list[tuple[int, bytes]]] = {}

    def acted(self, machine: Machine, machines: Iterable[Machine]) -> None:
        """Check that a node that serves is alone."""
        if not self._serves(machine):
            return
        for other in machines:
            if other is not machine:
                both = self._serves(other)
                require(not both, f"{machine.name} and {other.name} serve at once")

    def _serves(self, machine: Machine) -> bool:
        node = machine.node
        hosted = None if node is None else node.replicas.hosted.get(self.range_id)
        return hosted is not None and hosted.replica.serves

    def applies(self, machine: Machine, index: int, effects: WriteSet) -> None:
        """Note an applied entry; it counts when it is written: an only voter may forget it."""
        stored = effects.get(self._key)
        if stored is not None:
            self._applying.setdefault(machine.name, []).append((index, stored))

    def written(self, machine: Machine) -> None:
        """Note that applied entries are written: changes of the lease are committed."""
        for index, stored in self._applying.pop(machine.name, ()):
            if index not in self._by_index:
                self._by_index[index] = leases.decode(stored)
                self._changed(self._by_index[index])

    def crashed(self, machine: Machine) -> None:
        """Forget the unwritten entries of a crashed machine."""
        self._applying.pop(machine.name, None)

    def _changed(self, lease: leases.RangeLease) -> None:
        before = self.leases.get(lease.sequence - 1)
        require(
            before is None or before[2] <= lease.start or before[0] == lease.holder
            or lease.holder == leases.NODE_ID_NOBODY,
            f"{lease} starts before the one before it ends: {before}",
        )  # fmt: skip
        known = self.leases.setdefault(
            lease.sequence, (lease.holder, lease.start, lease.expiration)
        )
        same = known[0] == lease.holder and known[1] == lease.start
        require(same, f"lease {lease.sequence} is {lease}, and was {known}")
        self.leases[lease.sequence] = (*known[:2], max(known[2], lease.expiration))
