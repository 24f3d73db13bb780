"""The cost of a turn, of opening and of memory follows the queues that have something to do."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from postroom.messaging.queues import directory, manager
from postroom.messaging.queues.advance import Advance
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings, SetSchedule
from postroom.messaging.queues.manager import Manager
from postroom.messaging.services import ADVANCE
from tests.messaging.queues.harness import Q, Queues

HERE = str(Path(manager.__file__).parent)
FEW, MANY = 20, 2000
SETTINGS = QueueSettings()


def filled(number: int, each: Callable[[Queues, str], Any] | None = None) -> Queues:
    """Return a store with so many queues, and in each of them one message, say."""
    queues = Queues()
    queues.create()
    names = [f"tenant {n}" for n in range(number)]
    for first in range(0, number, 500):
        some = names[first : first + 500]
        queues.commit(*(CreateQueue(name, SETTINGS) for name in some))
        if each is not None:
            queues.commit(*(each(queues, name) for name in some))
    return queues


def due_tomorrow(queues: Queues, name: str) -> Any:
    return queues.message(b"x", name, after=86400)


def ready(queues: Queues, name: str) -> Any:
    return queues.message(b"x", name)


def calls(act: Callable[[], object]) -> int:
    """Return how many functions of queues are called."""
    count = 0

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(HERE)

    before = sys.getprofile()
    sys.setprofile(on_call)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


def claim_and_acknowledge(queues: Queues) -> Callable[[], object]:
    def act() -> None:
        queues.enqueue(b"x")
        queues.acknowledge(*queues.claim())

    act()
    return act


def rest(queues: Queues) -> Callable[[], object]:
    def act() -> None:
        for _ in range(20):
            queues.pass_time(5)

    return act


ACTS = [claim_and_acknowledge, rest]


@pytest.mark.parametrize("each", [None, due_tomorrow, ready])
@pytest.mark.parametrize("act", ACTS)
def test_a_turn_asks_no_queue_that_has_nothing_to_do(
    act: Callable[[Queues], Callable[[], object]], each: Callable[[Queues, str], Any] | None
) -> None:
    few, many = (calls(act(filled(number, each))) for number in (FEW, MANY))
    assert many <= 1.2 * few + 20


@pytest.mark.parametrize("each", [due_tomorrow, ready])
def test_a_store_at_rest_asks_no_queue_after_it_was_opened_anew(
    each: Callable[[Queues, str], Any],
) -> None:
    counts = []
    for number in (FEW, MANY):
        queues = filled(number, each)
        queues.store.restart()
        queues.stats()
        counts.append(calls(rest(queues)))
    assert counts[1] <= 1.2 * counts[0] + 20


def test_opening_makes_no_manager_of_a_queue_that_nobody_holds_anything_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = filled(MANY, due_tomorrow)
    made: list[str] = []
    make = Manager.__init__

    def counted(self: Manager, range_id: int, definition: Any, host: Any) -> None:
        made.append(definition.name)
        make(self, range_id, definition, host)

    monkeypatch.setattr(Manager, "__init__", counted)
    queues.store.restart()
    queues.stats()
    queues.claim()
    assert made == [Q]


def test_queues_are_read_in_leaps_when_a_store_is_opened() -> None:
    """A queue with many messages costs hardly more than one with few."""
    few, many = (stored_keys_read(number) for number in (20, 2000))
    assert many <= few + 100


def stored_keys_read(messages: int) -> int:
    queues = filled(FEW, ready)
    for first in range(0, messages, 500):
        queues.enqueue(*([b"x"] * min(500, messages - first)), name="tenant 3", after=100)
        queues.enqueue(*([b"x"] * min(500, messages - first)), name="tenant 3")
    counting = Counting(queues.store.engine)
    assert queues.range_queues.first_due(counting)
    return counting.read


class Counting:
    """A reader that counts the pairs that it was asked for."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.read = 0

    def get(self, key: bytes, /) -> bytes | None:
        found: bytes | None = self._engine.get(key)
        return found

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for pair in self._engine.iterate(lower, upper, reverse=reverse):
            self.read += 1
            yield pair


def test_a_store_that_is_opened_reads_its_queues_once() -> None:
    queues = filled(FEW, due_tomorrow)
    counting = Counting(queues.store.engine)
    assert queues.range_queues.first_due(counting)
    read = counting.read
    assert read >= 2 * FEW
    queues.range_queues.restart(counting)
    assert counting.read == read
    queues.range_queues.restart(counting)
    assert counting.read == 2 * read


def test_queues_are_read_again_if_something_was_applied_meanwhile() -> None:
    queues = filled(FEW, due_tomorrow)
    counting = Counting(queues.store.engine)
    queues.range_queues.first_due(counting)
    queues.commit(CreateQueue("one more", SETTINGS))
    queues.range_queues.restart(counting)
    assert queues.range_queues._directory.defined.keys() >= {"one more", "tenant 3"}


