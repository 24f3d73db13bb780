"""The services of a range, which run on its leaseholder, and the rest in which there are none.

* the *dispatcher* delivers messages that are due, the *executor* carries out updates;
* *outgoing* hands over messages and updates to other ranges;
* *attempts* counts the attempts at messages of inboxes whose consumers have vanished;
* *queues* fires their messages, ends leases that ran out, and does other work that is due in them;
* the *collector* removes versions that no transaction can read any more;
* the *feed* forgets the last changes when there are no watchers any more;
* *membership* gives the consensus group the members that the record of the nodes names;
* *split* carries out a split of the range that is prepared.

Each is a coroutine that the node's turns step (:class:`NodeTasks`). It sleeps until its wake-up is
set, or until the next thing that it knows of is due. While it has nothing to do, it has no timer;
:mod:`.service_rounds` wakes those that may have missed something. A service of a deposed
leaseholder can do no harm: its requests are evaluated under a lease that is over, and have no
effect.

A service that fails begins again after a pause, which doubles while it fails again and again::

    running ── fails ──▶ pausing ── 0.1 s, 0.2 s ... 30 s ──▶ running ── for a minute ──▶ sound

The node's status tells the state of each service, how often it has failed, and why.

But the work of the services must not wait for the first write: messages that a transaction
scheduled fall due by themselves. A store therefore rests only while nothing is due, and is woken
when something is::

    opened ── nothing due ─▶ rests ─┬─ a first write, lock or reap ──▶ services begin
       └───── something due ────────┴─ an entry of an outbox is due ──▶

(:mod:`postroom.ranges.lease` says why reading without a lease of its own is safe.)

*Tasks.* The coroutines are stepped inside the node's turns, one at a time, in the order in which
they became ready. They are stepped in the same way under asyncio, by threads, and in a simulation.
No service ever sees another thread.

::

    coroutine ── awaits ──▶ Pending ── completed ──▶ ready ── run_ready() ──▶ coroutine goes on
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from postroom.counted import counted
from postroom.kv.clock import HybridLogicalClock, seconds_until
from postroom.limits import SERVICE_ERROR_CHARACTERS_MAX
from postroom.ranges.nodes import ServiceStatus
from postroom.ranges.replica import Replica
from postroom.ranges.waiting import Deadlines

# --- tasks ----------------------------------------------------------------------------------------


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


def all_of(every: Sequence[Pending]) -> Pending:
    """Return an event that is complete once all of ``every`` are."""
    if len(every) == 1:
        return every[0]
    complete, left = Pending(), 1

    def one_is_done(then: Callable[[], None] | None = None) -> None:
        nonlocal left
        left -= 1
        if not left:
            complete.complete(None)
        if then is not None:
            then()

    for each in every:
        if not each.done:
            left += 1
            each.callback = partial(one_is_done, each.callback)
    one_is_done()
    return complete


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
            if urgent:
                self._tasks.hurry()
            self._waiting.complete(None)

    async def wait(self, timeout_seconds: float = math.inf) -> None:
        """Wait until it is set, or for a time; then reset it."""
        if not self._set:
            self._waiting = pending = Pending()
            if timeout_seconds < math.inf:
                self._tasks.at(timeout_seconds, pending)
            try:
                await pending
            finally:
                self._tasks.cancel_timer(pending)
                self._waiting = None
        self._set = False

    @property
    def has_timer(self) -> bool:
        """Return whether it is waited for, and not for ever."""
        return self._waiting is not None and self._tasks.has_timer(self._waiting)


class WakeUps:
    """The wake-ups of the services of one range.

    Args:
        tasks: the tasks of the node.
    """

    def __init__(self, tasks: NodeTasks) -> None:
        self._tasks = tasks
        self._made: list[WakeUp] = []

    def create(self) -> WakeUp:
        """Create another one."""
        made = WakeUp(self._tasks)
        self._made.append(made)
        return made

    def set(self) -> None:
        """Set all of them."""
        for each in self._made:
            each.set()

    def set_timed(self) -> None:
        """Set those that are waited for until something is due: the clock may have been set."""
        for each in self._made:
            if each.has_timer:
                each.set()


class NodeTasks:
    """The tasks of one node.

    Args:
        monotonic: seconds since an arbitrary start.
        wake: called when a task has become ready outside ``run``; with whether it is urgent.

    Attributes:
        is_urgent: whether a client waits for a task that is ready.
        next_at: a time before which ``run`` has nothing to do. Whatever makes work sets it: a turn
            need not ask.
    """

    def __init__(self, monotonic: Callable[[], float], wake: Callable[[bool], None]) -> None:
        self.monotonic = monotonic
        self._wake = wake
        self._ready: deque[Coroutine[Any, Any, None]] = deque()
        self._timers: Deadlines[Pending] = Deadlines()
        self._alive: dict[Coroutine[Any, Any, None], None] = {}
        self._stopped = self._runs = False
        self.is_urgent = False
        self.next_at = math.inf

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
        deadline = self.monotonic() + seconds
        self._timers.set(pending, deadline)
        self.next_at = min(self.next_at, deadline)

    def hurry(self) -> None:
        """Note that a client waits for a task, which becomes ready."""
        self.is_urgent, self.next_at = True, -math.inf

    def cancel_timer(self, pending: Pending) -> None:
        """Cancel the timer of ``pending``, for which no task waits any more."""
        self._timers.cancel(pending)

    def has_timer(self, pending: Pending) -> bool:
        """Return whether ``pending`` has a timer."""
        return pending in self._timers

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
        due = self._timers.take_due(self.monotonic())
        self._runs = True
        try:
            for pending in due:
                pending.complete(None)
            while self._ready and not self._stopped:
                self._step(self._ready.popleft())
        finally:
            self._runs = self.is_urgent = False
            first = self._timers.first()
            self.next_at = -math.inf if self._ready else math.inf if first is None else first

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
        self.next_at = -math.inf
        if not self._runs:
            self._wake(self.is_urgent)


# --- services -------------------------------------------------------------------------------------


Service: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""The function that begins a service from the start."""

