"""The router: every request ends, once, and what is said of it is true."""

from __future__ import annotations

from itertools import pairwise

import pytest

from postroom.errors import (
    AccessDenied,
    CommitUnknown,
    ConditionFailed,
    TransactionConflict,
    Unavailable,
)
from postroom.kv.clock import from_seconds
from postroom.protocol import frames
from postroom.ranges.requests import (
    ConditionalPut,
    Get,
)
from tests.remote.scripted_nodes import (
    COMMITTED,
    GET,
    VALUE,
    World,
    commit,
    only,
    reconnect,
)

# --- leaders


def test_requests_wait_until_a_leader_is_known_and_then_leave_in_one_frame() -> None:
    world = World()
    calls = [world.ask(GET) for _ in range(50)]
    stream = world.to("a:1")
    assert stream.frames == 1, "the Hello"
    stream.welcome(leader=1)
    assert (stream.frames, len(stream.requests)) == (2, 50)
    for number in list(stream.requests):
        stream.answer(number, VALUE)
    assert all(call.result == VALUE for call in calls)


def test_a_request_waits_for_the_node_that_leads() -> None:
    world = World()
    call = world.ask(commit())
    world.to("a:1").welcome(leader=2)
    world.pass_time(0.0)
    assert not world.to("a:1").requests
    leader = world.settle("b:1")
    leader.answer(only(leader.requests), COMMITTED)
    assert call.result == COMMITTED


def test_all_requests_go_to_the_new_leader_when_the_lead_moves() -> None:
    world = World()
    first = world.settle("a:1")
    calls = [world.ask(commit(n)) for n in range(1, 6)]
    while first.requests:  # the last one waited for company
        first.redirect(next(iter(first.requests)), 2)
    world.pass_time(0.0)
    second = world.settle("b:1")
    assert len(second.requests) == 5
    for number in list(second.requests):
        second.answer(number, COMMITTED)
    assert all(call.result == COMMITTED for call in calls)
    assert first.open, "it may lead again"


def test_nodes_that_name_each_other_are_asked_with_pauses_until_the_deadline() -> None:
    world = World(request_seconds=10.0)
    call = world.ask(GET)
    welcomed = 0
    for _ in range(1100):
        for stream in list(world.streams.values()):
            if stream.looked_up or stream.hello is not None:
                stream.looked_up, stream.hello = 0, None
                welcomed += 1
                stream.welcome(leader=2 if stream.address == "a:1" else 1)
        world.pass_time(0.01)
    assert isinstance(call.error, Unavailable)
    assert "nothing was changed" in str(call.error)
    assert 20 < welcomed < 200, "again and again, but it does not spin"


def test_the_deadline_ends_requests_when_no_node_can_be_reached() -> None:
    world = World(["a:1", "b:1"], request_seconds=3.0)
    write, read = world.ask(commit()), world.ask(GET)
    for _ in range(400):
        for stream in [each for each in world.streams.values() if each.open]:
            stream.breaks()
        world.pass_time(0.01)
    assert isinstance(write.error, Unavailable), "it certainly never left"
    assert isinstance(read.error, Unavailable)
    assert "(a:1, b:1: reset)" in str(read.error), "each reason once"
    assert 10 < len(world.streams) < 60, "tried again and again, with pauses"


def test_an_idle_client_seldom_calls_a_node_that_is_gone() -> None:
    world = World(["a:1"])
    for _ in range(6000):
        for stream in [each for each in world.streams.values() if each.open]:
            stream.breaks()
        world.pass_time(0.1)
    assert len(world.streams) < 50, "in ten minutes"


def test_a_request_after_a_long_pause_is_not_kept_waiting() -> None:
    world = World(["a:1"])
    for _ in range(1000):
        for stream in [each for each in world.streams.values() if each.open]:
            stream.breaks()
        if world.alarm_at > world.now + 10.0:
            break
        world.pass_time(0.1)
    assert world.alarm_at > world.now + 10.0
    calls, gone = len(world.streams), world.ask(GET, 0.05)
    world.pass_time(0.0)
    assert len(world.streams) == calls + 1, "at once"
    world.to("a:1").breaks()
    for _ in range(100):  # one who gives up soon, and asks again, does not make it call more often
        world.pass_time(0.01)
        world.ask(GET, 0.005)
        for stream in [each for each in world.streams.values() if each.open]:
            stream.breaks()
    assert gone.error is not None
    assert len(world.streams) <= calls + 8


def _wait_long_in_vain(world: World, seconds: float) -> None:
    for _ in range(int(seconds * 10)):
        for stream in [each for each in world.streams.values() if each.open]:
            stream.breaks()
        world.pass_time(0.1)


