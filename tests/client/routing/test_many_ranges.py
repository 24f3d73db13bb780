"""The router of a client of several ranges, which several nodes lead; the nodes are scripted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroom.errors import Invalid, Unavailable
from postroom.limits import WRONG_RANGES_MAX
from postroom.messaging.bulk_requests import ScanRecords
from postroom.messaging.requests import Counters, ReadCounters
from postroom.protocol.failures import CLOCK_AHEAD, NOT_LEASEHOLDER, DeadlineExceeded
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.requests import (
    Get,
    GetForUpdate,
    GetMany,
    Lock,
    Now,
    Pairs,
    Protect,
    Put,
    ReleaseLocks,
    ReverseScan,
    Scan,
    Unprotect,
    Values,
)
from tests.remote.scripted_nodes import COMMITTED, VALUE, Asked, Stream, World, commit, only

LEFT = RangeDescriptor(1, b"", b"f", 2)
MIDDLE = RangeDescriptor(3, b"f", b"m", 3)
RIGHT = RangeDescriptor(2, b"m", None, 3)
WHOLE = RangeDescriptor(1)
LED = {"a:1": [LEFT], "b:1": [MIDDLE], "c:1": [RIGHT]}


def welcome_all(world: World, led: dict[str, list[RangeDescriptor]] | None = None) -> None:
    """Let every node that is greeted or looked up say which ranges it leads, until all is quiet."""
    led = led or LED
    for _ in range(50):
        for stream in list(world.streams.values()):
            if stream.open and (stream.hello is not None or stream.looked_up):
                stream.hello, stream.looked_up = None, 0
                stream.leads(*led[stream.address])
        world.pass_time(0.01)


def three() -> World:
    """Return a client that knows of three ranges and who leads them."""
    world = World()
    world.to("a:1").leads(LEFT)
    world.to("a:1").hello = None
    world.ask(Get(b"z"), 0.3)
    world.ask(Get(b"g"), 0.3)
    welcome_all(world)
    for stream in world.streams.values():
        for number in list(stream.requests):
            stream.answer(number, VALUE)
    return world


def asked_at(world: World, address: str) -> list[Any]:
    return list(world.to(address).requests.values())


def answer_all(stream: Stream, result: Any) -> None:
    for number in list(stream.requests):
        stream.answer(number, result)


# --- places


def test_each_request_goes_to_the_node_that_leads_the_range_of_its_keys() -> None:
    world = three()
    for key in (b"", b"e\xff", b"f", b"l", b"m", b"\xff"):
        world.ask(Get(key))
    assert asked_at(world, "a:1") == [Get(b""), Get(b"e\xff")]
    assert asked_at(world, "b:1") == [Get(b"f"), Get(b"l")]
    assert asked_at(world, "c:1") == [Get(b"m"), Get(b"\xff")]
    for address, descriptor in (("a:1", LEFT), ("b:1", MIDDLE), ("c:1", RIGHT)):
        stream = world.to(address)
        named = {stream.named[number] for number in stream.requests}
        assert named == {(descriptor.range_id, descriptor.generation)}


def test_a_client_of_one_range_names_no_range() -> None:
    world = World()
    stream = world.to("a:1")
    stream.leads(WHOLE)
    world.ask(Get(b"k"))
    world.ask(commit())
    assert len(stream.requests) == 2
    assert not stream.named


def test_a_commit_goes_to_the_range_of_all_its_keys() -> None:
    world = three()
    call = world.ask(commit(1, Put(b"k", b"v"), Put(b"l", b"v")))
    stream = world.to("b:1")
    stream.answer(only(stream.requests), COMMITTED)
    assert call.result == COMMITTED


def test_a_commit_over_several_ranges_is_sent_again_when_the_range_of_its_anchor_was_split() -> (
    None
):
    world = three()
    call = world.ask(commit(1, Put(b"k", b"v"), Put(b"z", b"v")))
    stream = world.to("b:1")
    shorter = msgspec.structs.replace(MIDDLE, end=b"l", generation=MIDDLE.generation + 1)
    stream.misdirected(only(stream.requests), shorter)
    assert call.error is None
    number = only(stream.requests)
    assert stream.named[number] == (shorter.range_id, shorter.generation)
    stream.answer(number, COMMITTED)
    assert call.result == COMMITTED


def counters(delivered: int) -> Counters:
    return Counters(delivered=delivered)


def test_a_range_that_splits_while_all_are_asked_is_counted_once_and_its_halves_both() -> None:
    world = three()
    call = world.ask(ReadCounters())
    for address, delivered in (("a:1", 1), ("c:1", 100)):
        answer_all(world.to(address), counters(delivered))
    stream = world.to("b:1")
    shorter = msgspec.structs.replace(MIDDLE, end=b"l", generation=MIDDLE.generation + 1)
    stream.misdirected(only(stream.requests), shorter, RangeDescriptor(4, b"l", b"m", 4))
    stream.answer(only(stream.requests), counters(10))
    assert call.result is None, "the right half was not asked yet"
    stream.answer(only(stream.requests), counters(1000))
    assert call.result == counters(1111)


def test_a_range_that_does_not_exist_is_left_out_when_all_are_asked() -> None:
    world = three()
    call = world.ask(ReadCounters())
    stream = world.to("b:1")
    stream.misdirected(only(stream.requests), RangeDescriptor(5, b"f", b"m", 4))
    for address, delivered in (("a:1", 1), ("c:1", 100)):
        answer_all(world.to(address), counters(delivered))
    stream.answer(only(stream.requests), counters(1000))
    assert call.result == counters(1101)


def lied_to(request: Any) -> tuple[Asked, Stream]:
    """Return a call of a client that has learned of the lie that there is a range 9."""
    world = World()
    stream = world.to("a:1")
    stream.leads(RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(9, b"m", None, 2))
    call = world.ask(request)
    for number, (range_id, _) in list(stream.named.items()):
        if range_id == 9:
            stream.misdirected(number, RangeDescriptor(1, b"", None, 3))
    return call, stream


def test_a_call_names_no_range_once_the_store_has_only_one() -> None:
    call, stream = lied_to(Get(b"z"))
    number = only(stream.requests)
    assert number not in stream.named
    stream.answer(number, VALUE)
    assert call.result == VALUE


def test_the_only_range_is_counted_once_if_another_one_was_a_lie() -> None:
    call, stream = lied_to(ReadCounters())
    assert len(stream.requests) == 2, "the part of the lie went to the only range"
    answer_all(stream, counters(1))
    assert call.result == counters(1)


def test_requests_about_the_one_root_go_to_the_first_range() -> None:
    world = three()
    world.ask(Protect(9))
    assert asked_at(world, "a:1") == [Protect(9)]


def test_a_request_for_several_ranges_is_refused_if_a_node_says_so_too() -> None:
    world = three()
    call = world.ask(ScanRecords("image", b"", None, 10))
    stream = next(each for each in world.streams.values() if each.open and each.requests)
    (own,) = LED[stream.address]
    number = only(stream.requests)
    assert number in stream.named
    stream.misdirected(number, own)
    assert isinstance(call.error, Invalid)
    assert "ranges" in str(call.error)
    world.ask(Get(own.start))
    assert len(stream.requests) == 1, "the range is known as before"


def test_a_request_that_spans_ranges_by_mistake_of_the_client_is_served() -> None:
    """The ranges of which a node has told were never there."""
    world = World()
    stream = world.to("a:1")
    stream.leads(WHOLE, RangeDescriptor(9, b"x", None, 7))
    call = world.ask(GetMany([b"a", b"z"], 0))
    world.pass_time(2.0)
    world.to("a:1").leads(WHOLE)
    assert not call.done


# --- ranges and leaders that change


def test_a_range_that_splits_between_two_calls_is_followed_to_both_halves() -> None:
    world = World()
    first = world.to("a:1")
    first.leads(WHOLE)
    one = world.ask(Get(b"z"))
    first.answer(only(first.requests), VALUE)
    two = world.ask(Get(b"z"))
    first.redirect(only(first.requests), 3, RangeDescriptor(2, b"m", None, 2))
    world.pass_time(0.0)
    last = world.to("c:1")
    last.leads(RangeDescriptor(2, b"m", None, 2))
    assert last.named[only(last.requests)] == (2, 2)
    last.answer(only(last.requests), VALUE)
    assert one.result == two.result == VALUE
    three = world.ask(Get(b"a"))
    world.pass_time(0.5)
    world.to("a:1").leads(RangeDescriptor(1, b"", b"m", 2))
    stream = world.to("a:1")
    assert stream.named[only(stream.requests)] == (1, 2)
    stream.answer(only(stream.requests), VALUE)
    assert three.result == VALUE


def test_requests_that_wait_for_a_leader_go_to_the_halves_of_a_split() -> None:
    world = World()
    calls = [world.ask(Get(key)) for key in (b"a", b"z", b"b")]
    world.to("a:1").leads(RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(2, b"m", None, 2))
    stream = world.to("a:1")
    assert [stream.named[call.number] for call in calls] == [(1, 2), (2, 2), (1, 2)]


def test_a_leader_that_moves_is_followed_and_other_ranges_stay_where_they_are() -> None:
    world = three()
    call, other = world.ask(Get(b"g")), world.ask(Get(b"a"))
    stream = world.to("b:1")
    stream.redirect(only(stream.requests), 3, MIDDLE)
    world.pass_time(0.0)
    last = world.to("c:1")
    assert last.looked_up
    last.leads(RIGHT, MIDDLE)
    assert last.requests[call.number] == Get(b"g")
    last.answer(call.number, VALUE)
    assert call.result == VALUE
    assert list(world.to("a:1").requests) == [other.number]


def test_a_node_that_is_gone_keeps_only_the_requests_for_its_ranges() -> None:
    world = three()
    lost, other = world.ask(Get(b"g")), world.ask(Get(b"z"))
    world.to("b:1").breaks()
    world.pass_time(0.3)
    answer_all(world.to("c:1"), VALUE)
    assert other.result == VALUE
    assert not lost.done
    welcome_all(world, LED | {"b:1": [], "c:1": [RIGHT, MIDDLE]})
    answer_all(world.to("c:1"), VALUE)
    assert lost.result == VALUE


def test_a_generation_that_has_passed_is_told_and_the_request_goes_on() -> None:
    world = three()
    call = world.ask(Get(b"a"))
    stream = world.to("a:1")
    later = RangeDescriptor(1, b"", b"f", 5)
    stream.misdirected(only(stream.requests), later)
    assert stream.named[only(stream.requests)] == (1, 5)
    answer_all(stream, VALUE)
    assert call.result == VALUE


def test_a_commit_over_two_ranges_goes_on_when_that_of_its_anchor_has_changed() -> None:
    world = three()
    call = world.ask(commit(1, Put(b"k", b"v"), Put(b"z", b"v")))
    stream = world.to("b:1")
    stream.misdirected(only(stream.requests), RangeDescriptor(3, b"f", b"m", 5))
    assert stream.named[only(stream.requests)] == (3, 5)
    answer_all(stream, COMMITTED)
    assert call.result == COMMITTED


def test_requests_for_two_ranges_of_one_node_name_them() -> None:
    world = World()
    stream = world.to("a:1")
    stream.leads(LEFT, MIDDLE, RIGHT)
    calls = [world.ask(Get(key)) for key in (b"a", b"g", b"z")]
    assert [stream.named[call.number] for call in calls] == [(1, 2), (3, 3), (2, 3)]


# --- nodes that are mistaken, or lie


def forged(number: int) -> list[RangeDescriptor]:
    """Return descriptors that overlap, are older, and have no end."""
    return [
        RangeDescriptor(50 + number, b"", None, 1_000 + number),
        RangeDescriptor(51 + number, b"a", b"b", 1_000 + number),
        RangeDescriptor(1, b"", None, 1),
        RangeDescriptor(2, b"z", b"a", 99),
        RangeDescriptor(-4, b"", None, -7),
    ]


def test_a_forged_answer_sends_a_client_nowhere_twice() -> None:
    """Node 2 says that every key belongs to ranges of which nobody else knows."""
    world = three()
    call, places = world.ask(Get(b"g")), []
    for number in range(200):
        for stream in list(world.streams.values()):
            if not stream.open:
                continue
            for asked in list(stream.requests):
                if stream.address == "b:1":
                    places.append((stream.address, stream.named.get(asked), world.now))
                    stream.misdirected(asked, *forged(number))
                else:
                    stream.answer(asked, VALUE)
            if stream.looked_up:
                stream.looked_up = 0
                stream.leads(*([] if stream.address == "b:1" else [*LED[stream.address], MIDDLE]))
        world.pass_time(0.01)
        if call.done:
            break
    assert call.result == VALUE, "another node has the range"
    assert len({place[:2] for place in places}) == len(places), "nowhere twice"
    assert len(places) <= WRONG_RANGES_MAX


def test_a_node_that_always_sends_away_is_not_asked_without_pauses() -> None:
    world = World(request_seconds=5.0)
    world.to("a:1").leads(LEFT, RIGHT, MIDDLE)
    call, asked = world.ask(Get(b"g")), 0
    for number in range(1000):
        for stream in list(world.streams.values()):
            for each in list(stream.requests):
                asked += 1
                stream.misdirected(each, RangeDescriptor(3, b"f", b"m", 10 + number))
            if stream.open and (stream.looked_up or stream.hello is not None):
                stream.looked_up, stream.hello = 0, None
                ranges = [LEFT, RIGHT, RangeDescriptor(3, b"f", b"m", 10 + number)]
                stream.leads(*(ranges if stream.address == "a:1" else []))
        world.pass_time(0.01)
    assert isinstance(call.error, Unavailable)
    assert asked < 60


def test_a_malformed_failure_is_no_news() -> None:
    world = three()
    call = world.ask(Get(b"g"))
    stream = world.to("b:1")
    extras = (None, 7, [7], [[1, 2, 3]], [["x", b"", None, 1, []]], [[3, b"f", b"m", 2**70, []]])
    for extra in extras:
        for number in list(stream.requests):
            stream.fail(number, "WrongRange", extra)
        welcome_all(world)
    for _ in range(6):
        welcome_all(world)
    answer_all(world.to("b:1"), VALUE)
    assert call.result == VALUE


def test_a_leader_without_an_address_is_searched_for() -> None:
    world = three()
    call = world.ask(Get(b"g"))
    stream = world.to("b:1")
    stream.fail(only(stream.requests), NOT_LEASEHOLDER, (0, "", MIDDLE))
    welcome_all(world, LED | {"b:1": [], "c:1": [RIGHT, MIDDLE]})
    answer_all(world.to("c:1"), VALUE)
    assert call.result == VALUE


# --- requests for all ranges


def listed(descriptor: RangeDescriptor) -> RangeInfo:
    return RangeInfo(
        descriptor.range_id, descriptor.start, descriptor.end, descriptor.generation, 0, 1, (1,)
    )


def test_ranges_are_listed_by_all_of_them_in_the_order_of_their_keys() -> None:
    world = three()
    call = world.ask(ListRanges(b"c", None))
    assert asked_at(world, "a:1") == [ListRanges(b"c", b"f")]
    assert asked_at(world, "b:1") == [ListRanges(b"f", b"m")]
    assert asked_at(world, "c:1") == [ListRanges(b"m", None)]
    for address in ("c:1", "a:1", "b:1"):
        assert not call.done
        answer_all(world.to(address), [listed(LED[address][0])])
    assert call.result == [listed(LEFT), listed(MIDDLE), listed(RIGHT)]


def test_a_range_that_splits_while_it_is_listed_is_listed_in_halves() -> None:
    world = three()
    call = world.ask(ListRanges(b"g", None))
    answer_all(world.to("c:1"), [listed(RIGHT)])
    stream = world.to("b:1")
    halves = RangeDescriptor(3, b"f", b"i", 4), RangeDescriptor(4, b"i", b"m", 4)
    stream.misdirected(only(stream.requests), *halves)
    world.pass_time(0.0)
    world.to("b:1").leads(*halves)
    assert asked_at(world, "b:1") == [ListRanges(b"g", b"i"), ListRanges(b"i", b"m")]
    for number, half in zip(list(stream.requests), halves, strict=True):
        stream.answer(number, [listed(half)])
    assert call.result == [*map(listed, halves), listed(RIGHT)]


def test_locks_are_asked_for_in_the_order_of_the_ranges() -> None:
    world = three()
    id_ = (1).to_bytes(16, "big")
    call = world.ask(Lock([b"z", b"a", b"g"], [(b"b", b"h")], id_, 60.0))
    parts = [
        ("a:1", Lock([b"a"], [(b"b", b"f")], id_, 60.0)),
        ("b:1", Lock([b"g"], [(b"f", b"h")], id_, 60.0)),
        ("c:1", Lock([b"z"], [], id_, 60.0)),
    ]
    for number, (address, part) in enumerate(parts):
        asked = [len(asked_at(world, each)) for each, _ in parts]
        assert asked == [int(at == number) for at in range(3)]
        assert asked_at(world, address) == [part]
        answer_all(world.to(address), None)
    assert call.answers == 1
    assert call.error is None


def test_a_lock_in_the_second_range_is_withdrawn_with_its_call() -> None:
    world = three()
    id_ = (1).to_bytes(16, "big")
    timed = world.ask(Lock([b"a", b"g"], [], id_, 60.0), 0.5)
    cancelled = world.ask(Lock([b"b", b"h"], [], id_, 60.0))
    answer_all(world.to("a:1"), None)
    stream = world.to("b:1")
    waiting = list(stream.requests)
    world.router.cancel(cancelled)
    world.pass_time(1.0)
    assert isinstance(timed.error, DeadlineExceeded)
    assert cancelled.answers == 0
    assert sorted(stream.withdrawn[-2:]) == sorted(waiting)
    assert len(waiting) == 2


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_asks_the_first_range_and_goes_on_at_the_next(reverse: bool) -> None:
    world = three()
    kind = ReverseScan if reverse else Scan
    call = world.ask(kind(b"g", b"z", 10, 100, 0))
    address, span = ("c:1", (b"m", b"z")) if reverse else ("b:1", (b"g", b"m"))
    assert asked_at(world, address) == [kind(*span, 10, 100, 0)]
    answer_all(world.to(address), Pairs([(b"k", b"v")], None, 10, (0,)))
    assert call.result == Pairs([(b"k", b"v")], b"m", 10, (0,))
    call = world.ask(kind(b"g", b"z", 10, 100, 0))
    answer_all(world.to(address), Pairs([], b"n", 10))
    assert call.result == Pairs([], b"n", 10)


def test_values_of_several_ranges_are_asked_for_at_the_latest_clock() -> None:
    world = three()
    call = world.ask(GetMany([b"z", b"a", b"g", b"b", b"z"]))
    for address, clock in (("a:1", 5), ("b:1", 9), ("c:1", 7)):
        assert asked_at(world, address) == [Now()]
        answer_all(world.to(address), clock)
    assert asked_at(world, "a:1") == [GetMany([b"a", b"b"], 9)]
    answer_all(world.to("a:1"), Values([b"of a"], 9, (0,)))
    answer_all(world.to("c:1"), Values([b"of z"], 9))
    answer_all(world.to("b:1"), Values([b"of g"], 9, (0,)))
    assert call.result == Values([b"of z", b"of a", b"of g"], 9, (1, 2)), "the rest is left out"


def test_an_error_of_one_range_ends_a_request_for_all() -> None:
    world = three()
    call = world.ask(ListRanges(b"", None))
    stream = world.to("b:1")
    stream.fail(only(stream.requests), "Invalid")
    answer_all(world.to("a:1"), [listed(LEFT)])
    answer_all(world.to("c:1"), [listed(RIGHT)])
    assert isinstance(call.error, Invalid)
    assert call.answers == 1


def test_a_request_for_all_ranges_waits_until_all_are_known() -> None:
    world = World()
    world.to("a:1").leads(LEFT)
    calls = [world.ask(ListRanges(b"", None)), world.ask(Now())]
    welcome_all(world)
    assert set(asked_at(world, "c:1")) == {ListRanges(b"m", None), Now()}
    for address, clock in (("a:1", 5), ("b:1", 9), ("c:1", 7)):
        for number, request in list(world.to(address).requests.items()):
            answer = clock if isinstance(request, Now) else [listed(LED[address][0])]
            world.to(address).answer(number, answer)
    assert [len(calls[0].result), calls[1].result] == [3, 9], "the latest clock"


def test_a_client_of_one_range_that_asks_all_is_told_of_the_others() -> None:
    world = World()
    stream = world.to("a:1")
    stream.leads(WHOLE)
    call = world.ask(Now())
    halves = RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(2, b"m", None, 2)
    stream.misdirected(only(stream.requests), *halves)
    world.pass_time(0.0)
    stream.leads(*halves)
    assert [stream.named[number] for number in stream.requests] == [(1, 2), (2, 2)]
    for number, clock in zip(list(stream.requests), (9, 5), strict=True):
        stream.answer(number, clock)
    assert call.result == 9


def test_a_request_for_all_ranges_has_a_deadline() -> None:
    world = three()
    call, timed = world.ask(Now()), world.ask(Now(), 0.5)
    for address in ("a:1", "b:1"):
        answer_all(world.to(address), 5)
    world.pass_time(2.0)
    assert timed.error is not None
    assert not call.done
    world.router.cancel(call)
    assert call.answers == 0


# --- holdings


def lock(world: World, key: bytes, transaction: int = 1) -> Asked:
    call = world.ask(GetForUpdate(key, 0, transaction.to_bytes(16, "big"), 60.0))
    for stream in world.streams.values():
        if call.number in stream.requests:
            stream.answer(call.number, VALUE)
    assert call.result == VALUE
    return call


def sent_frames(world: World, seconds: float) -> dict[str, int]:
    """Return how many frames each node gets in a time in which all nodes speak."""
    before = {each.address: each.frames for each in world.streams.values() if each.open}
    for _ in range(int(seconds * 5)):
        for stream in [each for each in world.streams.values() if each.open]:
            stream.leads(*LED[stream.address])
        world.pass_time(0.2)
    return {address: world.to(address).frames - before[address] for address in before}


def test_signs_of_life_go_to_the_nodes_that_hold_something() -> None:
    world = three()
    lock(world, b"g")
    frames = sent_frames(world, 5.0)
    assert frames["b:1"] >= 4
    assert frames["a:1"] == frames["c:1"] == 0


def test_locks_are_released_at_all_ranges() -> None:
    world = three()
    lock(world, b"g")
    lock(world, b"z")
    call = world.ask(ReleaseLocks((1).to_bytes(16, "big")))
    for address in ("a:1", "b:1", "c:1"):
        assert len(asked_at(world, address)) == 1
        answer_all(world.to(address), None)
    assert call.answers == 1
    assert set(sent_frames(world, 3.0).values()) == {0}


def test_a_commit_releases_the_locks_at_other_ranges() -> None:
    world = three()
    lock(world, b"g")
    lock(world, b"z")
    world.ask(commit(1))
    world.to("b:1").answer(only(world.to("b:1").requests), COMMITTED)
    assert asked_at(world, "c:1") == [ReleaseLocks((1).to_bytes(16, "big"))]
    answer_all(world.to("c:1"), None)
    assert not world.router._lanes.holds()


def test_locks_are_released_where_the_link_was_lost_when_it_is_back() -> None:
    """Rollbacks are frequent just then. The node keeps the locks of a client that is back."""
    world = three()
    lock(world, b"g")
    world.to("b:1").breaks()
    call = world.ask(ReleaseLocks((1).to_bytes(16, "big")))
    for address in ("a:1", "c:1"):
        answer_all(world.to(address), None)
    assert not call.answers
    world.pass_time(1.0)
    welcome_all(world, {"a:1": [LEFT], "b:1": [MIDDLE], "c:1": [RIGHT]})
    assert ReleaseLocks((1).to_bytes(16, "big")) in asked_at(world, "b:1")
    answer_all(world.to("b:1"), None)
    assert call.answers == 1


@pytest.mark.parametrize("failure", [CLOCK_AHEAD, "Unavailable"])
def test_a_release_that_a_node_refuses_is_sent_again(failure: str) -> None:
    world = three()
    lock(world, b"g")
    lock(world, b"z")
    world.ask(commit(1))
    world.to("b:1").answer(only(world.to("b:1").requests), COMMITTED)
    world.to("c:1").fail(only(world.to("c:1").requests), failure)
    world.pass_time(0.2)
    assert asked_at(world, "c:1") == [ReleaseLocks((1).to_bytes(16, "big"))]


def test_protections_are_asked_for_again_where_the_first_range_is_led() -> None:
    world = three()
    world.ask(Protect(9))
    world.to("a:1").answer(only(world.to("a:1").requests), 9)
    world.to("a:1").breaks()
    world.pass_time(0.0)
    welcome_all(world, {"a:1": [], "b:1": [MIDDLE], "c:1": [RIGHT, LEFT]})
    assert asked_at(world, "c:1") == [Unprotect(9), Protect(9)]
    assert not asked_at(world, "b:1")


def test_the_half_of_a_range_inherits_its_locks() -> None:
    world = World()
    stream = world.to("a:1")
    stream.leads(WHOLE)
    lock(world, b"z")
    halves = RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(2, b"m", None, 2)
    stream.leads(*halves)
    right = world.router._lanes.by_id[2]
    assert right.holdings
    world.ask(ReleaseLocks((1).to_bytes(16, "big")))
    assert not right.holdings


def test_each_of_two_thousand_ranges_of_one_node_is_found() -> None:
    starts = [b"", *(b"key/%04d" % number for number in range(1, 2000))]
    ranges = [
        RangeDescriptor(id_, start, end, 2)
        for id_, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True), 1)
    ]
    world = World()
    node = world.to("a:1")
    node.leads(*ranges)
    for start in starts[::-50]:
        world.ask(Get(start))
    asked = set(node.named.values())
    assert asked == {(id_, 2) for id_ in range(2000, 0, -50)}
    answer_all(node, VALUE)


def test_a_client_that_was_told_of_a_range_that_does_not_exist_asks_the_only_range_again() -> None:
    world = World()
    stream = world.to("a:1")
    stream.leads()
    call = world.ask(Get(b"k"))
    stream.misdirected(only(stream.requests), RangeDescriptor(1, b"x", b"y", 7))
    welcome_all(world, {"a:1": [], "b:1": [], "c:1": []})
    stream = world.to("a:1")
    stream.answer(only(stream.requests), VALUE)
    assert call.result == VALUE
