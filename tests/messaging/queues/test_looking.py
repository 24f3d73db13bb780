"""Consumers that take only some messages, and what is stored behind what they cannot have."""

from __future__ import annotations

import math

import pytest

from postroom.kv.clock import from_seconds
from postroom.messaging.queues import firing
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.range_steps import RangeSteps
from postroom.ranges.requests import Put
from tests.messaging.queues.harness import Queues


def test_a_claim_ends_though_more_is_held_up_than_one_look_takes_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was looked at from the first one on, again and again."""
    monkeypatch.setattr(firing, "READ_AT_ONCE", 3)
    queues = Queues()
    queues.create(order="group", cache_size=1, ack_wait=1000.0)
    for _ in range(10):
        queues.enqueue(b"x", kind="a", group="g")
    held = queues.claim()
    only_a = ClaimSelection(kinds=("a",))
    assert queues.claim(selection=only_a) == []
    queues.enqueue(b"y", kind="a", group="z")
    assert queues.payloads(selection=only_a) == [b"y"]
    queues.acknowledge(*held)
    assert queues.payloads(selection=only_a) == [b"x"]


def test_a_claim_is_given_what_it_takes_though_one_look_does_not_come_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was answered too early if the queue had a limit as well."""
    monkeypatch.setattr(firing, "READ_AT_ONCE", 2)
    queues = Queues()
    queues.create(cache_size=1, max_concurrency=3)
    queues.enqueue(*[b"x"] * 9)
    queues.enqueue(b"y", kind="a")
    assert queues.payloads(selection=ClaimSelection(kinds=("a",))) == [b"y"]


@pytest.mark.parametrize("order", ["none", "group"])
def test_a_claim_is_given_what_is_due_though_the_service_had_no_turn_since(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came along with the write of somebody else, and was answered that nothing is there."""
    queues = Queues()
    queues.create(order=order)
    queues.enqueue(b"x", group="g", after=5)
    monkeypatch.setattr(RangeSteps, "is_due", lambda _: False)
    monkeypatch.setattr(RangeSteps, "seconds_left", lambda _: math.inf)
    queues.pass_time(6)
    claim = queues.start(queues.claim_request())
    queues.commit(Put(b"key", b"value"))
    assert [each.payload for each in claim.result().messages] == [b"x"]


def test_a_message_that_was_missed_is_looked_at_again_though_one_behind_it_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The messages behind it were looked at, and then nothing more."""
    monkeypatch.setattr(firing, "READ_AT_ONCE", 2)
    queues = Queues()
    queues.create(order="group", cache_size=1, ack_wait=1000.0)
    only_b = ClaimSelection(kinds=("b",))
    queues.enqueue(b"first", kind="b", id=b"1", group="h")
    queues.enqueue(b"second", kind="b", id=b"2", group="h")
    queues.enqueue(b"other", kind="a", group="a")
    queues.reschedule(b"1", due=queues.now() + from_seconds(5))
    assert queues.payloads(selection=only_b) == []
    queues.pass_time(6)
    queues.reschedule(b"2", due=queues.now() + from_seconds(50))
    assert queues.payloads(selection=only_b) == [b"first"]


@pytest.mark.parametrize("read_at_once", [1, 2, 3])
def test_a_claim_is_given_a_message_behind_groups_of_which_nothing_is_left(
    read_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No group that was read at once had a message, and they were taken for all there are."""
    monkeypatch.setattr(firing, "READ_AT_ONCE", read_at_once)
    queues = Queues()
    queues.create(cache_size=4)
    names = [b"%s%d" % (group, number) for group in (b"b", b"c", b"d") for number in range(3)]
    for name in names:
        queues.enqueue(b"x", id=name, group=name[:1].decode())
    queues.store.restart()
    for _ in range(3):
        assert queues.payloads(1) == [b"x"]
    queues.cancel(*(name for name in names if name < b"d"))
    assert queues.counts()["ready"] > 0
    assert queues.payloads(1) == [b"x"]


def test_a_message_that_was_passed_over_comes_before_later_ones_of_its_group() -> None:
    queues = Queues()
    queues.create(cache_size=1, group_max_concurrency=1)
    only_a = ClaimSelection(kinds=("a",))
    queues.enqueue(b"held", kind="a", group="h")
    held = queues.claim()
    queues.enqueue(b"other", kind="b", group="a")
    queues.enqueue(b"1", kind="a", group="h")
    assert queues.payloads(selection=only_a) == []
    queues.enqueue(b"2", kind="a", group="h")
    queues.acknowledge(*held)
    assert queues.payloads(selection=only_a) == [b"1"]


def test_a_claim_is_given_what_it_takes_though_the_queue_keeps_less_in_memory_than_before() -> None:
    queues = Queues()
    queues.create(cache_size=2)
    wanted = ClaimSelection(where={"x": 1})
    queues.enqueue(b"1", b"2", b"3", b"4")
    assert queues.payloads(selection=wanted) == [], "all that is stored was looked through"
    queues.update(cache_size=100)
    queues.acknowledge(*queues.claim(4))
    queues.enqueue(b"other")
    queues.enqueue(b"wanted", headers={"x": 1})
    queues.update(cache_size=1)
    assert queues.payloads(selection=wanted) == [b"wanted"]


def test_messages_found_in_the_store_count_towards_the_limit() -> None:
    queues = Queues()
    queues.create(cache_size=1, max_concurrency=3)
    queues.update(paused=True)
    for kind in ("mail", "call"):
        queues.enqueue(*[b"%d" % each for each in range(4)], kind=kind)
    for number, kinds in enumerate((("call",), None), 1):
        selection = ClaimSelection(kinds=kinds)
        consumer = queues.consumer(number)
        queues.start(queues.claim_request(3, selection=selection, consumer=consumer, wait=True))
    queues.update(paused=False)
    queues.store.advance(1.0)
    assert queues.stats().leased == 3
