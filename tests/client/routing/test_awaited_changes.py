"""Watches wait in several ranges, and ask all of them when one has changed."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.client.routing import assignment
from postroom.client.routing.merges import WINDOWS
from postroom.limits import REQUEST_SECONDS
from postroom.messaging.requests import ListDeadLetters
from postroom.protocol.failures import WITHDRAWN
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import CommittedChange, CommittedChanges, GetMany, ScanChanges
from tests.client.routing.test_many_ranges import LED, RIGHT, asked_at, three, welcome_all
from tests.remote.scripted_nodes import Stream, World, only

PIECES = {"a:1": (b"", b"f"), "b:1": (b"f", b"m"), "c:1": (b"m", None)}
CHANGE = CommittedChange(50, b"z", b"v", False)


def pass_time(world: World, seconds: float) -> None:
    """Let a time pass in which the nodes give signs of life."""
    end = world.now + seconds
    while world.now < end:
        welcome_all(world)


def asked_now(stream: Stream) -> dict[int, Any]:
    """Return the requests to a node that are not withdrawn, by number."""
    return {
        number: asked for number, asked in stream.requests.items() if number not in stream.withdrawn
    }


def test_all_ranges_are_asked_up_to_the_first_change_that_one_of_them_tells() -> None:
    world = three()
    call = world.ask(ScanChanges(b"", None, 10))
    for address, piece in PIECES.items():
        assert asked_at(world, address) == [ScanChanges(*piece, 10)]
    right = world.to("c:1")
    right.answer(only(right.requests), CommittedChanges([CHANGE], 50))
    for address, piece in PIECES.items():
        asked = asked_now(world.to(address))
        assert [*asked.values()] == [ScanChanges(*piece, 10, False, 50)]
    for address in PIECES:
        stream, told = world.to(address), [CHANGE] if address == "c:1" else []
        stream.answer(only(asked_now(stream)), CommittedChanges(told, 50))
    assert call.result == CommittedChanges([CHANGE], 50)


def test_answers_are_awaited_as_long_after_a_long_wait_as_after_none() -> None:
    world = three()
    call = world.ask(ScanChanges(b"", None, 10))
    pass_time(world, 2 * REQUEST_SECONDS)
    right = world.to("c:1")
    right.answer(only(right.requests), CommittedChanges([CHANGE], 50))
    pass_time(world, REQUEST_SECONDS / 2)
    assert not call.answers
    pass_time(world, REQUEST_SECONDS)
    assert "no leader of range" in str(call.error)


def test_a_wait_in_a_range_that_was_split_is_over_for_all_ranges() -> None:
    world = three()
    call = world.ask(ScanChanges(b"", None, 10))
    right = world.to("c:1")
    halves = RangeDescriptor(2, b"m", b"t", 4), RangeDescriptor(9, b"t", None, 4)
    assert RIGHT.generation < 4
    right.misdirected(only(right.requests), *halves)
    world.read()
    waits = [
        asked for address in LED for asked in asked_now(world.to(address)).values() if asked.wait
    ]
    assert not waits
    assert not call.error


def test_a_watch_of_ten_thousand_ranges_is_answered_with_few_requests_under_way() -> None:
    cuts = [b"%04d" % number for number in range(9999)]
    bounds = enumerate(zip([b"", *cuts], [*cuts, None], strict=True), 1)
    ranges = [RangeDescriptor(number, start, end, 2) for number, (start, end) in bounds]
    world = World()
    node = world.to("a:1")
    node.leads(*ranges)
    change = CommittedChange(50, ranges[7000].start, b"v", False)
    for _ in range(2):
        call = world.ask(ScanChanges(b"", None, 10))
        assert len(asked_now(node)) == len(ranges)
        node.answer(min(node.requests) + 7000, CommittedChanges([change], 50))
        for withdrawn in batched(node.withdrawn):
            answer_together(node, dict.fromkeys(withdrawn, (None, (WITHDRAWN, "", None))))
        node.withdrawn.clear()
        while not call.answers:
            asked = asked_now(node)
            assert 0 < len(asked) <= WINDOWS[ScanChanges]
            told = {each: [change] * (asked[each].start == change.key) for each in asked}
            answer_together(node, {each: (CommittedChanges(told[each], 50),) for each in asked})
        assert call.result == CommittedChanges([change], 50)
        assert not node.requests


def batched(numbers: list[int]) -> list[list[int]]:
    return [numbers[first : first + 256] for first in range(0, len(numbers), 256)]


def answer_together(node: Stream, told: dict[int, Any]) -> None:
    """Answer requests in one frame."""
    for number in told:
        del node.requests[number]
    node.say(1, node.world.clock(), 1, [(number, *answer) for number, answer in told.items()])


def test_a_client_waits_in_a_bounded_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "CLIENT_WAITS_MAX", 2)
    world = three()
    first, second = (world.ask(ScanChanges(b"", None, 10)) for _ in range(2))
    assert not first.answers
    assert not second.answers
    with_error = world.ask(ScanChanges(b"", None, 10))
    assert "wait at the store already; nothing was changed" in str(with_error.error)


def test_ranges_share_the_bytes_of_a_page() -> None:
    world = three()
    world.ask(ListDeadLetters(10, 99))
    assert asked_at(world, "b:1") == [ListDeadLetters(10, 33)]
    other = three()
    other.ask(GetMany([b"a", b"z"], 7, 99))
    assert asked_at(other, "c:1") == [GetMany([b"z"], 7, 49)]
