"""The order of groups, and messages that are in no group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroom.kv.clock import from_seconds
from postroom.messaging import due as times
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.requests import RejectMessages
from tests.messaging.queues.harness import Q, Queues, by_id


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(order="group", on_duplicate="replace", ack_wait=1000.0)
    return queues


def later(queues: Queues, seconds: float) -> int:
    return queues.now() + from_seconds(seconds)


# --- another schedule


def test_a_replaced_head_that_was_put_off_goes_at_once(queues: Queues) -> None:
    queues.enqueue(b"head", id=b"h", group="g")
    queues.enqueue(b"second", group="g")
    queues.reschedule(b"h", due=later(queues, 3600))
    assert queues.payloads() == []
    queues.enqueue(b"anew", id=b"h", group="g")
    claimed = queues.claim(10)
    assert len(claimed) == 1
    queues.acknowledge(*claimed)
    assert {claimed[0].payload, *queues.payloads()} == {b"anew", b"second"}


def test_a_replaced_message_that_was_put_off_while_scheduled_goes_when_it_is_due(
    queues: Queues,
) -> None:
    queues.enqueue(b"head", id=b"h", group="g", after=10)
    queues.reschedule(b"h", due=later(queues, 3600))
    queues.enqueue(b"anew", id=b"h", group="g", after=20)
    queues.pass_time(21)
    assert queues.payloads() == [b"anew"]


def test_a_replayed_message_goes_at_once(queues: Queues) -> None:
    queues.enqueue(b"head", id=b"h", group="g")
    queues.reject(*queues.claim(), delay=0.0)
    queues.reschedule(b"h", due=later(queues, 3600))
    queues.commit(RejectMessages(Q, [by_id(b"h")], dead=True))
    queues.replay(b"h")
    assert queues.payloads() == [b"head"]


# --- heads


def at_the_moment(timestamp: int) -> int:
    return times.at(timestamp)


def after_a_time(timestamp: int) -> int:
    return timestamp


DUES = [at_the_moment, after_a_time]


@pytest.mark.parametrize("first", DUES)
@pytest.mark.parametrize("then", DUES)
def test_a_scheduled_head_that_is_put_off_holds_up_its_group(
    queues: Queues, first: Callable[[int], int], then: Callable[[int], int]
) -> None:
    queues.enqueue(b"head", id=b"h", group="g", due=first(later(queues, 10)))
    queues.enqueue(b"second", group="g", after=20)
    queues.enqueue(b"other", group="other", after=20)
    queues.reschedule(b"h", due=then(later(queues, 60)))
    queues.pass_time(30)
    assert queues.payloads() == [b"other"]
    queues.pass_time(31)
    head = queues.claim(10)
    assert [each.payload for each in head] == [b"head"]
    queues.acknowledge(*head)
    assert queues.payloads() == [b"second"]


def test_a_ready_head_that_is_put_off_holds_up_its_group(queues: Queues) -> None:
    queues.enqueue(b"head", id=b"h", group="g")
    queues.enqueue(b"second", group="g")
    queues.reschedule(b"h", due=later(queues, 60))
    queues.pass_time(30)
    assert queues.payloads() == []
    queues.pass_time(31)
    assert queues.payloads() == [b"head"]


def test_a_message_that_is_brought_forward_does_not_wait_for_those_that_are_not_due(
    queues: Queues,
) -> None:
    queues.enqueue(b"first", group="g", after=50)
    queues.enqueue(b"second", id=b"s", group="g", after=60)
    queues.reschedule(b"s")
    second = queues.claim(10)
    assert [each.payload for each in second] == [b"second"]
    queues.pass_time(51)
    assert queues.payloads() == []
    queues.acknowledge(*second)
    assert queues.payloads() == [b"first"]


def test_a_message_that_is_brought_forward_stays_behind_those_that_are_due(queues: Queues) -> None:
    queues.enqueue(b"second", id=b"s", group="g", after=60)
    queues.pass_time(1)
    queues.enqueue(b"first", group="g")
    queues.reschedule(b"s")
    first = queues.claim(10)
    assert [each.payload for each in first] == [b"first"]
    queues.acknowledge(*first)
    assert queues.payloads() == [b"second"]


def test_a_put_off_scheduled_head_is_found_by_its_id_and_can_be_cancelled(queues: Queues) -> None:
    queues.enqueue(b"head", id=b"h", group="g", after=10)
    queues.enqueue(b"second", group="g", after=20)
    queues.reschedule(b"h", due=later(queues, 60))
    assert [each.state for each in queues.get(b"h")] == ["scheduled"]
    queues.pass_time(30)
    assert [each.state for each in queues.get(b"h")] == ["ready"]
    assert queues.cancel(b"h") == 1
    assert queues.payloads() == [b"second"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_message_with_an_earlier_place_than_a_head_that_was_put_off_goes_at_once(
    queues: Queues, waits: bool
) -> None:
    queues.enqueue(b"later", id=b"l", group="g", after=60)
    queues.reschedule(b"l")
    queues.reschedule(b"l", due=later(queues, 30))
    assert queues.payloads() == []
    if waits:
        claim = queues.start(queues.claim_request(wait=True))
        queues.enqueue(b"first", group="g")
        assert [each.payload for each in claim.result().messages] == [b"first"]
    else:
        queues.enqueue(b"first", group="g")
        assert queues.payloads() == [b"first"]


# --- without a group


def test_messages_without_a_group_are_in_no_order_in_an_ordered_queue(queues: Queues) -> None:
    queues.enqueue(b"1", b"2", b"3")
    assert sorted(queues.payloads()) == [b"1", b"2", b"3"]


def test_a_failed_message_without_a_group_holds_up_no_other(queues: Queues) -> None:
    queues.enqueue(b"1")
    queues.reject(*queues.claim(), delay=60.0)
    queues.enqueue(b"2")
    assert queues.payloads() == [b"2"]
    assert queues.counts()["scheduled"] == 1
    queues.pass_time(61)
    assert queues.payloads() == [b"1"]


def test_messages_without_a_group_go_by_priority_in_an_ordered_queue(queues: Queues) -> None:
    queues.enqueue(b"late", priority=5)
    queues.enqueue(b"early", priority=-5)
    assert queues.payloads(1) == [b"early"]


def test_a_consumer_of_some_kinds_sees_past_others_that_are_in_no_group(queues: Queues) -> None:
    queues.enqueue(b"a", kind="a")
    queues.enqueue(b"b", kind="b")
    queues.enqueue(b"c", kind="c", headers={"x": 1})
    assert queues.payloads(selection=ClaimSelection(kinds=("b",))) == [b"b"]
    assert queues.payloads(selection=ClaimSelection(where={"x": 1})) == [b"c"]
    assert queues.payloads() == [b"a"]


@pytest.mark.parametrize("order", ["none", "group"])
def test_messages_without_a_group_share_no_limit_of_groups(order: str) -> None:
    queues = Queues()
    queues.create(order=order, group_max_concurrency=1, group_max_rate=0.001)
    queues.enqueue(b"1", b"2", b"3")
    assert sorted(queues.payloads()) == [b"1", b"2", b"3"]


def test_messages_without_a_group_are_found_behind_a_full_cache_of_an_ordered_queue() -> None:
    queues = Queues()
    queues.create(order="group", cache_size=2)
    for number in range(10):
        queues.enqueue(b"%d" % number, kind="a" if number < 9 else "b")
    assert queues.payloads(1, selection=ClaimSelection(kinds=("b",))) == [b"9"]
    got: list[bytes] = []
    while len(got) < 9:
        found = queues.payloads(9)
        assert found
        got += found
    assert got == [b"%d" % number for number in range(9)]
