"""The router: every request ends, once, and what is said of it is true."""

from __future__ import annotations

from itertools import pairwise

import pytest

from postroom.client.remote import router as routers
from postroom.errors import (
    AccessDenied,
    CommitUnknown,
    ConditionFailed,
    Invalid,
    TransactionConflict,
    TransactionTooLarge,
    Unavailable,
)
from postroom.kv.clock import from_seconds
from postroom.messaging.requests import AwaitQuiet, ReapQueue
from postroom.protocol import frames
from postroom.protocol.failures import CLOCK_AHEAD, WITHDRAWN, DeadlineExceeded
from postroom.ranges.requests import (
    ConditionalPut,
    Get,
    GetForUpdate,
    GetMany,
    Protect,
    Put,
    ReleaseLocks,
    ScanChanges,
    Unprotect,
)
from tests.remote.scripted_nodes import COMMITTED, VALUE, Asked, Stream, World, commit

GET = Get(b"k")


def only(stream_requests: dict[int, object]) -> int:
    """The number of the only request."""
    (number,) = stream_requests
    return number


# --- who leads


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


def test_nothing_is_sent_to_a_node_that_does_not_lead() -> None:
    world = World()
    call = world.ask(commit())
    world.to("a:1").welcome(leader=2)
    world.pass_time(0.0)
    assert not world.to("a:1").requests
    leader = world.settle("b:1")
    leader.answer(only(leader.requests), COMMITTED)
    assert call.result == COMMITTED


def test_when_the_lead_moves_everything_goes_to_the_new_leader() -> None:
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


def test_when_no_node_can_be_reached_the_deadline_ends_it() -> None:
    world = World(["a:1", "b:1"], request_seconds=3.0)
    write, read = world.ask(commit()), world.ask(GET)
    for _ in range(400):
        for stream in [each for each in world.streams.values() if each.open]:
            stream.breaks()
        world.pass_time(0.01)
    assert isinstance(write.error, Unavailable), "it certainly never left"
    assert isinstance(read.error, Unavailable)
    assert "a:1: reset" in str(read.error)
    assert 10 < len(world.streams) < 60, "tried again and again, with pauses"


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


def test_what_was_sent_and_not_answered_is_sent_again() -> None:
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


def reconnect(world: World, address: str) -> None:
    """Until a stream to ``address`` is open; others break."""
    for _ in range(100):
        if world.opened(address):
            return
        for stream in [each for each in world.streams.values() if each.open]:
            stream.breaks()
        world.pass_time(0.05)
    raise AssertionError(f"no stream to {address}")


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


def test_a_refused_attempt_says_nothing_of_an_earlier_one() -> None:
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


def test_what_is_refused_is_sent_again_after_longer_and_longer_pauses() -> None:
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


def test_what_was_refused_at_first_is_answered_in_the_end() -> None:
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


def test_a_redirect_after_a_lost_attempt_does_not_make_it_certain() -> None:
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


def test_a_condition_that_failed_elsewhere_says_nothing_of_an_attempt_still_adrift() -> None:
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


def test_who_was_not_running_does_not_blame_the_node() -> None:
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


def test_and_nothing_more_is_sent_to_it() -> None:
    world = World()
    first = world.settle("a:1")
    world.ask(ScanChanges(b"a", b"b", 1))
    world.pass_time(0.6)
    first.welcome(leader=2)
    world.ask(GET)
    world.pass_time(0.0)
    assert GET not in first.requests.values()
    assert list(world.settle("b:1").requests.values()) == [GET]


def test_while_one_leads_another_one_that_says_so_is_not_believed() -> None:
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


def test_what_is_cancelled_is_withdrawn_and_never_answered() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(GET)
    number = only(stream.requests)
    world.router.cancel(call)
    world.read()
    assert stream.withdrawn == [number]
    stream.fail(number, WITHDRAWN)
    assert not call.answers


def test_what_is_cancelled_before_it_leaves_never_leaves() -> None:
    world = World()
    queued = world.ask(commit())
    world.router.cancel(queued)
    stream = world.settle()
    assert not stream.requests
    from tests.remote.scripted_nodes import Asked  # noqa: PLC0415 - placed, and not taken yet

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


# --- limits


def test_no_more_are_outstanding_than_the_node_takes_and_the_rest_follows() -> None:
    world = World()
    stream = world.to("a:1")
    stream.welcome(leader=1, requests_max=3)
    calls = [world.ask(GET) for _ in range(10)]
    waits = [world.ask(AwaitQuiet()) for _ in range(4)]
    assert len(stream.requests) == 3
    while stream.requests:
        number = next(iter(stream.requests))
        stream.answer(number, VALUE if stream.requests[number] == GET else None)
        kinds = [type(each) for each in stream.requests.values()]
        assert kinds.count(Get) <= 3
    assert all(call.answers == 1 for call in calls + waits)


def test_waiting_requests_leave_room_for_others() -> None:
    world = World()
    stream = world.to("a:1")
    stream.welcome(leader=1, requests_max=2)
    for _ in range(10):
        world.ask(AwaitQuiet())
    call = world.ask(GET)
    number = next(n for n, each in stream.requests.items() if each == GET)
    stream.answer(number, VALUE)
    assert call.result == VALUE


def test_waiting_requests_do_not_queue_behind_a_full_window() -> None:
    world = World()
    for request in (GET, GET, AwaitQuiet(), GET):
        world.ask(request)
    stream = world.to("a:1")
    stream.welcome(leader=1, requests_max=2)
    assert list(stream.requests.values()) == [GET, GET, AwaitQuiet()]


