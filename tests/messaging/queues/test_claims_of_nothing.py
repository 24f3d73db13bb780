"""A claim that does not wait is answered at once, if memory tells that there is nothing for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from postroom.kv.clock import from_seconds
from postroom.messaging import due as times
from postroom.messaging.queues import manager as managers
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.definition_requests import SetSchedule
from postroom.messaging.queues.manager import Manager
from tests.messaging.queues.harness import Q, Queues

OF_KIND = ClaimSelection(kinds=["mail"])
HOUR = 3600.0


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(ack_wait=60.0)
    return queues


def in_an_hour(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clocks of the queues ahead. Their service does not know yet."""
    ranges = queues.range_queues
    for name, units in {"monotonic": HOUR, "reading": HOUR * 1e6, "by_wall": HOUR * 1e6}.items():
        now: Callable[[], Any] = getattr(ranges, name)
        later = type(now())(now() + (units if name == "monotonic" else int(units) << 16))
        monkeypatch.setattr(ranges, name, lambda later=later: later)


def has_none(manager: Manager, selection: ClaimSelection) -> bool:
    return manager.has_none_for(manager.wish_of(selection))


def test_a_claim_that_gets_nothing_waits_for_no_step_of_the_service(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.enqueue(b"of no kind")
    queues.enqueue(b"later", kind="mail", after=HOUR)
    monkeypatch.delattr(Manager, "wait")
    assert queues.claim(selection=OF_KIND) == []


def test_memory_tells_that_there_is_a_message_of_the_kind(queues: Queues) -> None:
    queues.enqueue(b"mail", kind="mail")
    manager = queues.manager()
    assert not has_none(manager, OF_KIND)
    assert not has_none(manager, ClaimSelection())
    assert has_none(manager, ClaimSelection(kinds=["fax"]))
    assert queues.payloads(selection=OF_KIND) == [b"mail"]


@pytest.mark.parametrize("is_moment", [False, True])
def test_a_scheduled_message_is_found_once_it_is_due(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, *, is_moment: bool
) -> None:
    due = queues.now() + from_seconds(HOUR / 2)
    queues.enqueue(b"later", due=times.at(due) if is_moment else due)
    manager = queues.manager()
    manager.poll_at = 1e9
    assert has_none(manager, ClaimSelection())
    in_an_hour(queues, monkeypatch)
    assert not has_none(manager, ClaimSelection())


def test_a_message_is_found_once_its_lease_has_ended(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.enqueue(b"held")
    queues.claim()
    assert has_none(queues.manager(), ClaimSelection())
    in_an_hour(queues, monkeypatch)
    assert not has_none(queues.manager(), ClaimSelection())


def test_a_tick_is_found_once_it_is_due(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    queues.commit(SetSchedule(Q, "half-hourly", "*/30 * * * *", payload=b"tick"))
    queues.pass_time(0.1)
    assert has_none(queues.manager(), ClaimSelection())
    in_an_hour(queues, monkeypatch)
    assert not has_none(queues.manager(), ClaimSelection())


def test_a_message_that_is_to_go_back_is_found(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock moves on while it is read."""
    queues.enqueue(b"held")
    (message,) = queues.claim()
    manager = queues.manager()
    manager.give_back_later([(*message.locator, message.epoch, message.scheduled)], None)  # type: ignore[list-item]
    times_read = itertools.count(queues.range_queues.monotonic(), 1e-6)
    monkeypatch.setattr(queues.range_queues, "monotonic", lambda: next(times_read))
    assert not has_none(manager, ClaimSelection())


def test_memory_is_not_asked_if_it_is_time_to_poll(queues: Queues) -> None:
    queues.enqueue(b"later", after=HOUR)
    manager = queues.manager()
    manager.poll_at = queues.range_queues.monotonic() + 1.0
    assert has_none(manager, ClaimSelection())
    manager.poll_at = queues.range_queues.monotonic()
    assert not has_none(manager, ClaimSelection())


def test_a_queue_with_nothing_need_not_be_polled(queues: Queues) -> None:
    manager = queues.manager()
    manager.poll_at = queues.range_queues.monotonic()
    assert has_none(manager, ClaimSelection())


def test_a_claim_looks_through_a_bounded_number_of_ready_messages(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managers, "LOOKED_THROUGH", 2)
    for number in range(3):
        assert has_none(queues.manager(), OF_KIND)
        queues.enqueue(b"%d" % number)
    assert not has_none(queues.manager(), OF_KIND)


def test_memory_is_not_asked_if_it_has_not_all_messages(queues: Queues) -> None:
    queues.update(cache_size=4)
    for number in range(20):
        queues.enqueue(b"%d" % number)
    queues.enqueue(b"mail", kind="mail")
    assert not has_none(queues.manager(), OF_KIND)
    assert queues.payloads(selection=OF_KIND) == [b"mail"]


def test_memory_is_not_asked_about_a_queue_in_trouble(queues: Queues) -> None:
    manager = queues.manager()
    assert has_none(manager, ClaimSelection())
    manager.trouble.failed(ValueError("a fault"), queues.range_queues.monotonic())
    assert not has_none(manager, ClaimSelection())
