"""The distribution of messages: claims with and without waiting, consumers, credit, selections."""

from __future__ import annotations

import pytest

from postroom.errors import Invalid
from postroom.messaging.queues import firing
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.consumers import WaitingClaim
from postroom.messaging.queues.leases import attempt_of
from postroom.messaging.queues.records import QueueDamaged
from postroom.ranges.checks import unpacked
from tests.messaging.queues.harness import Q, Queues, attempt
from tests.messaging.queues.lease_rules import check_holders


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create()
    return queues


def test_messages_come_in_order_each_to_one_consumer(queues: Queues) -> None:
    queues.enqueue(b"1", b"2", b"3")
    assert queues.payloads(2, consumer=queues.consumer(1)) == [b"1", b"2"]
    assert queues.payloads(2, consumer=queues.consumer(2)) == [b"3"]
    assert queues.payloads(2, consumer=queues.consumer(3)) == []


def test_a_message_tells_what_it_is(queues: Queues) -> None:
    queues.enqueue(
        b"hello", id=b"17", key=b"here", kind="welcome", priority=-3, group="g", headers={"a": 1}
    )
    (message,) = queues.claim()
    assert (message.key, message.kind, message.id) == (b"here", "welcome", b"17")
    assert (message.payload, unpacked(message.headers)) == (b"hello", {"a": 1})
    assert (message.priority, message.group, message.epoch) == (-3, "g", 0)
    assert message.created_at == message.first_scheduled == message.scheduled
    assert message.leased_until > message.scheduled
    assert (message.last_error, message.state) == ("", "leased")


def test_a_claim_waits_for_a_message_and_it_comes_with_its_commit(queues: Queues) -> None:
    waiting = queues.start(queues.claim_request(5, wait=True))
    writes = queues.store.engine.writes
    queues.enqueue(b"1")
    assert [message.payload for message in waiting.result().messages] == [b"1"]
    assert queues.store.engine.writes == writes + 1  # fired in the write that enqueued it
    assert queues.counts() == {"enqueued": 1, "leased": 1, "fired": 1}


def test_a_claim_that_does_not_wait_answers_at_once(queues: Queues) -> None:
    before = queues.store.engine.writes
    assert queues.claim(wait=False) == []
    assert queues.store.engine.writes == before


def test_a_claim_waits_for_a_message_of_a_queue_that_is_there(queues: Queues) -> None:
    with pytest.raises(Invalid, match="no queue 'other'"):
        queues.claim(name="other", wait=True)


def test_one_proposal_serves_all_who_wait_the_least_busy_first(queues: Queues) -> None:
    queues.enqueue(b"a", b"b")
    queues.claim(2, consumer=queues.consumer(1))
    first = queues.start(queues.claim_request(9, wait=True, consumer=queues.consumer(1)))
    others = [
        queues.start(queues.claim_request(9, wait=True, consumer=queues.consumer(number)))
        for number in (2, 3)
    ]
    queues.enqueue(*[b"%d" % number for number in range(7)])
    got = [len(each.result().messages) for each in (first, *others)]
    assert got == [1, 3, 3]


def test_equals_take_turns(queues: Queues) -> None:
    waiting = [
        queues.start(queues.claim_request(9, wait=True, consumer=queues.consumer(number)))
        for number in range(3)
    ]
    queues.enqueue(*[b"%d" % number for number in range(6)])
    got = [[message.payload for message in each.result().messages] for each in waiting]
    assert got == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


def test_a_claim_is_bounded_by_batch_size_credit_and_bytes(queues: Queues) -> None:
    queues.enqueue(*[b"12345678" for _ in range(20)])
    assert len(queues.claim(100)) == 10
    assert len(queues.claim(3)) == 3
    assert len(queues.claim(3, bytes_max=17)) == 2
    assert len(queues.claim(3, bytes_max=1)) == 1
    assert queues.counts()["leased"] == 16


def test_a_consumer_that_gives_up_waiting_loses_no_message(queues: Queues) -> None:
    driver = queues.store.driver
    request = queues.claim_request(1, wait=True)
    waiting = queues.start(request)
    (call,) = next(iter(driver.node.root.replica.waiting_for.values()))
    assert driver.node.root.replica.cancel(call)
    queues.enqueue(b"1")
    assert not waiting.done
    assert queues.payloads() == [b"1"]
    assert queues.store.node.sizes()["queue waits"] == 0


def test_a_consumer_sees_only_the_kinds_it_asked_for(queues: Queues) -> None:
    for kind in ("a", "b", "c"):
        queues.enqueue(b"1" + kind.encode(), b"2" + kind.encode(), kind=kind)
    assert queues.payloads(selection=ClaimSelection(kinds=("b",))) == [b"1b", b"2b"]
    waiting = queues.start(
        queues.claim_request(9, wait=True, selection=ClaimSelection(kinds=("b",)))
    )
    queues.enqueue(b"3a", kind="a")
    assert not waiting.done
    queues.enqueue(b"3b", kind="b")
    assert [message.payload for message in waiting.result().messages] == [b"3b"]
    assert queues.payloads(selection=ClaimSelection(kinds=("a", "c"))) == [
        b"1a", b"2a", b"1c", b"2c", b"3a",
    ]  # fmt: skip


def test_a_consumer_sees_only_its_keys(queues: Queues) -> None:
    for key in (b"a", b"b", b"c"):
        queues.enqueue(key, key=key)
    assert queues.payloads(selection=ClaimSelection(b"b", b"c")) == [b"b"]
    assert queues.payloads(selection=ClaimSelection(b"c")) == [b"c"]


