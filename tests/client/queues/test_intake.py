"""The messages that a consumer asks for, holds and gives back."""

from __future__ import annotations

from postroom.client.codec import resolve
from postroom.client.queues.consuming import Intake
from postroom.client.queues.messages import QueueMessage
from tests.client.queues.fakes import stored

LEASE = 30.0


def batch(size: int) -> list[QueueMessage]:
    return [QueueMessage("q", stored(f"m{each}"), resolve(None)) for each in range(size)]


def claimed(intake: Intake, size: int, now: float) -> list[QueueMessage]:
    messages = batch(size)
    intake.claimed(messages, [LEASE] * size, now)
    return messages


def work_off(intake: Intake, now: float, seconds_each: float) -> tuple[int, float]:
    """Work on each message that is handed out for a time, and settle it."""
    done = 0
    while (message := intake.take(now)) is not None:
        now += seconds_each
        intake.settled(message)
        done += 1
    return done, now


def test_a_fast_consumer_asks_for_more_and_more_up_to_its_credit() -> None:
    intake, now, asked = Intake(10), 0.0, []
    for _ in range(6):
        asked.append(wanted := intake.wanted(now))
        claimed(intake, wanted, now)
        _, now = work_off(intake, now, 0.01)
    assert asked == [1, 2, 4, 8, 10, 10]


def test_a_slow_consumer_loses_nothing_that_waits() -> None:
    """Each message takes longer than a lease: never two of them are claimed for it."""
    intake, now = Intake(100), 0.0
    for _ in range(5):
        wanted = intake.wanted(now)
        assert wanted == 1
        claimed(intake, wanted, now)
        _, now = work_off(intake, now, 40.0)


def test_a_message_that_waits_for_half_of_its_lease_is_given_back() -> None:
    intake = Intake(10)
    first, second, third = claimed(intake, 3, 0.0)
    assert intake.take(1.0) is first
    assert intake.take(14.9) is second
    assert intake.take(15.0) is None
    assert intake.take_back() == [third]
    assert intake.take_back() == []


def test_a_consumer_that_has_become_slow_asks_for_less() -> None:
    intake, now = Intake(16), 0.0
    for _ in range(5):
        claimed(intake, intake.wanted(now), now)
        _, now = work_off(intake, now, 0.01)
    claimed(intake, intake.wanted(now), now)
    done, now = work_off(intake, now, 6.0)
    assert done == 3
    assert len(intake.take_back()) == 13
    assert intake.wanted(now) == 8


def test_credit_is_what_is_held_and_not_settled() -> None:
    intake = Intake(2)
    first, second = claimed(intake, 2, 0.0)
    assert intake.wanted(0.0) == 0
    assert intake.take(0.0) is first
    assert intake.take(0.0) is second
    assert intake.wanted(1.0) == 0
    assert intake.frees_at() == LEASE
    intake.settled(first)
    assert intake.wanted(1.0) == 1


def test_a_lease_that_has_passed_takes_no_credit() -> None:
    intake = Intake(1)
    claimed(intake, 1, 0.0)
    message = intake.take(0.0)
    assert message is not None
    assert intake.wanted(29.0) == 0
    intake.extended(message, 60.0)
    assert intake.wanted(30.0) == 0
    assert intake.wanted(60.0) == 1