def test_a_request_to_a_leader_that_stepped_down_is_not_kept_waiting() -> None:
    """The node said so before it refused the request, while nothing was in the queue."""
    world = World(["a:1"])
    _wait_long_in_vain(world, 100.0)
    while not world.opened("a:1"):
        world.pass_time(0.1)
    stream = world.settle("a:1")
    world.ask(GET)
    stream.welcome(leader=0)
    stream.redirect(only(stream.requests), None)
    calls = len(world.streams)
    world.pass_time(0.5)
    assert stream.looked_up or len(world.streams) > calls


def test_a_leader_that_another_node_names_again_and_again_is_called() -> None:
    """Each time the pause began anew, and they were longer than it took to hear of it again."""
    world = World(["a:1"])
    follower = world.to("a:1")
    follower.welcome(leader=2)
    calls = late = looks = 0
    for _ in range(6000):
        if world.opened("b:1"):
            world.to("b:1").breaks()
            calls += 1
        if follower.looked_up > looks:
            looks = follower.looked_up
            follower.welcome(leader=2)
        world.pass_time(0.1)
        late = calls if world.now < 400.0 else late
    assert calls > late, "in the last minutes, too"
    assert calls < 60, "in ten minutes"


def test_a_node_that_does_not_welcome_holds_nobody_up() -> None:
    world = World(["a:1", "b:1"])
    call = world.ask(GET)
    assert not world.opened("b:1")
    world.pass_time(1.1)
    leader = world.settle("b:1")
    leader.answer(only(leader.requests), VALUE)
    assert call.result == VALUE


def test_nodes_are_learned_from_the_first_one() -> None:
    world = World(["a:1"])
    world.settle("a:1").breaks()
    world.pass_time(0.5)
    assert world.opened("b:1") or world.opened("c:1")


def test_denied_everywhere_is_final() -> None:
    world = World(["a:1", "b:1"])
    call = world.ask(GET)
    for _ in range(4):
        for stream in [each for each in world.streams.values() if each.open]:
            stream.open = False
            world.router.disconnected(stream.link, AccessDenied("no such token"))
        world.pass_time(0.1)
    assert isinstance(call.error, AccessDenied)


# --- streams that break


def test_an_unanswered_request_is_sent_again() -> None:
    world = World(["a:1"])
    first = world.settle()
    read, write = world.ask(GET), world.ask(commit())
    assert len(first.requests) == 2
    first.breaks()
    world.pass_time(0.5)
    second = world.settle("a:1") if world.opened("a:1") else world.settle("b:1")
    assert sorted(map(type, second.requests.values()), key=str) == sorted(
        map(type, first.requests.values()), key=str
    )
    assert list(second.requests) == list(first.requests), "in the same order"
    for number in list(second.requests):
        kind = type(second.requests[number])
        second.answer(number, VALUE if kind is Get else COMMITTED)
    assert (read.result, write.result) == (VALUE, COMMITTED)


def test_a_commit_keeps_its_transaction_id_whatever_happens() -> None:
    world = World()
    request = commit()
    world.ask(request)
    for address in ("a:1", "b:1", "a:1"):
        while not world.opened(address):
            world.pass_time(0.05)
        stream = world.settle(address)
        assert list(stream.requests.values()) == [request]
        stream.breaks()
        world.pass_time(0.0)


def test_a_late_answer_of_an_older_stream_is_ignored() -> None:
    world = World(["a:1"])
    first = world.settle()
    call = world.ask(GET)
    first.breaks()
    world.router.received(first.link, frames.encode((1, world.clock(), 1, [(1, VALUE)])))
    assert not call.answers


def test_a_commit_that_was_sent_and_never_answered_is_unknown() -> None:
    world = World(request_seconds=5.0)
    stream = world.settle()
    call = world.ask(commit())
    stream.breaks()
    for _ in range(120):
        for each in [each for each in world.streams.values() if each.open]:
            each.breaks()
        world.pass_time(0.05)
    assert isinstance(call.error, CommitUnknown)
    assert "same transaction id" in str(call.error)


def test_a_commit_that_waits_for_its_answer_at_the_deadline_is_unknown() -> None:
    world = World(request_seconds=2.0)
    stream = world.settle()
    call, read = world.ask(commit()), world.ask(GET)
    for _ in range(60):
        world.pass_time(0.05)
        if stream.looked_up:
            stream.looked_up = 0
            stream.welcome(leader=1)
    assert isinstance(call.error, CommitUnknown)
    assert isinstance(read.error, Unavailable)
    assert len(stream.withdrawn) == 2, "and the node is told"


def test_a_refused_try_says_nothing_of_an_earlier_one() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(commit())
    stream.breaks()
    reconnect(world, "a:1")
    stream = world.settle("a:1")
    stream.fail(only(stream.requests), "Unavailable", 0.1)
    assert not call.answers
    world.pass_time(0.2)
    stream.answer(only(stream.requests), COMMITTED)
    assert call.result == COMMITTED


