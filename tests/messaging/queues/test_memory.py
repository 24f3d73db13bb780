"""The memory of a queue does not depend on how many messages wait."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import pytest

from postroom.messaging.queues import manager
from postroom.messaging.queues.leases import Lease, LeasedHolding, LeaseTable
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.ready import ReadyCache
from postroom.messaging.queues.rotation import Group, Rotation, Sizes
from tests.messaging.queues.harness import Queues

HERE = str(Path(manager.__file__).parent / "*")
FEW, MANY = 10_000, 100_000


def filled(messages: int, **options: object) -> Queues:
    queues = Queues()
    queues.create(cache_size=1000, ack_wait=1000.0)
    for first in range(0, messages, 1000):
        queues.commit(*(
            queues.message(b"%d" % number, group=f"g{number % 7}", **options)
            for number in range(first, first + 1000)
        ))  # fmt: skip
    return queues


def held_bytes(act: Callable[[], object]) -> int:
    """Return the bytes of queues in memory after ``act``, of those made by then."""
    tracemalloc.start()
    try:
        act()
        gc.collect()  # else it depends on what ran before what is counted
        taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, HERE)])
        return sum(each.size for each in taken.statistics("filename"))
    finally:
        tracemalloc.stop()


def under_a_new_lease(queues: Queues) -> int:
    """Measure what is held when everything is read again, and some of it fired."""

    def restart() -> None:
        queues.range_queues.restart(queues.store.driver.node.engine)
        for _ in range(20):
            assert len(queues.claim(10)) == 10

    return held_bytes(restart)


@pytest.fixture(scope="module")
def many() -> Queues:
    return filled(MANY)


def test_ten_times_as_many_waiting_need_no_more(many: Queues) -> None:
    few = under_a_new_lease(filled(FEW))
    assert under_a_new_lease(many) < 1.2 * few + 50_000
    assert len(many.manager().ready) <= 1000


def test_messages_enqueued_under_this_lease_do_not_cost_memory() -> None:
    few, many = filled(FEW // 4).manager(), filled(FEW * 2).manager()
    assert len(many.ready) <= 1000
    assert things_in(many) < 1.2 * things_in(few) + 100


def test_messages_that_are_enqueued_and_consumed_do_not_cost_memory(many: Queues) -> None:
    def work() -> None:
        for _ in range(20):
            many.enqueue(*[b"more"] * 100, group="g1")
            many.acknowledge(*many.claim(10))

    assert held_bytes(work) < 1_300_000, "the store itself is in memory"
    assert len(many.manager().ready) <= 1000


def test_messages_scheduled_far_ahead_cost_nothing() -> None:
    """One moment of it is known; while time passes nothing of it is read but the first."""
    queues = filled(20_000, after=30 * 86400)
    assert under_a_lease_of(queues) < 100_000
    steps, writes = in_an_hour(queues)
    least_steps, least_writes = in_an_hour(filled(0))
    assert steps <= least_steps + 500
    assert writes <= least_writes
    assert queues.counts() == {"enqueued": 20_000, "scheduled": 20_000}


def in_an_hour(queues: Queues) -> tuple[int, int]:
    """Return the steps and writes of an idle hour."""
    engine = queues.store.engine
    steps, writes = engine.steps, engine.writes
    queues.pass_time(3600)
    return engine.steps - steps, engine.writes - writes


def things_in(manager: Manager) -> int:
    """Return how many objects hang on it."""
    seen: set[int] = set()
    left: list[Any] = [manager.ready, manager.leases, manager.consumers, manager.to_give_back]
    left += [manager.speculation.taken, manager.freed_at, manager.lateness, manager.group_buckets]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | FunctionType | MethodType):
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            left += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | deque):
            left += each
        elif isinstance(
            each, ReadyCache | Group | Rotation | Sizes | LeaseTable | LeasedHolding | Lease
        ):
            names = getattr(type(each), "__slots__", None) or vars(each)
            left += [getattr(each, name) for name in names]
    return len(seen)


def under_a_lease_of(queues: Queues) -> int:
    return held_bytes(lambda: queues.range_queues.restart(queues.store.driver.node.engine))
