"""Times for which something is scheduled: a number, a length of time, a moment."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import postroom
from postroom.limits import NUMBER_SECONDS_MAX
from tests.client.stores import Store

SINCE_1970 = 1_700_000_002.5
TEN_YEARS = 10 * 366 * 86400

Call = Callable[[Store, Any], object]


def send(store: Store, later: Any) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"a", b"m", deliver_at=later)


def defer(store: Store, later: Any) -> None:
    with store.db.begin() as tx:
        tx.enqueue_update(postroom.Increment(b"n"), execute_at=later)


def enqueue(store: Store, later: Any) -> None:
    with store.db.begin() as tx:
        tx.enqueue("q", b"", deliver_at=later)


def follow(store: Store, later: Any) -> None:
    with store.db.begin() as tx:
        tx.when_done("q", "g", postroom.Enqueue("q", b"", deliver_at=later))


def reschedule(store: Store, later: Any) -> None:
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1")
    store.db.queue("q").reschedule("1", later)


def postpone(store: Store, later: Any) -> None:
    send(store, None)
    with store.db.begin() as tx:
        tx.postpone(tx.reap_queue(b"a"), later)


def reject(store: Store, later: Any) -> None:
    enqueue(store, None)
    store.db.queue("q").claim(1)[0].reject(later)


def reject_in_a_transaction(store: Store, later: Any) -> None:
    enqueue(store, None)
    with store.db.begin() as tx:
        tx.reject("q", tx.claim("q"), later)


MOMENTS: list[Call] = [send, defer, enqueue, follow, reschedule]
LENGTHS: list[Call] = [postpone, reject, reject_in_a_transaction]


@pytest.mark.parametrize("call", [*MOMENTS, *LENGTHS])
@pytest.mark.parametrize("seconds", [SINCE_1970, int(SINCE_1970), TEN_YEARS + 1, 1700000002500])
def test_a_number_above_ten_years_is_refused(store: Store, call: Call, seconds: float) -> None:
    store.db.create_queue("q")
    with pytest.raises(postroom.Invalid, match="ten years") as refused:
        call(store, seconds)
    told = str(refused.value)
    assert "nothing was changed" in told
    assert "=2;" in told, "the form for seconds from now"
    right = "fromtimestamp" if call in MOMENTS else "timedelta"
    assert right in told, "the form for a moment"


@pytest.mark.parametrize("call", [*MOMENTS, *LENGTHS])
@pytest.mark.parametrize(
    "later", [TEN_YEARS, 2, 0, 0.5, datetime.timedelta(days=40 * 365), datetime.timedelta(hours=1)]
)
def test_a_length_is_taken_up_to_ten_years_and_a_timedelta_beyond_that(
    store: Store, call: Call, later: Any
) -> None:
    store.db.create_queue("q")
    call(store, later)


@pytest.mark.parametrize("call", MOMENTS)
@pytest.mark.parametrize("year", [1, 1960, 1970, 2024, 2200, 4199, 9999])
def test_an_aware_datetime_may_be_as_far_as_it_likes(store: Store, call: Call, year: int) -> None:
    store.db.create_queue("q")
    call(store, datetime.datetime(year, 12, 31, 23, 59, 59, tzinfo=datetime.UTC))


@pytest.mark.parametrize("year", [2200, 4199, 9999])
def test_a_distant_moment_is_shown_as_it_was_given(store: Store, year: int) -> None:
    moment = datetime.datetime(year, 12, 31, tzinfo=datetime.UTC)
    send(store, moment)
    defer(store, moment)
    assert [each.due.datetime for each in store.db.scheduled()] == [moment, moment]


def test_ten_years_are_the_limit() -> None:
    assert NUMBER_SECONDS_MAX == TEN_YEARS
