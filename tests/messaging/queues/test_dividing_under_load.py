"""The pace at which the queues of a range are divided, by a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroom.limits import DIVISION_SECONDS_PER_MILLION
from postroom.messaging.queues.dividing import COPIED_AT_ONCE
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.split import service
from postroom.ranges.split.requests import CancelSplit, PrepareSplit
from tests.messaging.queues.division import check_copies, division_of, held_back
from tests.messaging.queues.harness import Queues
from tests.server.splitting import new_id

STEPS = 8
MESSAGES = STEPS * COPIED_AT_ONCE
KEY = b"k%05d" % (MESSAGES // 2)
STEP_SECONDS = COPIED_AT_ONCE * DIVISION_SECONDS_PER_MILLION / 1e6
IDLE_SECONDS = service.PAUSE_SECONDS + 0.003
"""The time from one step to the next if nobody else is there: turns take a part of it."""


class Divided:
    """A store with a long queue, whose copies are watched, and which does not split."""

    def __init__(self) -> None:
        self.queues = Queues()
        self.store = self.queues.store
        self.queues.create()
        for first in range(0, MESSAGES, 1000):
            numbers = range(first, first + 1000)
            messages = (self.queues.message(id=b"k%05d" % number) for number in numbers)
            self.queues.commit(*messages)
        self.steps: list[float] = []
        self._seen: object = None

    def prepare(self) -> None:
        """Have the division begin."""
        self.queues.send(PrepareSplit(KEY, new_id(self.store)))
        self.look()

    def look(self) -> None:
        """Note when a step was taken."""
        seen = division_of(self.store.node.engine, ROOT_ID)
        if seen != self._seen:
            self._seen = seen
            self.steps.append(self.store.clock.monotonic())

    def claim(self) -> None:
        """Claim a message, and acknowledge it."""
        (claimed,) = self.queues.claim()
        self.queues.acknowledge(claimed)
        self.look()

    def rest(self) -> None:
        """Let a millisecond pass."""
        self.store.advance(0.001)
        self.look()

    def has_rest(self) -> bool:
        """Return whether something of the division is left to delete."""
        engine, parts = self.store.node.engine, self.store.node.root.replica.registry.divisible
        return any(each.has_rest(engine) for each in parts)

    def between(self) -> list[float]:
        """Return the times from one step to the next."""
        return [after - before for before, after in zip(self.steps, self.steps[1:], strict=False)]


@pytest.fixture
def divided() -> Iterator[Divided]:
    with held_back():
        made = Divided()
        yield made
        made.store.node.close()


def test_a_division_has_a_share_of_the_time_while_clients_claim(divided: Divided) -> None:
    divided.prepare()
    while len(divided.steps) < STEPS:
        divided.claim()
        divided.rest()
    check_copies(divided.store.node.engine)
    assert min(divided.between()) >= STEP_SECONDS - 0.001, divided.between()


def test_a_division_under_constant_load_ends_in_time(divided: Divided) -> None:
    divided.prepare()
    while len(divided.steps) < STEPS:
        divided.claim()
        divided.rest()
    assert max(divided.between()) <= STEP_SECONDS + 0.005, divided.between()


def test_a_division_that_has_yielded_for_long_enough_is_not_delayed(
    divided: Divided, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DIVISION_YIELDS_SECONDS_MAX", 2.5 * STEP_SECONDS)
    divided.prepare()
    while len(divided.steps) < STEPS:
        divided.claim()
        divided.rest()
    times = divided.between()
    assert times[0] >= STEP_SECONDS - 0.001, times
    assert max(times[4:]) <= IDLE_SECONDS, times


def test_a_division_with_nobody_else_is_not_delayed(divided: Divided) -> None:
    divided.prepare()
    while len(divided.steps) < STEPS:
        divided.rest()
    assert max(divided.between()) <= IDLE_SECONDS, divided.between()


def test_the_rest_of_a_division_is_deleted_in_a_share_of_the_time(divided: Divided) -> None:
    divided.prepare()
    while len(divided.steps) < STEPS:
        divided.rest()
    divided.queues.send(CancelSplit(KEY))
    began = divided.store.clock.monotonic()
    while divided.has_rest():
        divided.claim()
        divided.rest()
    took = divided.store.clock.monotonic() - began
    assert took >= (STEPS - 2) * STEP_SECONDS, took
