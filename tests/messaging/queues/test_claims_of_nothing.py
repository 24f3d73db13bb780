"""A claim that does not wait is answered at once, if memory tells that there is nothing for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom.kv.clock import from_seconds
from postroom.messaging import due as times
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.requests import ClaimSelection, SetSchedule
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
    assert not manager.has_none_for(OF_KIND)
    assert not manager.has_none_for(ClaimSelection())
    assert manager.has_none_for(ClaimSelection(kinds=["fax"]))
    assert queues.payloads(selection=OF_KIND) == [b"mail"]


@pytest.mark.parametrize("is_moment", [False, True])
def test_a_scheduled_message_is_found_once_it_is_due(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, *, is_moment: bool
) -> None:
    due = queues.now() + from_seconds(HOUR / 2)
    queues.enqueue(b"later", due=times.at(due) if is_moment else due)
    manager = queues.manager()
    manager.poll_at = 1e9
    assert manager.has_none_for(ClaimSelection())
    in_an_hour(queues, monkeypatch)
    assert not manager.has_none_for(ClaimSelection())


def test_a_message_is_found_once_its_lease_has_ended(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.enqueue(b"held")
    queues.claim()
    assert queues.manager().has_none_for(ClaimSelection())
    in_an_hour(queues, monkeypatch)
    assert not queues.manager().has_none_for(ClaimSelection())


def test_a_tick_is_found_once_it_is_due(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    queues.commit(SetSchedule(Q, "half-hourly", "*/30 * * * *", payload=b"tick"))
    queues.pass_time(0.1)
    assert queues.manager().has_none_for(ClaimSelection())
    in_an_hour(queues, monkeypatch)
    assert not queues.manager().has_none_for(ClaimSelection())


def test_a_message_that_is_to_go_back_is_found(queues: Queues) -> None:
    queues.enqueue(b"held")
    (message,) = queues.claim()
    manager = queues.manager()
    manager.give_back_later([(*message.locator, message.epoch, message.scheduled)], None)  # type: ignore[list-item]
    assert not manager.has_none_for(ClaimSelection())


def test_memory_is_not_asked_if_it_is_time_to_poll(queues: Queues) -> None:
    queues.enqueue(b"later", after=HOUR)
    manager = queues.manager()
    manager.poll_at = queues.range_queues.monotonic() + 1.0
    assert manager.has_none_for(ClaimSelection())
    manager.poll_at = queues.range_queues.monotonic()
    assert not manager.has_none_for(ClaimSelection())


def test_memory_is_not_asked_if_it_has_not_all_messages(queues: Queues) -> None:
    queues.update(cache_size=4)
    for number in range(20):
        queues.enqueue(b"%d" % number)
    queues.enqueue(b"mail", kind="mail")
    assert not queues.manager().has_none_for(OF_KIND)
    assert queues.payloads(selection=OF_KIND) == [b"mail"]


def test_memory_is_not_asked_about_a_queue_in_trouble(queues: Queues) -> None:
    manager = queues.manager()
    assert manager.has_none_for(ClaimSelection())
    manager.trouble.failed(ValueError("a fault"), queues.range_queues.monotonic())
    assert not manager.has_none_for(ClaimSelection())
