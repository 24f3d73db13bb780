"""Counters: deferred increments, accounting, and updates that can never succeed.

Each transaction leaves a note of what it deferred. When everything is carried out, the counters,
the accounting and the dead letters are exactly what the notes add up to. A counter that holds text
kills every increment of it, until somebody repairs it and replays the dead letters. Increments
before and after a put of the same key stay before and after it.
"""

from __future__ import annotations

from typing import Any

import msgspec

import postroom
from postroom.client.database import CoreDatabase
from postroom.ranges.accounting import summed_prefixes
from postroom.ranges.requests import Accounting, Delete, Increment, Put
from tests.sim.workloads.workload import Client, pairs

COUNTERS = 3
POISONED = b"counter/poisoned"
HUGE = Accounting(b"huge/metric", {"sum": 2**62})
"""Two of these are too much: all but the first die, and stay dead."""


class Counters:
    """A workload of deferred increments."""

    clients = 3

    async def setup(self, db: CoreDatabase) -> None:
        """Make one of the counters none."""
        await db.put(POISONED, b"text")

    async def start(self, client: Client) -> None:
        """Defer, and now and then repair, poison, or look after the dead."""
        while client.goes_on():
            chance = client.random.random()
            if chance < 0.8:
                await client.attempt(client.db.run(self._defer, client, client.token()))
            elif chance < 0.85:
                await client.attempt(client.db.run(self._switch))
            else:
                await client.attempt(self._look_after_the_dead(client))
            await client.pause()

    def _defer(self, tx: Any, client: Client, token: bytes) -> None:
        choose = client.random
        delay = choose.choice([None, None, None, 0.01, 0.5])
        note = []
        for _ in range(choose.randint(1, 4)):
            number, by = choose.randrange(COUNTERS), choose.randint(-5, 9)
            tx.enqueue_update(Increment(b"counter/%d" % number, by), execute_at=delay)
            note.append(b"%d:%d" % (number, by))
        if choose.random() < 0.3:
            tx.enqueue_update(Accounting(b"stats/a/%d" % client.number, {"seen": 1}))
            note.append(b"seen:1")
        if choose.random() < 0.2:
            tx.enqueue_update(Increment(POISONED, 1), execute_at=delay)
            note.append(b"poison:1")
        if choose.random() < 0.1:
            tx.enqueue_update(HUGE, execute_at=delay)
            note.append(b"huge:1")
        if choose.random() < 0.2:
            tx.enqueue_update(Put(b"deferred/" + token, token), execute_at=delay)
            note.append(b"put:1")
            if choose.random() < 0.5:
                tx.enqueue_update(Delete(b"deferred/" + token), execute_at=delay)
                note[-1] = b"deleted:1"
        if choose.random() < 0.2:
            mixed = b"mixed/" + token
            for update in (Increment(mixed, 1), Put(mixed, _packed(10)), Increment(mixed, 2)):
                tx.enqueue_update(update, execute_at=delay)
            note.append(b"mixed:1")
        tx.put(b"note/" + token, b" ".join(note))

    async def _switch(self, tx: Any) -> None:
        """Turn a text into a number, or a number into a text that remembers it."""
        value = await tx.get(POISONED)
        if value.startswith(b"text"):
            tx.put(POISONED, _packed(int(value[4:] or b"0")))
        elif len(value) == 8:
            tx.put(POISONED, b"text%d" % postroom.integer(value))

    async def _look_after_the_dead(self, client: Client) -> None:
        letters = await client.db.dead_letters(limit=client.random.randint(1, 5))
        ids = [letter.id for letter in letters if letter.request == Increment(POISONED, 1)]
        if ids:
            await client.db.replay(ids)

    async def check(self, db: CoreDatabase) -> None:
        """Repair what is poisoned, replay all the dead, and count."""
        await db.drain()
        value = await db.get(POISONED)
        if value.startswith(b"text"):
            await db.run(self._switch)
        letters = await db.dead_letters(limit=100_000)
        await db.replay([letter.id for letter in letters])
        await db.drain()
        left = [letter.request for letter in await db.dead_letters(limit=100_000)]
        assert all(request is not None and _is_huge(request) for request in left), left
        dead = sum(b"huge" in summed_prefixes(request) for request in left)
        await self._compare(db, await pairs(db, b"note/"), dead)

    async def _compare(self, db: CoreDatabase, notes: list[tuple[bytes, bytes]], dead: int) -> None:
        expected: dict[bytes, int] = {}
        for key, note in notes:
            for name, by in (part.split(b":") for part in note.split()):
                expected[name] = expected.get(name, 0) + int(by)
                if name in (b"put", b"deleted"):
                    left = await db.get(b"deferred/" + key.removeprefix(b"note/"))
                    assert (left is not None) == (name == b"put"), f"{key!r}: {left!r} is left"
                if name == b"mixed":
                    mixed = await db.get(b"mixed/" + key.removeprefix(b"note/"))
                    assert mixed == _packed(12), f"{key!r}: {mixed!r} is not 10 and 2"
        found = {b"poison": postroom.integer(await db.get(POISONED))}
        for number in range(COUNTERS):
            found[b"%d" % number] = postroom.integer(await db.get(b"counter/%d" % number))
        found[b"seen"] = (await db.accounting(b"stats/a")).get("seen", 0)
        found[b"huge"] = (await db.accounting(b"huge")).get("sum", 0) // 2**62 + dead
        for name, number in found.items():
            assert number == expected.get(name, 0), f"{name!r} is {number}, notes: {expected}"


def _is_huge(request: Any) -> bool:
    """Return whether an update is the huge one, or the part of it for one of several ranges."""
    return msgspec.structs.replace(request, within=None) == HUGE


def _packed(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)
