"""The cooperative tasks: the services of a node, run by the driver of its turns.

Services (dispatcher, executor, garbage collector) are coroutines. They are stepped inside the
node's turns, one at a time, in the order in which they became ready. They are stepped in the same
way under asyncio, by threads, and in a simulation. No service ever sees another thread.

::

    coroutine ── awaits ──▶ Pending ── completed ──▶ ready ── run_ready() ──▶ coroutine goes on
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from postroom.ranges.waiting import Deadlines

_log = logging.getLogger(__name__)


class Pending:
    """An event to wait for: completed once, with a result or an error."""

    __slots__ = ("callback", "done", "error", "result")

    def __init__(self) -> None:
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.callback: Callable[[], None] | None = None

    def complete(self, result: Any, error: BaseException | None = None) -> None:
        """Complete it with a result or an error. Later completions are ignored."""
        if self.done:
            return
        self.done = True
        self.result = result
        self.error = error
        if self.callback is not None:
            self.callback()

    def __await__(self) -> Generator[Pending, None, Any]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.result


class WakeUp:
    """A wake-up, set by one side and awaited by the other. It forgets how often it was set."""

    def __init__(self, tasks: NodeTasks) -> None:
        self._tasks = tasks
        self._set = False
        self._waiting: Pending | None = None

    def set(self, *, urgent: bool = False) -> None:
        """Set the wake-up: there may be something to do.

        Args:
            urgent: whether a client waits for the result.
        """
        self._set = True
        if self._waiting is not None:
            self._tasks.is_urgent |= urgent
            self._waiting.complete(None)

    async def wait(self, timeout_seconds: float) -> None:
        """Wait until it is set, or for a time; then reset it."""
        if not self._set:
            self._waiting = pending = Pending()
            self._tasks.at(timeout_seconds, pending)
            try:
                await pending
            finally:
                self._tasks.cancel_timer(pending)
                self._waiting = None
        self._set = False


class NodeTasks:
    """The tasks of one node.

    Args:
        monotonic: seconds since an arbitrary start.
        wake: called when a task has become ready outside ``run``; with whether it is urgent.

    Attributes:
        is_urgent: whether a client waits for a task that is ready.
    """

    def __init__(self, monotonic: Callable[[], float], wake: Callable[[bool], None]) -> None:
        self.monotonic = monotonic
        self._wake = wake
        self._ready: deque[Coroutine[Any, Any, None]] = deque()
        self._timers: Deadlines[Pending] = Deadlines()
        self._alive: dict[Coroutine[Any, Any, None], None] = {}
        self._stopped = self._runs = False
        self.is_urgent = False

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a task with the next turn."""
        self._alive[coroutine] = None
        self._has_become_ready(coroutine)

    def cancel(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """End a task where it stands. Not to be called from within it."""
        self._alive.pop(coroutine, None)
        if coroutine in self._ready:
            self._ready.remove(coroutine)
        coroutine.close()

    def at(self, seconds: float, pending: Pending) -> None:
        """Complete ``pending`` after a time, unless it is complete, or the timer is cancelled."""
        self._timers.set(pending, self.monotonic() + seconds)

    def cancel_timer(self, pending: Pending) -> None:
        """Cancel the timer of ``pending``, for which no task waits any more."""
        self._timers.cancel(pending)

    @property
    def timers(self) -> int:
        """Return how many timers there are, with those that were cancelled and not removed yet."""
        return self._timers.entries

    async def sleep(self, seconds: float) -> None:
        """Sleep for a number of seconds."""
        pending = Pending()
        self.at(seconds, pending)
        try:
            await pending
        finally:
            self.cancel_timer(pending)

    def run(self) -> None:
        """Complete timers that are due, and step every task that is ready."""
        self._runs = True
        try:
            for pending in self._timers.take_due(self.monotonic()):
                pending.complete(None)
            while self._ready and not self._stopped:
                self._step(self._ready.popleft())
        finally:
            self._runs = self.is_urgent = False

    def next_deadline(self) -> float | None:
        """Return when ``run`` has something to do at the latest, on the monotonic clock."""
        return self._timers.first()

    def stop(self) -> None:
        """End all tasks where they are."""
        self._stopped = True
        self._timers.clear()
        self._ready.clear()
        for coroutine in self._alive:
            coroutine.close()
        self._alive.clear()

    def _step(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            pending: Pending = coroutine.send(None)
        except StopIteration:
            self._alive.pop(coroutine, None)
            return
        except Exception:
            # Services begin again by themselves; no other task here should fail.
            self._alive.pop(coroutine, None)
            _log.critical("a task of the node has stopped", exc_info=True)
            return
        pending.callback = lambda: self._resume(coroutine)

    def _resume(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if not self._stopped and coroutine in self._alive:
            self._has_become_ready(coroutine)

    def _has_become_ready(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._ready.append(coroutine)
        if not self._runs:
            self._wake(self.is_urgent)
