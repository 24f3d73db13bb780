"""The calls of one task that are under way: their slots, their time, and how each ends.

::

    a task's slot ─▶ started ─▶ a slot of the worker ─▶ the function runs ─▶ committing ─▶ ended
                                                             ├─ its time is over ─┐
                                                             └─ the worker stops ─┴▶ given up

A call that is given up has failed, whatever its function does after that: its transaction accepts
nothing more. A coroutine is cancelled. A thread cannot be cancelled: it is *lost*. It goes on,
without a slot, until its function returns. A coroutine that ignores its cancellation does the same.
A call that commits is not given up: the store bounds how long that takes.

``Threads`` are for functions that may never return. A process waits at its end for the threads of
``concurrent.futures``, however long that takes. These threads end with the process. If a thread is
lost because its function does not return, another thread takes its place until it comes back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from postroom.client.queues.sending import QueueSends

P = ParamSpec("P")
T = TypeVar("T")


class Threads(Executor):
    """An executor that calls functions, each in a thread.

    Args:
        most: how many at a time. Lost threads are not counted, but there are never more than twice
            as many threads.
        name: the name of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self.most = most
        self._name = name
        self._changed = threading.Condition()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0
        self._idle = 0
        self._lost: set[Future[Any]] = set()
        self._closed = False

    @property
    def lost(self) -> int:
        """Return how many threads run functions that were given up."""
        return len(self._lost)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn`` called."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("no functions are called any more: the worker has ended")
            self._calls.append((future, lambda: fn(*args, **kwargs)))
            if len(self._calls) <= self._idle:
                self._changed.notify()
            else:
                self._begin_thread()
        return future

    def lose(self, future: Future[Any]) -> bool:
        """Give up the thread of a call; return false if it has not begun, or has just ended."""
        with self._changed:
            if not future.running():
                return False
            self._lost.add(future)
            if len(self._calls) > self._idle:
                self._begin_thread()
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads that have nothing to do, and each of the others after its call."""
        del wait  # a function may never return
        with self._changed:
            self._closed = True
            while cancel_futures and self._calls:
                self._calls.popleft()[0].cancel()
            self._changed.notify_all()

    def _begin_thread(self) -> None:
        """Start a thread, under the lock. If there is no place left, a call waits for a thread."""
        if self._threads >= self.most + min(len(self._lost), self.most):
            return
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more of them
            if self._threads == 0:
                self._calls.pop()
                raise
        else:
            self._threads += 1

    def _work(self) -> None:
        while (call := self._next()) is not None:
            future, function = call
            del call
            if future.set_running_or_notify_cancel():
                _carry_out(future, function)
            del function
            if not self._comes_back(future):
                return

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._calls:
                if self._closed:
                    self._threads -= 1
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return self._calls.popleft()

    def _comes_back(self, future: Future[Any]) -> bool:
        """Return whether the thread goes on: another one may have taken the place of a lost one."""
        with self._changed:
            if future in self._lost:
                self._lost.discard(future)
                if self._threads > self.most + min(len(self._lost), self.most):
                    self._threads -= 1
                    return False
        return True


def _carry_out(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


LOOKS_PER_TIMEOUT: Final = 10
LONGEST_LOOK_SECONDS: Final = 1.0
LOOK_SECONDS_MIN: Final = 0.01
OBEYING_SECONDS: Final = 0.3
"""The time within which a cancelled coroutine must end, in seconds."""


class Running:
    """A call that is under way.

    Attributes:
        task: makes the call, and stores its outcome.
        ended: done when the call needs no slot any more.
        given_up: why the call was given up; ``None``: it was not.
        given_up_at: when that was.
        is_in_function: whether a coroutine of the user's runs.
        is_lost: whether it goes on although it was cancelled; its outcome is stored elsewhere.
        is_stopped: whether the worker was told to end what runs.
        has_slot: whether it has one of the worker's slots.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._tx: QueueSends[Any] | None = None
        self._since: float | None = None
        self._commits = False
        self._thread: Future[Any] | None = None
        self.task: asyncio.Task[Any]
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.given_up: Exception | None = None
        self.given_up_at = 0.0
        self.is_in_function = False
        self.is_lost = False
        self.is_stopped = False
        self.has_slot = False

    # --- calls from the thread of the function

    def begins(self, tx: QueueSends[Any]) -> None:
        """Note a new transaction of the call; its user cannot end it.

        Raises:
            whatever it was given up for.
        """
        tx.lifetime.ended_by = "worker"
        with self._lock:
            if self.given_up is not None:
                raise self.given_up
            self._tx, self._commits = tx, False

    def calling(self) -> None:
        """Begin the time of its function, which is being called."""
        self._since = self._monotonic()

    def returned(self) -> None:
        """Note that its function has returned, and that the commit begins.

        Raises:
            whatever it was given up for.
        """
        with self._lock:
            if self.given_up is not None:
                raise self.given_up
            self._commits, self._since = True, None

    def in_thread(self, thread: Future[Any]) -> None:
        """Note the thread that carries it out."""
        self._thread = thread

    # --- calls from the worker

    def keep_young(self) -> None:
        """Restart the time of its transaction, if nothing in it could become too old."""
        tx = self._tx
        if tx is not None:
            tx.keep_young()

    def is_over(self, seconds: float) -> bool:
        """Return whether its function has run for longer than ``seconds``."""
        since = self._since
        return since is not None and self._monotonic() - since > seconds

    def give_up(self, why: Exception) -> bool:
        """Give the call up; return whether it is to be cancelled.

        A call that commits already goes on, but does not begin again.
        """
        with self._lock:
            if self.given_up is not None:
                return False
            self.given_up, self.given_up_at = why, self._monotonic()
            if self._commits:
                return False
            if self._tx is not None:
                self._tx.lifetime.abandon()
            return True

    def release(self) -> None:
        """Release the locks and claims of its transaction, which was given up."""
        if self._tx is not None:
            self._tx.lifetime.release()

    def lose_thread(self, threads: Threads) -> bool:
        """Return whether a thread goes on with it, which cannot be stopped."""
        return self._thread is not None and threads.lose(self._thread)


