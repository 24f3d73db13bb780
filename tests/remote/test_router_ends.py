"""Nodes that say nothing, and requests that time out, are cancelled or closed."""

from __future__ import annotations

from postroom.errors import (
    CommitUnknown,
    Invalid,
    Unavailable,
)
from postroom.messaging.requests import AwaitQuiet
from postroom.protocol.failures import WITHDRAWN, DeadlineExceeded
from postroom.ranges.nodes import DescribeNode
from postroom.ranges.requests import (
    ScanChanges,
)
from tests.remote.scripted_nodes import (
    GET,
    VALUE,
    Asked,
    World,
    commit,
    only,
    reconnect,
)

# --- nodes that say nothing


def test_a_node_that_gives_no_sign_of_life_is_given_up() -> None:
    world = World(["a:1"])
    silent = world.settle("a:1")
    call = world.ask(GET)
    world.pass_time(1.7)
    assert silent.looked_up
    assert not silent.open
    reconnect(world, "b:1")
    stream = world.settle("b:1")
    stream.answer(only(stream.requests), VALUE)
    assert call.result == VALUE


def test_a_question_about_a_node_ends_when_the_node_is_gone() -> None:
    """It would hang until something else is asked for, if the router did not look at it again."""
    world = World()
    follower = world.to("a:1")
    follower.welcome(leader=0)
    call = world.ask(DescribeNode())
    assert follower.requests
    for _ in range(200):
        for stream in [each for each in world.streams.values() if each.open]:
            if stream is not follower:
                stream.breaks()
        world.pass_time(0.1)
    assert isinstance(call.error, Unavailable)


def test_a_node_that_gives_signs_of_life_may_take_its_time() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(ScanChanges(b"a", b"b", 1))
    for _ in range(600):
        world.pass_time(0.1)
        if stream.looked_up:
            stream.looked_up = 0
            stream.welcome(leader=1)
    assert stream.open
    assert not call.answers, "a minute is nothing to who waits"


def test_a_client_that_was_stopped_does_not_blame_the_node() -> None:
    world = World()
    stream = world.settle()
    world.ask(GET)
    world.pass_time(0.6)
    assert stream.looked_up
    world.now += 30.0  # stopped, say
    world.router.tick()
    assert stream.open


def test_a_leader_that_was_deposed_is_left_when_it_says_so() -> None:
    world = World()
    first = world.settle("a:1")
    call = world.ask(ScanChanges(b"a", b"b", 1))
    world.pass_time(0.6)
    first.welcome(leader=2)
    first.redirect(only(first.requests), 2)
    world.pass_time(0.0)
    second = world.settle("b:1")
    assert len(second.requests) == 1
    assert not call.answers


def test_a_node_that_does_not_lead_gets_no_more_requests() -> None:
    world = World()
    first = world.settle("a:1")
    world.ask(ScanChanges(b"a", b"b", 1))
    world.pass_time(0.6)
    first.welcome(leader=2)
    world.ask(GET)
    world.pass_time(0.0)
    assert GET not in first.requests.values()
    assert list(world.settle("b:1").requests.values()) == [GET]


def test_a_second_node_that_claims_to_lead_is_not_believed() -> None:
    world = World(["a:1", "b:1"])
    world.pass_time(1.1)
    first = world.settle("a:1")
    world.settle("b:1")
    world.ask(GET)
    assert list(first.requests.values()) == [GET]


# --- time-outs, cancelling


def test_a_wait_that_times_out_is_withdrawn_and_the_nodes_word_counts() -> None:
    world = World()
    stream = world.settle()
    early, late = world.ask(AwaitQuiet(), 0.2), world.ask(AwaitQuiet(), 0.2)
    first, second = stream.requests
    world.pass_time(0.2)
    assert sorted(stream.withdrawn) == [first, second]
    stream.answer(first, None)  # it was on its way already
    stream.fail(second, WITHDRAWN)
    assert (early.error, early.answers) == (None, 1)
    assert isinstance(late.error, DeadlineExceeded)


def test_a_wait_that_times_out_does_not_wait_for_a_node_without_a_word() -> None:
    world = World()
    world.settle()
    call = world.ask(AwaitQuiet(), 0.2)
    world.pass_time(1.3)
    assert isinstance(call.error, DeadlineExceeded)


def test_a_wait_times_out_without_a_leader_too() -> None:
    world = World()
    call = world.ask(AwaitQuiet(), 0.2)
    world.pass_time(0.2)
    assert isinstance(call.error, DeadlineExceeded)


def test_a_cancelled_request_is_withdrawn_and_never_answered() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(GET)
    number = only(stream.requests)
    world.router.cancel(call)
    world.read()
    assert stream.withdrawn == [number]
    stream.fail(number, WITHDRAWN)
    assert not call.answers


def test_a_request_cancelled_before_it_leaves_never_leaves() -> None:
    world = World()
    queued = world.ask(commit())
    world.router.cancel(queued)
    stream = world.settle()
    assert not stream.requests

    placed = Asked(commit(2))
    world.router.submit(placed)
    world.router.cancel(placed)
    world.read()
    assert not stream.requests
    assert (queued.answers, placed.answers) == (0, 0)


def test_closing_ends_everything_and_says_what_may_have_happened() -> None:
    world = World()
    world.settle()
    sent, wait = world.ask(commit()), world.ask(AwaitQuiet())
    world.router.close()
    late = world.ask(GET)
    assert isinstance(sent.error, CommitUnknown)
    assert isinstance(wait.error, Invalid)
    assert isinstance(late.error, Invalid)
    assert not any(stream.open for stream in world.streams.values())
