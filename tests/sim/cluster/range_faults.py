"""Ranges that split while things break, leases that move, and clients with wrong range caches.

A split is asked for in two ways: by a client (``db.split``), or at the nodes themselves, so that
nobody awaits it. Keys are drawn from those that are stored: cuts lie at a key, right behind it, at
a prefix of it, or anywhere.

A client is lied to as if a node had told it: a range that overlaps others, one from long ago, one
that has every key. Each range is the authority about itself, so all of it comes to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any, Final

from postroom.client.database import CoreDatabase
from postroom.errors import CommitUnknown, Invalid, Retryable
from postroom.kv import keys
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.split.requests import NewRangeId, PrepareSplit
from postroom.server.hosted_range import HostedRange
from tests.sim.cluster.asking import Asked
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine
from tests.sim.tasks import Task

RANGES_MAX: Final = 4
"""The number of ranges from which on a run splits none."""
_ASKED_SECONDS: Final = 2.0
"""The time after which a split that was asked for has begun, or has come to nothing."""
_FORGED_ID_MAX: Final = 9


def _has_rest(machine: Machine, hosted: HostedRange) -> bool:
    """Return whether a range has something of an earlier split left to delete."""
    assert machine.node is not None
    engine = machine.node.engine
    return any(each.has_rest(engine) for each in hosted.replica.registry.divisible)


class RangeFaults:
    """Splits, moves of leases, and lies.

    Args:
        cluster: whose ranges they are.
        randomness: when, what and where.
        database: returns the database of a client that splits ranges, and moves leases.
        seen: counts what has happened.
    """

    def __init__(
        self,
        cluster: Cluster,
        randomness: Random,
        database: Callable[[], CoreDatabase],
        seen: Any,
    ) -> None:
        self._cluster = cluster
        self._random = randomness
        self._database = database
        self._seen = seen
        self._tasks: list[Task] = []
        self._asked = 0

    def acts(self) -> list[Callable[[], None]]:
        """Return what a run draws from."""
        splits = [self.split, self.split]
        if len(self._cluster.machines) == 1:  # no other node leads, and there are no routers
            return splits
        return [*splits, self.move_lease, self.move_lease, self.transfer, self.lie, self.lie]

    def is_over(self) -> bool:
        """Return whether all calls have ended, and nothing of a split is left to do."""
        return all(task.done for task in self._tasks) and not any(
            hosted.replica.listing.splitting() or _has_rest(machine, hosted)
            for machine, hosted in self.served()
        )

    def served(self) -> list[tuple[Machine, HostedRange]]:
        """Return the ranges that are served, with their machines."""
        return [
            (machine, hosted)
            for machine in self._cluster.machines
            if machine.node is not None and machine.node.failed is None
            for hosted in machine.node.replicas.hosted.values()
            if hosted.replica.serves
        ]

    # --- splits

    def split(self) -> None:
        """Have a range split at a key."""
        known = max(len(self._cluster.overseer.raft_of), self._asked)
        key = self._key()
        if known >= RANGES_MAX or not key:
            return
        self._asked = known + 1
        self._cluster.agenda.after(_ASKED_SECONDS, self._forget_asked)
        self._seen["splits asked for"] += 1
        if self._random.random() < 0.5:
            self._call("split", self._database().split(key))
        else:
            self._at_root(NewRangeId(), lambda id_: self._at_key(key, PrepareSplit(key, id_)))

    def _forget_asked(self) -> None:
        """Split once more, if nothing came of what was asked for."""
        self._asked = 0

    def _key(self) -> bytes:
        """Return the key of a cut; empty: nothing is stored."""
        disk = self._random.choice(self._cluster.machines).disk.content
        stored = {keys.user_key(raw): None for raw, _ in disk.iterate(keys.DATA, keys.DATA_END)}
        if not stored:
            return b""
        key = self._random.choice(list(stored))
        chance = self._random.random()
        if chance < 0.1:
            return key + b"\x00"
        if chance < 0.3:
            return key[: self._random.randint(1, len(key))] if key else key
        if chance < 0.4:
            return self._random.randbytes(self._random.randint(1, 3))
        return key

    def _at_root(self, request: Any, told: Callable[[Any], object]) -> None:
        for machine, hosted in self.served():
            if hosted.range_id == ROOT_ID:
                self._ask(machine, hosted, request, told)
                return

    def _at_key(self, key: bytes, request: Any) -> None:
        for machine, hosted in self.served():
            if hosted.replica.bounds.contains(key):
                self._ask(machine, hosted, request, lambda _: None)
                return

    def _ask(
        self, machine: Machine, hosted: HostedRange, request: Any, told: Callable[[Any], object]
    ) -> None:
        def hear(answer: Any) -> None:
            if answer is not None:
                self._cluster.agenda.after(0.0, lambda: told(answer))

        machine.act(lambda: hosted.replica.submit(Asked(request, hear)))

    # --- leases

    def move_lease(self) -> None:
        """Have a client move a lease, or the leaseholder give it away."""
        served = self.served()
        if not served:
            return
        machine, hosted = self._random.choice(served)
        to = self._random.choice(self._cluster.machines).node_id
        self._seen["leases moved"] += 1
        if self._random.random() < 0.5 and to:  # else it is about to join
            self._call("move", self._database().move_lease(hosted.range_id, to))
        else:
            machine.act(lambda: hosted.hand_over(self._random.choice([None, to])))

    def transfer(self) -> None:
        """Move the lead of a range to another node, under load."""
        served = self.served()
        if not served:
            return
        machine, hosted = self._random.choice(served)
        others = [each.node_id for each in self._cluster.machines if each is not machine]
        to = self._random.choice([None, *others])
        machine.act(lambda: hosted.group.transfer_leadership(to))
        self._seen["leads of ranges moved"] += 1

    def _call(self, name: str, call: Any) -> None:
        """Have a client make a call that may fail."""

        async def make() -> None:
            try:
                await call
            except (Invalid, Retryable, CommitUnknown):
                self._seen[f"{name} refused"] += 1

        self._tasks = [each for each in self._tasks if not each.done]
        self._tasks.append(self._cluster.spawn(name, make()))

    # --- lies

    def lie(self) -> None:
        """Tell a client of a range that there is not, or not any more, or not yet."""
        router = self._random.choice(
            [each.router for each in self._cluster._processes if not each.is_dead]
        )
        links = [link for _, link in sorted(router._links.items())]
        if links:
            self._seen["lies"] += 1
            link = self._random.choice(links)
            router._failed_tries.learn([self._forged(router._lanes.cache)], link)

    def _forged(self, known: Iterable[RangeDescriptor]) -> RangeDescriptor:
        choose = self._random
        true = choose.choice(list(known) or [RangeDescriptor(ROOT_ID)])
        id_ = choose.choice([true.range_id, choose.randint(1, _FORGED_ID_MAX)])
        generation = max(true.generation + choose.choice([-1, 0, 1, 2, 100]), 1)
        match choose.randrange(3):
            case 0:  # endless
                start, end = b"", None
            case 1:  # overlapping
                start, end = sorted([self._key(), self._key() + b"\xff"])
            case _:
                start, end = true.start, None
        return RangeDescriptor(id_, start, end, generation)
