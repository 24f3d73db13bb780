"""Wholes: two keys that are written together, and read as they were stored at one timestamp.

The keys lie at both ends of the keyspace, and so in different ranges once there are some. An
auditor protects the store as a whole, and reads both in the snapshots that the ranges have taken.
Neither of them may be newer than the other.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.workloads.workload import Client

FIRST = b"\x01wholes"
LAST = b"\xfewholes"


class Wholes:
    """A workload of stores that are protected as a whole."""

    clients = 3

    async def setup(self, db: CoreDatabase) -> None:
        """Write both keys."""
        await self._write(db, b"")

    async def start(self, client: Client) -> None:
        """Write both keys, or look at them."""
        while client.goes_on():
            if client.random.random() < 0.5:
                await client.attempt(self._audit(client.db))
            else:
                await client.attempt(self._write(client.db, client.token()))
            await client.pause()

    async def _write(self, db: CoreDatabase, token: bytes) -> bool:
        def write(tx: Any) -> None:
            tx.put(FIRST, token)
            tx.put(LAST, token)

        await db.run(write)
        return True

    async def _audit(self, db: CoreDatabase) -> bool:
        async with db.hold(whole=True) as at:
            first, last = [await self._stored(db, key, int(at)) for key in (FIRST, LAST)]
        assert first == last, f"{first!r} and {last!r} were stored at {at}"
        return True

    async def _stored(self, db: CoreDatabase, key: bytes, at: int) -> bytes:
        """Return what was stored under a key at a timestamp: its value, and since when."""
        pages = db.bulk.records("image", key, key + b"\x00", at=at)
        (stored,) = [bytes(record.stored) async for page in pages for record in page]
        return stored

    async def check(self, db: CoreDatabase) -> None:
        """Check that the store can be protected when nothing breaks any more."""
        await self._audit(db)