PAUSE_SECONDS_FIRST: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 30.0
SOUND_SECONDS: Final = 60.0
"""The time without a failure after which a service is sound again: its next pause is short."""


class _Supervised:
    """A service that is begun again whenever it fails.

    Attributes:
        status: its present status.
    """

    def __init__(self, name: str, tasks: NodeTasks, begin: Service) -> None:
        self.status = ServiceStatus(name, running=False)
        self._name = name
        self._tasks = tasks
        self._begin = begin

    async def run(self) -> None:
        """Run the service until it ends, and begin it again whenever it fails."""
        pause, failures, last_error = PAUSE_SECONDS_FIRST, 0, ""
        self.status = ServiceStatus(self._name, running=True)
        while True:
            began = self._tasks.monotonic()
            try:
                await self._begin()
            except Exception as error:
                if self._tasks.monotonic() - began >= SOUND_SECONDS:
                    pause, failures = PAUSE_SECONDS_FIRST, 0
                failures += 1
                last_error = f"{type(error).__name__}: {error}"[:SERVICE_ERROR_CHARACTERS_MAX]
                self.status = ServiceStatus(self._name, False, failures, last_error)
                _log.error(
                    "the %s has failed %s, and begins again in %g s",
                    self._name, counted(failures, "time"), pause, exc_info=error,
                )  # fmt: skip
            else:
                return  # it has nothing to do any more
            await self._tasks.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self.status = ServiceStatus(self._name, True, failures, last_error)

    def stopped(self) -> None:
        """Note that the service runs on another node, or on none."""
        self.status = ServiceStatus(self._name, running=False)


class Services:
    """The services of one range on one node.

    Attributes:
        wake, wake_timed: see :class:`WakeUps`.

    Args:
        tasks: the tasks that run them.
        begin: makes their coroutines, by name.
        troubles: for services that go on though a part of their work fails: how often, and why.
        notes: for services with something to report: returns it.
        wake_ups: the wake-ups for which they wait.
    """

    def __init__(
        self,
        tasks: NodeTasks,
        begin: Mapping[str, Service],
        troubles: Mapping[str, Callable[[], tuple[int, str]]] | None = None,
        notes: Mapping[str, Callable[[], str]] | None = None,
        wake_ups: WakeUps | None = None,
    ) -> None:
        self._troubles = troubles or {}
        self._notes = notes or {}
        self._tasks = tasks
        self._services = [_Supervised(name, tasks, each) for name, each in begin.items()]
        self._running: list[Coroutine[Any, Any, None]] = []
        wake_ups = WakeUps(tasks) if wake_ups is None else wake_ups
        self.wake, self.wake_timed = wake_ups.set, wake_ups.set_timed

    @property
    def running(self) -> bool:
        """Return whether they have been started, and not stopped since."""
        return bool(self._running)

    def status(self) -> tuple[ServiceStatus, ...]:
        """Return the status of each service; none of them runs on a node without the lease."""
        return tuple(self._told(each.status) for each in self._services)

    def _told(self, status: ServiceStatus) -> ServiceStatus:
        failures, why = self._troubles.get(status.name, lambda: (0, ""))()
        note = self._notes.get(status.name, str)()
        trouble = why if failures else status.trouble
        return ServiceStatus(status.name, status.running, status.failures + failures, trouble, note)

    def start(self) -> None:
        """Start all services, since the lease is this node's."""
        self.stop()
        self._running = [service.run() for service in self._services]
        for service in self._running:
            self._tasks.spawn(service)

    def stop(self) -> None:
        """Stop all services where they are, since the lease is not this node's any more."""
        running, self._running = self._running, []
        for coroutine in running:
            self._tasks.cancel(coroutine)
        for service in self._services:
            service.stopped()


class Rest:
    """The rest of one store; see the module.

    Args:
        first_due: returns when the first entry of an outbox is due; 0: there is none.
        clock: the node's.
        tasks: the node's, which wake it.
        look_seconds: returns how often the wall clock is looked at: it may have been set.
    """

    def __init__(
        self,
        first_due: Callable[[], int],
        clock: HybridLogicalClock,
        tasks: NodeTasks,
        look_seconds: Callable[[], float],
    ) -> None:
        self._first_due = first_due
        self._clock = clock
        self._tasks = tasks
        self._look_seconds = look_seconds
        self._due = 0

    def is_possible(self) -> bool:
        """Return whether nothing is due that the services would have to do."""
        due = self._due = self._first_due()
        return not due or due > self._clock.reading()

    def watch_over(self, replica: Replica) -> None:
        """Wake ``replica``, which rests, when something is due."""
        due = self._due if replica.rests else 0  # nothing has changed since it came to rest
        if not due:
            return
        seconds = seconds_until(due, self._clock.reading())
        if not seconds:
            replica.wake_up()
            return
        later = Pending()
        later.callback = lambda: self.watch_over(replica)
        self._tasks.at(min(seconds, self._look_seconds()), later)
