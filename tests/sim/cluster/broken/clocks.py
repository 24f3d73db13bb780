"""Mutations of clocks and timestamps."""

from __future__ import annotations

from postroom.kv.clock import HybridLogicalClock
from tests.sim.cluster.broken import Patch


def timestamps_stand() -> Patch:
    """Let timestamps stand still while they are ahead of the wall clock."""

    def stand(self: HybridLogicalClock, trusted: int, milliseconds: float, step: float) -> None:
        del self, trusted, milliseconds, step

    return HybridLogicalClock, "_time_passed", stand
