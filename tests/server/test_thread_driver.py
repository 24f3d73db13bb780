"""Threads that wait for their answers, in scripted interleavings: nobody is forgotten."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.ranges.requests import Get
from postroom.server import thread_driver
from postroom.server.thread_driver import ThreadDriver
from tests.client.stores import Store


class _Registering(dict[Any, None]):
    """Those who wait; when ``last`` says that it is about to sleep, a turn ends."""

    def __init__(self, driver: ThreadDriver, last: Any) -> None:
        self._driver = driver
        self._last = last

    def __setitem__(self, answer: Any, nothing: None) -> None:
        super().__setitem__(answer, nothing)
        if answer is self._last:
            # Whoever drives, under the lock: all answers are here, and one is told of it.
            for each in (answer, *self):
                if not each.done:
                    each.complete("here", None)
            self._driver._wake_some()


@pytest.mark.parametrize("others", [1, 5])
def test_who_sees_its_answer_before_it_sleeps_wakes_the_next(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Each that is woken wakes one more. Who was told, but had seen by itself that its answer was
    there, did not: the others slept until another turn ended, perhaps for ever.
    """
    monkeypatch.setattr(thread_driver, "CHAINS", 1)
    store = Store()
    driver = ThreadDriver(store.node, Random(1))
    driver._driving = True  # another thread does
    late = thread_driver._ThreadAnswer(driver, Get(b"late"), None)
    driver._waiting = _Registering(driver, late)
    sleeping = []
    for number in range(others):
        answer = thread_driver._ThreadAnswer(driver, Get(b"%d" % number), None)
        answer.woken = thread_driver.threading.Lock()
        answer.woken.acquire()
        driver._waiting[answer] = None
        sleeping.append(answer)
    assert not driver._sleep_or_drive(late, None)
    assert late.done
    woken = [each for each in sleeping if each.woken is not None and not each.woken.locked()]
    assert len(woken) == 1, "exactly one goes on with the chain"
    for _ in range(others):  # as each of them does when it wakes up
        driver.wake_next()
    assert not any(each.woken.locked() for each in sleeping if each.woken is not None)
    assert not driver._waiting
    assert not driver._to_wake
    store.db.close()
