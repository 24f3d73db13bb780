"""A driver of a node on the caller's event loop, and the sender of the clients there.

A request wants a turn. The turn runs after everything that is ready on the loop: all requests sent
meanwhile share one sync. A large write is made by a thread: until it is done the loop goes
on, reads are served, and requests queue up.

*The timer* is finer than the loop's own, where the system has such ones. An event loop that waits
with ``epoll`` counts in milliseconds, and rounds up: half a millisecond more for each message that
falls due. Linux has timers that are files (``timerfd``). A loop that watches such a file goes on
when it rings, to within microseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import random  # noqa: TID251 - passed in, as an instance
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from postroom.client.routing.local import AnyParts
from postroom.client.sender import taken_back_by
from postroom.errors import DatabaseClosed, Error, Invalid
from postroom.kv.engine import WriteSet
from postroom.limits import TURN_STEPS_MAX
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.requests import CommitTransaction, Get, Value
from postroom.server.drivers import CLOSED, Answer, NodeDriver, T, end_with_error
from postroom.server.node import UPKEEP_SECONDS, Node

WRITTEN_AT_ONCE_KEYS: Final = 4096
WRITTEN_AT_ONCE_BYTES: Final = 2 * 1024 * 1024
"""The size above which a thread writes a turn. The hand-over takes a tenth of a millisecond."""


LOOKS_AGAIN_SECONDS: Final = 0.25
"""The time after which a thread that looks at the node looks whether it was closed."""


class _AsyncioAnswer(Answer):
    """An answer that is awaited on the event loop."""

    __slots__ = ()

    def __init__(self, driver: AsyncioDriver, request: Any, timeout_seconds: float | None) -> None:
        self._driver = driver
        self.request = request
        self.timeout_seconds = timeout_seconds
        self.urgent = True
        self.token = self.within = None
        self.cancelled = False
        self.done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self.woken: asyncio.Future[None] | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Set the answer, and let its task go on."""
        self._result = result
        self._error = error
        self.done = True
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            driver = self._driver
            self.woken = future = driver.new_future()
            timer = None
            if self.timeout_seconds is not None:
                timer = driver.loop.call_later(self.timeout_seconds, self._expire)
            try:
                yield from future
            except BaseException:
                if not self._withdraw():
                    self._take_back()
                raise
            finally:
                if timer is not None:
                    timer.cancel()
        if self._error is not None:
            return (yield from end_with_error(self))
        return self._result

    def _expire(self) -> None:
        if not self.done and self._withdraw():
            self.complete(None, DeadlineExceeded())

    def _withdraw(self) -> bool:
        return self._driver.node.replicas.cancel(self)

    def _take_back(self) -> None:
        """Return to the store an answer that no caller takes, such as a claim, if it has come."""
        if not self.done:
            return
        request = taken_back_by(self._driver, self.request, self._result)
        if request is not None:
            with suppress(Invalid):  # the store is closed
                self._driver.send(request)


class _Writing(threading.Thread):
    """The write of a large turn, beside the event loop.

    Attributes:
        error: why the write failed.
        raised: an exception that must not happen; it is raised where the turn ends.
    """

    def __init__(self, driver: AsyncioDriver, staged: WriteSet) -> None:
        super().__init__(name="postroom turn", daemon=True)
        self.error: Error | None = None
        self.raised: BaseException | None = None
        self._driver = driver
        self._staged = staged

    def run(self) -> None:
        try:
            self.error = self._driver.node.write(self._staged)
        except BaseException as error:
            self.raised = error
        with suppress(RuntimeError):  # the loop is closed: no task waits for anything
            self._driver.loop.call_soon_threadsafe(self._driver.written, self)


_INTERRUPTIBLE: Final = frozenset({CommitTransaction, Get})
"""The requests whose submission an exception may interrupt: they are then queued, or not."""


def _is_large(staged: WriteSet) -> bool:
    """Return whether writing ``staged`` takes too long for the loop to wait."""
    if len(staged) > WRITTEN_AT_ONCE_KEYS:
        return True
    return sum(map(len, filter(None, staged.values()))) > WRITTEN_AT_ONCE_BYTES


