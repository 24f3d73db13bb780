"""The holdings of a client at nodes, how it keeps them, and the nodes' clocks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from postroom.errors import (
    Unavailable,
)
from postroom.kv.clock import from_seconds
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue, ClaimSelection
from postroom.messaging.queues.requests import RejectMessages
from postroom.messaging.requests import ReapQueue
from postroom.protocol.failures import CLOCK_AHEAD, NOT_LEASEHOLDER, WITHDRAWN
from postroom.ranges.requests import (
    GetForUpdate,
    Protect,
    ReleaseLocks,
    Unprotect,
)
from tests.client.queues.fakes import stored
from tests.remote.scripted_nodes import (
    CLOCK,
    COMMITTED,
    GET,
    VALUE,
    World,
    commit,
    only,
    reconnect,
)

# --- transactions that the leaseholder remembers


def test_protections_are_asked_for_again_elsewhere() -> None:
    world = World()
    first = world.settle("a:1")
    for _ in range(2):
        world.ask(Protect(9))
    for number in list(first.requests):
        first.answer(number, 9)
    first.breaks()
    reconnect(world, "b:1")
    second = world.settle("b:1")
    again = [Unprotect(9), Unprotect(9), Protect(9), Protect(9)]
    assert list(second.requests.values()) == again


def test_holdings_are_renewed_under_a_new_lease_of_the_node() -> None:
    world = World()
    stream = world.settle("a:1")
    world.ask(Protect(9))
    stream.answer(only(stream.requests), 9)
    world.ask(GET)
    stream.answer(only(stream.requests), VALUE, lease=2)
    assert list(stream.requests.values()) == [Unprotect(9), Protect(9)]


def test_holdings_that_were_given_back_are_not_renewed() -> None:
    world = World()
    first = world.settle("a:1")
    world.ask(Protect(9))
    first.answer(only(first.requests), 9)
    released = world.ask(Unprotect(9))
    assert list(first.requests.values()) == [Unprotect(9)]
    first.breaks()
    assert released.answers == 1, "it went with the stream"
    reconnect(world, "b:1")
    assert not world.settle("b:1").requests


@pytest.mark.parametrize("failure", [CLOCK_AHEAD, "Unavailable"])
def test_a_protection_is_given_back_though_the_node_refuses_it_at_first(failure: str) -> None:
    world = World()
    stream = world.settle("a:1")
    world.ask(Protect(9))
    stream.answer(only(stream.requests), 9)
    released = world.ask(Unprotect(9))
    stream.fail(only(stream.requests), failure)
    assert not released.answers
    world.pass_time(0.1)
    assert list(stream.requests.values()) == [Unprotect(9)]
    stream.answer(only(stream.requests), None)
    assert released.answers == 1


def test_a_protection_that_was_given_back_while_nobody_led_is_taken_back_by_the_next_lead() -> None:
    """A node that wanted to hand over may go on to lead, and has forgotten nothing."""
    world = World()
    stream = world.settle("a:1")
    world.ask(Protect(9))
    stream.answer(only(stream.requests), 9)
    world.ask(Protect(8))
    stream.answer(only(stream.requests), 8)
    for released in (world.ask(Unprotect(9)), world.ask(Unprotect(8))):
        for number in list(stream.requests):
            stream.fail(number, NOT_LEASEHOLDER)
        assert released.answers == 1
    world.pass_time(1.0)
    stream.welcome(leader=1)
    world.pass_time(1.0)
    assert sorted(map(repr, stream.requests.values())) == [
        "Unprotect(timestamp=8)",
        "Unprotect(timestamp=9)",
    ]


def test_a_protection_that_nobody_waits_for_is_taken_back() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(Protect())
    world.router.cancel(call)
    world.read()
    stream.answer(only(stream.requests), 9)
    assert list(stream.requests.values()) == [Unprotect(9)]


def test_messages_that_nobody_waits_for_are_given_back_by_a_transaction_of_its_own() -> None:
    """Its id is one that nobody without the client's secret may use."""
    world = World()
    stream = world.settle()
    world.ask(ClaimQueue("q", bytes(16), 1, ClaimSelection(), wait=True))
    call = world.ask(ClaimQueue("q", bytes(16), 1, ClaimSelection(), wait=True))
    world.router.cancel(call)
    world.read()
    stream.answer(max(stream.requests), Claimed([stored()]))
    back = stream.requests[max(stream.requests)]
    assert [type(each) for each in back.writes] == [RejectMessages]
    assert back.transaction_id.startswith(world.router.client)


def test_a_reaper_that_asks_again_lets_go_of_what_a_lost_answer_may_have_taken() -> None:
    world = World()
    id_ = bytes(16)
    world.settle("a:1")
    world.ask(ReapQueue(b"k", 1, 100, id_, 60.0, wait=True))
    world.to("a:1").breaks()
    reconnect(world, "a:1")
    asked = list(world.settle("a:1").requests.values())
    assert [type(each) for each in asked] == [ReleaseLocks, ReapQueue]


# --- clocks


def test_readings_go_on_from_what_was_heard() -> None:
    world = World()
    assert world.router.reading() == 0
    world.settle()
    heard = world.router.reading()
    assert heard == world.clock()
    world.now += 1.5
    assert world.router.reading() == heard + from_seconds(1.5)


