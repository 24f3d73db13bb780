"""Ledger: money that travels by message, debited with the sending, credited with the reaping.

At every moment balances + what is under way are the same sum; at the end, with every message
reaped, the balances alone are. The messages of one sender that are reaped together come in the
order in which they were sent: each carries the sender's count.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.workloads.workload import Client, pairs, reap_all

ACCOUNTS = 3
OPENING_BALANCE = 1000


def _account(number: int) -> bytes:
    return b"ledger/account/%d" % number


def _count(source: int, target: int) -> bytes:
    return b"ledger/count/%d/%d" % (source, target)


class Ledger:
    """A workload of transfers by messages."""

    clients = 2 * ACCOUNTS

    async def setup(self, db: CoreDatabase) -> None:
        """Open the accounts."""

        def open_accounts(tx: Any) -> None:
            for number in range(ACCOUNTS):
                tx.put(_account(number), b"%d" % OPENING_BALANCE)

        await db.run(open_accounts)

    async def start(self, client: Client) -> None:
        """Send with the first half of the clients; let the others be clerks."""
        while client.goes_on():
            number = client.number % ACCOUNTS
            if client.number < ACCOUNTS:
                await client.attempt(client.db.run(self._send, client, number))
            else:
                await client.attempt(client.db.run(self._credit, client, number))
            await client.pause(0.05)

    async def _send(self, tx: Any, client: Client, source: int) -> None:
        target = client.random.choice([each for each in range(ACCOUNTS) if each != source])
        amount = client.random.randint(1, 9)
        balance = int(await tx.get(_account(source)))
        count = await tx.increment(_count(source, target))
        tx.put(_account(source), b"%d" % (balance - amount))
        headers = {"from": source, "count": count}
        tx.enqueue_message(_account(target), b"%d" % amount, headers=headers)

    async def _credit(self, tx: Any, client: Client, number: int) -> None:
        most = client.random.choice([1, 3, 100])
        wait = client.random.choice([None, 0.05])
        reaped = await tx.reap_queue(_account(number), most, wait=wait)
        balance = int(await tx.get(_account(number)))
        last: dict[int, int] = {}
        for message in reaped:
            sender, count = message.headers["from"], message.headers["count"]
            assert count > last.get(sender, 0), f"message {count} of {sender} comes after {last}"
            last[sender] = count
            balance += int(message.value)
        if reaped:
            tx.put(_account(number), b"%d" % balance)

    async def check(self, db: CoreDatabase) -> None:
        """Check that nothing is under way any more, and that nothing is missing."""
        await db.drain()
        under_way = 0
        for number in range(ACCOUNTS):
            under_way += sum(int(each.value) for each in await reap_all(db, _account(number)))
        balances = [int(value) for _, value in await pairs(db, b"ledger/account/")]
        total = sum(balances) + under_way
        assert total == ACCOUNTS * OPENING_BALANCE, f"{total} is left of the money"
