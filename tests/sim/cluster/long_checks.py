"""A schedule: a key is written while what a commit has read is checked over many turns."""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

from postroom import limits
from postroom.ranges.requests import CommitTransaction, Put
from postroom.server.node_options import NodeOptions
from tests.sim.checkers import require
from tests.sim.sender import Answer, SimulatedSender
from tests.sim.world import World

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
    world = World(seed, NodeOptions(disk_reserve_bytes=0), in_parts=False)
    require(world.host.open(), "the store does not open")
    began = world.now()
    world.run(world.database().put(b"other", b""))  # else nothing need be checked
    reads = _sent(world, _commit(1, began, reads=KEYS, writes=[Put(b"result", b"")]))
    for _ in range(3 * turns):  # each has three parts
        world.host.take_part()
    writes = _sent(world, _commit(2, began, reads=[], writes=[Put(KEYS[0], b"")]))
    world.run_until(lambda: reads.done and writes.done)
    world.host.close()
    require(writes.error is None, f"the put failed: {writes.error!r}")
    require(
        reads.error is not None or reads.result.timestamp < writes.result.timestamp,
        f"{KEYS[0]!r} was written {turns} turns after the commit came, and it took no notice",
    )


def _commit(
    number: int, began: int, *, reads: list[bytes], writes: list[Put]
) -> CommitTransaction[Put]:
    name = b"client 1" + number.to_bytes(8, "big")
    at = began if reads else 0
    return CommitTransaction(
        name, began, 60.0, at, b"anchor", [], [(key, key + b"\x00") for key in reads], writes
    )


def _sent(world: World, request: CommitTransaction[Put]) -> Answer:
    answer = Answer(SimulatedSender(world, world.random), request)
    world.host.submit(answer)
    return answer