class AsyncioDriver(NodeDriver):
    """A driver of a node on the running event loop; a ``Sender`` for the clients on it.

    Attributes:
        alarm: the timer that rings for the next turn.
    """

    def __init__(self, node: Node, randomness: random.Random, *, is_embedded: bool = True) -> None:
        super().__init__(node, randomness)
        self._is_embedded = is_embedded
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.new_future: Callable[[], asyncio.Future[None]] = partial(
            asyncio.Future, loop=self.loop
        )
        self._turn_wanted = False
        self.alarm = create_alarm(self.loop, self.ring)
        self._is_armed = False
        self._armed_for = 0.0
        self._writing: _Writing | None = None
        node.on_wake = self._on_wake
        self._reads_left = TURN_STEPS_MAX

    def start(self) -> None:
        """Begin to serve."""
        try:
            self.node.start()
        except BaseException:
            self.alarm.cancel()
            raise
        self._turn()

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """Send ``request``, and return its answer, to be awaited."""
        if self._closed:
            raise DatabaseClosed(self._refusal)
        answer = _AsyncioAnswer(self, request, timeout_seconds)
        if type(request) in _INTERRUPTIBLE:
            self._replicas.submit(answer)
        else:
            with self._signals:
                self._replicas.submit(answer)
        return answer

    def send_to_any(
        self, request: Any, narrowed: list[Any], timeout_seconds: float | None
    ) -> Awaitable[Any]:
        """Return the first answer to one of several requests, for parts of one."""
        answer = _AsyncioAnswer(self, request, timeout_seconds)
        with self._signals:
            AnyParts(self._replicas.submit, self._replicas.cancel).ask(answer, narrowed)
        return answer

    def try_get(self, key: bytes) -> Value | None:
        """Return the newest value of ``key`` if it is known without asking.

        This answers a limited number of times a turn. After that a caller has to ask, and thereby
        waits for the next turn. A task that only reads does not keep the loop for itself.
        """
        self._reads_left -= 1
        if self._closed or self._reads_left < 0:
            return None
        return self._replicas.try_get(key)

    async def sleep(self, seconds: float) -> None:
        """Sleep for a number of seconds."""
        await asyncio.sleep(seconds)

    def now(self) -> int:
        """Return a new timestamp."""
        if self._closed:
            raise DatabaseClosed(self._refusal)
        return self.node.clock.read()

    def look(self, read: Callable[[Node], T]) -> T:
        """Return what ``read`` tells of the node, which does nothing else meanwhile."""
        if self._closed:
            raise DatabaseClosed(self._refusal)
        if self.is_here():
            return read(self.node)
        told: Future[T] = Future()
        try:
            self.loop.call_soon_threadsafe(self._tell, read, told)
        except RuntimeError as error:  # the loop is closed
            raise DatabaseClosed(self._refusal) from error
        while True:
            try:
                return told.result(LOOKS_AGAIN_SECONDS)
            except TimeoutError:
                if self.loop.is_closed():
                    raise DatabaseClosed(self._refusal) from None

    def _tell(self, read: Callable[[Node], T], told: Future[T]) -> None:
        try:
            if self._closed:
                raise DatabaseClosed(self._refusal)
            told.set_result(read(self.node))
        except Exception as error:
            told.set_exception(error)

    def is_here(self) -> bool:
        """Return whether the calling thread runs the event loop of the node."""
        return self._thread == threading.get_ident()

    async def close(self) -> None:
        """Finish the requests under way, and close the node; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._writing is not None:
                self._writing.join()
                with suppress(Exception):  # the node has stopped, and told why
                    self._finish(self._writing)
            with self._signals:
                while self.node.wants_turn():
                    self.node.turn()
        finally:
            self.alarm.cancel()
            self.node.close(DatabaseClosed(CLOSED) if self._is_embedded else None)

    def _on_wake(self, urgent: bool) -> None:
        if urgent or self.node.hurries():
            if not self._turn_wanted:
                self._turn_wanted = True
                self.loop.call_soon(self._turn)
        elif not self._turn_wanted:
            self._arm(self.monotonic() + UPKEEP_SECONDS)

    def _turn(self) -> None:
        if self._writing is not None:
            return  # the end of it takes a turn
        self._turn_wanted = False
        self._reads_left = TURN_STEPS_MAX
        if self._closed:
            return
        with self._signals:
            try:
                staged = self.node.prepare()
                if _is_large(staged) and self._write_beside(staged):
                    return
                self.node.finish(self.node.write(staged))
            except BaseException:
                self._break_off()
                raise
            deadline = self.node.next_deadline(self._armed_for if self._is_armed else math.inf)
            if deadline is not None:
                self._arm(deadline)

    def _write_beside(self, staged: WriteSet) -> bool:
        """Have a thread write a turn; return false if the system has none to give."""
        writing = _Writing(self, staged)
        try:
            writing.start()
        except RuntimeError:
            return False
        self._turn_wanted = True
        self._writing = writing
        return True

    def written(self, writing: _Writing) -> None:
        """Finish the turn that ``writing`` has written."""
        if self._writing is writing:
            with self._signals:  # a handler that raises comes out when the next turn is over
                self._finish(writing)
                self._turn()

    def _finish(self, writing: _Writing) -> None:
        self._writing = None
        with self._signals:
            self._end_of(writing)

    def _end_of(self, writing: _Writing) -> None:
        try:
            if writing.raised is not None:
                raise writing.raised
            self.node.finish(writing.error)
        except BaseException:
            self._break_off()
            raise

    def _break_off(self) -> None:
        """Deal with an exception from a turn, which must not happen.

        A turn that is left half-way cannot be continued: the node stops, and the callers are told.
        Otherwise another turn follows.
        """
        if self.node.is_half_way:
            self.node.break_off()
        elif not self._closed:
            self._arm(self.monotonic() + UPKEEP_SECONDS)

    def _arm(self, deadline: float) -> None:
        """Set the timer to ``deadline``, by the node's clock, which need not be the loop's."""
        now = self.monotonic()
        if self._is_armed and now < self._armed_for <= deadline:
            return
        self._is_armed = True
        self._armed_for = deadline
        self.alarm.set(deadline - now)

    def ring(self) -> None:
        """Take a turn when the timer rings, perhaps a moment early by the node's clock.

        If one is wanted already, it takes along the requests that come before it.
        """
        self._is_armed = False
        if not self._turn_wanted:
            self._turn()


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
