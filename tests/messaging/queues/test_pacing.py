"""Rates of groups: there are ever new groups, and memory has room for a number of them."""

from __future__ import annotations

import pytest

from postroom.messaging.queues import timing
from postroom.messaging.queues.timing import GroupBuckets
from tests.messaging.queues.harness import Queues


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "GROUP_BUCKETS_MAX", 16)


@pytest.mark.usefixtures("few")
def test_buckets_of_groups_are_bounded_and_no_group_gets_more_than_its_rate() -> None:
    buckets, fired, now = GroupBuckets(0.0), dict.fromkeys(map(str, range(100)), 0), 0.0
    for step in range(4000):
        now = step * 0.05
        for group in (str(step % 100), str(step * 7 % 100)):
            bucket = buckets.of(group, 0.1, now)
            if bucket.available(now):
                buckets.take(group)
                fired[group] += 1
        assert len(buckets) <= 16
    assert all(number <= now * 0.1 + 1 for number in fired.values())
    assert sum(fired.values()) > 16 * 10, "those that are remembered go on"


@pytest.mark.usefixtures("few")
def test_groups_that_come_once_do_not_wait_for_a_token() -> None:
    """Forgetting groups that fired long ago costs others nothing."""
    buckets = GroupBuckets(0.0)
    for number in range(1000):
        now = 20.0 + number
        bucket = buckets.of(str(number), 0.1, now)
        assert bucket.available(now) == 1
        buckets.take(str(number))
    assert len(buckets) <= 16


def test_a_group_that_is_new_is_fired_at_once() -> None:
    queues = Queues()
    queues.create(group_max_rate=0.1, ack_wait=1000.0)
    queues.pass_time(60)
    queues.enqueue(b"1", b"2", group="new")
    assert queues.payloads(wait=False) == [b"1"]
    assert queues.payloads(wait=False) == []
    queues.pass_time(11)
    assert queues.payloads(wait=False) == [b"2"]


def test_a_queue_that_is_changed_again_and_again_fires_at_its_rate() -> None:
    queues = Queues()
    queues.create(group_max_rate=1.0, ack_wait=1000.0)
    queues.enqueue(*[b"x"] * 20, group="g")
    fired = 0
    for number in range(20):
        queues.pass_time(0.5)
        queues.update(ack_wait=1001.0 + number)
        fired += len(queues.payloads(wait=False))
    assert 9 <= fired <= 10
    queues.update(group_max_rate=0.1)
    assert queues.payloads(wait=False) == [], "with another rate it begins anew"
