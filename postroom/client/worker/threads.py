"""Threads for functions that may never return.

A process waits at its end for the threads of ``concurrent.futures``, however long that takes. These
threads end with the process. If a thread is given up because its function does not return, another
thread takes its place until it comes back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

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


__all__ = ["Threads"]
