"""Alarms: each of them rings once, when it was last set to, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from postroom.server.asyncio_driver import Alarm, FileAlarm, LoopAlarm, create_alarm

LONG_SECONDS = 3600.0
KINDS: list[Any] = [LoopAlarm]
if sys.platform == "linux":
    KINDS.append(FileAlarm)


class _Rung:
    """The ringing of an alarm, which is awaited."""

    def __init__(self, make: Callable[..., Alarm]) -> None:
        self.times = 0
        self._event = asyncio.Event()
        self.alarm = make(asyncio.get_running_loop(), self._ring)

    def _ring(self) -> None:
        self.times += 1
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


@pytest.mark.parametrize("kind", KINDS)
def test_an_alarm_rings_once_each_time_that_it_is_set(kind: Callable[..., Alarm]) -> None:
    async def run() -> None:
        rung = _Rung(kind)
        for seconds in (0.0, -1.0, 0.001):
            rung.alarm.set(LONG_SECONDS)
            rung.alarm.set(seconds)
            await rung.wait()
        other = _Rung(kind)
        other.alarm.set(0.001)
        await other.wait()
        assert rung.times == 3
        rung.alarm.cancel()
        other.alarm.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_an_alarm_that_is_cancelled_does_not_ring(kind: Callable[..., Alarm]) -> None:
    async def run() -> None:
        cancelled, other = _Rung(kind), _Rung(kind)
        cancelled.alarm.set(0.0)
        cancelled.alarm.cancel()
        cancelled.alarm.cancel()
        other.alarm.set(0.001)
        await other.wait()
        assert not cancelled.times
        other.alarm.cancel()

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timers that are files")
def test_an_alarm_that_is_set_again_before_the_loop_has_seen_it_rings_once() -> None:
    async def run() -> None:
        rung, other = _Rung(FileAlarm), _Rung(FileAlarm)
        rung.alarm.set(0.0)
        await asyncio.to_thread(os.sched_yield)
        rung.alarm.set(LONG_SECONDS)
        other.alarm.set(0.001)
        await other.wait()
        rung.alarm.set(0.0)
        await rung.wait()
        assert rung.times <= 2
        rung.alarm.cancel()
        other.alarm.cancel()

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timers that are files")
def test_an_alarm_that_is_cancelled_closes_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    close = os.close

    def note(file: int) -> None:
        closed.append(file)
        close(file)

    async def run() -> None:
        alarm = FileAlarm(asyncio.get_running_loop(), lambda: None)
        alarm.cancel()
        alarm.cancel()
        assert closed.count(alarm._file) == 1

    monkeypatch.setattr(os, "close", note)
    asyncio.run(run())


def test_a_loop_that_watches_no_files_has_an_alarm_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        loop: Any = asyncio.get_running_loop()

        def refuse(*_: object) -> None:
            raise NotImplementedError

        monkeypatch.setattr(loop, "add_reader", refuse)
        rung = _Rung(create_alarm)
        assert type(rung.alarm) is LoopAlarm
        rung.alarm.set(0.0)
        await rung.wait()

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such file")
def test_an_error_of_the_function_that_is_called_is_not_taken_for_one_of_the_file() -> None:
    async def run() -> None:
        told = asyncio.get_running_loop().create_future()

        def fail() -> None:
            raise BlockingIOError

        asyncio.get_running_loop().set_exception_handler(lambda _, each: told.set_result(each))
        alarm = create_alarm(asyncio.get_running_loop(), fail)
        alarm.set(0.001)
        assert isinstance((await told)["exception"], BlockingIOError)
        alarm.cancel()

    asyncio.run(run())
