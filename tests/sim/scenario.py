"""A fixed scenario that meets every kind of write, and ends in one known state.

One client carries it out, step by step, each in a transaction that it retries until it has
happened. Whatever breaks meanwhile, at the end everything has happened exactly once.
"""

from __future__ import annotations

from typing import Any, Final

import postroom
from postroom.client.database import CoreDatabase
from postroom.kv.log_device import WriteFault
from postroom.ranges.requests import Accounting, Delete, DeleteRange, Increment, Put
from postroom.server.assembly import NodeOptions
from tests.sim.cluster.embedded import EmbeddedStore
from tests.sim.history import History

PATIENCE_SECONDS: Final = 1000.0


def write(tx: Any) -> None:
    """Write values, a few of them over earlier ones."""
    for number in range(5):
        tx.put(b"key/%d" % number, b"first")


def overwrite(tx: Any) -> None:
    """Write a newer version, and a deletion."""
    tx.put(b"key/0", b"second")
    tx.delete(b"key/1")


def send(tx: Any) -> None:
    """Send messages at once and later, and defer updates at once and later."""
    tx.enqueue_message(b"inbox", b"at once")
    tx.enqueue_message(b"inbox", b"later", deliver_at=0.05)
    tx.enqueue_update(Increment(b"counter", 5))
    tx.enqueue_update(Increment(b"counter", 7), execute_at=0.05)
    tx.enqueue_update(Accounting(b"stats/a", {"sent": 2}))


def send_behind(tx: Any) -> None:
    """Send while something waits in the outboxes."""
    tx.enqueue_message(b"inbox", b"behind")
    tx.enqueue_update(Increment(b"counter", 1))
    tx.enqueue_update(Put(b"deferred", b"value"), execute_at=0.01)
    tx.enqueue_update(Delete(b"key/2"))


def poison(tx: Any) -> None:
    """Send updates that can never succeed."""
    tx.put(b"text", b"no number")
    tx.enqueue_update(Increment(b"text", 1))
    tx.enqueue_update(Increment(b"text", 2), execute_at=0.02)


async def reap(tx: Any) -> None:
    """Reap the oldest message, with a change of state."""
    for message in await tx.reap_queue(b"inbox", 1, wait=1.0):
        tx.put(b"reaped/" + message.value, b"")


async def count(tx: Any) -> None:
    """Read and write."""
    await tx.increment(b"steps", 1)
    tx.enqueue_update(DeleteRange(b"key/3", b"key/4"))


async def carry_out(db: CoreDatabase) -> None:
    """Carry out all steps."""
    for step in (write, overwrite, send, send_behind, poison, reap, count):
        await db.run(step)
    await db._sender.sleep(5.0)  # each crash sets the clock a second ahead, where it stands still
    await db.run(reap)
    await db._sender.sleep(100.0)  # versions and COMMIT records become garbage
    await db.run(count)
    await db._sender.sleep(6.0)


async def check(db: CoreDatabase) -> None:
    """Check that everything has happened once."""
    await db.drain()
    left = {key: value async for key, value in db.scan(b"", None)}
    assert left == {
        b"counter": (13).to_bytes(8, "big"),
        b"deferred": b"value",
        b"key/0": b"second",
        b"key/4": b"first",
        b"reaped/at once": b"",
        b"reaped/later": b"",
        b"steps": (2).to_bytes(8, "big"),
        b"text": b"no number",
    }
    assert [message.value for message in await db.peek(b"inbox")] == [b"behind"]
    letters = await db.dead_letters()
    assert sorted(letter.request.by for letter in letters) == [1, 2]
    assert await db.accounting(b"stats") == {"sent": 2}
    assert (await db.status()).pending == 0
    assert postroom.integer(left[b"counter"]) == 13


class Scenario:
    """The scenario in a store of its own, with a fault at one write.

    Args:
        options: of the node.
    """

    def __init__(self, options: NodeOptions | None = None) -> None:
        self.store = EmbeddedStore(1, options, in_parts=False)
        self.history = History()
        self.store.witness = self.history

    def run(self) -> int:
        """Carry it out and check it; answers how many writes the disk has seen."""
        store = self.store
        store.heals = True
        store.machine.on_crash = lambda _: store.check()
        db = store.database()
        store.run(carry_out(db), seconds=PATIENCE_SECONDS)
        store.retry(lambda: check(db), db)
        store.write_gathered()
        self.history.check(store.check())
        return store.machine.disk.writes

    def fail_write(self, number: int, fault: WriteFault) -> None:
        """Let the write fail, and open the node again."""
        self.store.machine.disk.write_faults[number] = fault
