"""The clients of a run: each is a process of its own, so that it can die by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random  # noqa: TID251 - made from the seed
from typing import NamedTuple

from postroom.client.database import CoreDatabase
from tests.sim.cluster.cluster import Cluster
from tests.sim.tasks import Task
from tests.sim.workloads.workload import Client, Workload

Place = tuple[int, int]
"""The index of a workload, and the number of a client of it."""


class Member(NamedTuple):
    """A client, with what it does and the database of its process."""

    task: Task
    database: CoreDatabase
    client: Client


class Crowd:
    """The clients of a run, with their workloads.

    Args:
        world: where the clients live.
        seed: the seed of the run.
        workloads: what the clients do.

    Attributes:
        members: the client at each place.
        is_over: whether clients come to their end.
    """

    def __init__(self, world: Cluster, seed: int, workloads: Sequence[Workload]) -> None:
        self.members: dict[Place, Member] = {}
        self.is_over = False
        self._world = world
        self._seed = seed
        self._workloads = workloads
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
        task = self._world.spawn(name, _connect_and_start(workload, client))
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


async def _connect_and_start(workload: Workload, client: Client) -> None:
    await client.db._sender.connect()  # type: ignore[attr-defined]
    await workload.start(client)
