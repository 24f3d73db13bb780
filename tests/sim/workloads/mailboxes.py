"""Mailboxes: looked into in every way while messages come and go.

A few clients send, at once and for later; others reap, wait in vain, give up half-way. Others look:
now, at moments of the past, at one moment several times while messages are reaped, at the list of
all inboxes. In a snapshot the inboxes and the notes of what was sent and taken fit together, and
what is seen of a moment stays as it is.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.workloads.workload import Client, pairs, reap_all

INBOXES = 3
SENDERS = 2
REAPERS = 2
NOBODY = b"mailbox/nobody"
"""The key of an inbox to which nobody sends."""


def _inbox(number: int) -> bytes:
    return b"mailbox/%d" % number


class Mailboxes:
    """A workload of inboxes that are looked into."""

    clients = SENDERS + REAPERS + 2

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: all inboxes are empty."""

    async def start(self, client: Client) -> None:
        """Send with the first clients, reap with the next, look with the others."""
        while client.goes_on():
            if client.number < SENDERS:
                await client.attempt(client.db.run(self._send, client, client.token()))
                await client.pause(0.06)
            elif client.number < SENDERS + REAPERS:
                await client.attempt(self._reap(client))
            else:
                await client.attempt(self._look(client))
            await client.pause()

    def _send(self, tx: Any, client: Client, token: bytes) -> None:
        for number in range(client.random.randint(1, 3)):
            name = b"%s-%d" % (token, number)
            delay = client.random.choice([None, None, None, 0.0, 0.02, 0.3])
            tx.enqueue_message(_inbox(client.random.randrange(INBOXES)), name, deliver_at=delay)
            tx.put(b"mailbox sent/" + name, b"")

    # --- reaping

    async def _reap(self, client: Client) -> bool:
        chance = client.random.random()
        if chance < 0.15:
            await client.db.run(self._wait_in_vain, client)
        elif chance < 0.3:
            await self._give_up(client)
        else:
            await client.db.run(self._take, client)
        return True

    async def _take(self, tx: Any, client: Client) -> None:
        choose = client.random.choice
        key = _inbox(client.random.randrange(INBOXES))
        wait = choose([None, 0.01, 0.2])
        for message in await tx.reap_queue(key, choose([1, 2, 10]), wait=wait):
            tx.put(b"mailbox taken/" + message.value, client.token())

    async def _wait_in_vain(self, tx: Any, client: Client) -> None:
        wait = client.random.choice([0.005, 0.05, 0.3])
        assert not await tx.reap_queue(NOBODY, 1, wait=wait), "nobody has sent this"

    async def _give_up(self, client: Client) -> None:
        """Take messages and give up, or run out of time."""
        tx = client.db.begin(timeout=client.random.choice([0.05, 5.0]))
        await tx.reap_queue(_inbox(client.random.randrange(INBOXES)), 2, wait=0.02)
        await client.pause(0.1)
        if client.random.random() < 0.7 and not tx.closed:
            await tx.rollback()

    # --- looking

    async def _look(self, client: Client) -> bool:
        chance = client.random.random()
        if chance < 0.3:
            await client.db.peek(
                _inbox(client.random.randrange(INBOXES)), client.random.choice([1, 3])
            )
        elif chance < 0.5:
            told = await client.db.inboxes(b"mailbox/", b"mailbox0", limit=INBOXES)
            assert all(each.messages > 0 and each.key != NOBODY for each in told), told
        else:
            await self._look_back(client)
        return True

    async def _look_back(self, client: Client) -> None:
        """Look at one moment, again and again."""
        first: list[list[bytes]] | None = None
        async with client.db.snapshot() as snapshot:
            for _ in range(client.random.randint(1, 3)):
                found = [
                    [each.value for each in await snapshot.peek(_inbox(number), 1000)]
                    for number in range(INBOXES)
                ]
                assert first in (None, found), f"then there was {first}, now {found}"
                first = found
                await client.pause(0.3)
            sent = {key async for key, _ in snapshot.scan(b"mailbox sent/", b"mailbox sent0")}
            taken = {key async for key, _ in snapshot.scan(b"mailbox taken/", b"mailbox taken0")}
        waiting = [name for inbox in first or () for name in inbox]
        sent = {key.removeprefix(b"mailbox sent/") for key in sent}
        taken = {key.removeprefix(b"mailbox taken/") for key in taken}
        assert len(set(waiting)) == len(waiting), f"one message twice: {waiting}"
        assert not taken.intersection(waiting), f"taken, and still there: {taken & set(waiting)}"
        assert taken.union(waiting) <= sent, f"nobody sent {taken.union(waiting) - sent}"

    async def check(self, db: CoreDatabase) -> None:
        """Check that what was sent is what was taken and what is left."""
        await db._sender.sleep(1.0)
        await db.drain()
        left = [
            message.value
            for number in range(INBOXES)
            for message in await reap_all(db, _inbox(number))
        ]
        sent = [key.removeprefix(b"mailbox sent/") for key, _ in await pairs(db, b"mailbox sent/")]
        taken = [
            key.removeprefix(b"mailbox taken/") for key, _ in await pairs(db, b"mailbox taken/")
        ]
        assert sorted(taken + left) == sent, f"sent: {sent}, taken: {taken}, left: {left}"
