"""Keepers: watchers whose positions the store keeps. They are never told that changes are gone.

Garbage is collected after a second in some histories, leaders and clocks change, stores are closed
and opened. Only a clock that is days ahead may end a position before its reader comes back.
"""

from __future__ import annotations

from postroom.client.database import CoreDatabase
from postroom.errors import SnapshotTooOld
from postroom.kv.clock import from_seconds
from postroom.limits import POSITION_SECONDS_MAX
from tests.sim.workloads.watchers import Watchers
from tests.sim.workloads.workload import EXPECTED, Client

NAME = "keeper %d"


class Keepers(Watchers):
    """A workload of watchers that keep their positions."""

    start_key, end_key, last_key = b"kept/", b"kept0", b"kept/last"

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, int] = {}

    async def _watch(self, client: Client) -> None:
        mirror = self.mirrors.get(client.number)
        if mirror is not None:
            try:
                await self._keep(client.db, client.number, mirror.timestamp)
            except SnapshotTooOld as error:
                await self._lost(client.db, client.number, error)
            except EXPECTED:
                await client.pause(0.2)
        await super()._watch(client)

    async def _keep(self, db: CoreDatabase, number: int, position: int) -> None:
        await db.keep_position(NAME % number, position, seconds=POSITION_SECONDS_MAX)
        self.kept[number] = position

    async def _lost(self, db: CoreDatabase, number: int, error: SnapshotTooOld) -> None:
        """Check that changes are gone only if the position was not kept, or kept long ago."""
        self.mirrors.pop(number, None)
        position = self.kept.pop(number, None)
        if position is not None:
            age = int(await db.now()) - position
            assert age > from_seconds(POSITION_SECONDS_MAX / 2), f"{NAME % number}: {error}"
