"""Appends: transactions that read lists and append to them, all of it written down.

It is :mod:`.lists`, but judged with moments: a transaction also comes after all that had returned
before it was begun (:mod:`tests.sim.recorded.appends`). A few read a list again that they have
appended to, and append to it once more. A few read several lists at the same time.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.at_once import at_once
from tests.sim.recorded.appends import check_appends
from tests.sim.recorded.operations import Record, Transaction
from tests.sim.workloads.workload import Client

LISTS = 3


def _list(number: int) -> bytes:
    return b"appends/%d" % number


class Appends:
    """A workload of appends. ``record`` has the clock of the world that this happens in."""

    clients = 4

    def __init__(self, record: Record) -> None:
        self.record = record

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: all lists are empty."""

    async def start(self, client: Client) -> None:
        """Carry out one transaction after the other."""
        while client.goes_on():
            transaction = Transaction(f"client {client.number}-{client.life}")
            call = client.db.run(self._read_and_append, client, transaction, client.token())
            await client.attempt(self.record.transact(transaction, call))
            await client.pause()

    async def _read_and_append(
        self, tx: Any, client: Client, transaction: Transaction, token: bytes
    ) -> None:
        transaction.actions.clear()  # an earlier try came to nothing
        numbers = client.random.sample(range(LISTS), client.random.randint(1, LISTS))
        if client.random.random() < 0.4:
            keys = [_list(number) for number in numbers]
            found = await at_once(client.db, *(self._read(tx, key) for key in keys))
            for key, elements in zip(keys, found, strict=True):
                transaction.actions.append(("read", key, elements))
        for number in numbers:
            key = _list(number)
            while True:
                before = (await tx.get(key) or b"").split()
                transaction.actions.append(("read", key, tuple(before)))
                if client.random.random() < 0.5:
                    break
                element = token + b".%d" % len(transaction.actions)
                tx.put(key, b" ".join([*before, element]))
                transaction.actions.append(("append", key, element))
                if client.random.random() < 0.7:
                    break

    async def _read(self, tx: Any, key: bytes) -> tuple[bytes, ...]:
        read = tx.get_for_update if key == _list(0) else tx.get
        return tuple((await read(key) or b"").split())

    async def check(self, db: CoreDatabase) -> None:
        """Check that an order of the transactions explains everything."""
        last = Transaction("check")

        async def read_all(tx: Any) -> None:
            last.actions.clear()
            for number in range(LISTS):
                elements = tuple((await tx.get(_list(number)) or b"").split())
                last.actions.append(("read", _list(number), elements))

        await self.record.transact(last, db.run(read_all))
        check_appends(self.record.transactions)
