"""The timer of a node on an event loop, in scripted time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

import pytest

from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.messaging import due as times
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage, ReapQueue
from postroom.raft.interface import NoPeers
from postroom.ranges.requests import CommitTransaction, Put, ScanChanges
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver, LoopAlarm
from postroom.server.node import Node
from tests.client.hand_driver import HandClock
from tests.messaging.one_range import Asked
from tests.messaging.queues.harness import Q


class _Timer:
    def __init__(self, rings_at: float, act: Callable[[], None]) -> None:
        self.rings_at = rings_at
        self.act = act
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def cancelled(self) -> bool:
        return self._is_cancelled


class _Loop:
    """A loop with timers, which the test rings."""

    def __init__(self, clock: HandClock) -> None:
        self.timers: list[_Timer] = []
        self._clock = clock

    def call_soon(self, act: Callable[[], None]) -> None:
        self.call_later(0.0, act)

    def run_soon(self) -> None:
        """Do everything that needs no timer."""
        while soon := [each for each in self.timers if each.rings_at <= self._clock.seconds]:
            self.timers = [each for each in self.timers if each not in soon]
            for each in soon:
                if not each.cancelled():
                    each.act()

    def call_later(self, seconds: float, act: Callable[[], None]) -> _Timer:
        self.timers.append(timer := _Timer(self._clock.seconds + seconds, act))
        return timer

    def ring_next(self, early_seconds: float) -> None:
        """Move the clock to the next timer, which rings too early by so much."""
        self.timers = [each for each in self.timers if not each.cancelled()]
        assert self.timers, "nothing will happen any more"
        timer = min(self.timers, key=lambda each: each.rings_at)
        self.timers.remove(timer)
        self._clock.seconds = max(self._clock.seconds + 0.0001, timer.rings_at - early_seconds)
        timer.act()


def _driver(clock: HandClock, loop: Any) -> AsyncioDriver:
    async def make() -> AsyncioDriver:
        node = Node(MemoryEngine(), clock, Random(1), NoPeers(), NodeOptions())
        return AsyncioDriver(node, Random(2))

    driver = asyncio.run(make())
    driver.alarm.cancel()
    driver.alarm = LoopAlarm(loop, driver.ring)
    driver.loop = loop
    return driver


def test_a_timer_that_rings_early_is_set_again() -> None:
    """Event loops that count in milliseconds let timers ring early.

    A timer that rang early must not count as set until the clock has passed it: no later timer
    would ring until the next call.
    """
    clock = HandClock()
    loop = _Loop(clock)
    driver = _driver(clock, loop)
    driver.start()
    rung = list[float]()
    driver.node.call_after(1.0, lambda: rung.append(clock.seconds))
    for _ in range(50):
        loop.ring_next(early_seconds=0.0004)
        if rung:
            break
    assert len(rung) == 1
    assert 1.0 <= rung[0] < 1.001


def _asked(driver: AsyncioDriver, loop: _Loop, request: Any) -> Asked:
    """Return the answer to a request that needs no timer."""
    asked = Asked(request)
    driver.node.replicas.submit(asked)
    loop.run_soon()
    return asked


def _commit(driver: AsyncioDriver, write: Any) -> CommitTransaction[Any]:
    return CommitTransaction(driver.next_id(), driver.now(), 60.0, 0, b"key", [], [], [write])


def _enqueued(driver: AsyncioDriver, due: int = 0) -> CommitTransaction[Any]:
    return _commit(driver, EnqueueInQueue(Q, b"key", "", b"id", b"payload", due=due))


def _served() -> tuple[AsyncioDriver, _Loop, HandClock]:
    """Return a store that serves, on a loop whose clock stands still."""
    clock = HandClock()
    loop = _Loop(clock)
    driver = _driver(clock, loop)
    driver.start()
    for _ in range(5):
        loop.ring_next(early_seconds=0.0)
    loop.run_soon()
    created = _asked(driver, loop, _commit(driver, CreateQueue(Q, QueueSettings())))
    assert created.answers[0][1] is None
    return driver, loop, clock


def test_a_claim_of_a_message_that_is_there_waits_for_no_timer() -> None:
    """It is leased by upkeep, which otherwise waits a moment for the request of a client."""
    driver, loop, _ = _served()
    assert _asked(driver, loop, _enqueued(driver)).answers[0][1] is None
    claimed = _asked(driver, loop, ClaimQueue(Q, b"consumer" * 2, 1, ClaimSelection()))
    [(answer, error)] = claimed.answers
    assert error is None
    assert [each.id for each in answer.messages] == [b"id"]


_REAP: Final = ReapQueue(b"inbox", 1, 1000, b"transaction" + bytes(5), 60.0, wait=True)
_CLAIM: Final = ClaimQueue(Q, b"consumer" * 2, 1, ClaimSelection(), wait=True)


@pytest.mark.parametrize(
    ("waits", "write"),
    [
        (_REAP, EnqueueMessage(b"inbox", b"value")),
        (_CLAIM, EnqueueInQueue(Q, b"key", "", b"id", b"payload")),
        (ScanChanges(b"key", b"kez", 0), Put(b"key", b"value")),
    ],
    ids=["reaper", "consumer", "watcher"],
)
def test_one_who_waits_for_a_commit_waits_for_no_timer(waits: Any, write: Any) -> None:
    driver, loop, _ = _served()
    if type(waits) is ScanChanges:
        waits = ScanChanges(waits.start, waits.end, driver.now())
    waiting = _asked(driver, loop, waits)
    assert not waiting.answers
    _asked(driver, loop, _commit(driver, write))
    [(_, error)] = waiting.answers
    assert error is None


def _counted_turns(driver: AsyncioDriver) -> list[WriteSet]:
    """Return the list in which the turns from now on leave what they write."""
    turns = list[WriteSet]()
    prepare = driver.node.prepare

    def prepare_one() -> WriteSet:
        turns.append(prepare())
        return turns[-1]

    driver.node.prepare = prepare_one  # type: ignore[method-assign] - turns are counted
    return turns


def test_a_timer_that_rings_beside_requests_takes_no_turn_of_its_own() -> None:
    """Requests that come in the same moment would be parted, and go on in two halves."""
    driver, loop, _ = _served()
    turns = _counted_turns(driver)
    for key in (b"first", b"second"):
        driver.node.replicas.submit(Asked(_commit(driver, Put(key, b""))))
        driver.ring()
    loop.run_soon()
    assert len([each for each in turns if each]) == 1


def test_a_message_that_is_due_takes_one_turn() -> None:
    """The timer's turn makes it ready and leases it; the claim is answered at its end."""
    driver, loop, clock = _served()
    due = times.after(20)
    claimed = Asked(ClaimQueue(Q, b"consumer" * 2, 1, ClaimSelection(), wait=True))
    assert _asked(driver, loop, _enqueued(driver, due)).answers[0][1] is None
    driver.node.replicas.submit(claimed)
    began = clock.seconds
    turns = _counted_turns(driver)
    while not claimed.answers:
        turns.clear()
        loop.ring_next(early_seconds=0.0)
    loop.run_soon()
    assert round(clock.seconds - began, 6) == 0.02
    assert len(turns) == 1
    asyncio.run(driver.close())
