"""The threads that were answered wake each other, and share the next turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from postroom.server import answered_threads
from postroom.server.answered_threads import AnsweredThreads

LONG_SECONDS = 60.0


class _Threads:
    """The threads of a driver, played by the test. The thread that drives is a real one."""

    def __init__(self, others: int) -> None:
        self.waiting: dict[int, None] = {}
        self.now = 0.0
        self.answered = AnsweredThreads(self.waiting, lambda: self.now)
        self.locks = [threading.Lock() for _ in range(others)]
        self.answer_all()

    def answer_all(self) -> None:
        """End a turn that answers all threads, the driving one too."""
        self.waiting.clear()
        self.answered.to_wake.clear()
        for lock in self.locks:
            lock.acquire(blocking=False)
            self.answered.add(lock)
        self.answered.turn_ended(mine=True)

    def awake(self) -> list[int]:
        """Return the numbers of the threads that were woken."""
        return [number for number, lock in enumerate(self.locks) if not lock.locked()]

    def comes_back(self, number: int) -> None:
        """Let a thread announce that it sleeps, with its next request."""
        self.waiting[number] = None
        self.answered.is_back()

    def watching(self) -> threading.Thread:
        """Start the wait of the driving thread."""
        driving = threading.Thread(target=self.answered.wait)
        driving.start()
        _until(lambda: self.answered._is_watched)
        return driving


def _until(condition: Callable[[], bool]) -> None:
    end, never = time.monotonic() + LONG_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < end
        never.wait(0.0005)


def test_threads_that_are_watched_come_back_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answered_threads, "PATIENCE_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(answered_threads, "RETURN_SECONDS", LONG_SECONDS)
    threads = _Threads(others=3)
    driving = threads.watching()
    for number in range(3):
        assert threads.awake() == [*range(number + 1)]
        threads.answered.is_awake()
        assert threads.awake() == [*range(number + 1)], "the next one is woken by its return"
        assert driving.is_alive()
        threads.comes_back(number)
    driving.join(LONG_SECONDS)
    assert not driving.is_alive()
    assert not threads.answered.are_expected


def test_a_thread_that_nobody_watches_wakes_the_next_one_at_once() -> None:
    threads = _Threads(others=2)
    assert threads.awake() == [0]
    threads.answered.is_awake()
    assert threads.awake() == [0, 1]


def test_a_thread_that_does_not_come_back_keeps_no_other_one_waiting() -> None:
    threads = _Threads(others=3)
    threads.answered.wait()
    assert threads.awake() == [0, 1, 2]
    assert not threads.answered._is_watched


def test_turns_after_a_wait_in_vain_do_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one such turn after the first of those waits, three after the next one."""
    watches: list[None] = []
    monkeypatch.setattr(AnsweredThreads, "_watch", lambda _: watches.append(None))
    threads = _Threads(others=2)
    counts = []
    for _ in range(8):
        threads.answer_all()
        assert threads.answered.are_expected
        assert threads.awake() == ([0, 1] if threads.answered._to_skip else [0])
        threads.answered.wait()
        counts.append(len(watches))
    assert counts == [1, 1, 2, 2, 2, 2, 3, 3]


def test_threads_that_have_been_away_for_long_are_not_expected() -> None:
    threads = _Threads(others=2)
    threads.now = 1.0
    threads.answered.wait()
    assert not threads.answered._to_skip, "there was no wait, so none in vain"
    assert not threads.answered.are_expected


def test_a_single_thread_expects_no_other_one() -> None:
    threads = _Threads(others=0)
    assert not threads.answered.are_expected
    threads.waiting[1] = None  # it waits for a message, say
    threads.answered.turn_ended(mine=True)
    assert not threads.answered.are_expected
