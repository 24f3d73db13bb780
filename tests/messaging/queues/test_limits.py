"""Groups, order, rates, concurrency: what keeps a queue from firing; and that memory is bounded."""

from __future__ import annotations

import pytest

from postroom.messaging.queues.claim_requests import ClaimSelection, StoredQueueMessage
from tests.messaging.queues.harness import Queues


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(ack_wait=1000.0)
    return queues


def fired(queues: Queues, messages_max: int = 100) -> list[bytes]:
    """Claim all that can be fired now, and return the payloads."""
    found: list[bytes] = []
    while payloads := queues.payloads(messages_max, wait=False):
        found += payloads
    return found


# --- groups by turns


def test_groups_take_turns_so_a_flood_of_one_does_not_delay_the_others(queues: Queues) -> None:
    queues.enqueue(*[b"a%d" % number for number in range(50)], group="a")
    queues.enqueue(*[b"b%d" % number for number in range(3)], group="b")
    queues.enqueue(b"c0", group="c")
    first = queues.payloads(10)
    assert {b"b0", b"b1", b"b2", b"c0"} <= set(first)
    assert first[0] == b"a0"


def test_a_flood_that_is_not_in_memory_delays_others_by_one_round(queues: Queues) -> None:
    queues.update(cache_size=32)
    for number in range(50):
        queues.enqueue(*[b"a%03d" % (10 * number + each) for each in range(10)], group="a")
    queues.enqueue(b"z", group="z")
    queues.store.restart()
    got = queues.payloads(10) + queues.payloads(10) + queues.payloads(10) + queues.payloads(10)
    assert b"z" in got
    others = [payload for payload in got if payload != b"z"]
    assert others == sorted(others)


# --- order


def test_an_ordered_group_is_served_one_message_at_a_time_in_order() -> None:
    queues = Queues()
    queues.create(order="group", ack_wait=1000.0)
    for group in ("a", "b"):
        for number in range(3):
            queues.enqueue(b"%s%d" % (group.encode(), number), group=group, priority=-number)
    first = queues.claim(10)
    assert [message.payload for message in first] == [b"a0", b"b0"]
    assert queues.claim(10, wait=False) == []
    queues.acknowledge(first[0])
    assert queues.payloads(10) == [b"a1"]
    waiting = queues.start(queues.claim_request(10, wait=True))
    assert not waiting.done
    queues.acknowledge(first[1])
    assert [message.payload for message in waiting.result().messages] == [b"b1"]


def test_a_failing_head_holds_up_its_own_group_alone() -> None:
    queues = Queues()
    queues.create(order="group", ack_wait=1000.0)
    for number in range(3):
        queues.enqueue(b"a%d" % number, group="a")
        queues.enqueue(b"b%d" % number, group="b")
    head, other = queues.claim(10)
    queues.reject(head, delay=50.0, reason="down")
    queues.acknowledge(other)
    (other,) = queues.claim(10)
    assert other.payload == b"b1"
    queues.store.restart()
    queues.acknowledge(other)
    assert queues.payloads(10) == [b"b2"]
    queues.pass_time(40)
    assert queues.claim(10, wait=False) == []
    (head,) = queues.claim(10, wait=True)
    assert (head.payload, head.epoch, head.last_error) == (b"a0", 1, "down")
    queues.acknowledge(head)
    assert queues.payloads(10) == [b"a1"]


def test_a_head_that_dies_or_is_cancelled_lets_the_next_one_go() -> None:
    queues = Queues()
    queues.create(order="group", max_attempts=1)
    queues.enqueue(*[b"%d" % number for number in range(3)], group="a")
    queues.reject(*queues.claim())
    (second,) = queues.claim(9)
    assert second.payload == b"1"
    queues.cancel(second.id)
    assert queues.payloads(9) == [b"2"]


def test_order_is_kept_over_kinds_and_the_next_leaseholder() -> None:
    queues = Queues()
    queues.create(order="group", ack_wait=1000.0)
    queues.enqueue(b"1", group="a", kind="x")
    queues.enqueue(b"2", group="a", kind="y")
    only_y = ClaimSelection(kinds=("y",))
    assert queues.claim(9, wait=False, selection=only_y) == []
    (head,) = queues.claim(9, wait=False, selection=ClaimSelection(kinds=("x",)))
    queues.store.restart()
    assert queues.claim(9, wait=False, selection=only_y) == []
    queues.acknowledge(head)
    assert queues.payloads(9, selection=only_y) == [b"2"]


