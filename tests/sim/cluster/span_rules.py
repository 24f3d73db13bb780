"""Each key has one owner: no two ranges that serve contain the same key, on any nodes.

The bounds of a range change with its descriptor. A node that does not serve a range may be behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from postroom.ranges.descriptor import RangeDescriptor
from postroom.server.span_map import overlap
from tests.sim.checkers import require

if TYPE_CHECKING:
    from tests.sim.cluster.machine import Machine

_Served: TypeAlias = tuple[RangeDescriptor, ...]


class SpanRules:
    """The rule, checked over all machines."""

    def __init__(self) -> None:
        self._served: dict[str, _Served] = {}

    def acted(self, machine: Machine, machines: Iterable[Machine]) -> None:
        """Check the ranges that a machine serves, if they have changed."""
        served = _served(machine)
        if served == self._served.get(machine.name, ()):
            return
        self._served[machine.name] = served
        every = [(each.name, told) for each in machines for told in _served(each)]
        for name, one in ((machine.name, each) for each in served):
            for other_name, other in every:
                require(
                    one.range_id == other.range_id
                    or not overlap((one.start, one.end), (other.start, other.end)),
                    f"{name} serves {one}, and {other_name} {other}",
                )


def _served(machine: Machine) -> _Served:
    node = machine.node
    if node is None or node.failed is not None:
        return ()
    return tuple(
        hosted.replica.bounds.descriptor
        for hosted in node.replicas.hosted.values()
        if hosted.replica.serves
    )
