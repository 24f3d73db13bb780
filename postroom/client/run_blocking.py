"""How a thread runs a coroutine whose awaitables it can wait for.

An interrupt (``KeyboardInterrupt``, or what a handler of a signal raises) comes between any two
instructions of this thread, also while the coroutine is suspended and nothing waits for it yet. It
belongs into the coroutine all the same: else what that holds is not given back, and a generator
that it awaits is "already running" for whoever closes it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from types import CoroutineType
from typing import Any, TypeVar, cast

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` to its end, blocking whenever it waits: it yields what has a ``wait``."""
    inner = cast("CoroutineType[Any, Any, T]", coroutine)
    interrupt: BaseException | None = None
    while True:
        try:
            waiting = inner.send(None) if interrupt is None else inner.throw(interrupt)
            interrupt = None
            while True:
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
            interrupt = error


__all__ = ["run_blocking"]
