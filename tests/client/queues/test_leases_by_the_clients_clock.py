"""A client counts the leases of its messages by its own monotonic clock, from the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.client.codec import resolve
from postroom.client.queues.messages import QueueMessage
from postroom.client.worker.calls import Running
from postroom.client.worker.tasks import Keeper
from tests.client.queues.fakes import stored
from tests.client.stores import Store

DAY = 86_400.0


class StandingClock:
    """A sender whose reading of the store's clock stands, or is a day ahead."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self.seconds = 100.0

    def reading(self) -> int:
        return self._reading

    def monotonic(self) -> float:
        return self.seconds


class Extending:
    """A message that counts how often its lease is extended."""

    def __init__(self, message: QueueMessage) -> None:
        self.held_until = message.held_until
        self.leased_until = message.leased_until
        self.extended_by: list[float] = []

    async def extend(self, seconds: float) -> None:
        self.extended_by.append(seconds)


@pytest.mark.parametrize("ahead", [-DAY, 0.0, DAY])
def test_a_heartbeat_goes_on_whatever_the_stores_clock_seems_to_be(ahead: float) -> None:
    async def work() -> None:
        leased = stored(seconds=0.08)
        sender: Any = StandingClock(leased.created_at + (int(ahead * 1000) << 16))
        message = QueueMessage("q", leased, resolve(None), answered_at=sender.seconds)
        held: Any = Extending(message)
        keeper = Keeper(sender)
        keeper.begins(held, Running(sender.monotonic))
        sender.seconds += 0.05
        while not held.extended_by:
            await asyncio.sleep(0)
        keeper.close()
        assert held.extended_by[0] == pytest.approx(0.08)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_messages_in_hand_are_handed_out_although_the_store_was_heard_ahead() -> None:
    """The client has heard another node's clock, which was a day ahead of the leaseholder's."""
    store = Store(remote=True)
    driver: Any = store.driver
    store.db.create_queue("q", ack_wait=30)
    for number in range(3):
        with store.db.begin() as tx:
            tx.enqueue("q", b"", id=str(number))
    driver.router.clock.heard(store.node.clock.reading() + (int(DAY * 1000) << 16))
    received = store.db.queue("q").receive()
    assert [next(received).id for _ in range(3)] == ["0", "1", "2"]
    assert store.db.queue("q").stats().fired == 3
    store.db.close()


def test_the_client_is_heard_of_as_long_as_its_leases_last(store: Store) -> None:
    q = store.db.create_queue("q", ack_wait=60)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1")
    (message,) = q.claim(1)
    store.clock.epoch_milliseconds += int(DAY * 1000)
    store.advance(30.0)
    store.clock.epoch_milliseconds -= int(DAY * 1000)
    store.advance(25.0)
    assert q.stats().leased == 1
    message.extend(60)
    store.advance(50.0)
    message.acknowledge()
