"""Contenders: transactions of several keys beside those who write these keys without asking.

Writers put values and increment counters as fast as they can. Contenders move tokens between the
keys in ``run``: some lock what they read, some do not. No token appears or is lost, whoever waits
for whom. *Progress*: a contender that lost locks what it lost on, so it does not lose often. Only
what ends locks makes it lose once more: a process that dies, a client that was not heard of.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from postroom.errors import TransactionConflict
from tests.sim.workloads.workload import Client, pairs

KEYS = 4
WRITERS = 3
CONFLICTS_MAX = 8


def _place(number: int) -> bytes:
    return b"contended/%d" % number


def _noise(number: int) -> bytes:
    return b"contended/%d/noise" % number


class Contenders:
    """A workload of writers and of those who contend for keys.

    Attributes:
        conflicts_max: the most that one may meet.
        conflicts: the most that one call of ``run`` has met.
    """

    clients = 6
    conflicts_max = CONFLICTS_MAX

    def __init__(self) -> None:
        self.conflicts = 0

    async def setup(self, db: CoreDatabase) -> None:
        """Put ten tokens in each place."""

        def fill(tx: Any) -> None:
            for number in range(KEYS):
                tx.put(_place(number), b"10")

        await db.run(fill)

    async def start(self, client: Client) -> None:
        """Write with half of the clients, contend with the others."""
        while client.goes_on():
            if client.number < WRITERS:
                await client.attempt(self._write(client))
                await client.pause(0.002)
            else:
                await client.attempt(self._contend(client))
                await client.pause()

    async def _write(self, client: Client) -> None:
        key = _noise(client.random.randrange(KEYS))
        match client.random.randrange(3):
            case 0:
                await client.db.put(key, client.token())
            case 1:
                await client.db.delete_range(key, key + b"\x00")
            case _:
                async with client.db.begin() as tx:
                    tx.put(_noise(0), client.token())
                    tx.put(key, client.token())

    async def _contend(self, client: Client) -> None:
        source, target = client.random.sample(range(KEYS), 2)
        locks, conflicts = client.random.random() < 0.5, 0

        async def move(tx: Any) -> None:
            nonlocal conflicts
            read = tx.get_for_update if locks else tx.get
            try:
                await read(_noise(source))
                await read(_noise(target))
                left, there = int(await read(_place(source))), int(await read(_place(target)))
                if left:
                    tx.put(_place(source), b"%d" % (left - 1))
                    tx.put(_place(target), b"%d" % (there + 1))
                tx.put(_noise(source), client.token())
                await tx.commit()
            except TransactionConflict:
                conflicts += 1
                self.conflicts = max(self.conflicts, conflicts)
                raise

        await client.db.run(move)

    async def check(self, db: CoreDatabase) -> None:
        """Check that the tokens are all there, and no client has lost for ever."""
        found = await pairs(db, b"contended/")
        places = [int(value) for key, value in found if not key.endswith(b"noise")]
        assert sum(places) == 10 * KEYS, f"tokens: {places}"
        assert self.conflicts <= self.conflicts_max, f"somebody lost {self.conflicts} times"


class ContendersOverRanges(Contenders):
    """Contenders for keys of several ranges, in which nobody sees all of a circle of locks."""

    conflicts_max = 100
