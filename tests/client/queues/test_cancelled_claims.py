"""A claim that is cancelled just when it is answered: nobody loses the message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client.routing.calls import RemoteCall
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.calls import Call
from postroom.ranges.requests import CommitTransaction
from tests.client.hand_driver import RemoteDriver
from tests.client.stores import Store


def test_by_its_task() -> None:
    """It may be cancelled at each turn of the loop."""

    async def main() -> None:
        async with await postroom.aio.open(":memory:") as db:
            q = await db.create_queue("q", ack_wait=600)
            cancelled = 0
            for steps in range(40):
                waiting = asyncio.ensure_future(q.claim(1, wait=60))
                await asyncio.sleep(0.002)
                tx = db.begin()
                tx.enqueue("q", b"")
                committing = asyncio.ensure_future(tx.commit())
                for _ in range(steps % 10):
                    await asyncio.sleep(0)
                waiting.cancel()
                await committing
                found: Any = (await asyncio.gather(waiting, return_exceptions=True))[0]
                if isinstance(found, asyncio.CancelledError):
                    cancelled += 1
                    found = await q.claim(1, wait=5)
                (message,) = found
                assert message.epoch == 0
                await message.acknowledge()
            assert cancelled

    asyncio.run(main())


class _Asked(RemoteCall):
    """A call of a client that does not wait for the answer in the end."""

    def complete(self, result: Any, error: BaseException | None) -> None:
        raise AssertionError("it was cancelled")


class _Posted(Call):
    """A call at the node itself."""

    def complete(self, result: Any, error: BaseException | None) -> None:
        assert error is None


def test_a_claim_cancelled_while_its_answer_is_on_its_way_goes_back() -> None:
    store = Store(remote=True)
    driver = store.driver
    assert isinstance(driver, RemoteDriver)
    q = store.db.create_queue("q", ack_wait=600)
    asked = _Asked(ClaimQueue("q", driver.next_id(), 1, ClaimSelection(), wait=True))
    driver.router.submit(asked)
    driver.settle()
    driver.cut = True
    write = EnqueueInQueue("q", b"k", "", b"i", b"")
    store.node.replicas.submit(_Posted(
        CommitTransaction(bytes(16), driver.reading(), 60.0, 0, b"k", [], [], [write])
    ))  # fmt: skip
    store.advance(0.01)
    driver.router.cancel(asked)
    driver.cut = False
    driver.settle()
    (message,) = q.claim(1, wait=1)
    assert (message.id, message.epoch) == ("i", 0)
    store.db.close()


class _Waits(RemoteCall):
    """A call of a client that waits for the answer."""

    answer: Any = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        assert error is None
        self.answer = result


class _InVain(RemoteCall):
    """A call of a client that waits for the answer until its time is over."""

    error: BaseException | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        assert result is None
        self.error = error


def _lost(store: Store, asked: RemoteCall, *, cancelled: bool = False) -> RemoteDriver:
    """Answer a claim, and break the stream before the client gets the answer."""
    driver = store.driver
    assert isinstance(driver, RemoteDriver)
    driver.router.submit(asked)
    driver.settle()
    driver.cut = True
    write = EnqueueInQueue("q", b"k", "", b"i", b"")
    store.node.replicas.submit(_Posted(
        CommitTransaction(bytes(16), driver.reading(), 60.0, 0, b"k", [], [], [write])
    ))  # fmt: skip
    store.advance(0.01)
    if cancelled:
        driver.router.cancel(asked)
    return driver


def _break(driver: RemoteDriver) -> None:
    _cut(driver)
    driver.cut = False
    driver.settle()


def _cut(driver: RemoteDriver) -> None:
    for number in list(driver._streams):
        driver._streams.pop(number).close()
        driver.router.disconnected(number, postroom.Unavailable("the stream broke"))


@pytest.mark.parametrize("restarts", [False, True])
def test_an_answer_that_is_lost_is_given_again(restarts: bool) -> None:
    store = Store(remote=True)
    q = store.db.create_queue("q", ack_wait=600)
    asked = _Waits(ClaimQueue("q", store.driver.next_id(), 1, ClaimSelection(), wait=True))
    driver = _lost(store, asked)
    if restarts:
        driver.cut = False
        store.restart()
    else:
        _break(driver)
    store.advance(1)
    assert asked.done
    assert [(each.id, each.epoch) for each in asked.answer.messages] == [(b"i", 0)]
    assert (q.stats().leased, q.stats().fired) == (1, 1)
    store.db.close()


@pytest.mark.parametrize("again", [False, True])
def test_an_answer_that_is_lost_and_not_wanted_is_given_back(again: bool) -> None:
    """It is given back, too, if the stream breaks again while its client is asked for the claim."""
    store = Store(remote=True)
    q = store.db.create_queue("q", ack_wait=600)
    asked = _Asked(ClaimQueue("q", store.driver.next_id(), 1, ClaimSelection(), wait=True))
    driver = _lost(store, asked, cancelled=True)
    if again:
        _break(driver)
        driver.cut = True
        store.advance(0.01)
    _break(driver)
    (message,) = q.claim(1, wait=1)
    assert (message.id, message.epoch, q.stats().expired) == ("i", 0, 0)
    store.db.close()


@pytest.mark.parametrize("ends", ["cancelled", "out of time"])
def test_an_answer_that_is_lost_is_given_back_by_who_does_not_wait_for_a_leader(ends: str) -> None:
    """It was in no stream, but in the queue, when nobody waited for it any more."""
    store = Store(remote=True)
    q = store.db.create_queue("q", ack_wait=600)
    asked = _InVain(
        ClaimQueue("q", store.driver.next_id(), 1, ClaimSelection(), wait=True),
        1.0 if ends == "out of time" else None,
    )
    driver = _lost(store, asked)
    _cut(driver)
    if ends == "cancelled":
        driver.router.cancel(asked)
    else:
        store.advance(1.5)
        assert type(asked.error) is DeadlineExceeded
    driver.cut = False
    store.advance(1.5)
    (message,) = q.claim(1, wait=1)
    assert (message.id, message.epoch, q.stats().expired) == ("i", 0, 0)
    store.db.close()
