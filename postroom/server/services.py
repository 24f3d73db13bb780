"""The services of a range, which run where its lease is: they start with it and stop with it.

* the *dispatcher* delivers messages that are due, the *executor* carries out updates;
* the *collector* removes versions that nobody can read any more;
* the *feed* forgets the last changes when nobody watches any more;
* the *keeper* makes the consensus group what the record of the nodes says, in a cluster.

Each is a coroutine that the node's turns step (:mod:`.tasks`). A service of a deposed leaseholder
can do no harm: what it asks for is evaluated under a lease that is over, and has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from postroom.server.tasks import Tasks

Service: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Begins a service from the start."""


class Services:
    """The services of one range on one node.

    Args:
        tasks: where they run.
        begin: makes their coroutines.
    """

    def __init__(self, tasks: Tasks, begin: list[Service]) -> None:
        self._tasks = tasks
        self._begin = begin
        self._running: list[Coroutine[Any, Any, None]] = []

    @property
    def running(self) -> bool:
        """Whether they have been started, and not stopped since."""
        return bool(self._running)

    def start(self) -> None:
        """The lease is this node's: all services begin."""
        self.stop()
        self._running = [service() for service in self._begin]
        for service in self._running:
            self._tasks.spawn(service)

    def stop(self) -> None:
        """The lease is another node's, or nobody's: they end where they stand."""
        running, self._running = self._running, []
        for service in running:
            self._tasks.cancel(service)
