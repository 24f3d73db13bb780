"""A schedule: a key is written while what a commit has read is checked over many turns."""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

from postroom import limits
from postroom.ranges.requests import Put
from postroom.server.assembly import NodeOptions
from tests.sim.checkers import require
from tests.sim.cluster.embedded import EmbeddedStore, transaction

KEYS: Final = [b"key/%d" % number for number in range(12)]
TURNS: Final = 16


def write_beside_a_long_check(seed: int) -> None:
    """Check that a commit is not later than a write of a key that it has read.

    ::

        reader  reads all ─ commit: its check ── k0 seen ────────────▶ conflict, or before the put
        writer                                      └─ put k0 ─▶ committed
    """
    with patch.object(limits, "TURN_STEPS_MAX", 2):
        for turns in range(TURNS):
            _write_after(seed, turns)


def _write_after(seed: int, turns: int) -> None:
    store = EmbeddedStore(seed, NodeOptions(disk_reserve_bytes=0), in_parts=False)
    require(store.machine.open(), "the store does not open")
    began = store.now()
    store.run(store.database().put(b"other", b""))  # else nothing need be checked
    reads = store.submit(transaction(1, Put(b"result", b""), began=began, reads=KEYS))
    for _ in range(turns):
        store.machine.take_part()
    writes = store.submit(transaction(2, Put(KEYS[0], b""), began=began))
    store.run_until(lambda: reads.done and writes.done, "both are answered")
    store.machine.close()
    require(writes.error is None, f"the put failed: {writes.error!r}")
    require(
        reads.error is not None or reads.result.timestamp < writes.result.timestamp,
        f"{KEYS[0]!r} was written {turns} turns after the commit came, and it took no notice",
    )
