"""Trails: an image, with what its trail tells, is the image of a later timestamp.

One client keeps the trail, forgets a part of it, or ends it. All read the store as a whole, wait,
and read it once more with the trail. If that has been kept since before the first one, it leads
from there to the second.
"""

from __future__ import annotations

from postroom.client.database import CoreDatabase
from postroom.client.trail import end_trail, keep_trail, read_trail
from postroom.messaging.trail import parted, value_in
from postroom.messaging.trail_requests import TrailState
from tests.sim.workloads.workload import Client

Image = dict[bytes, bytes | None]


class Trails:
    """A workload of trails."""

    clients = 2

    async def setup(self, db: CoreDatabase) -> None:
        """Keep a trail."""
        await keep_trail(db.sender)

    async def start(self, client: Client) -> None:
        """Keep, forget or end the trail, or go along it."""
        while client.goes_on():
            chance = client.random.random()
            if client.number == 0 and chance < 0.5:
                await client.attempt(self._change(client.db, chance * 2))
            else:
                await client.attempt(self._go_along(client))
            await client.pause()

    async def _change(self, db: CoreDatabase, chance: float) -> bool:
        if chance < 0.1:
            await end_trail(db.sender)
        elif chance < 0.6:
            await keep_trail(db.sender)
        else:
            async with db.hold(whole=True) as at:
                pass
            await keep_trail(db.sender, int(at))
        return True

    async def _go_along(self, client: Client) -> bool:
        db = client.db
        async with db.hold(whole=True) as first:
            image = await self._read(db, ("range_image", "image"), int(first))
        await client.pause(0.5)
        async with db.hold(whole=True) as last:
            state = await read_trail(db.sender)
            trail = await self._read(db, ("range_trail", "trail"), int(last))
            now = await self._read(db, ("range_image", "image"), int(last))
        if self._leads(state, int(first)):
            for name in sorted(trail):
                image[parted(name)[0]] = value_in(trail[name] or b"")
            led = {name: value for name, value in image.items() if value is not None}
            wrong = [name for name in {*led, *now} if led.get(name) != now.get(name)]
            assert not wrong, f"the trail from {first} to {last} does not lead to {wrong[:3]}"
        return True

    def _leads(self, state: TrailState, first: int) -> bool:
        return 0 < state.since <= first and not state.ended

    async def _read(self, db: CoreDatabase, tables: tuple[str, str], at: int) -> Image:
        return {
            bytes(each.name): bytes(each.stored)
            for table in tables
            async for page in db.bulk.records(table, at=at)
            for each in page
        }

    async def check(self, db: CoreDatabase) -> None:
        """Check that a trail can be kept and ended when nothing breaks any more."""
        await keep_trail(db.sender)
        await end_trail(db.sender)
        assert not (await read_trail(db.sender)).since
