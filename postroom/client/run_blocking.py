"""A runner of coroutines for threads: their awaitables are objects that a thread can wait for.

An interrupt (``KeyboardInterrupt``, or an error raised by the handler of a signal) comes between
any two instructions of this thread. It may come while the coroutine is suspended and nothing waits
for it yet. It must be raised in the coroutine all the same. Otherwise the things that the coroutine
holds are not given back, and a generator that it awaits is "already running" when it is closed.

Another thread may end the wait, too (:class:`Waiter`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine, Generator
from types import CoroutineType
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

LOOK_SECONDS: Final = 0.1
"""The time within which a pause notices that it was ended, in seconds."""


class WaitEnded(Exception):
    """An error in a thread whose wait another thread has ended."""


class Waiter:
    """A handle by which another thread ends a wait of a running coroutine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Any = None
        self._error: BaseException | None = None

    def end(self, error: BaseException) -> None:
        """Raise ``error`` where the coroutine waits, or will wait next; from any thread."""
        with self._lock:
            self._error, waiting = error, self._waiting
        end_wait = getattr(waiting, "end_wait", None)
        if end_wait is not None:
            end_wait(error)

    def waits_for(self, waiting: Any) -> None:
        """Note that the coroutine is about to wait.

        Raises:
            the error that was to be raised, unless the last wait has raised it.
        """
        with self._lock:
            self._waiting = waiting
            error, self._error = self._error, None
        if error is not None and error.__traceback__ is None:
            raise error


class Sleep:
    """A pause of the calling thread, which an event ends, or a :class:`Waiter`."""

    def __init__(self, stopped: threading.Event, seconds: float) -> None:
        self._stopped = stopped
        self._until = time.monotonic() + seconds
        self._ended = False

    def wait(self) -> None:
        """Block until the time is over."""
        while not self._ended and (left := self._until - time.monotonic()) > 0:
            if self._stopped.wait(min(left, LOOK_SECONDS)):
                return

    def end_wait(self, error: BaseException) -> None:
        """End the pause."""
        del error
        self._ended = True

    def __await__(self) -> Generator[Sleep, None, None]:
        yield self


def run_blocking(coroutine: Coroutine[Any, Any, T], waiter: Waiter | None = None) -> T:
    """Run ``coroutine`` to its end, and block whenever it waits: it yields objects with ``wait``.

    Args:
        coroutine: the coroutine to run.
        waiter: by which another thread can end a wait.
    """
    inner = cast("CoroutineType[Any, Any, T]", coroutine)
    interrupt: BaseException | None = None
    waiting: Any = None
    while True:
        try:
            waiting = inner.send(None) if interrupt is None else inner.throw(interrupt)
            interrupt = None
            while True:
                if waiter is not None:
                    waiter.waits_for(waiting)
                waiting.wait()
                waiting = inner.send(None)
        except StopIteration as stop:
            interrupt = None  # its traceback refers to this frame
            result: T = stop.value
            return result
        except BaseException as error:
            interrupt = None
            if inner.cr_frame is None:  # it has ended with this
                raise
            if type(error) is AttributeError and not hasattr(waiting, "wait"):
                error = TypeError(
                    "this thread has no event loop, and what is awaited here needs one: use "
                    "postroom.aio, or a plain function; nothing was changed"
                )
            interrupt = error


__all__ = ["Sleep", "WaitEnded", "Waiter", "run_blocking"]
