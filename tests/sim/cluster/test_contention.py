"""Clients that want the same keys of two ranges at the same time all get on, on slow disks too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from postroom.errors import Retryable
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.process import ADMINISTRATOR
from tests.sim.cluster.range_schedules import LEFT, RIGHT, _put_both, two_ranges
from tests.sim.cluster.steps import PATIENCE_SECONDS, client

SECONDS: Final = 3.0
SLOWNESS: Final = 100.0
"""A write takes 20 ms."""

Act = Callable[[Any], Any]


def commit_in_both(db: Any) -> Any:
    return db.run(_put_both)


def write(key: bytes, db: Any) -> Any:
    return db.put(key, b"one")


def read(key: bytes, db: Any) -> Any:
    return db.get(key)


LOCAL: Final[tuple[Act, ...]] = tuple(
    partial(act, key) for act in (write, read) for key in (LEFT, RIGHT)
)


def done_by_each(cluster: Cluster, acts: list[Act]) -> list[int]:
    """Let a client do each of ``acts`` over and over; return how often each has succeeded."""
    done: Counter[int] = Counter()

    async def go_on(number: int, db: Any) -> None:
        while True:
            try:
                await acts[number](db)
            except Retryable:
                continue
            done[number] += 1

    for machine in cluster.machines:
        machine.disk_slowness = SLOWNESS
    for number in range(len(acts)):
        db = client(cluster, f"client {number}")
        cluster.spawn(f"client {number}", go_on(number, db))
    cluster.agenda.run(SECONDS)
    return [done[number] for number in range(len(acts))]


@pytest.mark.parametrize("is_one_node", [True, False])
def test_all_that_want_the_same_keys_of_two_ranges_get_on(is_one_node: bool) -> None:
    with two_ranges(1) as cluster:
        if is_one_node:
            lead_both(cluster)
        done = done_by_each(cluster, [*LOCAL, *[commit_in_both] * 10])
    local, both = done[: len(LOCAL)], done[len(LOCAL) :]
    assert sum(both) >= 30
    assert max(both) - min(both) <= 2, "they take turns"
    assert min(local) >= 20


def test_a_commit_over_two_ranges_gets_on_beside_many_commits_in_each() -> None:
    with two_ranges(1) as cluster:
        done = done_by_each(cluster, [commit_in_both, *[*LOCAL] * 5])
    assert min(done) >= 15


def lead_both(cluster: Cluster) -> None:
    """Let one node lead both ranges."""
    admin = client(cluster, ADMINISTRATOR)
    moved = admin.move_lease(2, cluster.machines[0].node_id)
    cluster.run(moved, "it moves", PATIENCE_SECONDS)
    cluster.agenda.run(2.0)
