"""The writes of a turn, and those beside it."""

from __future__ import annotations

from postroom.kv.clock import HybridLogicalClock
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.server.turn_writer import TurnWriter


def test_a_turn_does_not_lower_the_ceiling_that_was_stored_since_it_was_prepared() -> None:
    """A large turn is written by a thread; whoever reads the clock meanwhile may be first."""
    wall_milliseconds = 1000
    writer = TurnWriter(
        MemoryEngine(), sync=True, sync_interval_seconds=None, monotonic=lambda: 0.0,
        on_failing=lambda: None,
    )  # fmt: skip
    clock = HybridLogicalClock(lambda: wall_milliseconds, lambda: 0.0, 0, writer.store_ceiling)
    clock.now()
    wall_milliseconds += 600
    clock.now()
    staged: WriteSet = {}
    writer.stage_ceiling(clock, staged)
    assert staged
    wall_milliseconds += 60_000
    answered = clock.now()
    assert writer.stored_ceiling() > answered
    assert writer.write(staged, needs_sync=True) is None
    writer.turn_is_durable(clock)
    assert writer.stored_ceiling() > answered, "after a crash it would be answered again"
    assert clock.now() > answered
