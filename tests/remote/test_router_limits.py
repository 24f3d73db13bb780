"""Limits of what the router sends: to a node, in a frame, and together."""

from __future__ import annotations

import pytest

from postroom.client.routing import router as routers
from postroom.client.routing.links import COMPANY_SECONDS
from postroom.errors import (
    Invalid,
    TransactionTooLarge,
    Unavailable,
)
from postroom.messaging.requests import AwaitQuiet, ListInboxes
from postroom.ranges.requests import (
    Get,
    GetForUpdate,
    GetMany,
    Put,
)
from tests.remote.scripted_nodes import (
    COMMITTED,
    GET,
    VALUE,
    Asked,
    Stream,
    World,
    commit,
    only,
)


def test_requests_beyond_the_limit_of_the_node_follow_later() -> None:
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
    monkeypatch.setattr(routers, "CLIENT_QUEUE_MAX", 5)
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


def test_commits_that_may_wait_for_locks_leave_room_for_all_others() -> None:
    """Two thousand commits that waited for one lock let nothing else of their client pass."""
    world = World()
    stream = world.to("a:1")
    stream.welcome(leader=1, requests_max=8)
    lock = world.ask(GetForUpdate(b"k", 0, commit(99).transaction_id, 60.0))
    stream.answer(lock.number, VALUE)
    commits = [world.ask(commit(number)) for number in range(9)]
    world.pass_time(2 * COMPANY_SECONDS)
    assert [call.number in stream.requests for call in commits] == [True] * 6 + [False] * 3
    assert world.ask(GET).number in stream.requests
    assert world.ask(commit(99)).number in stream.requests, "its lock may be what they wait for"
    for call in commits[:3]:
        stream.answer(call.number, COMMITTED)
    world.pass_time(2 * COMPANY_SECONDS)
    assert all(call.number in stream.requests for call in commits[3:])


def test_calls_that_found_no_room_are_sent_in_their_order() -> None:
    world = World()
    stream = world.to("a:1")
    stream.welcome(leader=1, requests_max=1)
    first = world.ask(GET)
    later = [world.ask(request) for request in (commit(1), GET, commit(2), GET)]
    sent = []
    while stream.requests:
        number = only(stream.requests)
        sent.append(number)
        stream.answer(number, VALUE if stream.requests[number] == GET else COMMITTED)
    assert sent == [call.number for call in (first, *later)]


def test_calls_that_found_no_room_go_elsewhere_with_the_others() -> None:
    world = World(["a:1", "b:1"])
    stream = world.to("a:1")
    stream.welcome(leader=1, requests_max=4)
    calls = [world.ask(request) for request in (*map(commit, range(5)), *[GET] * 3)]
    stream.breaks()
    world.pass_time(1.1)
    other = world.settle("b:1")
    world.pass_time(2 * COMPANY_SECONDS)
    assert other.requests.keys() == {call.number for call in calls}
    for call in calls:
        other.answer(call.number, VALUE if call.request == GET else COMMITTED)
    assert all(call.answers == 1 for call in calls)
    assert world.ask(GET).link.crowd == 0  # type: ignore[union-attr]


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


def test_a_client_does_not_spin_while_a_socket_takes_no_commits() -> None:
    """A commit that has waited long enough for company is due once, until it is taken."""
    world = World()
    world.settle()
    for number in range(3):
        world.router.submit(Asked(commit(number)))
    world.read()
    world.router.submit(Asked(commit(3)))
    for _ in range(3):
        world.now = world.router.next_deadline()
        world.router.tick()
        assert world.router.next_deadline() > world.now


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


def test_commits_that_may_leave_wait_for_the_stream_without_alarms() -> None:
    """The stream is full: it takes nothing for a while."""
    world = World()
    stream = world.settle()
    calls = [Asked(commit(number)) for number in range(4)]
    for call in calls[:3]:
        world.router.submit(call)
    world.read()
    world.router.submit(calls[3])
    assert world.router.next_deadline() == world.now + COMPANY_SECONDS
    for _ in range(2):
        world.now += COMPANY_SECONDS
        world.router.tick()
        assert world.router.next_deadline() > world.now + COMPANY_SECONDS
    world.read()
    assert len(stream.requests) == 4
    world.router.submit(call := Asked(commit(4)))
    world.read()
    assert call.number in stream.requests


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


def test_a_request_that_cannot_be_encoded_is_refused_and_all_others_go_on() -> None:
    """None of that frame was answered, and nothing was sent any more."""
    world = World()
    stream = world.settle()
    calls = [
        Asked(GET), Asked(ListInboxes(b"", None, 2**70)), Asked(Get(b"k", "half a pair: \ud800")),  # type: ignore[arg-type]
        Asked(GET),
    ]  # fmt: skip
    for call in calls:
        world.router.submit(call)
    world.read()
    assert [type(call.error) for call in calls] == [type(None), Invalid, Invalid, type(None)]
    assert len(stream.requests) == 2
    for number in list(stream.requests):
        stream.answer(number, VALUE)
    assert [call.result for call in calls] == [VALUE, None, None, VALUE]
    assert world.ask(GET).answers == 0
    stream.answer(only(stream.requests), VALUE)
    assert world.router.is_quiet()
