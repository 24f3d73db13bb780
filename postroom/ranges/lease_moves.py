"""The request that a node leads a range, as an administrator wants it.

::

    db.move_lease(5, 2) ──▶ leaseholder of range 5, node 1 ── hands over ──▶ node 2
         ▲                       │ another node leads (the request goes on)    │
         └── the range ──────────┴────────────────────────────────────────────▶┘ it leads: answered

The node that leads already answers. Every other leaseholder hands over. The request then comes back
to its client as one for another node, and the client sends it there. The new leader therefore hears
of it as well, and knows that a user wants it to lead.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from postroom.limits import LISTING_STEPS
from postroom.ranges.bounds import no_such_range
from postroom.ranges.contract import Concern, RangeIds, Read, Role
from postroom.ranges.evaluation import MustWait, View
from postroom.ranges.listing import RangeInfo, RangeListing
from postroom.ranges.ports import Registry
from postroom.ranges.rights import Verb


class MoveLease(Read, frozen=True, tag="move_lease"):
    """A request that ``node_id`` leads a range; the answer is the range, once it does."""

    answer: ClassVar = RangeInfo
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    is_served_in_restore: ClassVar = True

    range_id: int
    node_id: int

    def concerns(self) -> Concern:
        """Return the range."""
        return RangeIds((self.range_id,))


class LeaseMover(Protocol):
    """The hosted range, as the evaluator sees it."""

    def check_successor(self, node_id: int) -> None:
        """Check that a node can lead the range.

        Raises:
            Invalid: it has no copy of the range.
            Unavailable: it does not keep up.
        """

    def is_wanted_here(self) -> None:
        """Note that a user wants this node to lead."""

    def hand_over(self, to: int) -> object:
        """Give the lease and the lead away."""


class LeaseMoves:
    """The evaluator of ``MoveLease`` of one range.

    Args:
        listing: describes the range.
        mover: hands over.
    """

    def __init__(self, listing: RangeListing, mover: LeaseMover) -> None:
        self._listing = listing
        self._mover = mover

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[MoveLease] = self._move

    def _move(self, view: View, request: MoveLease) -> RangeInfo:
        view.steps += LISTING_STEPS
        info = self._listing.info()
        if request.range_id != info.id:
            raise no_such_range(request.range_id)
        if request.node_id == info.leader:
            self._mover.is_wanted_here()
            return info
        self._mover.check_successor(request.node_id)
        self._mover.hand_over(request.node_id)
        raise MustWait(self)  # until this node serves no longer
