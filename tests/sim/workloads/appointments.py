"""Appointments: messages and updates for later, some of which are cancelled in time, or just not.

Each appointment is made twice, as a message and as an update, in one transaction that notes it. A
client that cancels one remembers how that ended. When everything has come to rest each of them has
either taken place, once, or was cancelled, and clients were told the truth about that. The others
have taken place. None of them is late, whatever the wall clocks have been set to.
"""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

from postroom.client.database import CoreDatabase
from postroom.client.values import Scheduled
from postroom.ranges.requests import Put
from tests.sim.workloads.workload import Client, pairs, reap_all

DIARY = b"appointments/diary"
EPOCH_SECONDS = 1_700_000_000
DELAY_SECONDS_MAX = 3.0
LATE_SECONDS = 1.5
"""The time after which an appointment is late: a service that was woken too early looks again."""
LOOKS = 50


class Appointments:
    """A workload of messages and updates for later.

    Attributes:
        cancelled: what somebody was told to have cancelled, by kind and name.
        unanswered: how many tried to cancel it and never heard what came of it.
    """

    clients = 2

    def __init__(self) -> None:
        self.cancelled: set[bytes] = set()
        self.unanswered: Counter[bytes] = Counter()

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: nothing is planned."""

    async def start(self, client: Client) -> None:
        """Make appointments, and cancel some."""
        while client.goes_on():
            if client.random.random() < 0.6:
                await client.attempt(client.db.run(self._make, client, client.token()))
            else:
                await client.attempt(self._cancel_some(client))
            await client.pause()

    def _make(self, tx: Any, client: Client, token: bytes) -> None:
        delay = client.random.choice([0.002, 0.02, 0.5, DELAY_SECONDS_MAX])
        tx.enqueue_message(DIARY, token, deliver_at=delay)
        update = Put(b"appointments/kept/" + token, token)
        tx.enqueue_update(update, execute_at=_when(client, client.random.choice([delay, 0.5])))
        tx.put(b"appointments/made/" + token, b"")

    async def _cancel_some(self, client: Client) -> None:
        limit = client.random.choice([1, 5, 100])
        found = await client.db.scheduled(b"appointments/", b"appointments0", limit=limit)
        assert [each.due for each in found] == sorted(each.due for each in found)
        await client.pause()  # a part takes place meanwhile
        for each in client.random.sample(found, min(len(found), 2)):
            name = _name(each)
            self.unanswered[name] += 1
            if await client.db.cancel([each.id]):
                self.cancelled.add(name)
            self.unanswered[name] -= 1

    async def check(self, db: CoreDatabase) -> None:
        """Check that everything took place, or was cancelled."""
        for _ in range(LOOKS):
            planned = await db.scheduled(b"appointments/", b"appointments0", limit=1000)
            if not planned:
                break
            await db._sender.sleep((DELAY_SECONDS_MAX + LATE_SECONDS) / LOOKS)
        assert not planned, f"late, though the clocks are right: {planned[0]}"
        await db.drain()
        delivered = [b"message/" + message.value for message in await reap_all(db, DIARY)]
        prefix = b"appointments/kept/"
        executed = [b"update/" + key.removeprefix(prefix) for key, _ in await pairs(db, prefix)]
        took_place = {*delivered, *executed}
        assert len(took_place) == len(delivered) + len(executed), "twice"
        for key, _ in await pairs(db, b"appointments/made/"):
            token = key.removeprefix(b"appointments/made/")
            for name in (b"message/" + token, b"update/" + token):
                self._compare(name, name in took_place)
        counters = (await db.status()).counters
        assert len(self.cancelled) <= counters.cancelled <= counters.discarded

    def _compare(self, name: bytes, took_place: bool) -> None:
        if name in self.cancelled:
            assert not took_place, f"{name!r} was cancelled, and took place"
        elif not self.unanswered[name]:
            assert took_place, f"{name!r} did not take place, and nobody cancelled it"


def _when(client: Client, delay: float) -> float | datetime.datetime:
    """Return a duration; for every second client a moment of a correct wall clock."""
    if client.number % 2:
        return delay
    seconds = EPOCH_SECONDS + client.db._sender.monotonic() + min(delay, 0.5)
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _name(each: Scheduled) -> bytes:
    if each.request is None:
        return b"message/" + bytes(each.message)
    return b"update/" + each.key.removeprefix(b"appointments/kept/")
