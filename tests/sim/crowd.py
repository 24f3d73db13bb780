"""The clients of a run: each is a process of its own, so that it can die by itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from random import Random  # noqa: TID251 - made from the seed
from typing import Any, NamedTuple, Protocol

from postroom.client.database import CoreDatabase
from tests.sim.tasks import Task
from tests.sim.workloads.workload import Client, Workload

Place = tuple[int, int]
"""The index of a workload, and the number of a client of it."""


class ClientWorld(Protocol):
    """A world that has clients: a simulated node or a simulated cluster."""

    def database(self, process: str) -> CoreDatabase:
        """Return the database of the clients of a process."""

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> Task:
        """Begin a client."""

    def kill(self, task: Task, database: CoreDatabase) -> None:
        """Let a client die where it stands."""


class Member(NamedTuple):
    """A client, with what it does and the database of its process."""

    task: Task
    database: CoreDatabase
    client: Client


class Crowd:
    """See the module.

    Args:
        world: where the clients live.
        seed: the seed of the run.
        workloads: what the clients do.
        start: a function that returns what a client does.

    Attributes:
        members: the client at each place.
        is_over: whether clients come to their end.
    """

    def __init__(
        self,
        world: ClientWorld,
        seed: int,
        workloads: Sequence[Workload],
        start: Callable[[Workload, Client], Coroutine[Any, Any, Any]],
    ) -> None:
        self.members: dict[Place, Member] = {}
        self.is_over = False
        self._world = world
        self._seed = seed
        self._workloads = workloads
        self._start = start
        self._lives = 0

    def begin_all(self, begin: Callable[[Place], object]) -> None:
        """Call ``begin`` for every place."""
        for index, workload in enumerate(self._workloads):
            for number in range(workload.clients):
                begin((index, number))

    def begin(self, place: Place) -> Task:
        """Begin a client at a place that is free, or whose client has died."""
        self._lives += 1
        index, number = place
        workload = self._workloads[index]
        name = f"{type(workload).__name__} {number} ({self._lives})"
        database = self._world.database(name)
        randomness = Random(f"{name} {self._seed}")
        client = Client(database, randomness, number, self._lives, lambda: self.is_over)
        task = self._world.spawn(name, self._start(workload, client))
        self.members[place] = Member(task, database, client)
        return task

    def kill(self, place: Place) -> bool:
        """Kill the client at a place; return false if it has ended already."""
        task, database, _ = self.members[place]
        if task.done:
            return False
        self._world.kill(task, database)
        return True

    def kill_all(self) -> None:
        """Kill every client that has not ended."""
        for place in self.members:
            self.kill(place)
