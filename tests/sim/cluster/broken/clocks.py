"""What is broken about time."""

from __future__ import annotations

from postroom.kv.clock import HybridLogicalClock
from tests.sim.cluster.broken import Patch


def timestamps_stand() -> Patch:
    """While they are ahead of the wall clock, timestamps do not go on with the monotonic one."""

    def stand(self: HybridLogicalClock, trusted: int, milliseconds: float, step: float) -> None:
        del self, trusted, milliseconds, step

    return HybridLogicalClock, "_time_passed", stand
