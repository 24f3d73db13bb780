"""A claim asks one range after the other, then waits at each node; a message has one owner."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.client.routing import assignment, tries
from postroom.client.routing.claims import turned
from postroom.errors import Invalid
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue, ClaimSelection
from postroom.messaging.queues.requests import Attempt, RejectMessages
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import CommitTransaction, ReleaseLocks
from tests.client.queues.fakes import stored
from tests.client.routing.test_awaited_changes import asked_now, pass_time
from tests.client.routing.test_many_ranges import (
    LED,
    LEFT,
    MIDDLE,
    RIGHT,
    three,
    welcome_all,
)
from tests.remote.scripted_nodes import (
    COMMITTED,
    Asked,
    Stream,
    World,
    commit,
    only,
    reconnect,
)

PIECES = {"a:1": (b"", b"f"), "b:1": (b"f", b"m"), "c:1": (b"m", None)}
NOTHING = Claimed([])


def a_claim(**said: Any) -> ClaimQueue:
    return ClaimQueue(**{
        "queue": "q", "consumer": b"c" * 16, "messages_max": 5, "selection": ClaimSelection(),
        "wait": True, **said,
    })  # fmt: skip


def claims_at(world: World, address: str) -> dict[int, ClaimQueue]:
    """Return the claims that a node has and that are not withdrawn, by number."""
    asked = asked_now(world.to(address))
    return {number: each for number, each in asked.items() if type(each) is ClaimQueue}


def with_a_claim(world: World) -> list[str]:
    return [address for address in PIECES if claims_at(world, address)]


def answer_with_nothing(world: World) -> list[str]:
    """Let each range say that it has nothing, until the claim waits; return their order."""
    order = []
    while len(with_a_claim(world)) == 1:
        (address,) = with_a_claim(world)
        stream = world.to(address)
        (number,) = claims_at(world, address)
        assert not stream.requests[number].wait
        order.append(address)
        stream.answer(number, NOTHING)
    return order


def waiting(**said: Any) -> tuple[World, Asked]:
    """Return a claim that waits at three nodes."""
    world = three()
    call = world.ask(a_claim(**said))
    answer_with_nothing(world)
    return world, call


def given_back(stream: Stream) -> list[bytes]:
    """Return the ids of the messages that the client gives back, uncounted."""
    found = []
    for request in stream.requests.values():
        if type(request) is CommitTransaction:
            (write,) = request.writes
            assert type(write) is RejectMessages
            assert write.uncounted
            found += [attempt.id for attempt in write.attempts]
    return found


def won(address: str) -> Claimed:
    """Return the answer of a node to a claim that waits there."""
    return Claimed([stored("won")], asked=PIECES[address])


def test_a_claim_asks_each_range_once_before_it_waits_at_each_node() -> None:
    world = three()
    call = world.ask(a_claim())
    assert sorted(answer_with_nothing(world)) == sorted(PIECES)
    for address in PIECES:
        stream, claims = world.to(address), claims_at(world, address)
        claim = claims[only(claims)]
        assert (claim.at_node, claim.wait, claim.number) == (True, True, only(claims))
        assert not stream.named.keys() & claims.keys()
    assert not call.done


def test_a_claim_waits_once_at_a_node_that_leads_many_ranges() -> None:
    world = World()
    starts = [b"", *(b"%02d" % each for each in range(49))]
    world.to("a:1").leads(*(
        RangeDescriptor(1 + number, start, end, 60)
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True))
    ))  # fmt: skip
    stream = world.to("a:1")
    world.ask(a_claim())
    for _ in starts:
        stream.answer(only(stream.requests), NOTHING)
    assert [each.at_node for each in stream.requests.values()] == [True]


def test_a_claim_is_answered_by_the_first_range_with_messages() -> None:
    world = three()
    call = world.ask(a_claim())
    (address,) = with_a_claim(world)
    stream = world.to(address)
    stream.answer(only(stream.requests), Claimed([stored("one")]))
    assert [each.id for each in call.result.messages] == [b"one"]
    assert call.result.asked == PIECES[address]
    assert not with_a_claim(world)


def test_claims_begin_with_other_ranges() -> None:
    world, begun = three(), set()
    for _ in range(30):
        world.ask(a_claim(wait=False))
        (address,) = with_a_claim(world)
        begun.add(address)
        stream = world.to(address)
        stream.answer(only(stream.requests), NOTHING)
    assert begun == {*PIECES}
    assert {turned("abc", turn)[0] for turn in range(30)} == {*"abc"}


def test_the_first_answer_counts_and_the_other_ranges_are_told_that_nobody_waits() -> None:
    world, call = waiting()
    stream = world.to("b:1")
    stream.answer(only(claims_at(world, "b:1")), won("b:1"))
    assert [each.id for each in call.result.messages] == [b"won"]
    assert call.result.asked == PIECES["b:1"]
    assert not with_a_claim(world)


@pytest.mark.parametrize("of", [None, b"t" * 16])
def test_messages_of_a_second_answer_go_back_uncounted(of: bytes | None) -> None:
    world, call = waiting(transaction_id=of)
    numbers = {address: only(claims_at(world, address)) for address in PIECES}
    world.to("b:1").answer(numbers["b:1"], won("b:1"))
    late = world.to("c:1")
    late.answer(numbers["c:1"], Claimed([stored("late")], asked=PIECES["c:1"]))
    assert given_back(late) == [b"late"]
    assert not given_back(world.to("b:1"))
    assert call.answers == 1


def test_messages_that_come_for_a_cancelled_claim_go_back_uncounted() -> None:
    world, call = waiting()
    numbers = {address: only(claims_at(world, address)) for address in PIECES}
    world.router.cancel(call)
    world.read()
    assert not with_a_claim(world)
    for address in PIECES:
        stream = world.to(address)
        stream.answer(numbers[address], Claimed([stored(address)]))
        assert given_back(stream) == [address.encode()]


def test_a_claim_whose_time_is_over_waits_nowhere() -> None:
    world = three()
    call = world.ask(a_claim(), 3.0)
    answer_with_nothing(world)
    pass_time(world, 3.5)
    assert isinstance(call.error, DeadlineExceeded)
    assert not with_a_claim(world)


def looked_for(world: World, address: str) -> dict[int, int]:
    """Return the numbers of the lost claims for whose messages a node is asked, by request."""
    return {
        number: claim.number
        for number, claim in claims_at(world, address).items()
        if claim.again and not (claim.at_node or claim.messages_max or claim.wait)
    }


def waits_at(world: World, address: str) -> list[ClaimQueue]:
    return [each for each in claims_at(world, address).values() if each.at_node]


def test_messages_of_a_lost_answer_are_looked_for_in_all_ranges_and_go_back() -> None:
    world, call = waiting()
    sent = world.to("b:1").requests[only(claims_at(world, "b:1"))].number
    world.to("b:1").breaks()
    world.pass_time(0.3)
    welcome_all(world)
    for address in PIECES:
        stream = world.to(address)
        (number,) = looked_for(world, address)
        assert looked_for(world, address) == {number: sent}
        stream.answer(number, Claimed([stored(address)]))
        assert given_back(stream) == [address.encode()]
    assert not call.done


def test_messages_of_few_lost_claims_are_looked_for_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tries, "LOOKED_FOR_AT_ONCE", 2)
    world = three()
    for _ in range(5):
        world.ask(a_claim())
        for _ in PIECES:
            for address in PIECES:
                stream = world.to(address)
                for number in [n for n, each in claims_at(world, address).items() if not each.wait]:
                    stream.answer(number, NOTHING)
    sent = {each.number for each in waits_at(world, "b:1")}
    world.to("b:1").breaks()
    world.pass_time(0.3)
    welcome_all(world)
    found = []
    while at_once := looked_for(world, "a:1"):
        assert len(at_once) <= 2
        found += at_once.values()
        for address in PIECES:
            for number in looked_for(world, address):
                world.to(address).answer(number, NOTHING)
    assert len(found) == len(sent) == 5
    assert {*found} == sent


def test_a_claim_waits_again_at_a_node_that_comes_back() -> None:
    world, _ = waiting()
    numbers = {each.number for at in PIECES for each in waits_at(world, at)}
    world.to("b:1").breaks()
    assert [len(waits_at(world, at)) for at in ("a:1", "c:1")] == [1, 1]
    world.pass_time(0.3)
    welcome_all(world)
    for address in PIECES:
        (claim,) = waits_at(world, address)
        assert (claim.number in numbers) == (address != "b:1")
    world.to("b:1").answer(
        next(n for n, each in claims_at(world, "b:1").items() if each.at_node), won("b:1")
    )
    assert not [at for at in PIECES if waits_at(world, at)]


def test_messages_of_a_lost_answer_are_looked_for_when_another_node_has_answered() -> None:
    world, call = waiting()
    sent = world.to("c:1").requests[only(claims_at(world, "c:1"))].number
    world.to("c:1").breaks()
    numbers = [n for n, each in claims_at(world, "b:1").items() if each.at_node]
    world.to("b:1").answer(numbers[0], won("b:1"))
    assert call.done
    world.pass_time(0.3)
    welcome_all(world)
    right = world.to("c:1")
    (number,) = looked_for(world, "c:1")
    assert looked_for(world, "c:1") == {number: sent}
    right.answer(number, Claimed([stored("lost")]))
    assert given_back(right) == [b"lost"]
    assert not waits_at(world, "c:1")


def test_a_claim_whose_range_lost_its_lease_in_between_looks_for_messages_and_waits_on() -> None:
    world, call = waiting()
    before = only(claims_at(world, "b:1"))
    world.to("b:1").redirect(before, None)
    world.pass_time(0.3)
    welcome_all(world)
    assert [[*looked_for(world, at).values()] for at in PIECES] == [[before]] * 3
    assert [len(waits_at(world, at)) for at in PIECES] == [1, 1, 1]
    assert not call.done


def test_a_node_that_begins_to_lead_a_range_is_asked_at_once() -> None:
    world, call = waiting()
    world.to("c:1").leads()
    assert len(waits_at(world, "c:1")) == 1, "it may lead again, and harms nobody until then"
    world.to("b:1").leads(MIDDLE, RIGHT)
    assert len(waits_at(world, "b:1")) == 1
    world.to("c:1").leads(RIGHT)
    assert [len(waits_at(world, at)) for at in PIECES] == [1, 1, 1]
    assert not call.done


def test_a_claim_waits_at_a_node_that_led_nothing_before() -> None:
    world = World()
    world.to("a:1").leads(LEFT, MIDDLE, RIGHT)
    world.ask(a_claim())
    stream = world.to("a:1")
    for _ in range(3):
        stream.answer(only(stream.requests), NOTHING)
    world.to("a:1").leads(LEFT, MIDDLE)
    welcome_all(world, {"a:1": [LEFT, MIDDLE], "b:1": [], "c:1": [RIGHT]})
    assert [len(waits_at(world, at)) for at in ("a:1", "c:1")] == [1, 1]


@pytest.mark.parametrize("name", ["Unavailable", "wrong_range"])
def test_a_claim_that_a_node_refuses_begins_again_after_a_pause(name: str) -> None:
    world, call = waiting()
    stream, number = world.to("b:1"), only(claims_at(world, "b:1"))
    if name == "Unavailable":
        stream.fail(number, name)
    else:
        stream.misdirected(number)
    assert not with_a_claim(world)
    world.pass_time(0.1)
    assert len(answer_with_nothing(world)) == 3
    assert [len(waits_at(world, at)) for at in PIECES] == [1, 1, 1]
    assert not call.done


def test_each_range_has_a_number_of_its_own_for_its_part() -> None:
    world, _ = waiting()
    numbers = [each.number for at in PIECES for each in claims_at(world, at).values()]
    assert len({*numbers}) == len(PIECES)
    assert all(numbers)


def test_a_split_has_a_consumer_without_credit_begin_again() -> None:
    world = three()
    in_hand = [Attempt(home, "", b"i", 0) for home in (b"a", b"n", b"z")]
    call = world.ask(a_claim(messages_max=0, in_hand=in_hand))
    right = world.to("c:1")
    halves = RangeDescriptor(2, b"m", b"t", 4), RangeDescriptor(9, b"t", None, 4)
    assert RIGHT.generation < 4
    right.misdirected(only(claims_at(world, "c:1")), *halves)
    led = {**LED, "c:1": [*halves]}
    welcome_all(world, led)
    waits = [each.in_hand for at in PIECES for each in claims_at(world, at).values()]
    assert waits == [[each] for each in in_hand]
    assert not call.done


def test_an_error_of_one_range_ends_the_claim_in_all() -> None:
    world, call = waiting()
    world.to("a:1").fail(only(claims_at(world, "a:1")), "Invalid")
    assert isinstance(call.error, Invalid)
    assert not with_a_claim(world)


def test_a_claim_that_waited_in_one_range_looks_for_its_lost_answer_in_both_halves() -> None:
    world = World()
    stream = world.to("a:1")
    stream.leads(RangeDescriptor(1))
    world.ask(a_claim())
    sent = stream.requests[only(stream.requests)].number
    stream.breaks()
    reconnect(world, "a:1")
    halves = RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(2, b"m", None, 2)
    world.to("a:1").leads(*halves)
    stream = world.to("a:1")
    homes = set()
    for _ in halves:
        (number,), (claim,) = claims_at(world, "a:1"), claims_at(world, "a:1").values()
        assert (claim.again, claim.number, claim.wait) == (True, sent, False)
        homes.add(claim.homes)
        stream.answer(number, Claimed([], without=[(b"", None)]))
    assert homes == {(b"", b"m"), (b"m", None)}


def test_the_attempts_in_hand_are_asked_for_where_they_lie() -> None:
    world = three()
    in_hand = [Attempt(home, "", b"i%d" % n, 0) for n, home in enumerate((b"n", b"a", b"z", b"b"))]
    call = world.ask(a_claim(messages_max=0, in_hand=in_hand))
    assert with_a_claim(world) == ["a:1", "c:1"]
    (left,), (right,) = claims_at(world, "a:1").values(), claims_at(world, "c:1").values()
    assert (left.in_hand, right.in_hand) == ([in_hand[1], in_hand[3]], [in_hand[0], in_hand[2]])
    world.to("c:1").answer(only(claims_at(world, "c:1")), Claimed([], [1]))
    assert call.result.over == [2]
    assert not with_a_claim(world)


def test_a_consumer_that_does_not_wait_is_told_all_attempts_that_are_over() -> None:
    world = three()
    in_hand = [Attempt(home, "", b"i", 0) for home in (b"n", b"a", b"z", b"b")]
    call = world.ask(a_claim(messages_max=0, in_hand=in_hand, wait=False))
    world.to("c:1").answer(only(claims_at(world, "c:1")), Claimed([], [0, 1, 7]))
    world.to("a:1").answer(only(claims_at(world, "a:1")), Claimed([], [1]))
    assert call.result.over == [0, 2, 3]


def test_a_commit_releases_the_messages_that_other_ranges_hold_for_its_transaction() -> None:
    world = three()
    of = commit(1)
    world.ask(a_claim(transaction_id=of.transaction_id))
    while with_a_claim(world) != ["c:1"]:
        (address,) = with_a_claim(world)
        world.to(address).answer(only(claims_at(world, address)), NOTHING)
    at_all = Claimed([stored("x")], asked=PIECES["c:1"])
    world.to("c:1").answer(only(claims_at(world, "c:1")), at_all)
    world.ask(of)
    middle = world.to("b:1")
    middle.answer(only(middle.requests), COMMITTED)
    assert ReleaseLocks(of.transaction_id) in world.to("c:1").requests.values()


def test_a_client_waits_for_messages_in_a_bounded_number_of_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assignment, "CLIENT_WAITS_MAX", 1)
    world, first = waiting()
    assert not first.done
    refused = world.ask(a_claim())
    assert "wait at the store already; nothing was changed" in str(refused.error)


def test_a_claim_asks_no_range_that_another_one_has_told_to_have_nothing() -> None:
    world = three()
    call = world.ask(a_claim())
    (first,) = with_a_claim(world)
    left, empty = (each for each in PIECES if each != first)
    stream = world.to(first)
    stream.answer(only(claims_at(world, first)), Claimed([], without=[PIECES[empty]]))
    assert answer_with_nothing(world) == [left]
    assert with_a_claim(world) == [*PIECES]
    assert not call.done


def test_a_claim_waits_at_once_if_no_other_range_has_anything() -> None:
    world = three()
    call = world.ask(a_claim())
    (first,) = with_a_claim(world)
    nothing = Claimed([], without=[(b"", None)])
    world.to(first).answer(only(claims_at(world, first)), nothing)
    assert with_a_claim(world) == [*PIECES]
    assert not call.done


def test_a_claim_asks_a_range_of_which_only_a_part_is_told_to_have_nothing() -> None:
    """The range was split: another node may lead the rest, and be unknown."""
    world = three()
    call = world.ask(a_claim())
    (first,) = with_a_claim(world)
    others = {each for each in PIECES if each != first}
    nothing = Claimed([], without=[(PIECES[each][0], PIECES[each][0] + b"!") for each in others])
    world.to(first).answer(only(claims_at(world, first)), nothing)
    assert {*answer_with_nothing(world)} == others
    assert not call.done


def test_a_claim_passes_over_a_range_whose_parts_have_nothing() -> None:
    world = three()
    world.ask(a_claim())
    (first,) = with_a_claim(world)
    nothing = Claimed([], without=[(b"h", None), (b"", b"e"), (b"e", b"h")])
    world.to(first).answer(only(claims_at(world, first)), nothing)
    assert with_a_claim(world) == [*PIECES]
