"""Due times: at once, after a length of time, at a moment; and whatever else a client may send."""

from __future__ import annotations

import pytest

import postroom
from postroom.client import arguments
from postroom.kv.clock import from_milliseconds, from_seconds
from postroom.messaging import due
from tests.client.stores import Store

NOW = from_milliseconds(1_700_000_000_000) + 5
HOSTILE = [1, due.LATEST, due.LENGTH, due.LENGTH | 1, due.MOMENT - 1, due.MOMENT, (1 << 64) - 1]


def wall() -> int:
    return NOW


@pytest.mark.parametrize("timestamp", [0, 1, 2, NOW, NOW << 1, due.LATEST, (1 << 64) - 2])
def test_a_moment_is_not_before_its_timestamp(timestamp: int) -> None:
    shown = due.shown(due.at(timestamp))
    assert timestamp <= shown <= timestamp + 1


def test_moments_are_in_the_order_of_time_and_behind_all_timestamps() -> None:
    moments = [due.at(each) for each in (0, 2, NOW, NOW + 2, (1 << 64) - 2)]
    assert moments == sorted(set(moments))
    assert moments[0] > due.LATEST


def test_a_length_is_counted_from_the_evaluation() -> None:
    assert due.resolved(due.after(1500), NOW, wall) == from_milliseconds(1_700_000_001_500)
    assert due.resolved(due.after(0), NOW, wall) == 0


def test_a_time_in_the_past_is_due() -> None:
    assert due.resolved(NOW, NOW, wall) == 0
    assert due.resolved(NOW + 1, NOW, wall) == NOW + 1
    assert due.resolved(due.at(NOW - 2), NOW, wall) == 0
    later = due.at(NOW + from_seconds(9))
    assert due.resolved(later, NOW, wall) == later


def test_a_moment_is_looked_at_within_a_second_and_a_timestamp_when_it_comes() -> None:
    far = NOW + from_seconds(1000)
    assert due.look_at(far, NOW, wall) == far
    assert due.look_at(due.at(far), NOW, wall) == NOW + from_seconds(1)


@pytest.mark.parametrize("asked", HOSTILE)
def test_a_stored_due_time_is_one_of_64_bits(asked: int) -> None:
    assert 0 <= due.resolved(asked, NOW, wall) < 1 << 64


@pytest.mark.parametrize("asked", HOSTILE)
def test_the_store_goes_on_after_any_due_time_of_a_client(
    asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(remote=True)
    q = store.db.create_queue("q", order="group")
    monkeypatch.setattr(arguments, "due", lambda *_: asked)
    with store.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"m", deliver_at=1)
        tx.enqueue_update(postroom.Increment(b"n"), execute_at=1)
        tx.enqueue("q", b"", id="1", group="g", deliver_at=1)
        tx.enqueue("q", b"", id="2", deliver_at=1)
    monkeypatch.undo()
    store.advance(3.0)
    assert len(store.db.scheduled()) + 2 * len(store.db.peek(b"inbox")) == 2
    store.restart()
    q.reschedule(["1", "2"], 0)
    store.advance(2.0)
    assert len(q.claim(2)) == 2
    store.db.close()
