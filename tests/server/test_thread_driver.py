"""Threads that wait for their answers, in scripted interleavings: nobody is forgotten."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.ranges.requests import Get, Put, ReleaseLocks
from postroom.server import thread_driver
from postroom.server.thread_driver import ThreadDriver
from tests.client.hand_driver import HandClock
from tests.client.stores import Store
from tests.messaging.queues.harness import Queues
from tests.remote.session_client import commit


class _Registering(dict[Any, None]):
    """Sleeping callers; when ``last`` says that it is about to sleep, a turn ends."""

    def __init__(self, driver: ThreadDriver, last: Any) -> None:
        self._driver = driver
        self._last = last

    def __setitem__(self, answer: Any, nothing: None) -> None:
        super().__setitem__(answer, nothing)
        if answer is self._last:
            # The driver does this under the lock: all answers are here, and one is told.
            for each in (answer, *self):
                if not each.done:
                    each.complete("here", None)
            self._driver._answered.wake_some(1)


@pytest.mark.parametrize("others", [1, 5])
def test_a_thread_that_sees_its_answer_before_sleeping_wakes_the_next(
    others: int,
) -> None:
    """Each thread that is woken wakes one more, also when it saw its answer by itself.

    Otherwise the others sleep until another turn ends, perhaps for ever.
    """
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
    for _ in range(others):  # each of them does that when it wakes up
        driver._answered.wake_next()
    assert not any(each.woken.locked() for each in sleeping if each.woken is not None)
    assert not driver._waiting
    assert not driver._answered.to_wake
    store.db.close()


def test_a_commit_at_the_end_of_the_last_turn_gets_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commits are submitted without the lock.

    One may come after the question whether another turn is wanted, and before the driving thread
    has stopped. Its thread must not sleep until a timer rings.
    """
    store = Store()
    driver = ThreadDriver(store.node, Random(1))
    first = driver.send(commit(store, 1, Put(b"a", b"1")))
    late = thread_driver._ThreadAnswer(driver, commit(store, 2, Put(b"b", b"2")), None)
    is_wanted = store.node.wants_turn
    asked = list[int]()
    sleeps_on = thread_driver.threading.Lock()

    def wants_turn() -> bool:
        wanted = is_wanted()
        if driver._in_turn or wanted or asked:
            return wanted
        asked.append(1)  # the turn is over: now comes the other thread, up to where it sleeps
        driver._replicas.submit(late)
        assert driver._driving
        late.woken = sleeps_on
        sleeps_on.acquire()
        driver._waiting[late] = None
        return wanted

    monkeypatch.setattr(store.node, "wants_turn", wants_turn)
    driver.wait_for(first)
    assert asked
    assert first.done
    assert late.drive or not driver._driving, "somebody drives, or it would have seen that"
    assert late.drive, "it is told to"
    assert not sleeps_on.locked()
    driver._drive(late)
    assert late.done
    assert not driver._driving
    store.db.close()


def test_a_thread_that_is_to_drive_is_woken_once() -> None:
    """Its answer may come before it wakes up: another thread frees what it waits for."""
    store = Store()
    driver = ThreadDriver(store.node, Random(1))
    answer = thread_driver._ThreadAnswer(driver, Get(b"a"), None)
    answer.woken = sleeps_on = thread_driver.threading.Lock()
    sleeps_on.acquire()
    driver._waiting[answer] = None
    driver._driving = True  # a thread does, and hands over
    driver._hand_over(wanted=True)
    assert answer.drive
    assert not sleeps_on.locked()
    answer.complete("here", None)
    driver.send(ReleaseLocks(bytes(16)))
    assert not driver._answered.to_wake
    driver._drive(answer)
    assert not driver._driving
    store.db.close()


def test_a_last_write_is_synced_after_its_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write begins its interval while the background thread sleeps until a later timer.

    It is synced after 50 ms, and not after seconds.
    """
    store = Store(sync=False, sync_interval_seconds=0.05)
    driver = ThreadDriver(store.node, Random(1))
    store.node.turn()
    told = list[float | None]()
    monkeypatch.setattr(driver._attention, "notify", lambda: told.append(driver._next_due()))
    now = store.clock.seconds
    driver._asleep_until = now + 5  # the background thread has found it so
    driver._deadline = now  # and it is awake by then for whatever else was asked
    driver.wait_for(driver.send(commit(store, 1, Put(b"a", b"1"))))
    assert not store.node._writer.is_synced
    assert told[-1:] == [now + 0.05]
    store.clock.seconds += 0.05
    store.node.turn()  # it does so then
    assert store.node._writer.is_synced
    store.db.close()


def test_a_thread_that_sleeps_until_a_timer_is_not_woken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had looked at the clock twice, and slept a moment longer: each turn woke it."""
    store = Store()
    driver = ThreadDriver(store.node, Random(1))
    store.node.turn()
    clock = store.clock
    monkeypatch.setattr(driver, "monotonic", lambda: _tick(clock))
    woken, asleep = list[float](), list[float]()

    def wait(seconds: float) -> None:
        asleep.append(driver._asleep_until)
        driver._closed = True

    monkeypatch.setattr(driver._attention, "wait", wait)
    monkeypatch.setattr(driver._attention, "notify", lambda: woken.append(driver._asleep_until))
    due = driver._next_due()
    assert due is not None
    assert due > clock.seconds + 0.1
    with driver._lock:
        assert not driver._await_work()
    assert asleep == [due]
    driver._closed, driver._asleep_until = False, asleep[0]
    driver.wait_for(driver.send(commit(store, 1, Put(b"a", b"1"))))
    assert not woken
    store.db.close()


def test_a_thread_that_claims_drives_the_turn_that_leases_to_it() -> None:
    """It would wait for the background thread otherwise, which is not there in this test."""
    queues = Queues()
    queues.create()
    queues.enqueue(b"payload")
    driver = ThreadDriver(queues.store.node, Random(1))
    answer: Any = driver.send(queues.claim_request(), 0.0)
    driver.wait_for(answer)
    assert [each.payload for each in answer._result.messages] == [b"payload"]
    queues.store.db.close()


def test_the_background_drives_for_a_claim_whose_thread_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = Queues()
    queues.create()
    queues.enqueue(b"payload")
    store = queues.store
    driver = ThreadDriver(store.node, Random(1))
    told = list[float | None]()
    monkeypatch.setattr(driver._attention, "notify", lambda: told.append(driver._next_due()))
    driver._asleep_until = store.clock.seconds + 5
    driver._driving = True  # another thread does
    gone: Any = driver.send(queues.claim_request())
    with driver._lock:
        store.node.replicas.cancel(gone)
        driver._hand_over(wanted=store.node.wants_turn())
    assert told == [store.clock.seconds]
    store.db.close()


def _tick(clock: HandClock) -> float:
    clock.seconds += 0.000_001
    return clock.seconds
