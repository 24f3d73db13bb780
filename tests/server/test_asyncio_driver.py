"""The timer of a node on an event loop, in scripted time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random  # noqa: TID251 (seeded)
from typing import Any

from postroom.kv.memory import MemoryEngine
from postroom.raft.transport import NoPeers
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.node import Node
from postroom.server.node_options import NodeOptions
from tests.client.hand_driver import HandClock


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
    """Timers, which the test rings."""

    def __init__(self, clock: HandClock) -> None:
        self.timers: list[_Timer] = []
        self._clock = clock

    def call_soon(self, act: Callable[[], None]) -> None:
        self.call_later(0.0, act)

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


def _driver(clock: HandClock) -> AsyncioDriver:
    async def make() -> AsyncioDriver:
        node = Node(MemoryEngine(), clock, Random(1), NoPeers(), NodeOptions())
        return AsyncioDriver(node, Random(2))

    return asyncio.run(make())


def test_a_timer_that_rings_early_is_set_again() -> None:
    """Event loops that count in milliseconds let timers ring early.

    Such a timer must not count as set until the clock has passed it: no later timer would ring
    until the next call.
    """
    clock = HandClock()
    driver = _driver(clock)
    loop: Any = _Loop(clock)
    driver.loop = loop
    driver.start()
    rung = list[float]()
    driver.node.call_after(1.0, lambda: rung.append(clock.seconds))
    for _ in range(50):
        loop.ring_next(early_seconds=0.0004)
        if rung:
            break
    assert len(rung) == 1
    assert 1.0 <= rung[0] < 1.001
    asyncio.run(driver.close())