def test_a_head_that_is_brought_forward_to_who_waits_is_fired_once() -> None:
    """It is written anew, and fired, in one proposal."""
    queues = Queues()
    queues.create(order="group", max_rate=1.0)
    queues.enqueue(b"head", group="g", id=b"head")
    queues.pass_time(2)
    queues.reject(*queues.claim(), delay=500.0)
    waiting = queues.start(queues.claim_request(wait=True))  # it is too soon for a look
    queues.store.clock.seconds += 2
    queues.reschedule(b"head")
    queues.pass_time(0.1)
    (message,) = waiting.result().messages
    assert queues.list("ready") == []
    queues.acknowledge(message)
    assert queues.counts()["acknowledged"] == 1
    queues.store.restart()
    queues.pass_time(1000)
    assert queues.claim(wait=False) == []


def test_a_head_that_waits_can_be_brought_forward() -> None:
    queues = Queues()
    queues.create(order="group")
    queues.enqueue(b"1", group="a", id=b"1")
    queues.enqueue(b"2", group="a")
    queues.reject(*queues.claim(), delay=500.0)
    waiting = queues.start(queues.claim_request(wait=True))
    assert not waiting.done
    queues.reschedule(b"1")
    assert [message.payload for message in waiting.result().messages] == [b"1"]


# --- concurrency


def test_max_concurrency_holds_under_each_leader(queues: Queues) -> None:
    queues.update(max_concurrency=3)
    queues.enqueue(*[b"%d" % number for number in range(10)])
    held = queues.claim(10)
    assert len(held) == 3
    assert queues.claim(10, wait=False) == []
    queues.store.restart()
    assert queues.claim(10, wait=False) == []
    waiting = queues.start(queues.claim_request(10, wait=True))
    queues.acknowledge(held[0])
    assert len(waiting.result().messages) == 1
    queues.update(max_concurrency=5)
    assert len(queues.claim(10)) == 2
    queues.update(max_concurrency=None)
    assert len(queues.claim(10)) == 4


def test_group_max_concurrency_bounds_the_leased_messages_of_a_group(queues: Queues) -> None:
    queues.update(group_max_concurrency=2)
    for group in ("a", "b"):
        queues.enqueue(*[group.encode() + b"%d" % number for number in range(4)], group=group)
    held = queues.claim(10)
    assert sorted(message.payload for message in held) == [b"a0", b"a1", b"b0", b"b1"]
    queues.acknowledge(*[message for message in held if message.group == "a"])
    assert queues.payloads(10) == [b"a2", b"a3"]


# --- rates


def rates(queues: Queues, seconds: float) -> list[StoredQueueMessage]:
    """Return what is fired in a time to a consumer that is always there."""
    found: list[StoredQueueMessage] = []
    end = queues.store.clock.seconds + seconds
    waiting = queues.start(queues.claim_request(100, wait=True))
    while queues.store.clock.seconds < end:
        queues.pass_time(0.01)
        if waiting.done:
            found += waiting.result().messages
            waiting = queues.start(queues.claim_request(100, wait=True))
    return found


def test_a_queue_fires_no_faster_than_its_rate_and_not_much_slower(queues: Queues) -> None:
    queues.update(max_rate=20.0)
    for _ in range(20):
        queues.enqueue(*[b"x"] * 10)
    assert queues.claim(10, wait=False) == []  # the bucket begins empty
    assert 95 <= len(rates(queues, 5.0)) <= 102
    queues.store.restart()
    assert queues.claim(10, wait=False) == []
    assert 17 <= len(rates(queues, 1.0)) <= 22
    queues.update(max_rate=None)
    assert len(queues.claim(10)) == 10