def test_a_consumer_sees_only_what_has_its_headers(queues: Queues) -> None:
    for number in range(4):
        queues.enqueue(b"%d" % number, headers={"even": number % 2 == 0, "n": number})
    queues.enqueue(b"bare")
    assert queues.payloads(selection=ClaimSelection(where={"even": True, "n": 2})) == [b"2"]
    assert queues.payloads(selection=ClaimSelection(where={"even": False})) == [b"1", b"3"]


def test_unwanted_messages_do_not_block_wanted_ones(queues: Queues) -> None:
    queues.update(cache_size=10)
    for number in range(40):
        queues.enqueue(*[b"%d" % number] * 10, kind="unwanted")
    queues.enqueue(b"wanted", kind="wanted", headers={"x": 1})
    assert queues.payloads(wait=True, selection=ClaimSelection(kinds=("wanted",))) == [b"wanted"]
    waiting = queues.start(
        queues.claim_request(wait=True, selection=ClaimSelection(where={"x": 2}))
    )
    queues.enqueue(b"later", headers={"x": 2})
    assert [message.payload for message in waiting.result().messages] == [b"later"]


def test_idle_consumers_write_nothing(queues: Queues) -> None:
    for number in range(5):
        queues.start(queues.claim_request(wait=True, consumer=queues.consumer(number)))
    queues.enqueue(b"unwanted", after=10_000)
    queues.pass_time(200)  # the setup's records are collected
    state = queues.store.node.root.replica.state
    before = state.applied_index()
    queues.pass_time(1000)
    assert state.applied_index() == before


def test_an_abandoned_claim_gives_back_no_later_holders_message(queues: Queues) -> None:
    queues.enqueue(b"1")
    request = queues.claim_request()
    abandoned = WaitingClaim(request, None)
    abandoned.messages = queues.send(request).messages
    queues.reject(*abandoned.messages, uncounted=True)
    (held,) = queues.claim(consumer=queues.consumer(2))
    assert held.epoch == abandoned.messages[0].epoch
    firing._grant(queues.manager(), [abandoned])
    queues.pass_time(0.1)
    assert queues.counts()["leased"] == 1
    assert queues.acknowledge(held) == 1


def test_a_claim_that_is_sent_again_is_told_what_it_holds_of_a_message_given_back_before(
    queues: Queues,
) -> None:
    queues.enqueue(b"1")
    (first,) = queues.claim(number=1)
    queues.reject(first, uncounted=True)
    (second,) = queues.claim(number=2)
    queues.manager().to_give_back[attempt_of(first)] = None
    assert queues.claim(number=2, again=True) == [second]


def test_the_numbers_of_a_queue_tell_which_message_is_held_for_longest(queues: Queues) -> None:
    assert queues.stats().longest_held is None
    queues.enqueue(b"1", id=b"first", kind="k")
    queues.enqueue(b"2", id=b"second")
    (first,) = queues.claim(consumer=queues.consumer(7))
    queues.pass_time(10)
    (second,) = queues.claim()
    for _ in range(3):  # a consumer that hangs extends its lease
        queues.pass_time(8)
        queues.extend(first, 20.0)
    held = queues.stats().longest_held
    assert held is not None
    assert (held.id, held.kind, held.since) == ("first", "k", first.fired_at)
    assert held.consumer == f"{queues.consumer(7)[:8].hex()}/7"
    assert 33.9 <= held.seconds < 35
    queues.acknowledge(first)
    held = queues.stats().longest_held
    assert held is not None
    assert held.id == "second"
    queues.acknowledge(second)
    assert queues.stats().longest_held is None


def test_a_held_message_has_an_age(queues: Queues) -> None:
    queues.enqueue(b"1")
    messages = queues.claim()
    queues.pass_time(10)
    age = queues.stats().oldest_age
    assert age is not None
    assert 9.9 <= age < 11
    queues.acknowledge(*messages)
    assert queues.stats().oldest_age is None


def test_the_service_of_queues_tells_which_message_is_held_for_longest(queues: Queues) -> None:
    queues.create("other")
    assert queues.range_queues.note() == ""
    queues.enqueue(b"1", id=b"first", name="other")
    queues.enqueue(b"2", id=b"second")
    queues.claim(name="other")
    queues.pass_time(5)
    queues.claim()
    note = queues.range_queues.note()
    assert "the message 'first' of the queue 'other': for 5 s, since 20" in note
    services = queues.store.node.root.services.status()
    assert next(each.note for each in services if each.name == "queues") == note


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_queue_that_is_gone_holds_no_message(queues: Queues, is_damaged: bool) -> None:
    queues.enqueue(b"1", b"2")
    (message,) = queues.claim()
    queues.claim(transaction_id=b"\x07" * 16)
    in_hand = queues.claim_request(0, in_hand=[attempt(message)], wait=True)
    waiting = queues.start(in_hand)
    if is_damaged:
        queues.range_queues.steps.set_aside(QueueDamaged(Q, "a test"))
        queues.store.driver.settle()
    else:
        queues.drop()
    with pytest.raises(Invalid if not is_damaged else QueueDamaged):
        waiting.result()
    assert queues.range_queues.note() == ""
    assert queues.store.node.replicas.clients_that_hold() == set()
    check_holders(queues.range_queues)


def test_a_node_that_is_alone_tells_of_its_services_when_its_lease_is_over(queues: Queues) -> None:
    queues.enqueue(b"1", id=b"first")
    queues.claim()
    node = queues.store.node
    queues.store.clock.seconds += 10
    assert not node.serves
    assert "'first'" in next(each.note for each in node.describe().services if each.note)
