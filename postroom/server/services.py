"""The services of a range, which run where its lease is: they start with it and stop with it.

* the *dispatcher* delivers messages that are due, the *executor* carries out updates;
* *attempts* counts those at messages of inboxes whose consumers have vanished;
* *queues* fires their messages, ends leases that ran out, and does what else is due in them;
* the *collector* removes versions that nobody can read any more;
* the *feed* forgets the last changes when nobody watches any more;
* *membership* makes the consensus group what the record of the nodes says, in a cluster.

Each is a coroutine that the node's turns step (:mod:`.tasks`). A service of a deposed leaseholder
can do no harm: what it asks for is evaluated under a lease that is over, and has no effect.

A service that fails begins again after a pause, which doubles while it fails again and again::

    running ── fails ──▶ pausing ── 0.1 s, 0.2 s ... 30 s ──▶ running ── for a minute ──▶ sound

What each of them is doing, how often it has failed and why, is part of the node's status.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

from postroom.limits import SERVICE_ERROR_CHARACTERS_MAX
from postroom.ranges.nodes import ServiceStatus
from postroom.server.tasks import Tasks

Service: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Begins a service from the start."""

PAUSE_SECONDS_FIRST: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 30.0
SOUND_SECONDS: Final = 60.0
"""A service is sound again when it has run for so long since its last failure: its next pause is
short."""

_log = logging.getLogger(__name__)


class _Supervised:
    """One service, begun again whenever it fails.

    Attributes:
        status: what it is doing.
    """

    def __init__(self, name: str, tasks: Tasks, begin: Service) -> None:
        self.status = ServiceStatus(name, running=False)
        self._name = name
        self._tasks = tasks
        self._begin = begin

    async def run(self) -> None:
        """For ever."""
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
                    "the %s has failed %d times, and begins again in %g s",
                    self._name, failures, pause, exc_info=error,
                )  # fmt: skip
            else:
                return  # it has nothing to do any more
            await self._tasks.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self.status = ServiceStatus(self._name, True, failures, last_error)

    def stopped(self) -> None:
        """It runs elsewhere, or nowhere."""
        self.status = ServiceStatus(self._name, running=False)


class Services:
    """The services of one range on one node.

    Args:
        tasks: where they run.
        begin: makes their coroutines, by name.
        troubles: of those that go on though a part of what they do fails: how often, and why.
    """

    def __init__(
        self,
        tasks: Tasks,
        begin: Mapping[str, Service],
        troubles: Mapping[str, Callable[[], tuple[int, str]]] | None = None,
    ) -> None:
        self._troubles = troubles or {}
        self._tasks = tasks
        self._services = [_Supervised(name, tasks, each) for name, each in begin.items()]
        self._running: list[Coroutine[Any, Any, None]] = []

    @property
    def running(self) -> bool:
        """Whether they have been started, and not stopped since."""
        return bool(self._running)

    def status(self) -> tuple[ServiceStatus, ...]:
        """What each of them is doing; none of them runs on a node without the lease."""
        return tuple(self._with_trouble(each.status) for each in self._services)

    def _with_trouble(self, status: ServiceStatus) -> ServiceStatus:
        failures, why = self._troubles.get(status.name, lambda: (0, ""))()
        if not failures:
            return status
        return ServiceStatus(status.name, status.running, status.failures + failures, why)

    def start(self) -> None:
        """The lease is this node's: all services begin."""
        self.stop()
        self._running = [service.run() for service in self._services]
        for service in self._running:
            self._tasks.spawn(service)

    def stop(self) -> None:
        """The lease is another node's, or nobody's: they end where they stand."""
        running, self._running = self._running, []
        for coroutine in running:
            self._tasks.cancel(coroutine)
        for service in self._services:
            service.stopped()
