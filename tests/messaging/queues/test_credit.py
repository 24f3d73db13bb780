"""The leaseholder tells a consumer without credit which of its attempts are over."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.messaging.queues.claim_requests import Claimed
from tests.messaging.queues.harness import Queues, attempt


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create()
    return queues


def sizes(queues: Queues) -> int:
    return queues.store.node.sizes()["queue token waits"]


def test_attempts_that_are_over_are_told_at_once(queues: Queues) -> None:
    queues.enqueue(b"1", b"2", b"3")
    messages = queues.claim(3)
    in_hand = [attempt(each) for each in messages]
    queues.acknowledge(messages[1])
    claimed: Claimed = queues.send(queues.claim_request(0, in_hand=in_hand, wait=True))
    assert (claimed.messages, claimed.over) == ([], [1])
    assert sizes(queues) == 0


def test_a_consumer_without_credit_waits_until_an_attempt_is_over(queues: Queues) -> None:
    queues.enqueue(b"1", b"2", b"3", b"of others")
    in_hand = [attempt(each) for each in queues.claim(3)]
    (other,) = queues.claim(1, consumer=queues.consumer(2))
    asked = queues.start(queues.claim_request(0, in_hand=in_hand, wait=True))
    assert (asked.done, sizes(queues)) == (False, 1)
    queues.acknowledge(other)
    assert not asked.done, "that was somebody else's"
    queues.cancel(in_hand[2].id)
    assert asked.result().over == [2]
    assert sizes(queues) == 0


def test_an_attempt_whose_lease_has_passed_is_over(queues: Queues) -> None:
    queues.enqueue(b"1")
    in_hand = [attempt(each) for each in queues.claim(1)]
    asked = queues.start(queues.claim_request(0, in_hand=in_hand, wait=True))
    queues.pass_time(31)
    assert asked.result().over == [0]


def test_a_later_attempt_of_the_same_consumer_is_another_one(queues: Queues) -> None:
    queues.enqueue(b"1")
    first = queues.claim(1)
    queues.reject(first[0], delay=0.0)
    queues.claim(1)
    claimed = queues.send(queues.claim_request(0, in_hand=[attempt(first[0])]))
    assert claimed.over == [0]


def test_a_request_that_does_not_wait_is_answered_at_once(queues: Queues) -> None:
    queues.enqueue(b"1")
    in_hand = [attempt(each) for each in queues.claim(1)]
    assert queues.send(queues.claim_request(0, in_hand=in_hand)).over == []


def test_consumers_that_give_up_leave_no_credit_behind(queues: Queues) -> None:
    queues.enqueue(b"1")
    in_hand = [attempt(each) for each in queues.claim(1)]
    waits: list[Any] = [
        queues.start(queues.claim_request(0, in_hand=in_hand, wait=True)) for _ in range(100)
    ]
    assert sizes(queues) == 100
    for each in waits:
        queues.store.driver.cancel(each)
    assert sizes(queues) == 0
    assert queues.range_queues._environment.waits.take_woken() == []


def test_a_lost_consumer_goes_back_at_once_and_counts_an_attempt(queues: Queues) -> None:
    gone = b"\x07" * 8
    queues.enqueue(b"1", b"2")
    transaction = gone + b"transact"
    queues.claim(1, consumer=queues.consumer(1, gone))
    queues.claim(1, consumer=queues.consumer(2, gone), transaction_id=transaction)
    queues.store.node.root.replica.release_client(gone)
    again = queues.claim(2, wait=True)
    assert [(each.payload, each.epoch) for each in again] == [(b"1", 1), (b"2", 1)]
