"""Couriers: messages between keys that lie far apart, with transactions as the oracle.

In the transaction that sends a parcel to a box, the sender counts it in a key of its own. It notes
the name of the parcel under another key, and defers an increment for the box. A receiver notes
under other keys what it has taken. Whatever ranges these keys are in, the note of a parcel is there
when the parcel comes. Each parcel comes once; those that one range has sent for one sender come in
order. At the end the counts, the notes and the increments agree.
"""

from __future__ import annotations

from typing import Any, Final

import postroom
from postroom.client.database import CoreDatabase
from postroom.ranges.requests import Increment
from tests.sim.workloads.workload import Client, pairs, reap_all

SENDERS: Final = 3
RECEIVERS: Final = 3
BOXES: Final = (b"courier/box", b"parcel/box", b"zone/box")
SENDER: Final = slice(16, 32)
"""The part of a message's id that names the range that has sent it."""


def _count(sender: int) -> bytes:
    return b"%c courier/count/%d" % (b"bky"[sender], sender)


def _sum(box: bytes) -> bytes:
    return b"sums of " + box


class Couriers:
    """A workload of messages between keys that lie far apart."""

    clients = SENDERS + RECEIVERS

    async def setup(self, db: CoreDatabase) -> None:
        """Make the keys of senders and boxes, so that ranges split there."""

        def begin(tx: Any) -> None:
            for sender in range(SENDERS):
                tx.put(_count(sender), b"0")
            for box in BOXES:
                tx.put(box, b"")

        await db.run(begin)

    async def start(self, client: Client) -> None:
        """Send with the first clients, receive with the others."""
        while client.goes_on():
            act = self._send if client.number < SENDERS else self._receive
            await client.attempt(client.db.run(act, client, client.token()))
            await client.pause()

    async def _send(self, tx: Any, client: Client, token: bytes) -> None:
        key = _count(client.number)
        count = int(await tx.get(key))
        tx.put(key, b"%d" % (count + 1))
        box = client.random.choice(BOXES)
        later = client.random.choice([None, None, None, 0.0, 0.05])
        headers = {"from": client.number, "count": count if later is None else None}
        tx.enqueue_message(box, token, headers=headers, deliver_at=later)
        tx.enqueue_update(Increment(_sum(box), 1))
        tx.put(b"posted/" + token, box)

    async def _receive(self, tx: Any, client: Client, _: bytes) -> None:
        """Take parcels; each note of that has a name of its own, so one that comes twice shows."""
        choose = client.random.choice
        box = choose(BOXES)
        for message in await tx.reap_queue(box, choose([1, 3, 20]), wait=choose([None, 0.05])):
            name = bytes(message.value)
            assert await tx.get(b"posted/" + name) == box, f"{name!r} came, and was not sent"
            tx.put(b"got/" + client.token(), name)
            await self._check_order(tx, box, message)

    async def _check_order(self, tx: Any, box: bytes, message: Any) -> None:
        count = message.headers["count"]
        if count is None or message.attempts:  # it came later, or has been put back
            return
        who = b"%d/%s" % (message.headers["from"], message.id[SENDER].encode())
        key = b"last/" + box + b"/" + who
        last, came_at = map(int, (await tx.get(key) or b"-1 0").split())
        if count > last:
            assert message.delivered_at >= came_at, f"{count} of {who!r} has overtaken {last}"
            tx.put(key, b"%d %d" % (count, message.delivered_at))
        else:  # it was reaped before, in vain
            assert message.delivered_at <= came_at, f"{last} of {who!r} has overtaken {count}"

    async def check(self, db: CoreDatabase) -> None:
        """Check that everything has come once."""
        await db._sender.sleep(1.0)
        await db.drain()
        left = [bytes(each.value) for box in BOXES for each in await reap_all(db, box)]
        posted = {key.removeprefix(b"posted/"): box for key, box in await pairs(db, b"posted/")}
        got = [bytes(name) for _, name in await pairs(db, b"got/")]
        assert sorted(got + left) == sorted(posted), f"posted {posted}, got {got}, left {left}"
        for box in BOXES:
            found = postroom.integer(await db.get(_sum(box)) or bytes(8))
            sent = sum(each == box for each in posted.values())
            assert found == sent, f"{sent} were sent to {box!r}, and the sum is {found}"
        counts = [int(await db.get(_count(sender)) or b"") for sender in range(SENDERS)]
        assert sum(counts) == len(posted), f"counted {counts}, posted {len(posted)}"
