"""The timer of a node on an event loop: finer than the loop's own, where the system has such ones.

An event loop that waits with ``epoll`` counts in milliseconds, and rounds up: half a millisecond
more for each message that falls due. Linux has timers that are files (``timerfd``). A loop that
watches such a file goes on when it rings, to within microseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

_NANOSECONDS: Final = 1_000_000_000
_CLOCK_MONOTONIC: Final = 1


class Alarm(Protocol):
    """A timer that calls a function once each time that it is set."""

    def set(self, seconds: float) -> None:
        """Let it ring after a time, in place of any other."""

    def cancel(self) -> None:
        """Let it not ring, now or ever."""


class LoopAlarm:
    """An alarm that is a timer of the event loop.

    Args:
        loop: the event loop.
        ring: the function that is called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Let it ring after a time, in place of any other."""
        self.cancel()
        self._timer = self._loop.call_later(seconds, self._ring)

    def cancel(self) -> None:
        """Let it not ring."""
        if self._timer is not None:
            self._timer.cancel()


class _Setting(ctypes.Structure):
    """The ``itimerspec`` of the system: an interval, and the time until the first ringing."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class FileAlarm:
    """An alarm that is a file which the event loop watches.

    Args:
        loop: the event loop.
        ring: the function that is called.

    Raises:
        OSError: the system gives no such file.
        AttributeError: the C library has no such call.
        NotImplementedError: the loop watches no files.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._set_time = library.timerfd_settime
        self._file = library.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._end = weakref.finalize(self, os.close, self._file)
        self._setting = _Setting()
        self._pointer = ctypes.byref(self._setting)
        self._loop = loop
        self._ring = ring
        loop.add_reader(self._file, self._has_rung)

    def set(self, seconds: float) -> None:
        """Let it ring after a time, in place of any other."""
        nanoseconds = max(int(seconds * _NANOSECONDS), 1)  # none at all would switch it off
        setting = self._setting
        setting.seconds, setting.nanoseconds = divmod(nanoseconds, _NANOSECONDS)
        if self._set_time(self._file, 0, self._pointer, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")  # it would never ring

    def cancel(self) -> None:
        """Let it not ring any more, and close the file."""
        if self._end.alive:
            self._loop.remove_reader(self._file)
            self._end()

    def _has_rung(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set again meanwhile
            return
        self._ring()


def create_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """Create the finest alarm that there is."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError, NotImplementedError):
            return FileAlarm(loop, ring)
    return LoopAlarm(loop, ring)
