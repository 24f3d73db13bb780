"""Ends of attempts: acknowledged, rejected, run out; and what becomes of messages that fail."""

from __future__ import annotations

import pytest

from postroom.errors import LeaseLost
from postroom.limits import ATTEMPTS_MAX_DEFAULT
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.requests import Acknowledge
from postroom.messaging.queues.settling import EXPIRED, REJECTED, backoff_seconds
from postroom.ranges.requests import Get, Put
from tests.messaging.queues.harness import Q, Queues, attempt


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(ack_wait=10.0)
    return queues


def test_an_acknowledgement_commits_together_with_the_effects_of_the_work(queues: Queues) -> None:
    queues.enqueue(b"1")
    (message,) = queues.claim()
    assert queues.commit(Acknowledge(Q, [attempt(message)]), Put(b"effect", b"1"))[0] == 1
    assert queues.counts() == {"done": 1, "enqueued": 1, "fired": 1, "acknowledged": 1}
    queues.pass_time(1000)
    assert queues.claim(wait=False) == []


def test_an_attempt_that_holds_its_message_no_more_changes_nothing(queues: Queues) -> None:
    queues.enqueue(b"1")
    (first,) = queues.claim()
    queues.pass_time(100)
    (second,) = queues.claim()
    assert (second.id, second.epoch) == (first.id, 1)
    with pytest.raises(
        LeaseLost,
        match=r"^attempt 1 at the message 'made up 1' .* attempt 2 holds it now; nothing",
    ):
        queues.commit(Put(b"effect", b"first"), Acknowledge(Q, [attempt(first)]))
    assert queues.send(Get(b"effect")).value is None
    queues.acknowledge(second)
    for late in (first, second):
        with pytest.raises(LeaseLost, match="done already"):
            queues.acknowledge(late)
        with pytest.raises(LeaseLost):
            queues.reject(late)
        with pytest.raises(LeaseLost):
            queues.extend(late, 10)
    assert queues.counts()["acknowledged"] == 1


def test_a_lease_that_has_run_out_is_lost_though_nobody_else_has_the_message(
    queues: Queues,
) -> None:
    queues.enqueue(b"1")
    (message,) = queues.claim()
    queues.pass_time(11)
    with pytest.raises(LeaseLost, match="it was not acknowledged in time"):
        queues.acknowledge(message)


def test_one_of_two_acknowledgements_in_a_proposal_succeeds(queues: Queues) -> None:
    queues.enqueue(b"1")
    (message,) = queues.claim()
    asked = [queues.transaction(Acknowledge(Q, [attempt(message)])) for _ in range(2)]
    sent = [queues.store.driver.send(each) for each in asked]  # evaluated together

    async def ended(number: int) -> object:
        return await sent[number]

    queues.store.driver.run(ended(0))
    with pytest.raises(LeaseLost):
        queues.store.driver.run(ended(1))


def test_by_its_id_a_message_ends_whoever_holds_it(queues: Queues) -> None:
    queues.enqueue(b"1", id=b"ready")
    queues.enqueue(b"2", id=b"scheduled", after=100)
    queues.enqueue(b"3", id=b"elsewhere", key=b"key", kind="k")
    assert queues.acknowledge_id(b"ready", b"scheduled", b"nobody") == 2
    (held,) = queues.claim()
    assert queues.acknowledge_id(b"elsewhere") == 1
    with pytest.raises(LeaseLost, match="done already"):
        queues.acknowledge(held)
    assert queues.acknowledge_id(b"elsewhere") == 0
    assert queues.counts() == {"done": 3, "enqueued": 3, "fired": 1, "acknowledged": 3}
    queues.pass_time(200)
    assert queues.claim(wait=False) == []


def test_an_expired_message_is_fired_again_with_growing_delays(queues: Queues) -> None:
    queues.enqueue(b"1")
    began = queues.now()
    waits = []
    for epoch in range(4):
        (message,) = queues.claim(wait=True)
        assert message.epoch == epoch
        assert message.last_error == ("it was not acknowledged in time" if epoch else "")
        waits.append((queues.now() - began >> 16) / 1000)
        began = queues.now()
    assert waits[0] == 0
    for wait, expected in zip(waits[1:], (10, 20, 40), strict=True):
        assert 0.89 * expected + 10 <= wait <= 1.11 * expected + 10.1
    counts = queues.counts()
    assert (counts["fired"], counts["expired"]) == (4, 3)


def test_a_rejected_message_comes_again_after_the_back_off_or_the_given_delay(
    queues: Queues,
) -> None:
    queues.enqueue(b"1")
    (message,) = queues.claim()
    assert queues.reject(message, reason="not now") == 1
    assert queues.claim(wait=False) == []
    (message,) = queues.claim(wait=True)
    assert (message.epoch, message.last_error) == (1, "not now")
    queues.reject(message, delay=0.0)
    (message,) = queues.claim(wait=False)
    assert message.epoch == 2
    queues.reject(message, delay=500.0)
    began = queues.now()
    queues.claim(wait=True)
    assert 500_000 <= queues.now() - began >> 16 < 500_100


def test_a_message_given_back_uncounted_keeps_its_attempts(queues: Queues) -> None:
    queues.enqueue(b"1")
    (message,) = queues.claim()
    queues.reject(message, uncounted=True)
    (again,) = queues.claim()
    assert again.epoch == 0
    assert queues.counts() == {"leased": 1, "enqueued": 1, "fired": 2}


