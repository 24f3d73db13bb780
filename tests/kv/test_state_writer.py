"""The thread that writes the state: what it is given is done, and what that raises is told."""

from __future__ import annotations

import threading

import pytest

from postroom.kv import background
from postroom.kv.background import StateWriterThread


def fail() -> None:
    raise OSError("no")


def test_each_started_work_is_done_before_the_next() -> None:
    thread, done = StateWriterThread(), list[int]()
    for number in range(500):
        thread.finish()
        assert len(done) == number
        thread.start(lambda number=number: done.append(number))  # type: ignore[misc]
    thread.close()
    assert done == list(range(500))


def test_an_error_of_the_state_thread_is_raised_once() -> None:
    thread = StateWriterThread()
    thread.finish()
    thread.start(fail)
    with pytest.raises(OSError, match="no"):
        thread.finish()
    thread.finish()
    thread.start(fail)
    thread.close()


def test_the_state_thread_goes_on_after_an_error() -> None:
    thread, done = StateWriterThread(), list[int]()
    thread.start(fail)
    with pytest.raises(OSError, match="no"):
        thread.finish()
    thread.start(lambda: done.append(1))
    thread.finish()
    assert done == [1]
    thread.close()


def test_closing_ends_the_thread_and_can_be_repeated() -> None:
    thread, threads = StateWriterThread(), list[threading.Thread]()
    thread.close()
    thread.start(lambda: threads.append(threading.current_thread()))
    thread.later(lambda: threads.append(threading.current_thread()))
    thread.close()
    thread.close()
    assert len(threads) == 2
    assert not any(each.is_alive() for each in threads)
    thread.finish()


def test_an_interrupt_when_it_is_started_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It came after the work was noted, and before the thread was woken."""
    monkeypatch.setattr(background, "LOOKS_AGAIN_SECONDS", 0.01)
    thread, done = StateWriterThread(), list[int]()
    thread.start(lambda: done.append(1))
    thread.finish()
    thread._work = lambda: done.append(2)
    thread.finish()
    assert done == [1, 2]
    thread._work = lambda: done.append(3)
    thread.close()
    assert done == [1, 2, 3]


def test_work_that_is_waited_for_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of an hour ends when somebody waits for the work."""
    monkeypatch.setattr(background, "PAUSE_SECONDS", 3600)
    thread, began = StateWriterThread(), threading.Event()
    done = list[int]()

    def work() -> None:
        for number in range(3):
            began.set()
            thread.pause()
            done.append(number)

    for times in (1, 2):
        began.clear()
        thread.start(work)
        assert began.wait(60)
        assert len(done) == 3 * (times - 1), "it pauses while nobody waits"
        thread.finish()
        assert len(done) == 3 * times
    thread.close()


def test_work_started_after_a_long_wait_is_done() -> None:
    """A reader that has waited for long has woken the thread, which may not have noticed yet."""
    thread, done = StateWriterThread(), list[int]()
    thread._thread = threading.Thread(target=thread._run, daemon=True)
    background._wake(thread._wanted)
    thread.start(lambda: done.append(1))
    thread._thread.start()
    thread.finish()
    assert done == [1]
    thread.close()


def test_work_is_done_at_once_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without a free thread is no reason to stop a store."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread, done = StateWriterThread(), list[int]()
    with monkeypatch.context() as few:
        few.setattr(threading.Thread, "start", refuse)
        thread.start(lambda: done.append(1))
        thread.finish()
        thread.later(lambda: done.append(2))
        assert done == [1, 2]
        with pytest.raises(OSError, match="no"):
            thread.start(fail)
        thread.finish()
        thread.close()
    thread.start(lambda: done.append(3))
    thread.finish()
    assert done == [1, 2, 3]
    thread.close()