def test_a_group_fires_no_faster_than_its_rate(queues: Queues) -> None:
    queues.update(group_max_rate=10.0)
    for group in ("a", "b"):
        for _ in range(5):
            queues.enqueue(*[b"x"] * 10, group=group)
    found = rates(queues, 2.0)
    for group in ("a", "b"):
        assert 17 <= sum(message.group == group for message in found) <= 21


# --- memory


def test_memory_is_bounded_whatever_waits(queues: Queues) -> None:
    queues.update(cache_size=100)
    expected = []
    for number in range(200):
        payloads = [b"%05d" % (10 * number + each) for each in range(10)]
        expected += payloads
        queues.enqueue(*payloads)
    manager = queues.manager()
    assert len(manager.ready) <= 100
    got: list[bytes] = []
    while len(got) < 2000:
        got += queues.payloads(10)
        assert len(manager.ready) <= 100
    assert got == expected
    assert queues.counts() == {"enqueued": 2000, "leased": 2000, "fired": 2000}


def test_memory_is_bounded_with_a_group_for_each_message(queues: Queues) -> None:
    queues.update(cache_size=50)
    for number in range(100):
        queues.enqueue(b"%d" % number, group=f"group {number:03}")
    queues.store.restart()
    assert sorted(fired(queues), key=int) == [b"%d" % number for number in range(100)]
    assert len(queues.manager().ready) <= 50


def test_messages_that_come_while_the_cache_is_full_are_fired_too(queues: Queues) -> None:
    queues.update(cache_size=10)
    sent, got = 0, []
    for number in range(60):
        queues.enqueue(*[b"%d" % (sent + each) for each in range(7)], group=f"{number % 4}")
        sent += 7
        got += queues.payloads(5)
    got += fired(queues)
    assert sorted(got, key=int) == [b"%d" % number for number in range(sent)]


def test_more_groups_than_there_is_room_for_are_all_served() -> None:
    """Each of them has more than is read at once."""
    queues = Queues()
    queues.create(cache_size=4, ack_wait=1000.0, poller_interval=10_000.0)
    for group in range(9):
        queues.enqueue(b"1", b"2", b"3", group=f"g{group}")
    fired = [queues.claim(wait=False) for _ in range(27)]
    assert {len(each) for each in fired} == {1}
    assert queues.manager().counted.leased == 27


@pytest.mark.parametrize(("room", "groups"), [(1, 3), (4, 9), (16, 40)])
def test_failing_heads_of_more_groups_than_there_is_room_for_hold_up_nobody(
    room: int, groups: int
) -> None:
    queues = Queues()
    settings = {"min_backoff": 60.0, "max_backoff": 60.0, "poller_interval": 10_000.0}
    queues.create(cache_size=room, order="group", **settings)
    for group in range(groups):
        queues.enqueue(b"head", b"behind", group=f"g{group}")
    for _ in range(2):  # they come again
        for _ in range(groups):
            queues.reject(*queues.claim(wait=False))
        assert queues.claim(wait=False) == []
        assert len(queues.manager().ready) <= room
        queues.enqueue(b"more", group="g0")
        assert queues.claim(wait=False) == []
        queues.pass_time(70)
    heads = [each.payload for _ in range(groups) for each in queues.claim(wait=False)]
    assert heads == [b"head"] * groups


def test_a_claim_without_waiting_finds_stored_messages_behind_the_cache(
    queues: Queues,
) -> None:
    queues.update(cache_size=2)
    queues.enqueue(b"1", b"2", b"3", b"4")
    queues.store.restart()
    assert [queues.payloads(1, wait=False) for _ in range(4)] == [[b"1"], [b"2"], [b"3"], [b"4"]]


def test_the_memory_of_a_queue_is_empty_when_all_messages_are_done(queues: Queues) -> None:
    queues.update(order="group", group_max_rate=1000.0)
    for number in range(30):
        queues.enqueue(b"x", group=str(number))
    while messages := queues.claim(10, wait=True) if queues.list() else []:
        queues.acknowledge(*messages)
    assert queues.claim(wait=False) == []
    manager = queues.manager()
    assert not len(manager.ready)
    assert not manager.leases.all()
    assert not manager.ready._groups.keys() - manager.ready._held_up.keys()
    sizes = queues.store.node.sizes()
    assert sizes["queue waits"] == sizes["queue claims"] == 0