Work: TypeAlias = Callable[[Running], Coroutine[Any, Any, Any]]


class Calls:
    """The calls of one task that are under way.

    Args:
        monotonic: returns the time in seconds.
        task_slots: how many calls may run at a time.
        lost: coroutines that go on although they were cancelled.
        slots: the worker's slots for calls of all its tasks; ``None``: no bound.
        timeout: seconds that a function may run; ``None``: any number.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        task_slots: int,
        lost: set[asyncio.Task[Any]],
        slots: asyncio.Semaphore | None,
        timeout: float | None,
    ) -> None:
        self._monotonic = monotonic
        self._task_slots = asyncio.Semaphore(task_slots)
        self._lost = lost
        self._slots = slots
        self._timeout = timeout
        self._running: dict[Running, Work] = {}
        self._looking: asyncio.Task[None] | None = None

    async def slot(self) -> None:
        """Wait for a slot of the task."""
        await self._task_slots.acquire()

    def leave(self) -> None:
        """Give a slot of the task back in which nothing was started."""
        self._task_slots.release()

    def start(self, running: Running, work: Work, disobeys: Work) -> asyncio.Future[Any]:
        """Start a call in the slot that was waited for; return a future that is done when it ends.

        Args:
            running: the call.
            work: makes the call, and stores its outcome.
            disobeys: stores the outcome instead, if the call does not end when it is cancelled.
        """
        self._running[running] = disobeys
        running.task = asyncio.ensure_future(self._run(running, work))
        running.task.add_done_callback(lambda task: self._end(running, task))
        if self._looking is None and self._timeout is not None:
            self._looking = asyncio.ensure_future(self._look(self._timeout))
        return running.ended

    async def _run(self, running: Running, work: Work) -> Any:
        if self._slots is not None:
            await self._slots.acquire()
            running.has_slot = True
        return await work(running)

    def _end(self, running: Running, task: asyncio.Future[Any]) -> None:
        if running.task is not task:  # it was lost, and has ended now
            if not task.cancelled():
                task.exception()
            return
        del self._running[running]
        self._task_slots.release()
        if running.has_slot and self._slots is not None:
            self._slots.release()
        if task.cancelled():
            running.ended.cancel()
        elif (error := task.exception()) is not None:
            running.ended.set_exception(error)
        else:
            running.ended.set_result(task.result())

    # --- ending calls

    async def finish(self) -> None:
        """Wait until everything that runs has ended."""
        while self._running:
            await asyncio.wait({each.ended for each in self._running})
            await asyncio.sleep(0)
        self._look_no_more()

    def cancel(self) -> None:
        """End what runs, as far as it can be ended."""
        for each in list(self._running):
            each.is_stopped = True
            each.give_up(RuntimeError("the worker was stopped"))
            each.task.cancel()
        self._look_no_more()
        if self._running:
            self._looking = asyncio.ensure_future(self._look(self._timeout or float("inf")))

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self, seconds: float) -> None:
        """Give up calls that run for longer than ``seconds``."""
        pause = min(max(seconds / LOOKS_PER_TIMEOUT, LOOK_SECONDS_MIN), LONGEST_LOOK_SECONDS)
        while self._running:
            obeying = False
            for running in list(self._running):
                if running.given_up is None and running.is_over(seconds):
                    if running.give_up(TimeoutError(f"it ran for more than {seconds:g} s")):
                        running.task.cancel()
                elif running.is_in_function and running.given_up is not None:
                    self._see_to(running)
                obeying = obeying or running.given_up is not None
            await asyncio.sleep(min(pause, OBEYING_SECONDS) if obeying else pause)
        self._looking = None

    def _see_to(self, running: Running) -> None:
        """Go on without a coroutine that runs on although it was cancelled."""
        if running.is_lost or self._monotonic() - running.given_up_at < OBEYING_SECONDS:
            return
        running.is_lost = True
        running.task.add_done_callback(self._lost.discard)
        self._lost.add(running.task)
        running.task = asyncio.ensure_future(self._running[running](running))
        running.task.add_done_callback(lambda end: self._end(running, end))
