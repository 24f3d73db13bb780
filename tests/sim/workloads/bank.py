"""Bank: transfers between accounts, in serializable transactions. No money appears or is lost.

Auditors look at all accounts at once, by scan, by snapshot and key by key, while the transfers go
on: the sum is the same at every moment. Each transfer also writes a receipt; what was acknowledged
has one, and the receipts explain every balance.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.workloads.workload import Client, pairs

ACCOUNTS = 5
OPENING_BALANCE = 100


def _account(number: int) -> bytes:
    return b"bank/account/%d" % number


class Bank:
    """A workload of transfers between accounts."""

    clients = 4

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()

    async def setup(self, db: CoreDatabase) -> None:
        """Open the accounts."""

        def open_accounts(tx: Any) -> None:
            for number in range(ACCOUNTS):
                tx.put(_account(number), b"%d" % OPENING_BALANCE)

        await db.run(open_accounts)

    async def start(self, client: Client) -> None:
        """Make transfers, and now and then an audit."""
        while client.goes_on():
            if client.random.random() < 0.2:
                await client.attempt(self._audit(client))
            else:
                receipt = b"bank/receipt/" + client.token()
                if await client.attempt(self._transfer(client, receipt)):
                    self.acknowledged.add(receipt)
            await client.pause()

    async def _transfer(self, client: Client, receipt: bytes) -> bool:
        source, target = client.random.sample(range(ACCOUNTS), 2)
        amount = client.random.randint(1, 20)
        locks = client.random.random() < 0.3

        async def transfer(tx: Any) -> None:
            read = tx.get_for_update if locks else tx.get
            balance = int(await read(_account(source)))
            other = int(await read(_account(target)))
            if amount <= balance:
                tx.put(_account(source), b"%d" % (balance - amount))
                tx.put(_account(target), b"%d" % (other + amount))
                tx.put(receipt, b"%d %d %d" % (source, target, amount))
            else:
                tx.put(receipt, b"%d %d 0" % (source, target))

        await client.db.run(transfer)
        return True

    async def _audit(self, client: Client) -> None:
        db, way = client.db, client.random.choice(["scan", "snapshot", "transaction"])
        if way == "scan":
            found = [value for _, value in await pairs(db, b"bank/account/")]
        elif way == "snapshot":
            async with db.snapshot() as snapshot:
                found = [await snapshot.get(_account(number)) for number in range(ACCOUNTS)]
        else:

            async def read_all(tx: Any) -> list[bytes]:
                return [await tx.get(_account(number)) for number in range(ACCOUNTS)]

            found = await db.run(read_all)
        total = sum(map(int, found))
        assert total == ACCOUNTS * OPENING_BALANCE, f"{way}: the accounts hold {total}"

    async def check(self, db: CoreDatabase) -> None:
        """Check that the balances are what the receipts make of them."""
        expected = dict.fromkeys(range(ACCOUNTS), OPENING_BALANCE)
        receipts = await pairs(db, b"bank/receipt/")
        for _, receipt in receipts:
            source, target, amount = map(int, receipt.split())
            expected[source] -= amount
            expected[target] += amount
        for number, balance in expected.items():
            assert int(await db.get(_account(number))) == balance
        lost = self.acknowledged - {key for key, _ in receipts}
        assert not lost, f"acknowledged, and lost: {lost}"
