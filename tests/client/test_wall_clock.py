"""A wall clock that was wrong for a while, and was corrected: what waits for its time comes.

Lengths of time are counted with timestamps, which go on with the monotonic clock. Moments are
compared with the wall clock as it is now.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import postroom
from tests.client.stores import Store

DAY = 86_400.0
UTC = datetime.UTC


def is_set(store: Store, seconds: float) -> None:
    """Set the wall clock, and let the client hear of it."""
    store.clock.epoch_milliseconds += int(seconds * 1000)
    store.db.now()


def wall(store: Store) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(store.clock.wall_milliseconds() / 1000, UTC)


def was_ahead(store: Store) -> None:
    """Set the wall clock ahead for 6 s, and write something meanwhile."""
    store.db.put(b"a", b"before")
    is_set(store, DAY)
    store.db.put(b"a", b"meanwhile")
    store.advance(6.0)
    store.db.put(b"a", b"meanwhile too")
    is_set(store, -DAY)
    store.advance(0.5)


def was_ahead_over_a_restart(store: Store) -> None:
    was_ahead(store)
    store.restart()


def was_ahead_over_a_crash(store: Store) -> None:
    was_ahead(store)
    store.kill()


wrong = pytest.mark.parametrize(
    "wrong", [was_ahead, was_ahead_over_a_restart, was_ahead_over_a_crash]
)


def send(store: Store, later: Any) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"m", deliver_at=later)
        tx.enqueue_update(postroom.Increment(b"counter", 1), execute_at=later)


def arrived(store: Store) -> tuple[int, int]:
    counter = store.db.get(b"counter")
    return len(store.db.peek(b"inbox")), 0 if counter is None else postroom.integer(counter)


@wrong
@pytest.mark.parametrize("later", [2, datetime.timedelta(seconds=2)])
def test_a_message_sent_after_a_correction_of_the_clock_comes_in_time(
    store: Store, wrong: Callable[[Store], None], later: Any
) -> None:
    wrong(store)
    before = store.db.now()
    send(store, later)
    store.advance(1.5)
    assert arrived(store) == (0, 0)
    store.advance(0.6)
    assert arrived(store) == (1, 1)
    assert store.db.now() > before


def test_a_message_sent_while_the_clock_was_ahead_comes_in_time(store: Store) -> None:
    is_set(store, DAY)
    send(store, 5)
    store.advance(1.0)
    is_set(store, -DAY)
    store.advance(3.5)
    assert arrived(store) == (0, 0)
    store.advance(0.7)
    assert arrived(store) == (1, 1)


@wrong
def test_a_message_that_was_rejected_is_fired_after_its_back_off(
    store: Store, wrong: Callable[[Store], None]
) -> None:
    q = store.db.create_queue("q", min_backoff=1, max_backoff=1)
    wrong(store)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1")
        tx.enqueue("q", b"", id="2", deliver_at=1)
    (message,) = q.claim(1)
    message.reject()
    assert q.claim(2) == []
    store.advance(1.2)
    assert {each.id for each in q.claim(2)} == {"1", "2"}


def test_a_message_that_was_rejected_while_the_clock_was_ahead_is_fired_in_time(
    store: Store,
) -> None:
    q = store.db.create_queue("q", order="group", min_backoff=2, max_backoff=2)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1", group="g")
    is_set(store, DAY)
    (message,) = q.claim(1)
    message.reject()
    is_set(store, -DAY)
    store.advance(2.5)
    assert len(q.claim(1)) == 1


def test_a_postponed_message_comes_back_in_time(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"m")
    was_ahead(store)
    with store.db.begin() as tx:
        (message,) = tx.reap_queue(b"inbox")
        tx.postpone([message], 2)
    store.advance(2.2)
    assert arrived(store)[0] == 1


def test_a_lease_ends_in_time_whatever_the_wall_clock_does(store: Store) -> None:
    q = store.db.create_queue("q", ack_wait=10)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1")
    was_ahead(store)
    q.claim(1)
    store.advance(9.0)
    assert q.stats().leased == 1
    store.advance(2.0)
    assert q.stats().leased == 0


# --- moments


@wrong
def test_a_moment_is_that_of_the_corrected_clock(
    store: Store, wrong: Callable[[Store], None]
) -> None:
    wrong(store)
    send(store, wall(store) + datetime.timedelta(seconds=30))
    assert arrived(store) == (0, 0)
    store.advance(29.0)
    assert arrived(store) == (0, 0)
    store.advance(1.5)
    assert arrived(store) == (1, 1)


def test_a_moment_comes_at_once_when_the_clock_is_set_beyond_it(store: Store) -> None:
    is_set(store, -DAY)
    send(store, wall(store) + datetime.timedelta(seconds=DAY))
    store.advance(10.0)
    assert arrived(store) == (0, 0)
    is_set(store, DAY)
    store.advance(1.1)
    assert arrived(store) == (1, 1)


def test_a_moment_is_waited_for_again_when_the_clock_was_set_back_before_it(store: Store) -> None:
    send(store, wall(store) + datetime.timedelta(seconds=60))
    store.advance(10.0)
    is_set(store, -100)
    store.advance(55.0)
    assert arrived(store) == (0, 0)
    store.advance(96.0)
    assert arrived(store) == (1, 1)


def test_moments_and_lengths_are_listed_and_can_be_cancelled(store: Store) -> None:
    now = wall(store)
    for number, later in enumerate([now + datetime.timedelta(seconds=20), 10, 30]):
        with store.db.begin() as tx:
            tx.enqueue_message(b"inbox", bytes([number]), deliver_at=later)
    found = store.db.scheduled()
    assert [each.message for each in found] == [b"\1", b"\0", b"\2"]
    assert [each.message for each in store.db.scheduled(limit=2)] == [b"\1", b"\0"]
    assert found[1].due.datetime == now + datetime.timedelta(seconds=20)
    assert store.db.cancel([found[1].id]) == 1
    store.advance(31.0)
    assert [each.value for each in store.db.peek(b"inbox")] == [b"\1", b"\2"]


@wrong
@pytest.mark.parametrize("order", ["none", "group"])
def test_a_queue_waits_for_a_moment_of_the_corrected_clock(
    store: Store, wrong: Callable[[Store], None], order: Any
) -> None:
    q = store.db.create_queue("q", order=order)
    wrong(store)
    at = wall(store) + datetime.timedelta(seconds=30)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1", deliver_at=at, group="g")
    found = q.get("1")
    assert found is not None
    assert found.scheduled.datetime == at
    store.advance(29.0)
    assert q.claim(1) == []
    store.advance(1.5)
    assert len(q.claim(1)) == 1


@pytest.mark.parametrize("order", ["none", "group"])
def test_a_message_is_put_off_to_a_moment_of_the_corrected_clock(store: Store, order: Any) -> None:
    q = store.db.create_queue("q", order=order)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1", group="g")
    was_ahead(store)
    q.reschedule("1", wall(store) + datetime.timedelta(seconds=30))
    store.advance(29.0)
    assert q.claim(1) == []
    store.advance(1.5)
    assert len(q.claim(1)) == 1


def test_a_periodic_schedule_follows_the_corrected_clock(store: Store) -> None:
    q = store.db.create_queue("q", purge_after=0)
    q.schedule("minutely", cron="* * * * *", payload=b"tick")
    is_set(store, DAY)
    store.advance(90.0)
    for message in q.claim(10):
        message.acknowledge()
    is_set(store, -DAY)
    store.advance(70.0)
    assert [each.id for each in q.claim(10)] == ticks("22:15", "22:16")


def test_a_periodic_schedule_of_a_clock_that_was_ahead_is_found_anew_after_a_restart(
    store: Store,
) -> None:
    q = store.db.create_queue("q", purge_after=0)
    is_set(store, DAY)
    q.schedule("minutely", cron="* * * * *", payload=b"tick")
    is_set(store, -DAY)
    store.restart()
    store.advance(50.0)
    assert [each.id for each in q.claim(10)] == ticks("22:14")


def test_a_periodic_schedule_is_not_repeated_when_the_clock_is_set_back_a_little(
    store: Store,
) -> None:
    q = store.db.create_queue("q", purge_after=0)
    q.schedule("minutely", cron="* * * * *", payload=b"tick")
    store.advance(41.0)
    assert [each.id for each in q.claim(10)] == ticks("22:14")
    is_set(store, -30)
    store.advance(50.0)
    assert q.claim(10) == []


def ticks(*times: str) -> list[str]:
    return [f"minutely@2023-11-14T{each}:00+00:00" for each in times]


@pytest.mark.parametrize("order", ["none", "group"])
def test_a_queue_fires_at_a_moment_as_soon_as_the_clock_is_set_beyond_it(
    store: Store, order: Any
) -> None:
    q = store.db.create_queue("q", order=order)
    is_set(store, -DAY)
    with store.db.begin() as tx:
        at = wall(store) + datetime.timedelta(seconds=DAY)
        tx.enqueue("q", b"", id="1", deliver_at=at, group="g")
    store.advance(10.0)
    assert q.claim(1) == []
    is_set(store, DAY)
    store.advance(1.1)
    assert len(q.claim(1)) == 1
    assert q.stats().lateness_p99 == pytest.approx(11.0, abs=0.5)


@pytest.mark.parametrize("order", ["none", "group"])
def test_a_queue_waits_again_for_a_moment_that_the_clock_was_set_back_from(
    store: Store, order: Any
) -> None:
    q = store.db.create_queue("q", order=order)
    with store.db.begin() as tx:
        at = wall(store) + datetime.timedelta(seconds=60)
        tx.enqueue("q", b"", id="1", deliver_at=at, group="g")
        tx.enqueue("q", b"", id="2", deliver_at=30, group="h")
    is_set(store, -100)
    store.restart()
    store.advance(31.0)
    (message,) = q.claim(2)
    assert message.id == "2"
    message.acknowledge()
    store.advance(120.0)
    assert q.claim(1) == []
    store.advance(11.0)
    assert [each.id for each in q.claim(1)] == ["1"]


def test_ages_are_those_of_time_that_has_passed(store: Store) -> None:
    q = store.db.create_queue("q")
    was_ahead(store)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", deliver_at=wall(store) + datetime.timedelta(seconds=1))
        tx.enqueue("q", b"")
    store.advance(10.0)
    age = q.stats().oldest_age
    assert age == pytest.approx(10.0, abs=0.1)


def test_a_message_lease_of_an_embedded_store_lasts_over_the_next_lease_of_the_range() -> None:
    store = Store(rests_alone=True)
    q = store.db.create_queue("q", ack_wait=60)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1")
    (message,) = q.claim(1)
    is_set(store, DAY)
    store.advance(6.0)
    for _ in range(2):
        store.node.replicas.by_id(1).stop_serving()
    store.db.put(b"a", b"under the next lease")
    store.advance(30.0)
    q.acknowledge([message])
    store.db.close()
