"""Tasks: what does not wait any more has no timer."""

from __future__ import annotations

from postroom.server.tasks import NodeTasks, Pending, Signal


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.tasks = NodeTasks(lambda: self.now, lambda: None)


def test_a_service_that_is_signalled_often_leaves_no_timers() -> None:
    """Each wait for a signal left its time-out behind, until that came."""
    time = Time()
    signal = Signal(time.tasks)
    heard: list[float] = []

    async def serve() -> None:
        while True:
            await signal.wait(5.0)
            heard.append(time.now)

    time.tasks.spawn(serve())
    time.tasks.run()
    for _ in range(10_000):
        signal.set()
        time.tasks.run()
    assert len(heard) == 10_000
    assert time.tasks.timers < 20
    time.now = 5.0
    time.tasks.run()
    assert len(heard) == 10_001


def test_a_task_that_is_cancelled_leaves_no_timer() -> None:
    time = Time()
    signal = Signal(time.tasks)
    for _ in range(1000):
        for coroutine in (time.tasks.sleep(1000.0), signal.wait(1000.0)):
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
