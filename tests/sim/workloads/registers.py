"""Registers: single keys, read and written by many at once; each is linearizable.

Values are never written twice, so that every read tells which write it saw.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from postroom.errors import ConditionFailed
from tests.sim.recorded.operations import Operation, Outcome, Record
from tests.sim.recorded.registers import check_registers
from tests.sim.workloads.workload import Client

KEYS = 2


class Registers:
    """A workload of registers. ``record`` has the clock of the world that this happens in."""

    clients = 4

    def __init__(self, record: Record) -> None:
        self.record = record

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: nothing is there."""

    async def start(self, client: Client) -> None:
        """Carry out one operation after the other; a client may expect what it saw last."""
        seen: dict[bytes, bytes | None] = {}
        while client.goes_on():
            key = b"register/%d" % client.random.randrange(KEYS)
            await client.attempt(self._operate(client, key, seen))
            await client.pause()

    async def _operate(self, client: Client, key: bytes, seen: dict[bytes, bytes | None]) -> None:
        db, record = client.db, self.record
        name, token = f"client {client.number}-{client.life}", client.token()
        chance = client.random.random()
        if chance < 0.5:
            seen[key] = await record.operate(Operation(name, "get", key), db.get(key))
        elif chance < 0.75:
            await record.operate(Operation(name, "put", key, token), db.put(key, token))
        elif chance < 0.8:
            await record.operate(Operation(name, "delete", key), db.delete(key))
        else:
            await self._put_if(
                client, Operation(name, "conditional_put", key, token, seen.get(key))
            )

    async def _put_if(self, client: Client, operation: Operation) -> None:
        key, value, expected = operation.key, operation.value, operation.expected
        try:
            call = client.db.conditional_put(key, value, expected)
            await self.record.operate(operation, call)
        except ConditionFailed as failed:
            # The answer is as good as a read.
            operation.action, operation.outcome = "get", Outcome.OK
            actual: Any = failed.actual
            operation.result = actual
            assert actual != expected, f"{operation} failed without a reason"

    async def check(self, db: CoreDatabase) -> None:
        """Check that there is an order of the operations of each key."""
        for number in range(KEYS):
            key = b"register/%d" % number
            await self.record.operate(Operation("check", "get", key), db.get(key))
        check_registers(self.record.operations)
