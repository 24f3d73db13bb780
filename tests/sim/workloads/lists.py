"""Lists: transactions read lists and append to them; the lists then tell what order there was.

Judged by :mod:`tests.sim.recorded.appends`, as :mod:`.appends` is, but without moments: all of it
counts as if it had been done at the same time, and before the check. This workload needs no clock
that clients share therefore.

A few transactions read all their lists at the same time before they begin.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.at_once import at_once
from tests.sim.recorded.appends import check_appends
from tests.sim.recorded.operations import Record, Transaction
from tests.sim.workloads.workload import Client

LISTS = 4


def _list(number: int) -> bytes:
    return b"list/%d" % number


class Lists:
    """A workload of lists that transactions read and append to."""

    clients = 4

    def __init__(self) -> None:
        self._moment = 0.0
        self.record = Record(lambda: self._moment)

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: all lists are empty."""

    async def start(self, client: Client) -> None:
        """Read some lists, append to others."""
        while client.goes_on():
            transaction = Transaction(f"client {client.number}-{client.life}")
            call = client.db.run(self._read_and_append, client, transaction, client.token())
            await client.attempt(self.record.transact(transaction, call))
            await client.pause()

    async def _read_and_append(
        self, tx: Any, client: Client, transaction: Transaction, token: bytes
    ) -> None:
        transaction.actions.clear()  # an earlier try came to nothing
        numbers = client.random.sample(range(LISTS), client.random.randint(1, 3))
        appends = numbers[: client.random.randint(0, 2)]
        if client.random.random() < 0.3:
            keys = [_list(number) for number in numbers]
            found = await at_once(client.db, *(tx.get(key) for key in keys))
            for key, value in zip(keys, found, strict=True):
                transaction.actions.append(("read", key, tuple((value or b"").split())))
        for number in numbers:
            key = _list(number)
            before = (await tx.get(key) or b"").split()
            transaction.actions.append(("read", key, tuple(before)))
            if number in appends:
                tx.put(key, b" ".join([*before, token]))
                transaction.actions.append(("append", key, token))

    async def check(self, db: CoreDatabase) -> None:
        """Check that an order of the transactions explains everything."""
        self._moment = 1.0
        last = Transaction("check")

        async def read_all(tx: Any) -> None:
            last.actions.clear()
            for number in range(LISTS):
                elements = tuple((await tx.get(_list(number)) or b"").split())
                last.actions.append(("read", _list(number), elements))

        await self.record.transact(last, db.run(read_all))
        check_appends(self.record.transactions)
