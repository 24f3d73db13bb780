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
from postroom.ranges.contract import ConcernsSpan, NeedsEverything, Read
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.evaluation import View
from postroom.ranges.ports import Registry
from postroom.ranges.requests import Bound
from postroom.ranges.rights import Verb

if TYPE_CHECKING:
    from postroom.raft.group import RaftGroup


class RangeInfo(msgspec.Struct, frozen=True, array_like=True):
    """A range: the span of keys that one group of replicas contains.

    Attributes:
        id: its id; never used twice.
        start: its first key.
        end: the first key after it; ``None``: it has no bound.
        generation: the number of its changes. Of two ranges that have contained a key, the later
            one has the higher generation.
        size_bytes: the number of bytes of its data on the device, as far as it is known.
        leader: the node that leads it.
        copies: the nodes that have a copy, in order.
        splitting: whether a split of it is being prepared.
        applied_index: the number of the last entry of its log that has taken effect.
        load: the part of a processor that its requests take; ``None``: it is not measured.
    """

    id: int
    start: bytes
    end: bytes | None
    generation: int
    size_bytes: int
    leader: int
    copies: tuple[int, ...]
    splitting: bool = False
    applied_index: int = 0
    load: float | None = None


class ListRanges(NeedsEverything, ConcernsSpan, Read, frozen=True, tag="list_ranges"):
    """A request for the ranges that own a part of ``[start, end)``."""

    answer: ClassVar = list[RangeInfo]
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ,)

    start: Bound
    end: Bound | None


class RangeListing:
    """The evaluator of ``ListRanges``.

    Args:
        bounds: the bounds of the range.
        node_id: the id of this node.
        engine: the engine of the node.
        group: returns the member of the consensus group.

    Attributes:
        splitting: returns whether a split of the range is being prepared.
        load: returns the load of the range; ``None``: it is not measured.
    """

    def __init__(
        self, bounds: Bounds, node_id: int, engine: Engine, group: Callable[[], RaftGroup]
    ) -> None:
        self._bounds = bounds
        self._node_id = node_id
        self._engine = engine
        self._group = group
        self.splitting: Callable[[], bool] = lambda: False
        self.load: Callable[[RangeDescriptor], float | None] = lambda _: None

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[ListRanges] = self._list

    def _list(self, view: View, _: ListRanges) -> list[RangeInfo]:
        view.steps += LISTING_STEPS
        return [self.info()]

    def info(self) -> RangeInfo:
        """Return the range as this node, which leads it, knows it."""
        descriptor, group = self._bounds.descriptor, self._group()
        return RangeInfo(
            descriptor.range_id,
            descriptor.start,
            descriptor.end,
            descriptor.generation,
            self._engine.approximate_bytes(*self._bounds.data),
            self._node_id,
            tuple(sorted(map(int, {*group.members, *group.learners}))),
            self.splitting(),
            group.applied_index,
            self.load(descriptor),
        )