def test_the_back_off_doubles_within_its_bounds() -> None:
    def middle(settings: QueueSettings, how: str) -> list[float]:
        return [backoff_seconds(settings, epoch, how, 0.5) for epoch in range(14)]

    plain = QueueSettings(ack_wait=30.0)
    assert middle(plain, EXPIRED)[:4] == [30, 60, 120, 240]
    assert middle(plain, REJECTED)[:4] == [1, 2, 4, 8]
    assert middle(plain, EXPIRED)[-1] == middle(plain, REJECTED)[-1] == 3600
    bounded = QueueSettings(ack_wait=30.0, min_backoff=50.0, max_backoff=100.0)
    assert middle(bounded, EXPIRED)[:4] == [50, 60, 100, 100]
    assert middle(bounded, REJECTED)[:3] == [50, 100, 100]
    assert backoff_seconds(plain, 0, EXPIRED, 0.0) == pytest.approx(27)
    assert backoff_seconds(plain, 0, EXPIRED, 0.999) == pytest.approx(33, abs=0.1)
    assert backoff_seconds(plain, 10**6, EXPIRED, 0.999) == 3600


def test_after_max_attempts_it_is_dead_with_its_reason_and_can_be_replayed(queues: Queues) -> None:
    queues.update(max_attempts=2)
    queues.enqueue(b"1", id=b"poison")
    queues.reject(*queues.claim(), delay=0.0, reason="first")
    queues.reject(*queues.claim(), delay=0.0, reason="second")
    (dead,) = queues.list("dead")
    assert (dead.id, dead.last_error, dead.epoch, dead.state) == (b"poison", "second", 2, "dead")
    assert queues.counts() == {
        "dead": 1, "enqueued": 1, "fired": 2, "rejected": 2, "buried": 1,
    }  # fmt: skip
    queues.pass_time(10_000)
    assert queues.claim(wait=False) == []
    assert queues.replay(b"poison", b"nobody") == 1
    (message,) = queues.claim()
    assert (message.epoch, message.last_error) == (0, "")
    queues.acknowledge(message)
    assert queues.counts()["done"] == 1


def test_one_that_never_gets_an_answer_dies_too(
    queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    queues.update(max_attempts=3)
    queues.enqueue(b"1", id=b"order 17")
    for _ in range(3):
        queues.claim(wait=True)
    queues.pass_time(1000)
    (dead,) = queues.list("dead")
    assert dead.last_error == "it was not acknowledged in time"
    assert queues.counts()["expired"] == 3
    (line,) = [each for each in caplog.messages if "is dead" in each]
    assert line == (
        "message order 17 of queue 'emails' is dead after 3 attempts: it was not acknowledged in "
        "time; to revive it: postroom queue replay emails 'order 17'"
    )


def test_the_line_of_a_message_that_dies_and_moves_names_its_new_queue(
    queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    queues.create("grave")
    queues.update(max_attempts=1, dead_letter_queue="grave")
    queues.enqueue(b"1")
    queues.claim(consumer=queues.consumer(1, b"\x07" * 8))
    queues.store.node.root.replica.release_client(b"\x07" * 8)
    assert queues.payloads(name="grave", wait=True) == [b"1"]
    (line,) = [each for each in caplog.messages if "is dead" in each]
    assert line.endswith(
        "is dead after 1 attempt: the consumer has gone; it is in queue 'grave' now"
    )


def test_rejected_for_good_it_is_dead_at_once(queues: Queues) -> None:
    queues.enqueue(b"1")
    queues.reject(*queues.claim(), dead=True, reason="nonsense")
    assert [each.last_error for each in queues.list("dead")] == ["nonsense"]


def test_a_lease_can_be_made_longer(queues: Queues) -> None:
    queues.enqueue(b"1")
    (message,) = queues.claim()
    for _ in range(10):
        until = queues.extend(message, 10)
        assert until > queues.now()
        queues.pass_time(9)
    assert queues.acknowledge(message) == 1
    assert queues.counts()["fired"] == 1


def test_an_extended_lease_is_acknowledged_in_the_same_transaction(queues: Queues) -> None:
    from postroom.messaging.queues.requests import Extend  # noqa: PLC0415 - only here

    queues.enqueue(b"1")
    (message,) = queues.claim()
    named = [attempt(message)]
    answers = queues.commit(Extend(Q, named, 50.0), Acknowledge(Q, named))
    assert answers[1] == 1
    assert queues.counts() == {"done": 1, "enqueued": 1, "fired": 1, "acknowledged": 1}


def test_a_message_that_is_rejected_at_once_for_ever_is_not_tried_without_end(
    queues: Queues,
) -> None:
    queues.enqueue(b"poison")
    queues.enqueue(*[b"%d" % number for number in range(5)])
    tried = 0
    for _ in range(200):
        waiting = queues.start(queues.claim_request(1, wait=True))
        if not waiting.done:
            queues.pass_time(1)
        if not waiting.done:
            (call,) = next(iter(queues.store.driver.node.root.replica.waiting_for.values()))
            queues.store.driver.node.root.replica.cancel(call)
            continue
        (message,) = waiting.result().messages
        if message.payload == b"poison":
            tried += 1
            queues.reject(message)
        else:
            queues.acknowledge(message)
    assert queues.counts()["acknowledged"] == 5
    assert tried < 10


def test_a_message_is_dead_after_sixteen_failures_if_its_queue_does_not_say_otherwise() -> None:
    queues = Queues()
    queues.create()
    queues.enqueue(b"poison", id=b"p")
    for _ in range(ATTEMPTS_MAX_DEFAULT):
        assert queues.counts().get("dead", 0) == 0
        queues.reject(*queues.claim(), delay=0.0)
    assert (queues.counts()["dead"], queues.counts()["rejected"]) == (1, 16)
