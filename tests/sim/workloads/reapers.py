"""Reapers: several compete for the messages of a few inboxes. Each message is reaped exactly once.

A sender notes, in the transaction that sends it, the name of each message. A reaper notes the names
of what it took, under a name of its own: a message taken twice is noted twice. At the end the notes
are the same, but for what still lies in the inboxes. A few reapers take messages and do not commit;
their messages are free again. A few messages are scheduled for later: none arrives before its time.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.workloads.workload import Client, pairs, reap_all

INBOXES = 2
SENDERS = 2


def _inbox(number: int) -> bytes:
    return b"inbox/%d" % number


class Reapers:
    """A workload of reapers that compete."""

    clients = 6

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: all inboxes are empty."""

    async def start(self, client: Client) -> None:
        """Send with the first clients, reap with the others."""
        while client.goes_on():
            if client.number < SENDERS:
                await client.attempt(client.db.run(self._send, client, client.token()))
                await client.pause()
            elif client.random.random() < 0.15:
                await client.attempt(self._reap_in_vain(client))
            else:
                await client.attempt(client.db.run(self._reap, client))
            await client.pause()

    async def _send(self, tx: Any, client: Client, token: bytes) -> None:
        for number in range(client.random.randint(1, 6)):
            name = b"%s-%d" % (token, number)
            delay = client.random.choice([None, None, 0.0, 0.003, 0.3])
            due = 0 if delay is None else await client.db.now()
            key = _inbox(client.random.randrange(INBOXES))
            tx.enqueue_message(key, name, headers={"due": due}, deliver_at=delay)
            tx.put(b"sent/" + name, b"")

    async def _reap(self, tx: Any, client: Client) -> None:
        choose = client.random.choice
        reaped = await tx.reap_queue(
            _inbox(client.random.randrange(INBOXES)),
            choose([1, 2, 10]),
            max_bytes=choose([None, 1, 50]),
            wait=choose([None, 0.01, 0.2]),
        )
        for message in reaped:
            assert message.delivered_at > message.sent_at, "a message came before it was sent"
            due = message.headers["due"]
            assert message.delivered_at >= due, "a message came before it was due"
            tx.put(b"taken/" + client.token(), message.value)

    async def _reap_in_vain(self, client: Client) -> None:
        tx = client.db.begin()
        await tx.reap_queue(_inbox(client.random.randrange(INBOXES)), 3)
        await client.pause()
        if not tx.closed:
            await tx.rollback()

    async def check(self, db: CoreDatabase) -> None:
        """Check that what was sent is what was taken and what is left."""
        await db._sender.sleep(1.0)
        await db.drain()
        left = [
            message.value
            for number in range(INBOXES)
            for message in await reap_all(db, _inbox(number))
        ]
        sent = [key.removeprefix(b"sent/") for key, _ in await pairs(db, b"sent/")]
        taken = [name for _, name in await pairs(db, b"taken/")]
        assert sorted(taken + left) == sent, f"sent: {sent}, taken: {taken}, left: {left}"