def test_a_clock_that_a_node_refuses_is_set_back_and_the_request_goes_on() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(GET)
    real = world.clock
    behind = real() - from_seconds(100)
    world.clock = lambda: behind  # type: ignore[method-assign]
    stream.fail(only(stream.requests), CLOCK_AHEAD)
    assert world.router.reading() == behind
    world.pass_time(0.1)
    stream.answer(only(stream.requests), VALUE)
    assert call.result == VALUE


def test_time_stands_for_a_client_as_long_as_it_does_for_the_nodes() -> None:
    """The wall clocks of the nodes were set back, and catch up after an hour.

    A transaction that begins by a clock that goes on would wait for that.
    """
    world = World()
    stream = world.settle()
    real = world.clock
    behind = real() - from_seconds(100)
    world.clock = lambda: behind  # type: ignore[method-assign]
    world.ask(GET)
    stream.fail(only(stream.requests), CLOCK_AHEAD)
    world.pass_time(0.1)
    stream.answer(only(stream.requests), VALUE)
    for _ in range(20):
        world.pass_time(3.0)
        stream.welcome(leader=1)
        behind += 1
        assert world.router.reading() < behind + from_seconds(0.001)
    lag = real() - behind
    world.clock = lambda: real() - lag  # type: ignore[method-assign]
    for _ in range(4):
        world.pass_time(3.0)
        stream.welcome(leader=1)
    world.now += 2.0
    assert world.router.reading() == world.clock(), "it moves with theirs again"


def test_a_commit_that_began_in_the_future_of_its_node_begins_now() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(commit())
    behind = CLOCK - from_seconds(100)
    world.clock = lambda: behind  # type: ignore[method-assign]
    stream.fail(only(stream.requests), CLOCK_AHEAD)
    world.pass_time(0.1)
    assert stream.requests[only(stream.requests)] == replace(commit(), began=behind)
    stream.answer(only(stream.requests), COMMITTED)
    assert call.result == COMMITTED


def test_a_commit_that_may_be_done_by_another_try_keeps_its_beginning() -> None:
    """Otherwise its end would be told as that of a transaction which is too old, before it is."""
    world = World()
    world.settle()
    world.ask(commit())
    world.to("a:1").breaks()
    reconnect(world, "b:1")
    world.clock = lambda: CLOCK - from_seconds(100)  # type: ignore[method-assign]
    stream = world.settle("b:1")
    stream.fail(only(stream.requests), CLOCK_AHEAD)
    world.pass_time(0.1)
    assert stream.requests[only(stream.requests)] == commit()


def test_a_clock_that_stays_behind_is_told_of() -> None:
    """A transaction that began by a later clock is not taken, however often it is sent."""
    world = World()
    stream = world.settle()
    call = world.ask(GET)
    for _ in range(300):
        for number in list(stream.requests):
            stream.fail(number, CLOCK_AHEAD)
        world.pass_time(0.1)
    assert isinstance(call.error, Unavailable)
    assert "the clock of the node that leads is behind" in str(call.error)


# --- holdings of this client at the leaseholder


def test_a_client_with_a_lock_sends_a_sign_of_life_every_second() -> None:
    """However much it hears meanwhile, and though the application asks for nothing."""
    world = World()
    stream = world.settle()
    world.ask(GetForUpdate(b"k", 0, bytes(16), 60.0))
    stream.answer(1, VALUE)
    for _ in range(20):
        frames_before = stream.frames
        for _ in range(12):
            world.pass_time(0.1)
            stream.welcome(leader=1)
        assert stream.frames > frames_before
    world.ask(ReleaseLocks(bytes(16)))
    stream.answer(2, None)
    frames_before = stream.frames
    for _ in range(50):
        world.pass_time(0.1)
        stream.welcome(leader=1)
    assert stream.frames == frames_before


@pytest.mark.parametrize("how", ["committed", "failed", "expired"])
def test_a_client_without_holdings_sends_no_signs_of_life(how: str) -> None:
    world = World()
    stream = world.settle()
    world.ask(ReapQueue(b"k", 1, 1, bytes(16), 10.0))
    stream.answer(1, [[(bytes(20), b"stored")], False])
    if how == "expired":
        for _ in range(25):
            world.pass_time(0.4)
            stream.welcome(leader=1)
    else:
        world.ask(commit(0))
        if how == "failed":
            stream.fail(2, "TransactionConflict")
        else:
            stream.answer(2, COMMITTED)
    frames_before = stream.frames
    world.pass_time(5.0)
    assert stream.frames == frames_before
    assert not world.router._lanes.holds()


def test_time_outs_of_what_was_answered_are_forgotten() -> None:
    world = World()
    stream = world.settle()
    for number in range(1, 501):
        world.ask(ReapQueue(b"k", 1, 1, bytes(16), 60.0, wait=True), timeout_seconds=3600.0)
        stream.answer(number, [[], False])
    assert world.router._pending.timed.entries < 30
    for number in range(501, 1001):
        call = world.ask(ReapQueue(b"k", 1, 1, bytes(16), 60.0, wait=True), timeout_seconds=3600.0)
        world.router.cancel(call)
        world.read()
        stream.fail(number, WITHDRAWN)
    assert world.router._pending.timed.entries < 30
