"""The rounds of a node: they wake the services of a range that may have missed something."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from postroom.kv.clock import HybridLogicalClock
from postroom.server.service_rounds import ALL_SECONDS, ServiceRounds
from postroom.server.services import NodeTasks, Services, WakeUps

LOOK_SECONDS = 5.0


class Node:
    """A node whose ranges have one service each, which counts how often it was woken."""

    def __init__(self, ranges: int) -> None:
        self.seconds = 0.0
        self.ahead_milliseconds = 0
        self.tasks = NodeTasks(lambda: self.seconds, lambda _: None)
        self.clock = HybridLogicalClock(
            lambda: round(self.seconds * 1000) + self.ahead_milliseconds,
            lambda: self.seconds, 0, lambda _: True,
        )  # fmt: skip
        self.roused = list[int]()
        self.woken = dict.fromkeys(range(1, ranges + 1), 0)
        self.sleeps_for = dict.fromkeys(self.woken, float("inf"))
        self.replicas = SimpleNamespace(hosted={each: self._hosted(each) for each in self.woken})
        self.rounds = ServiceRounds(cast("Any", self), lambda: LOOK_SECONDS)

    def _hosted(self, range_id: int) -> SimpleNamespace:
        wake_ups = WakeUps(self.tasks)
        wake_up = wake_ups.create()

        async def run() -> None:
            while True:
                await wake_up.wait(self.sleeps_for[range_id])
                self.woken[range_id] += 1

        services = Services(self.tasks, {"service": run}, wake_ups=wake_ups)
        replica = SimpleNamespace(last_commit=1)
        return SimpleNamespace(
            services=services,
            replica=replica,
            rouse_to_collect=lambda: self.roused.append(range_id),
        )

    def serve(self, *range_ids: int) -> None:
        """Have services run; they are taken notice of."""
        for range_id in range_ids:
            self.replicas.hosted[range_id].services.start()
        self.rounds.begin()
        self.tasks.run()
        self.pass_(ALL_SECONDS)

    def pass_(self, seconds: float) -> int:
        """Return how many turns were due meanwhile; the services count anew."""
        self.woken = dict.fromkeys(self.woken, 0)
        turns, end = 0, self.seconds + seconds
        while (due := self.tasks.next_deadline()) is not None and due <= end:
            self.seconds = due
            self.tasks.run()
            turns += 1
        self.seconds = end
        return turns


def test_a_thousand_ranges_at_rest_have_one_timer_and_are_woken_once_a_minute() -> None:
    node = Node(1000)
    node.serve(*node.woken)
    assert node.tasks.timers == 1
    assert node.pass_(ALL_SECONDS) == ALL_SECONDS / LOOK_SECONDS
    assert set(node.woken.values()) == {1}


def test_a_range_that_has_changed_is_woken_in_the_next_round_and_no_other_one() -> None:
    node = Node(40)
    node.serve(*node.woken)
    for _ in range(5):
        node.replicas.hosted[40].replica.last_commit += 1
        node.pass_(LOOK_SECONDS)
        assert node.woken[40] == 1
        assert sum(node.woken.values()) < 6
    assert node.pass_(LOOK_SECONDS) == 1
    assert node.woken[40] == 0


def test_a_setting_of_all_ranges_wakes_them_in_the_next_round() -> None:
    node = Node(40)
    node.serve(*range(1, 21))
    node.rounds.wake_all()
    node.pass_(LOOK_SECONDS)
    assert sum(node.woken.values()) == 20, "those that are served here"


@pytest.mark.parametrize("milliseconds", [10, 86_400_000])
def test_a_clock_that_has_run_ahead_wakes_those_that_wait_for_a_time(milliseconds: int) -> None:
    node = Node(40)
    node.sleeps_for[30] = 1000.0
    node.serve(*node.woken)
    node.pass_(LOOK_SECONDS)
    node.ahead_milliseconds += milliseconds
    node.pass_(LOOK_SECONDS)
    assert node.woken[30] == 1
    assert sum(node.woken.values()) < 6
    node.pass_(4 * LOOK_SECONDS)
    assert sum(node.woken.values()) < 20


def test_a_clock_that_went_slowly_and_then_fast_wakes_those_that_looked_meanwhile() -> None:
    node, ahead = Node(40), {"milliseconds": 0}
    node.clock = cast(
        "Any",
        SimpleNamespace(reading=lambda: round(node.seconds * 1000) + ahead["milliseconds"] << 16),
    )
    node.sleeps_for[30] = 1000.0
    node.serve(*node.woken)
    for milliseconds, woken in ((-20, 0), (-20, 0), (-10, 1), (-10, 0)):
        ahead["milliseconds"] = milliseconds
        node.rounds._number = 0  # it is not the turn of range 30
        node.pass_(LOOK_SECONDS)
        assert node.woken[30] == woken


def test_rounds_end_while_nothing_is_served() -> None:
    node = Node(2)
    node.serve(1)
    node.replicas.hosted[1].services.stop()
    node.pass_(2 * LOOK_SECONDS)
    assert node.tasks.next_deadline() is None
    node.serve(2)
    assert node.pass_(LOOK_SECONDS) == 1
