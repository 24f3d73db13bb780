"""The listing of ranges: what the leaseholder of a range tells of it.

``db.ranges()`` and ``postroom range list`` ask the ranges that own a part of a span, and each one
answers for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import msgspec

from postroom.kv.engine import Engine
from postroom.limits import LISTING_STEPS
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import ConcernsSpan, Read
from postroom.ranges.evaluation import View
from postroom.ranges.ports import Registry
from postroom.ranges.requests import Bound

if TYPE_CHECKING:
    from postroom.raft.group import RaftGroup


class ListedRange(msgspec.Struct, frozen=True, array_like=True):
    """A range, as its leaseholder tells it.

    Attributes:
        range_id: the id of the range.
        start, end: the bounds of its keys; ``end=None`` is unbounded.
        generation: the number of its changes.
        size_bytes: the number of bytes of its data on the device, as far as the engine knows.
        leader: the node that answers; it has the lease.
        copies: the nodes that have a replica, in order.
        splitting: whether a split of the range is being prepared.
    """

    range_id: int
    start: bytes
    end: bytes | None
    generation: int
    size_bytes: int
    leader: int
    copies: tuple[int, ...]
    splitting: bool = False


class ListRanges(ConcernsSpan, Read, frozen=True, tag="list_ranges"):
    """A request for the ranges that own a part of ``[start, end)``."""

    answer: ClassVar = list[ListedRange]
    since: ClassVar = 2

    start: Bound
    end: Bound | None


class RangeListing:
    """The evaluator of ``ListRanges``.

    Args:
        bounds: the bounds of the range.
        node_id: the id of this node.
        engine: the engine of the node.
        group: returns the member of the consensus group.
    """

    def __init__(
        self, bounds: Bounds, node_id: int, engine: Engine, group: Callable[[], RaftGroup]
    ) -> None:
        self._bounds = bounds
        self._node_id = node_id
        self._engine = engine
        self._group = group

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[ListRanges] = self._list

    def _list(self, view: View, _: ListRanges) -> list[ListedRange]:
        view.steps += LISTING_STEPS
        descriptor, group = self._bounds.descriptor, self._group()
        return [
            ListedRange(
                descriptor.range_id,
                descriptor.start,
                descriptor.end,
                descriptor.generation,
                self._engine.approximate_bytes(*self._bounds.data),
                self._node_id,
                tuple(sorted(map(int, {*group.members, *group.learners}))),
            )
        ]
