"""Waiters: they wait for messages, locks, changes and quiet, and most of them give up.

Each wait may end by its answer, by its time, by being cancelled wherever it stands, or with its
client. A few transactions are left lying, others take messages and do not commit. At the end each
message was taken once or is still there, and nothing is held by those who gave up. The latter is
checked at every step, for every workload, by :mod:`tests.sim.waiting_rules`.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.workloads.workload import Client, pairs, reap_all

INBOXES = 2
KEYS = 2


def _inbox(number: int) -> bytes:
    return b"wait/%d" % number


class Waiters:
    """A workload of waits, most of which are given up."""

    clients = 7

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: nothing is there."""

    async def start(self, client: Client) -> None:
        """Send with the first client, wait with the others."""
        while client.goes_on():
            choose = client.random.choice
            if client.number == 0:
                act = self._send(client, client.token())
            else:
                acts = (self._reap, self._reap, self._reap, self._lock, self._lock, self._look)
                act = choose(acts)(client)
            seconds = choose([0.001, 0.02, 0.3, 5.0])
            await client.attempt(client.db._sender.cancelled_after(seconds, act))
            await client.pause()

    async def _send(self, client: Client, token: bytes) -> None:
        async with client.db.begin() as tx:
            for number in range(client.random.randint(1, 3)):
                name = b"%s-%d" % (token, number)
                delay = client.random.choice([None, None, 0.1])
                tx.enqueue_message(_inbox(client.random.randrange(INBOXES)), name, deliver_at=delay)
                tx.put(b"posted/" + name, b"")

    async def _reap(self, client: Client) -> None:
        choose = client.random.choice
        tx = client.db.begin(timeout=choose([0.5, 2.0]))
        wait = choose([None, 0.01, 1.0, 3.0, 100.0])
        inbox = _inbox(client.random.randrange(INBOXES))
        ends = choose(["commits", "commits", "rolls back", "is left lying"])
        if ends == "is left lying":
            await tx.reap_queue(inbox, choose([1, 3]), wait=wait)
            return
        async with tx:
            for message in await tx.reap_queue(inbox, choose([1, 3]), wait=wait):
                tx.put(b"got/" + client.token(), message.value)
            await client.pause(0.1)
            if ends == "rolls back" and not tx.closed:
                await tx.rollback()

    async def _lock(self, client: Client) -> None:
        async with client.db.begin(timeout=client.random.choice([0.2, 2.0])) as tx:
            for number in client.random.sample(range(KEYS), client.random.randint(1, KEYS)):
                await tx.get_for_update(b"lock/%d" % number)
                await client.pause(0.05)
            tx.put(b"lock/0", client.token())

    async def _look(self, client: Client) -> None:
        match client.random.randrange(3):
            case 0:
                await client.db.drain()
            case 1:
                async with client.db.snapshot() as snapshot:
                    await snapshot.get(b"lock/0")
                    await client.pause(0.2)
            case _:
                async for _ in client.db.watch(b"lock/", b"lock0"):
                    return

    async def check(self, db: CoreDatabase) -> None:
        """Check that what was sent is what was taken and what is left."""
        await db._sender.sleep(1.0)
        await db.drain()
        left: list[Any] = []
        for number in range(INBOXES):
            left += [message.value for message in await reap_all(db, _inbox(number))]
        sent = [key.removeprefix(b"posted/") for key, _ in await pairs(db, b"posted/")]
        taken = [name for _, name in await pairs(db, b"got/")]
        assert sorted(taken + left) == sent, f"sent: {sent}, taken: {taken}, left: {left}"
