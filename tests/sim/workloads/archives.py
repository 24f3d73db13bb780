"""Archives: snapshots over many keys, held while all of the keys are deleted and written anew.

Each writer deletes everything and writes another *generation*: some of the keys, each with the name
of the generation and the number of its keys. A reader at one moment, however slow and in whatever
way, finds exactly one generation, whole. The protected versions of a snapshot stay readable until
it is let go, or the leaseholder is another one. Besides, ranges are deleted as deferred updates,
and in a transaction of their own.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from postroom.ranges.requests import DeleteRange
from tests.sim.workloads.workload import Client, pairs

KEYS = 12
WRITERS = 2
START, END = b"archive/", b"archive0"
SPARE = b"archive spare/"


def _key(number: int) -> bytes:
    return START + b"%03d" % number


class Archives:
    """A workload of snapshots while all keys are deleted and written anew."""

    clients = 4

    async def setup(self, db: CoreDatabase) -> None:
        """Write the first generation."""

        def write(tx: Any) -> None:
            for number in range(KEYS):
                tx.put(_key(number), b"first %d" % KEYS)

        await db.run(write)

    async def start(self, client: Client) -> None:
        """Write with the first clients, read with the others."""
        while client.goes_on():
            if client.number < WRITERS:
                if client.random.random() < 0.2:
                    await client.attempt(client.db.delete_range(*_spare(client)))
                else:
                    await client.attempt(client.db.run(self._rewrite, client, client.token()))
                await client.pause(0.1)
            else:
                await client.attempt(self._read(client))
                await client.pause()

    async def _rewrite(self, tx: Any, client: Client, token: bytes) -> None:
        await tx.delete_range(START, END)
        numbers = client.random.sample(range(KEYS), client.random.randint(1, KEYS))
        for number in numbers:
            tx.put(_key(number), b"%s %d" % (token, len(numbers)))
        start, end = _spare(client)
        for number in range(client.random.randint(0, 3)):
            tx.put(start + b"%d" % number, token)
        delay = client.random.choice([None, 0.0, 0.1])
        tx.enqueue_update(DeleteRange(start, end), execute_at=delay)

    async def _read(self, client: Client) -> bool:
        """Read one moment, in several ways, with long pauses."""
        db = client.db
        async with db.snapshot() as snapshot:
            for _ in range(client.random.randint(1, 4)):
                way = client.random.choice(["scan", "reverse", "keys", "many"])
                if way in ("scan", "reverse"):
                    scan = snapshot.scan(START, END, reverse=way == "reverse")
                    _require_whole(dict([pair async for pair in scan]))
                elif way == "keys":
                    found = {_key(each): await snapshot.get(_key(each)) for each in range(KEYS)}
                    _require_whole({key: value for key, value in found.items() if value})
                else:
                    keys = [_key(number) for number in range(KEYS)]
                    values = zip(keys, await snapshot.get_many(keys), strict=True)
                    _require_whole({key: value for key, value in values if value})
                await client.pause(client.random.choice([0.01, 0.5]))
        return True

    async def check(self, db: CoreDatabase) -> None:
        """Check that one generation is there, and nothing of what was to be deleted."""
        await db._sender.sleep(1.0)
        await db.drain()
        _require_whole(dict(await pairs(db, START)))
        spare = await pairs(db, SPARE)
        assert not spare, f"was to be deleted: {spare}"


def _spare(client: Client) -> tuple[bytes, bytes]:
    """Return a span of a client's own."""
    start = SPARE + b"%d/" % client.number
    return start, start[:-1] + b"0"


def _require_whole(found: dict[bytes, bytes]) -> None:
    generations = set(found.values())
    assert len(generations) == 1, f"of several generations, or of none: {found}"
    (generation,) = generations
    number = int(generation.split()[1])
    assert len(found) == number, f"{number} keys were written, there are {found}"
