"""All disks are full at the same time: what is stored is read, and deletions are taken.

*Rule*: with no room at all, or next to none, every key that was there is read, and a deletion
succeeds. A ``put`` is refused, or succeeds while there is room enough. (A node may end: one that is
being fed anew cannot write what the leader sends.)
"""

from __future__ import annotations

from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom.client.database import CoreDatabase
from postroom.errors import Unavailable
from tests.sim.checkers import require
from tests.sim.cluster.cluster import Cluster

ROOMS: Final = (0, 300, 1900)
"""The numbers of bytes that are left on a disk."""
KEYS: Final = 3
NOTICED_SECONDS: Final = 0.2
"""The time by which every node knows that its disk is full."""
PATIENCE_SECONDS: Final = 20.0


def check(cluster: Cluster, db: CoreDatabase, chance: Random) -> None:
    """Fill all disks, and let a client read, delete and write; they stay full.

    Args:
        cluster: in which nothing else is broken.
        db: of the client.
        chance: says how much room is left on each disk.

    Raises:
        Broken: it reads something else.
        AssertionError: it is not answered.
    """
    keys = [b"full disks/%d" % number for number in range(KEYS)]
    for key in keys:
        cluster.retry(lambda key=key: db.put(key, key), db, "a put")  # type: ignore[misc]
    for machine in cluster.machines:
        machine.disk.capacity_bytes = machine.disk.content.bytes_stored + chance.choice(ROOMS)
    cluster.agenda.run(NOTICED_SECONDS)
    for key in keys:
        require(_value(cluster, db, key) == key, f"{key!r} is read while all disks are full")
        cluster.run(db.delete(key), "a deletion while all disks are full", PATIENCE_SECONDS)
        require(_value(cluster, db, key) is None, f"{key!r} is deleted while all disks are full")
    cluster.run(_put(db), "a put is answered while all disks are full", PATIENCE_SECONDS)


async def _put(db: CoreDatabase) -> None:
    try:
        await db.put(b"full disks/more", bytes(100))
    except Unavailable as error:
        require("nothing was changed" in str(error), f"it says why, not {error}")


def _value(cluster: Cluster, db: CoreDatabase, key: bytes) -> bytes | None:
    value: bytes | None = cluster.run(db.get(key), "a read beside full disks", PATIENCE_SECONDS)
    return value
