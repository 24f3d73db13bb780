"""One machine is missing, and the others are enough: every client gets on all the same.

A truce mends everything, and so would hide a store, or a client, that waits for the one machine
that does not answer. In some truces, when all clients have got on, one machine is taken away
again, often the one that leads, and all clients have to get on once more:

========== ===========================================================================
down       its process has ended, or its power has failed
cut off    from all other machines; half of the time clients do not reach it either
deaf       it hears of no other machine, and all of them hear of it
dumb       the reverse: nobody hears of it
asleep     nothing happens on it; what is sent to it waits
slow disk  each of its writes takes a fifth of a second, if it must be durable
========== ===========================================================================

A commit over several ranges is tried for ``RUN_SECONDS``. The product proposes thousands of
requests at a time, so such a commit waits for a few writes. A run may draw turns that take next to
nothing. Each client would then wait for the writes of all others, and no commit over several ranges
would end in its time: the slow disk is a faster one there.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom import limits
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine

_LONG_SECONDS: Final = 1e6
_SLOW: Final = 1000.0
"""The factor by which a disk is slower."""
_SLOW_WITH_SHORT_TURNS: Final = 100.0
"""The same for several ranges whose turns have fewer than ``_SHORT_TURN_STEPS`` steps."""
_SHORT_TURN_STEPS: Final = 10


def begin(cluster: Cluster, randomness: Random) -> str | None:
    """Take one machine away from now on, until everything is mended.

    Args:
        cluster: whose members are the nodes of its machines (:meth:`.Joining.is_settled`).
        randomness: who it is, and how.

    Returns:
        How it is missing; ``None`` if the others would not be enough.
    """
    leader = cluster.leader()
    machine = randomness.choice(cluster.machines)
    if leader is not None and randomness.random() < 0.6:
        machine = leader
    if not _is_enough_without(cluster, machine):
        return None
    name = randomness.choice(sorted(WAYS))
    WAYS[name](cluster, machine, randomness)
    return name


def _is_enough_without(cluster: Cluster, missing: Machine) -> bool:
    """Return whether the machines that are there are a majority without one of them."""
    there = [each for each in cluster.machines if each.serves() and each is not missing]
    return 2 * len(there) > len(cluster.machines)


def _down(_: Cluster, machine: Machine, randomness: Random) -> None:
    if machine.node is not None:
        machine.crash(power=randomness.random() < 0.5)


def _cut_off(cluster: Cluster, machine: Machine, randomness: Random) -> None:
    _deaf(cluster, machine, randomness)
    _dumb(cluster, machine, randomness)
    if randomness.random() < 0.5:
        for place in cluster.places:
            cluster.network.cut(place, machine.name)
            cluster.network.cut(machine.name, place)


def _deaf(cluster: Cluster, machine: Machine, _: Random) -> None:
    for other in cluster.machines:
        if other is not machine:
            cluster.network.cut(other.name, machine.name)


def _dumb(cluster: Cluster, machine: Machine, _: Random) -> None:
    for other in cluster.machines:
        if other is not machine:
            cluster.network.cut(machine.name, other.name)


def _asleep(cluster: Cluster, machine: Machine, _: Random) -> None:
    machine.asleep_until = cluster.agenda.now + _LONG_SECONDS


def _slow_disk(cluster: Cluster, machine: Machine, _: Random) -> None:
    has_ranges = len(cluster.overseer.raft_of) > 1
    is_short = limits.TURN_STEPS_MAX < _SHORT_TURN_STEPS
    machine.disk_slowness = _SLOW_WITH_SHORT_TURNS if has_ranges and is_short else _SLOW


WAYS: Final[dict[str, Callable[[Cluster, Machine, Random], None]]] = {
    "down": _down,
    "cut off": _cut_off,
    "deaf": _deaf,
    "dumb": _dumb,
    "asleep": _asleep,
    "with a slow disk": _slow_disk,
}
"""The ways in which a machine is missing."""
