"""Bugs that the simulated cluster has found, each as a script that failed before it was mended.

Those that need no second node are told with the embedded world.
"""

from __future__ import annotations

import pytest

from postroom.kv import keys
from postroom.kv.engine import EngineFailed
from postroom.kv.memory import MemoryDisk, MemoryEngine, WriteFault
from postroom.ranges.requests import Put, ScanChanges
from tests.sim.test_found import end_turn, opened, sent, transaction

# --- change feeds


def test_a_commit_that_was_under_way_when_the_first_watcher_came_is_told_of() -> None:
    """What the feed remembered began at the last commit applied; the one under way was above that,
    but had been evaluated when there was nobody to remember it for.
    """
    world = opened()
    world.run(world.database().put(b"before", b""))
    end_turn(world)
    assert world.host.node is not None
    last_commit = world.host.node.replica.last_commit
    sent(world, transaction(1, Put(b"under way", b""), began=world.now()))
    world.host.take_part()
    watches = ScanChanges(b"", b"\xff", last_commit, wait=False)
    sent(world, watches)  # the first watcher: memory begins here
    end_turn(world)
    changes = sent(world, watches).result.changes
    assert [change.key for change in changes] == [b"under way"]


# --- disks


def test_what_a_failed_write_left_unsynced_is_durable_once_the_store_was_opened() -> None:
    """LevelDB writes what it finds in its log to a synced table. The disk in memory did not, and a
    node spoke of a term that it could still forget.
    """
    disk = MemoryDisk()
    disk.write_faults[1] = WriteFault.THERE_WHOLE
    engine = MemoryEngine(disk)
    with pytest.raises(EngineFailed):
        engine.write({keys.store_key("name"): b"value"}, sync=True)
    engine.close()
    assert MemoryEngine(disk).get(keys.store_key("name")) == b"value"
    assert disk.durable.get(keys.store_key("name")) == b"value"