def test_too_many_that_wait_for_a_leader_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routers, "QUEUE_MAX", 5)
    world = World()
    calls = [world.ask(GET) for _ in range(6)]
    assert [call.answers for call in calls] == [0, 0, 0, 0, 0, 1]
    assert isinstance(calls[-1].error, Unavailable)
    assert calls[-1].error.retry_after > 0


def numbers_of_commits(stream: Stream) -> list[int]:
    return [number for number, asked in stream.requests.items() if asked != GET]


def test_commits_wait_for_as_many_as_are_under_way() -> None:
    """A node makes one proposal after the other: trickling in, they would stay in small groups."""
    world = World()
    stream = world.settle()
    for number in range(4):
        world.router.submit(Asked(commit(number)))
    world.read()
    first, *others = numbers_of_commits(stream)
    assert len(others) == 3
    for number in range(4, 7):
        world.ask(commit(number))
    assert len(numbers_of_commits(stream)) == 4, "three are less than four"
    assert world.ask(GET).number in stream.requests, "but nothing else waits"
    stream.answer(first, COMMITTED)
    assert numbers_of_commits(stream)[-3:] == [5, 6, 7], "three are not less than three"


def test_a_commit_does_not_wait_for_a_single_one() -> None:
    world = World()
    stream = world.settle()
    world.ask(commit(1))
    world.ask(commit(2))
    assert len(numbers_of_commits(stream)) == 2


def test_a_commit_that_waited_goes_when_none_is_under_way_any_more() -> None:
    world = World()
    stream = world.settle()
    first, second = Asked(commit(1)), Asked(commit(2))
    world.router.submit(first)
    world.router.submit(second)
    world.read()
    third = world.ask(commit(3))
    assert third.number not in stream.requests
    stream.fail(first.number, "TransactionConflict")
    assert third.number in stream.requests


def test_commits_that_wait_for_company_go_elsewhere_with_the_others() -> None:
    world = World(["a:1", "b:1"])
    stream = world.settle()
    calls = [Asked(commit(number)) for number in range(4)]
    for call in calls[:3]:
        world.router.submit(call)
    world.read()
    world.router.submit(calls[3])
    stream.breaks()
    world.pass_time(1.1)
    other = world.settle("b:1")
    assert len(other.requests) == 4
    assert [call.maybe for call in calls] == [True, True, True, False]


def test_a_commit_that_is_cancelled_while_it_waits_for_company_never_leaves() -> None:
    world = World()
    stream = world.settle()
    sent, cancelled = [Asked(commit(number)) for number in range(3)], Asked(commit(3))
    for call in sent:
        world.router.submit(call)
    world.read()
    world.router.submit(cancelled)
    world.router.cancel(cancelled)
    world.read()
    for call in sent:
        stream.answer(call.number, COMMITTED)
    assert not stream.requests
    assert all(world.ask(commit(number)).link.open == number + 1 for number in range(2))


def test_a_frame_that_would_be_too_large_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    stream = world.to("a:1")
    stream.welcome(leader=1)
    before = stream.frames
    big = [Put(b"k", bytes(1024 * 1024))] * 12
    from tests.remote.scripted_nodes import Asked  # noqa: PLC0415 - all placed before any is taken

    calls = [Asked(commit(number, *big)) for number in range(1, 6)]
    for call in calls:
        world.router.submit(call)
    world.read()
    assert len(stream.requests) == 5
    assert stream.frames - before >= 2


def test_a_request_that_fits_into_no_frame_is_refused() -> None:
    world = World()
    world.settle()
    call = world.ask(GetMany([bytes(8192)] * 5000))
    assert isinstance(call.error, TransactionTooLarge)
    assert world.ask(GET).answers == 0


# --- what the leaseholder remembers


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


def test_and_under_a_new_lease_of_the_same_node() -> None:
    world = World()
    stream = world.settle("a:1")
    world.ask(Protect(9))
    stream.answer(only(stream.requests), 9)
    world.ask(GET)
    stream.answer(only(stream.requests), VALUE, lease=2)
    assert list(stream.requests.values()) == [Unprotect(9), Protect(9)]


def test_but_not_after_they_were_taken_back() -> None:
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


def test_a_protection_that_nobody_waits_for_is_taken_back() -> None:
    world = World()
    stream = world.settle()
    call = world.ask(Protect())
    world.router.cancel(call)
    world.read()
    stream.answer(only(stream.requests), 9)
    assert list(stream.requests.values()) == [Unprotect(9)]


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


def test_a_clock_that_stays_behind_is_told_of() -> None:
    """What began by a later clock is not taken, however often it is sent."""
    world = World()
    stream = world.settle()
    call = world.ask(GET)
    for _ in range(300):
        for number in list(stream.requests):
            stream.fail(number, CLOCK_AHEAD)
        world.pass_time(0.1)
    assert isinstance(call.error, Unavailable)
    assert "the clock of the node that leads is behind" in str(call.error)


# --- what makes no sense


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x00", frames.encode((1, 2))])
def test_what_is_no_frame_ends_the_stream(frame: bytes) -> None:
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


# --- what the leaseholder holds for this client


def test_who_holds_a_lock_says_something_every_second() -> None:
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
def test_who_holds_nothing_any_more_needs_to_say_nothing(how: str) -> None:
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
    assert not world.router._holdings


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