def test_a_queue_at_rest_takes_less_than_three_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MANAGERS_KEPT", MANY // 20)
    queues = filled(1)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = filled(MANY, due_tomorrow)
        held.store.restart()
        for number in range(0, MANY, 2):
            held.claim(name=f"tenant {number}")
        held.pass_time(5)
        gc.collect()
        found = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, HERE + "/*"), tracemalloc.Filter(True, "*/ranges/waiting.py")]
        )
        size = sum(each.size for each in found.statistics("filename"))
    finally:
        tracemalloc.stop()
    del queues, before
    assert size / MANY < 3000
    assert len(held.range_queues._by_name) <= MANY // 20 + MANY // 160 + 2


def test_a_manager_that_was_forgotten_is_made_again_with_all_that_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "MANAGERS_KEPT", 2)
    queues = filled(20, ready)
    queues.store.restart()
    for numbers in (range(10), range(10, 20)):
        for number in numbers:
            queues.stats(f"tenant {number}")
        queues.pass_time(6)
    assert len(queues.range_queues._by_name) <= 2
    for number in range(20):
        (message,) = queues.claim(name=f"tenant {number}")
        assert queues.acknowledge(message, name=f"tenant {number}") == 1
    assert all(queues.counts(f"tenant {n}")["acknowledged"] == 1 for n in range(20))


def test_a_forgotten_queue_does_what_is_due_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MANAGERS_KEPT", 2)
    queues = filled(20, lambda queues, name: queues.message(b"x", name, after=60))
    for number in range(20):
        queues.stats(f"tenant {number}")
    queues.pass_time(61)
    assert all(queues.counts(f"tenant {n}") == {"enqueued": 1, "ready": 1} for n in range(20))


def test_messages_that_are_due_are_handed_out_after_a_change_of_leader() -> None:
    queues = filled(20, lambda queues, name: queues.message(b"x", name, after=60))
    queues.store.restart()
    waiting = [queues.start(queues.claim_request(name=f"tenant {n}", wait=True)) for n in range(20)]
    queues.pass_time(61)
    assert [len(each.result().messages) for each in waiting] == [1] * 20


def test_done_messages_of_unused_queues_are_purged() -> None:
    queues = filled(5)
    for number in range(5):
        queues.enqueue(b"x", name=f"tenant {number}")
        queues.acknowledge(*queues.claim(name=f"tenant {number}"), name=f"tenant {number}")
    queues.store.restart()
    queues.pass_time(86400 + 60)
    assert [queues.counts(f"tenant {n}")["purged"] for n in range(5)] == [1] * 5


def test_schedules_tick_after_a_change_of_leader_though_nobody_has_asked_for_their_queue() -> None:
    queues = filled(5, lambda _, name: SetSchedule(name, "minutely", "* * * * *", payload=b"x"))
    queues.store.restart()
    queues.pass_time(61)
    assert all(queues.counts(f"tenant {n}")["enqueued"] >= 1 for n in range(5))


def test_a_dropped_queue_that_nobody_has_used_is_emptied() -> None:
    queues = filled(5, ready)
    before = len(queues.stored())
    queues.store.restart()
    queues.drop("tenant 3")
    queues.pass_time(1)
    assert len(queues.stored()) < before
    assert not queues.range_queues._dropped
    assert len(queues.names()) == 5


def test_a_queue_whose_step_fails_does_not_keep_the_others_from_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = filled(3, lambda queues, name: queues.message(b"x", name, after=60))
    due = Advance.become_due

    def fail(self: Advance, messages_max: int) -> bool:
        if self._manager.name == "tenant 0":
            raise ValueError("a fault")
        return due(self, messages_max)

    monkeypatch.setattr(Advance, "become_due", fail)
    queues.pass_time(62)
    assert [queues.counts(f"tenant {n}").get("ready", 0) for n in range(3)] == [0, 1, 1]
    assert queues.stats("tenant 0").failures


def test_managers_are_forgotten_though_each_proposal_does_something_with_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "MANAGERS_KEPT", 8)
    queues = filled(40)
    queues.store.restart()
    driver = queues.store.driver
    for number in range(40):
        enqueue = queues.transaction(queues.message(b"x", f"tenant {number}"))

        async def both(enqueue: Any = enqueue) -> None:
            calls = [driver.send(enqueue), driver.node.root.upkeep(ADVANCE)]
            for call in calls:
                await call

        driver.run(both())
    assert len(queues.range_queues._by_name) <= 12
    assert all(queues.counts(f"tenant {n}")["ready"] == 1 for n in range(40))
