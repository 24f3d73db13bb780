"""Ring: FoundationDB's *Cycle*. Each key points to the next; transactions reorder three of them.

Starting anywhere, a transaction reads the next three keys r -> a -> b -> c and turns them into
r -> b -> a -> c. Whatever two of them do at once, if they are serializable the ring stays one ring.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.workloads.workload import Client, pairs

NODES = 7


def _node(number: bytes) -> bytes:
    return b"ring/" + number


class Ring:
    """A workload of a ring whose nodes are reordered."""

    clients = 4

    async def setup(self, db: CoreDatabase) -> None:
        """Close the ring."""

        def close(tx: Any) -> None:
            for number in range(NODES):
                tx.put(_node(b"%d" % number), b"%d" % ((number + 1) % NODES))

        await db.run(close)

    async def start(self, client: Client) -> None:
        """Reorder, and now and then walk."""
        while client.goes_on():
            if client.random.random() < 0.2:
                await client.attempt(self._walk(client))
            else:
                await client.attempt(client.db.run(self._reorder, client))
            await client.pause()

    async def _reorder(self, tx: Any, client: Client) -> None:
        r = b"%d" % client.random.randrange(NODES)
        a = await tx.get(_node(r))
        b = await tx.get(_node(a))
        c = await tx.get(_node(b))
        tx.put(_node(r), b)
        tx.put(_node(a), c)
        tx.put(_node(b), a)

    async def _walk(self, client: Client) -> None:
        _require_ring(dict(await pairs(client.db, b"ring/")))

    async def check(self, db: CoreDatabase) -> None:
        """Check that it is one ring."""
        _require_ring(dict(await pairs(db, b"ring/")))


def _require_ring(pointers: dict[bytes, bytes]) -> None:
    seen, number = [], b"0"
    while number not in seen:
        seen.append(number)
        number = pointers[_node(number)]
    is_ring = number == b"0" and len(seen) == len(pointers) == NODES
    assert is_ring, f"no ring: {pointers}"
