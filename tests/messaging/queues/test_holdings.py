"""The messages of one claim are stored together, and each of them ends by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from postroom.errors import LeaseLost, StoreCorrupted
from postroom.messaging.queues import firing
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.records import holdings
from postroom.messaging.queues.requests import Acknowledge, Extend, RejectMessages
from tests.messaging.queues.harness import Q, Queues, attempt, by_id

PAYLOADS = [b"%d" % number for number in range(6)]


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(ack_wait=20.0, min_backoff=1000.0)
    queues.enqueue(*PAYLOADS)
    return queues


def leased(queues: Queues) -> dict[bytes, bytes]:
    """Return the stored leases."""
    prefix = queues.manager().layout.leased
    return {key: value for key, value in queues.stored().items() if key.startswith(prefix)}


def held(queues: Queues) -> list[bytes]:
    """Return the leased messages, also under the next leader."""
    found = [message.payload for message in queues.list("leased", messages_max=2)]
    queues.store.restart()
    assert [message.payload for message in queues.list("leased", messages_max=3)] == found
    assert queues.counts().get("leased", 0) == len(found)
    return found


def at_once(queues: Queues, *writes: Any) -> list[Any]:
    """Send several transactions for one proposal; return what each came to."""
    driver = queues.store.driver
    transactions = [queues.transaction(write) for write in writes]

    async def all_of_them() -> list[Any]:
        outcomes: list[Any] = []
        for sent in [driver.send(each) for each in transactions]:
            try:
                outcomes += (await sent).answers
            except LeaseLost:
                outcomes.append(LeaseLost)
        return outcomes

    return driver.run(all_of_them())


def acknowledging(*messages: StoredQueueMessage) -> Acknowledge:
    return Acknowledge(Q, [attempt(each) for each in messages])


def test_a_claim_is_one_record_and_none_is_left_of_what_is_settled_together(
    queues: Queues,
) -> None:
    messages = queues.claim(6)
    (packed,) = leased(queues).values()
    assert len(holdings.decode(packed).entries) == 6
    assert held(queues) == PAYLOADS
    queues.acknowledge(*messages)
    assert not leased(queues)


@pytest.mark.parametrize("together", [1, 2, 4])
def test_each_proposal_marks_what_it_has_ended_and_the_last_one_deletes_all(
    queues: Queues, together: int
) -> None:
    messages = queues.claim(6)
    for first in range(0, 6, together):
        left = len(PAYLOADS) - first
        assert len(leased(queues)) == 1 + first // together
        assert len(held(queues)) == left
        queues.acknowledge(*messages[first : first + together])
    assert not leased(queues)
    assert queues.counts() == {"enqueued": 6, "fired": 6, "acknowledged": 6, "done": 6}


def test_transactions_of_one_proposal_make_one_mark_or_none(queues: Queues) -> None:
    messages = queues.claim(6)
    assert at_once(queues, *map(acknowledging, messages[:3])) == [1, 1, 1]
    assert len(leased(queues)) == 2
    assert held(queues) == PAYLOADS[3:]
    assert at_once(queues, *map(acknowledging, messages[3:])) == [1, 1, 1]
    assert not leased(queues)


def test_an_attempt_ended_by_another_transaction_of_the_proposal_is_lost(queues: Queues) -> None:
    messages = queues.claim(3)
    one, both, two = messages[:1], messages[:2], messages[1:2]
    outcomes = at_once(queues, *(acknowledging(*each) for each in (one, both, two)))
    assert outcomes == [1, LeaseLost, 1]
    assert held(queues) == PAYLOADS[2:3]
    assert queues.counts()["acknowledged"] == 2


WAYS: list[tuple[str, Callable[[Queues, StoredQueueMessage], Any], str]] = [
    ("rejected", lambda q, each: q.reject(each), "scheduled"),
    ("given back", lambda q, each: q.reject(each, uncounted=True), "ready"),
    ("at once", lambda q, each: q.reject(each, delay=0.0), "ready"),
    ("dead", lambda q, each: q.reject(each, dead=True), "dead"),
    ("by id", lambda q, each: q.commit(Acknowledge(Q, [by_id(each.id)])), "done"),
    ("cancelled", lambda q, each: q.cancel(each.id), "cancelled"),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0])
def test_one_leaves_and_the_others_are_held(
    queues: Queues, way: tuple[str, Callable[[Queues, StoredQueueMessage], Any], str]
) -> None:
    _, leave, counter = way
    messages = queues.claim(3)
    leave(queues, messages[1])
    assert queues.counts()[counter] >= 1
    assert held(queues) == [PAYLOADS[0], PAYLOADS[2]]
    with pytest.raises(LeaseLost):
        queues.acknowledge(*messages)
    queues.acknowledge(messages[0], messages[2])
    assert not leased(queues)


def test_one_that_is_extended_outlives_the_others(queues: Queues) -> None:
    first, second, third = queues.claim(3)
    queues.extend(second, 100.0)
    assert sorted(held(queues)) == PAYLOADS[:3]
    assert at_once(queues, *(Extend(Q, [attempt(second)], 50.0 + each) for each in (0, 1)))
    assert sorted(held(queues)) == PAYLOADS[:3]
    queues.pass_time(25)
    assert held(queues) == [second.payload]
    for each in (first, third):
        with pytest.raises(LeaseLost):
            queues.acknowledge(each)
    queues.acknowledge(second)
    assert not leased(queues)
    assert queues.counts()["expired"] == 2


def test_one_that_is_extended_and_ended_in_one_proposal_is_over(queues: Queues) -> None:
    first, second = queues.claim(2)
    extend = Extend(Q, [attempt(second)], 100.0)
    at_once(queues, extend, acknowledging(second), extend)
    assert held(queues) == [first.payload]
    at_once(queues, RejectMessages(Q, [attempt(first)], dead=True))
    assert not leased(queues)


def test_all_of_it_runs_out_together(queues: Queues) -> None:
    messages = queues.claim(6)
    queues.acknowledge(messages[2])
    queues.pass_time(25)
    assert not leased(queues)
    assert queues.counts()["expired"] == 5


def test_the_record_of_a_claim_shrinks_with_its_held_messages() -> None:
    queues = Queues()
    queues.create(ack_wait=20.0, batch_size=60)
    queues.enqueue(*(b"%d" % number for number in range(60)))
    messages = queues.claim(60)
    kept = messages[3:60:20]
    for each in messages:
        if each not in kept:
            queues.acknowledge(each)
            (hold,) = {lease.holding for lease in queues.manager().leases.all()}
            entries = len(hold.stored.entries)
            assert entries <= max(8, 4 * hold.left)
            packed = next(iter(leased(queues).values()))
            assert len(holdings.decode(packed).entries) == entries
            assert len(leased(queues)) <= 1 + entries
    payloads = [each.payload for each in kept]
    assert sorted(held(queues)) == sorted(payloads)
    queues.reject(kept[0], delay=0.0)
    queues.pass_time(15)
    assert sorted(held(queues)) == sorted(payloads[1:])
    queues.pass_time(10)
    assert not leased(queues)
    assert queues.counts()["expired"] == 2


def test_an_acknowledgement_is_noted_though_firing_fails_in_its_proposal(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = queues.claim(6)
    queues.start(queues.claim_request(wait=True, consumer=queues.consumer(2)))

    def broken(*_: object) -> None:
        raise StoreCorrupted("its body is gone")

    monkeypatch.setattr(firing, "leased_message", broken)
    queues.commit(acknowledging(messages[1]), queues.message(b"cannot be fired"))
    monkeypatch.undo()
    assert len(leased(queues)) == 2
    assert held(queues)[:5] == [PAYLOADS[0], *PAYLOADS[2:]]


def test_an_acknowledgement_is_noted_though_the_step_before_did_nothing(queues: Queues) -> None:
    messages = queues.claim(6)
    manager = queues.manager()
    manager.give_back_later([((b"gone", "", b"gone"), 1)], None)
    queues.pass_time(1)
    assert not manager.to_give_back
    queues.extend(messages[2], 100.0)
    queues.acknowledge(messages[1])
    assert sorted(held(queues)) == [PAYLOADS[0], *PAYLOADS[2:]]


def test_a_message_is_held_by_the_successful_extension_if_a_longer_one_fails(
    queues: Queues,
) -> None:
    first, second = queues.claim(2)
    extend = Extend(Q, [attempt(second)], 100.0)
    fails = Extend(Q, [attempt(second), msgspec.structs.replace(attempt(second), epoch=7)], 200.0)
    outcomes = at_once(queues, extend, fails, acknowledging(second))
    assert outcomes[1:] == [LeaseLost, 1]
    assert held(queues) == [first.payload]
