"""A program that is interrupted (Ctrl-C) while one of its threads writes can go on, and end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.client.blocking import iterate, run_blocking
from postroom.errors import CommitUnknown, Unavailable

PATIENCE_SECONDS = 60


def end_upkeep(db: Any) -> None:
    """Let the calling threads take all turns from now on.

    No other turn comes between two steps of a test, or does what a caller is to be interrupted in.
    """
    driver = db._core._sender
    with driver._lock:
        driver._closed = True
        driver._attention.notify()
    driver._background.join()
    driver._closed = False


@contextmanager
def without_upkeep(db: Any) -> Iterator[None]:
    """End the upkeep for a while."""
    end_upkeep(db)
    try:
        yield
    finally:
        driver = db._core._sender
        driver._background = threading.Thread(target=driver._upkeep, name="postroom", daemon=True)
        driver._background.start()


def interrupt(db: Any, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Interrupt the next turn in the midst of a part of it."""
    end_upkeep(db)
    node, real = db._core._sender.node, getattr(db._core._sender.node, part)

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(node, part, real)
        real(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(node, part, interrupted)


@pytest.mark.parametrize("part", ["prepare", "write", "finish"])
def test_a_store_can_be_closed_after_an_interrupt_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    db = postroom.open(tmp_path / "store")
    db.put(b"before", b"1")
    interrupt(db, monkeypatch, part)
    with pytest.raises(KeyboardInterrupt):
        db.put(b"half-way", b"2")
    with pytest.raises(Unavailable, match="open it again"):
        db.put(b"after", b"3")
    closing = threading.Thread(target=db.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"before") == b"1"
        assert again.get(b"half-way") in {None, b"2"}
        assert again.get(b"after") is None
        again.put(b"after", b"4")


@pytest.mark.parametrize("part", ["prepare", "write"])
def test_others_are_told_when_the_turn_of_their_commits_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    with postroom.open(tmp_path / "store") as db, ThreadPoolExecutor(8) as pool:
        db.put(b"before", b"1")
        interrupt(db, monkeypatch, part)
        ends = [pool.submit(db.put, b"%d" % number, b"2") for number in range(8)]
        told = [type(end.exception(PATIENCE_SECONDS)) for end in ends]
    assert told.count(KeyboardInterrupt) == 1
    assert set(told) <= {KeyboardInterrupt, CommitUnknown, Unavailable}


class _Wait:
    """A wait for a coroutine; a thread has it at once."""

    def __init__(self, interrupt: Callable[[], None] = lambda: None) -> None:
        self._interrupt = interrupt

    def wait(self) -> None:
        self._interrupt()

    def __await__(self) -> Generator[_Wait, None, None]:
        yield self


class _InterruptedAfter:
    """A coroutine in a thread that is interrupted when it has just been suspended.

    The interpreter looks for signals after a call, too: what was answered is lost then.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], steps: int) -> None:
        self._coroutine: Any = coroutine
        self._steps = steps
        self.throw, self.close = self._coroutine.throw, self._coroutine.close

    @property
    def cr_frame(self) -> Any:
        return self._coroutine.cr_frame

    def send(self, value: object) -> Any:
        waiting = self._coroutine.send(value)
        self._steps -= 1
        if not self._steps:
            raise KeyboardInterrupt
        return waiting


async def _two_steps(told: list[Any]) -> str:
    try:
        await _Wait()
        await _Wait()
    except KeyboardInterrupt as error:
        told.append(type(error))
        await _Wait()  # its messages are given back
        raise
    finally:
        told.append("end")
    return "done"


@pytest.mark.parametrize("steps", [1, 2])
def test_an_interrupt_while_nothing_waits_yet_is_the_coroutines_own(steps: int) -> None:
    told: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        run_blocking(_InterruptedAfter(_two_steps(told), steps))  # type: ignore[arg-type]
    assert told == [KeyboardInterrupt, "end"]
    assert run_blocking(_two_steps(told)) == "done"


@pytest.mark.parametrize("steps", [1, 2])
def test_an_iteration_that_is_interrupted_there_is_closed(steps: int) -> None:
    """It said that the generator was running already, in place of the interrupt."""
    told: list[Any] = []

    async def items() -> AsyncIterator[str]:
        yield await _two_steps(told)

    class Sender:
        runs = 0

        def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
            self.runs += 1
            if self.runs == 1:
                coroutine = _InterruptedAfter(coroutine, steps)  # type: ignore[assignment]
            return run_blocking(coroutine)

    with pytest.raises(KeyboardInterrupt):
        next(iterate(Sender(), items()))  # type: ignore[arg-type]
    assert told == [KeyboardInterrupt, "end"]


def test_an_interrupt_is_freed_with_its_frames() -> None:
    """Its frames would stay until the garbage collector comes."""

    class Interrupt(KeyboardInterrupt):
        """One that can be referred to weakly."""

    interrupts: list[weakref.ref[BaseException]] = []

    def interrupted() -> None:
        error = Interrupt()
        interrupts.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    async def waits() -> str:
        try:
            await _Wait(interrupted)
        except KeyboardInterrupt:
            return "went on"
        return "?"

    gc.disable()
    try:
        assert run_blocking(waits()) == "went on"
        (interrupt,) = interrupts
        assert interrupt() is None
    finally:
        gc.enable()
