"""Seats: only so many may sit at once, each taken after counting those that are taken by a scan.

Two who count at the same time see the same number and write different keys: a phantom, that only
the check of scanned spans notices. They count from the beginning or the end, or only as far as they
need, and clear the room by deleting a whole span.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.workloads.workload import Client, pairs

SEATS = 3
START, END = b"seat/", b"seat0"


class Seats:
    """A workload of seats that are counted by scans."""

    clients = 4

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: all seats are free."""

    async def start(self, client: Client) -> None:
        """Sit down, get up, look around."""
        while client.goes_on():
            chance = client.random.random()
            if chance < 0.6:
                await client.attempt(client.db.run(self._sit_down, client, client.token()))
            elif chance < 0.8:
                await client.attempt(client.db.run(self._get_up))
            else:
                await client.attempt(self._look_around(client.db))
            await client.pause()

    async def _sit_down(self, tx: Any, client: Client, token: bytes) -> None:
        limit = client.random.choice([None, SEATS])
        reverse = client.random.random() < 0.5
        taken = [key async for key, _ in tx.scan(START, END, limit=limit, reverse=reverse)]
        if len(taken) < SEATS:
            tx.put(START + token, b"")

    async def _get_up(self, tx: Any) -> None:
        taken = [key async for key, _ in tx.scan(START, END)]
        if len(taken) >= SEATS:
            await tx.delete_range(taken[1], END)

    async def _look_around(self, db: CoreDatabase) -> None:
        assert len(await pairs(db, START)) <= SEATS

    async def check(self, db: CoreDatabase) -> None:
        """Check that nobody sits on somebody else."""
        await self._look_around(db)
