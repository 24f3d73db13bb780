"""Tasks: what does not wait any more has no timer."""

from __future__ import annotations

import pytest

from postroom.server.services import NodeTasks, Pending, WakeUp


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.woken = list[bool]()
        self.tasks = NodeTasks(lambda: self.now, self.woken.append)


def test_a_service_that_is_signalled_often_leaves_no_timers() -> None:
    """Each wait for a wake-up left its time-out behind, until that came."""
    time = Time()
    wake_up = WakeUp(time.tasks)
    heard: list[float] = []

    async def serve() -> None:
        while True:
            await wake_up.wait(5.0)
            heard.append(time.now)

    time.tasks.spawn(serve())
    time.tasks.run()
    for _ in range(10_000):
        wake_up.set()
        time.tasks.run()
    assert len(heard) == 10_000
    assert time.tasks.timers < 20
    time.now = 5.0
    time.tasks.run()
    assert len(heard) == 10_001


def test_a_task_that_is_cancelled_leaves_no_timer() -> None:
    time = Time()
    wake_up = WakeUp(time.tasks)
    for _ in range(1000):
        for coroutine in (time.tasks.sleep(1000.0), wake_up.wait(1000.0)):
            time.tasks.spawn(coroutine)
            time.tasks.run()
            time.tasks.cancel(coroutine)
    assert time.tasks.timers < 20
    assert time.tasks.next_deadline() is None


def test_a_timer_that_was_cancelled_does_not_ring() -> None:
    time = Time()
    first, second = Pending(), Pending()
    time.tasks.at(1.0, first)
    time.tasks.at(2.0, second)
    time.tasks.cancel_timer(first)
    assert time.tasks.next_deadline() == 2.0
    time.now = 3.0
    time.tasks.run()
    assert (first.done, second.done) == (False, True)


def _served(time: Time, wake_up: WakeUp, heard: list[float]) -> None:
    async def serve() -> None:
        while True:
            await wake_up.wait(5.0)
            heard.append(time.now)

    time.tasks.spawn(serve())
    time.tasks.run()
    time.woken.clear()


def test_an_urgent_signal_asks_for_a_turn_at_once() -> None:
    """It is urgent until the tasks have run: whoever drives may ask whether it is."""
    time, heard = Time(), list[float]()
    wake_up = WakeUp(time.tasks)
    _served(time, wake_up, heard)
    wake_up.set()
    assert time.woken == [False]
    assert not time.tasks.is_urgent
    time.tasks.run()
    wake_up.set(urgent=True)
    assert time.woken == [False, True]
    assert time.tasks.is_urgent
    time.tasks.run()
    assert not time.tasks.is_urgent
    assert len(heard) == 2


def test_a_task_that_becomes_ready_while_tasks_run_asks_for_no_turn() -> None:
    """It is stepped at once, so another turn would do nothing."""
    time, heard = Time(), list[float]()
    wake_up = WakeUp(time.tasks)
    _served(time, wake_up, heard)
    time.now = 5.0
    time.tasks.run()
    assert heard == [5.0]
    assert time.woken == []


def test_tasks_ask_for_turns_after_an_interrupt() -> None:
    time, heard = Time(), list[float]()
    wake_up = WakeUp(time.tasks)
    _served(time, wake_up, heard)

    async def interrupted() -> None:
        raise KeyboardInterrupt

    time.tasks.spawn(interrupted())
    with pytest.raises(KeyboardInterrupt):
        time.tasks.run()
    time.woken.clear()
    wake_up.set()
    assert time.woken == [False]
