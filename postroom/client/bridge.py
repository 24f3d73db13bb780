"""Bridges between threads and event loops: a store of one form, used from the other.

* ``BridgedSender``: a loop uses a synchronous database. A thread waits for each answer.
* ``LoopSender``: a thread uses a transaction of a loop, which runs its requests.
* ``wake_up_for``: a coroutine waits for a wake-up, or for a time, on a loop or in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine, Generator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from postroom.client.sender import BlockingSender, Sender, WaitEnded, WaitHandle, taken_back_by
from postroom.errors import Error
from postroom.ranges.requests import Value

T = TypeVar("T")


class BridgedSender:
    """A ``Sender`` on the running event loop, which uses a blocking one.

    An answer that is waited for keeps a thread, until it has come or is cancelled.

    Args:
        blocking: the sender of a synchronous database.
        threads: wait for its answers.
    """

    def __init__(self, blocking: BlockingSender, threads: Executor) -> None:
        self._blocking = blocking
        self._threads = threads
        self.random = blocking.random
        self.next_id = blocking.next_id
        self.patience_seconds = blocking.patience_seconds
        self.reading = blocking.reading
        self.monotonic = blocking.monotonic
        self.try_get = blocking.try_get
        self.ranges, self.range_of = blocking.ranges, blocking.range_of
        self.range_id = blocking.range_id
        self.span_of = blocking.span_of

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """Return an awaitable of the answer to ``request``; its cancellation undoes the answer."""
        return self._in_thread(lambda: self._blocking.send(request, timeout_seconds), request)

    def _in_thread(self, ask: Any, request: Any = None) -> Awaitable[Any]:
        async def answer() -> Any:
            return await ask()

        waiter = WaitHandle()
        waiting = self._threads.submit(lambda: self._blocking.run(answer(), waiter))
        future = asyncio.wrap_future(waiting)

        def over(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                future.exception()  # a request that was posted has no caller
            elif not waiting.cancelled():
                waiter.end(WaitEnded())
                waiting.add_done_callback(lambda waiting: self._take_back(request, waiting))

        future.add_done_callback(over)
        return future

    def _take_back(self, request: Any, answered: Future[Any]) -> None:
        """Undo an answer that came though its caller was cancelled."""
        if answered.cancelled() or answered.exception() is not None:
            return
        back = taken_back_by(self._blocking, request, answered.result())
        if back is not None:
            with suppress(RuntimeError):  # the threads have ended, and the client with them
                self._threads.submit(self._blocking.run, self._sent(back))

    async def _sent(self, request: Any) -> None:
        with suppress(Error):  # it ends by itself, when its time is over
            await self._blocking.send(request)

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)

    def now(self) -> int | Awaitable[int]:
        """Return a timestamp, or an awaitable of one."""
        timestamp = self._blocking.now()
        return timestamp if isinstance(timestamp, int) else self._in_thread(lambda: timestamp)


def bridged(sender: BlockingSender, threads: Executor) -> Sender:
    """Return a sender on the running event loop, in the way of ``sender`` if it has one."""
    bridge = getattr(sender, "bridged", None)
    made: Sender = BridgedSender(sender, threads) if bridge is None else bridge(threads)
    return made


class LoopSender:
    """A ``BlockingSender`` for the synchronous form of a transaction that lives on a loop.

    Args:
        sender: the sender of the loop's database.
        loop: runs coroutines for the calling thread, which is another one.
    """

    def __init__(self, sender: Sender, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.random = sender.random
        self.next_id = sender.next_id
        self.patience_seconds = sender.patience_seconds
        self.reading = sender.reading
        self.monotonic = sender.monotonic
        self.ranges, self.range_of = sender.ranges, sender.range_of
        self.range_id = sender.range_id
        self.span_of = sender.span_of
        self.send = sender.send
        self.sleep = sender.sleep
        self.now = sender.now

    def try_get(self, key: bytes) -> Value | None:
        """Return ``None``: the transaction is the loop's, not this thread's."""
        del key
        return None

    def run(self, coroutine: Coroutine[Any, Any, T], waiter: WaitHandle | None = None) -> T:
        """Run ``coroutine`` to its end, on the loop."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if waiter is None:
            return running.result()
        waiter.waits_for(_OnLoop(running))
        try:
            return running.result()
        except CancelledError:
            waiter.waits_for(None)
            raise


class _OnLoop:
    """A coroutine on a loop, for which a thread waits."""

    def __init__(self, running: Future[Any]) -> None:
        self._running = running

    def end_wait(self, error: BaseException) -> None:
        """Cancel the coroutine."""
        del error
        self._running.cancel()


class RepeatedWakeUp(Protocol):
    """A wake-up that is given again and again."""

    def say(self) -> None:
        """Wake the waiter. If there is none, the next one does not wait."""

    async def wait(self, seconds: float) -> bool:
        """Wait until it is given, or for a time; return whether it was given."""


class _LoopWakeUp:
    """A wake-up that is given and awaited on one event loop."""

    def __init__(self) -> None:
        self._said = asyncio.Event()

    def say(self) -> None:
        self._said.set()

    async def wait(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._said.wait()
        except TimeoutError:
            return False
        finally:
            self._said.clear()


class _ThreadWait:
    """The awaitable that a blocking sender meets: an object with ``wait``."""

    def __init__(self, said: threading.Event, seconds: float) -> None:
        self._said = said
        self._seconds = seconds

    def wait(self) -> None:
        self._said.wait(self._seconds)

    def end_wait(self, error: BaseException) -> None:
        """End the wait."""
        del error
        self._said.set()

    def __await__(self) -> Generator[_ThreadWait, None, None]:
        yield self


class _ThreadWakeUp:
    """A wake-up that any thread gives, and one awaits."""

    def __init__(self) -> None:
        self._said = threading.Event()

    def say(self) -> None:
        self._said.set()

    async def wait(self, seconds: float) -> bool:
        await _ThreadWait(self._said, seconds)
        was_said = self._said.is_set()
        self._said.clear()
        return was_said


def wake_up_for(sender: Sender) -> RepeatedWakeUp:
    """Return a wake-up for clients of ``sender``: a sender that runs coroutines blocks threads."""
    return _ThreadWakeUp() if hasattr(sender, "run") else _LoopWakeUp()