def test_a_refused_request_is_sent_again_after_growing_pauses() -> None:
    world = World(request_seconds=15.0)
    stream = world.settle()
    call = world.ask(commit())
    began, times = world.now, []
    while call.error is None:
        if stream.requests:
            times.append(world.now - began)
            stream.fail(only(stream.requests), "Unavailable", 0.02)
        world.pass_time(0.01)
    assert isinstance(call.error, Unavailable)
    assert "because" in str(call.error), "what the node said"
    assert f"{len(times)} times" in str(call.error)
    assert 15.0 <= world.now - began < 15.5, "its deadline"
    pauses = [later - before for before, later in pairwise(times)]
    assert 5 < len(pauses) < 30
    assert pauses[0] < 0.1
    assert max(pauses[:5]) < max(pauses[5:]) <= 2.1


def test_a_request_refused_at_first_is_answered_in_the_end() -> None:
    world = World()
    stream = world.settle()
    calls = [world.ask(GET), world.ask(commit())]
    for number in list(stream.requests):
        stream.fail(number, "Unavailable", 0.7)
    assert not any(call.answers for call in calls)
    world.pass_time(0.3)
    assert not stream.requests, "it does not come back before the node wants it"
    world.pass_time(0.5)
    for number, request in list(stream.requests.items()):
        stream.answer(number, VALUE if request == GET else COMMITTED)
    assert [call.result for call in calls] == [VALUE, COMMITTED]


def test_a_redirect_after_a_lost_try_does_not_make_it_certain() -> None:
    world = World(request_seconds=4.0)
    stream = world.settle()
    call = world.ask(commit())
    stream.breaks()
    reconnect(world, "b:1")
    world.settle("b:1").redirect(1, None)
    for _ in range(100):
        for each in [each for each in world.streams.values() if each.open]:
            each.breaks()
        world.pass_time(0.05)
    assert isinstance(call.error, CommitUnknown)


CONDITIONAL = commit(1, ConditionalPut(b"k", b"v", b"x"))


def test_a_condition_that_failed_elsewhere_says_nothing_of_a_try_still_adrift() -> None:
    world = World()
    world.settle("a:1")
    call = world.ask(CONDITIONAL)
    world.to("a:1").breaks()
    reconnect(world, "b:1")
    stream = world.settle("b:1")
    stream.fail(only(stream.requests), "ConditionFailed", b"y")
    assert isinstance(call.error, CommitUnknown)
    assert isinstance(call.error.__cause__, ConditionFailed)


def test_a_condition_that_failed_at_the_same_node_is_certain() -> None:
    world = World()
    world.settle("a:1")
    call = world.ask(CONDITIONAL)
    world.to("a:1").breaks()
    reconnect(world, "a:1")
    stream = world.settle("a:1")
    stream.fail(only(stream.requests), "ConditionFailed", b"y")
    assert isinstance(call.error, ConditionFailed)
    assert call.error.actual == b"y"


def test_a_conflict_is_certain_wherever_it_is_found() -> None:
    world = World()
    world.settle("a:1")
    call = world.ask(commit())
    world.to("a:1").breaks()
    reconnect(world, "b:1")
    stream = world.settle("b:1")
    stream.fail(only(stream.requests), "TransactionConflict")
    assert isinstance(call.error, TransactionConflict)


def test_an_unknown_outcome_is_asked_for_again() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(commit())
    stream.fail(only(stream.requests), "CommitUnknown")
    world.pass_time(0.1)
    stream.answer(only(stream.requests), COMMITTED)
    assert call.result == COMMITTED


def test_an_outcome_that_nobody_can_tell_any_more_is_not_asked_for_again() -> None:
    world = World()
    stream = world.settle()
    world.pass_time(0.0)
    world.now += 100.0
    stream.welcome(leader=1)
    request = commit()
    assert world.clock() - request.began > from_seconds(75)
    call = world.ask(request)
    stream.fail(only(stream.requests), "CommitUnknown")
    assert isinstance(call.error, CommitUnknown)


# --- frames that make no sense


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x00", frames.encode((1, 2))])
def test_bytes_that_are_no_frame_end_the_stream(frame: bytes) -> None:
    world = World()
    stream = world.settle()
    call = world.ask(GET)
    world.router.received(stream.link, frame)
    assert not stream.open
    assert not call.answers


def test_an_answer_of_the_wrong_kind_ends_the_stream_and_loses_nothing() -> None:
    world = World()
    stream = world.settle()
    calls = [world.ask(GET), world.ask(GET)]
    stream.answer(next(iter(stream.requests)), "what")
    assert not stream.open
    reconnect(world, "b:1")
    second = world.settle("b:1")
    assert len(second.requests) == 2
    assert not any(call.answers for call in calls)
