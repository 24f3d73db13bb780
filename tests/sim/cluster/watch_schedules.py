"""Stories of watches of two ranges, whose leases two nodes hold (:mod:`.range_schedules`).

A watcher is told each change once, in the order of timestamps, whatever the ranges do meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - made from the seed
from typing import Any, Final

from postroom.ranges.transactions.requests import Resolve
from tests.client.test_watches_of_several_ranges import (
    test_merged_answers_have_each_change_once_in_order,
)
from tests.sim.checkers import require
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.range_schedules import (
    LEFT,
    RIGHT,
    held_calls,
    two_ranges,
)
from tests.sim.cluster.steps import PATIENCE_SECONDS, client, held_packets

_SETTLED_SECONDS: Final = 5.0
Told = list[tuple[int, bytes, bytes]]
"""Changes in the order in which a watcher was told: timestamps, keys and values."""


def answers_that_are_complete_up_to_different_timestamps(seed: int) -> None:
    """Merge answers of ranges whose clocks have come less far than they are asked for."""
    random = Random(seed)
    ranges = [
        [(random.randint(1, 40), number) for number in range(random.randint(1, 5))]
        for _ in range(random.randint(2, 4))
    ]
    check: Any = test_merged_answers_have_each_change_once_in_order
    check.hypothesis.inner_test(ranges, random.randint(25, 200))


def commit_that_is_under_way_below_a_change_elsewhere(seed: int) -> None:
    """Let a change of the left range be told while an earlier one of the right is not applied."""
    with two_ranges(seed) as cluster:
        one, two, three = cluster.machines
        db, slow = client(cluster, "client"), client(cluster, "slow")
        since = cluster.run(db.now(), "a timestamp", PATIENCE_SECONDS)
        with _watched(cluster, since, [(RIGHT, b"1"), (LEFT, b"2")]):
            arrive = [held_packets(cluster, two, each) for each in (one, three)]
            cluster.spawn("put", slow.put(RIGHT, b"1"))
            cluster.agenda.run(0.1)
            cluster.run(db.put(LEFT, b"2"), "a put", PATIENCE_SECONDS)
            cluster.agenda.run(0.1)
            for each in reversed(arrive):
                each()


def commit_that_is_resolved_after_a_later_one(seed: int) -> None:
    """Let the right range hear late that a transaction has committed, below a later change."""
    with two_ranges(seed) as cluster:
        db = client(cluster, "client")
        since = cluster.run(db.now(), "a timestamp", PATIENCE_SECONDS)
        later = RIGHT + b"later"
        with (
            _watched(cluster, since, [(RIGHT, b"1"), (later, b"2")], start=RIGHT),
            held_calls(cluster.machines[0], Resolve),
        ):
            cluster.run(db.run(_put_both), "it commits", PATIENCE_SECONDS)
            cluster.run(db.put(later, b"2"), "a put", PATIENCE_SECONDS)
            cluster.agenda.run(0.5)


# --- steps


@contextmanager
def _watched(
    cluster: Cluster, since: int, wanted: list[tuple[bytes, bytes]], *, start: bytes = b""
) -> Iterator[None]:
    """Watch while a block runs; require that these changes are told, in this order, and no more."""
    told: Told = []
    watcher = client(cluster, "watcher")
    cluster.spawn("watch", _watch(watcher, since, start, told))
    cluster.agenda.run(0.5)
    yield
    cluster.agenda.run(_SETTLED_SECONDS)
    found = [(key, value) for _, key, value in told]
    require(found == wanted, f"the watcher was told {found}, and there was {wanted}")
    stamps = [timestamp for timestamp, _, _ in told]
    require(stamps == sorted(stamps), f"the watcher was told {stamps}")


async def _watch(db: Any, since: int, start: bytes, told: Told) -> None:
    async for change in db.watch(start, b"\xff", after=since):
        told.append((change.timestamp, change.key, change.value))


async def _put_both(tx: Any) -> None:
    tx.put(LEFT, b"1")
    tx.put(RIGHT, b"1")
