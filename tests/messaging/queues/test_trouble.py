"""A queue that fails is seen, and keeps no other one from what is due."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import StoreCorrupted
from postroom.kv.clock import from_seconds
from postroom.messaging.queues import firing
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.leases import LeasedHolding
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import Entry
from postroom.messaging.queues.settling import Settling
from postroom.messaging.queues.timing import SET_ASIDE_SECONDS, SOUND_SECONDS
from tests.messaging.queues.harness import Queues


class Broken(Queues):
    """One queue has a message that cannot be read, and somebody waits for it."""

    is_broken = True

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.create(ack_wait=1000.0)
        self.create("other")
        sound = firing.leased_message

        def leased(ctx: Any, manager: Manager, entry: Entry, *when: int) -> StoredQueueMessage:
            if self.is_broken and manager.name == "emails":
                raise StoreCorrupted("its body is gone")
            return sound(ctx, manager, entry, *when)

        patched.setattr(firing, "leased_message", leased)
        self.enqueue(b"1", id=b"broken")
        self.start(self.claim_request(wait=True))
        self.pass_time(2)


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Broken:
    return Broken(monkeypatch)


def test_the_trouble_of_a_queue_is_shown_by_the_queue_and_by_the_status(queues: Broken) -> None:
    stats = queues.stats()
    assert stats.failures > 0
    assert "its body is gone" in stats.trouble
    assert queues.stats("other").trouble == ""
    service = next(s for s in queues.store.node.root.services.status() if s.name == "queues")
    assert service.running
    assert service.failures >= stats.failures
    assert service.trouble.startswith("queue 'emails': StoreCorrupted")


def test_a_past_trouble_of_a_queue_is_not_shown(queues: Broken) -> None:
    queues.is_broken = False
    queues.pass_time(SOUND_SECONDS + 2)
    assert (queues.stats().leased, queues.stats().failures, queues.stats().trouble) == (1, 0, "")
    assert not any(each.failures for each in queues.store.node.root.services.status())


def test_a_queue_that_fails_for_a_minute_does_not_make_others_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lease ends, and that fails. A service that began again would pause for longer each time."""
    queues = Queues()
    queues.create(ack_wait=1.0)
    queues.create("other", ack_wait=1000.0)
    queues.enqueue(b"1")
    queues.claim()

    def expire(*_: object) -> None:
        raise StoreCorrupted("it does not end")

    monkeypatch.setattr(Settling, "expire", expire)
    queues.pass_time(60)
    assert queues.stats().failures > 30
    running = queues.start(queues.claim_request(name="other", wait=True))
    queues.enqueue(b"due", name="other", after=1.5)
    due = queues.now() + from_seconds(1.5)
    queues.pass_time(3)
    (message,) = running.result().messages
    assert message.leased_until - due < from_seconds(1000.1)


def test_a_fired_message_is_delivered_though_an_earlier_failure_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = Queues()
    queues.create()
    running = queues.start(queues.claim_request(wait=True))
    steps, sound = queues.range_queues.steps, Manager.leases_added

    def hear(manager: Manager, holding: LeasedHolding, _: object) -> None:
        steps._advancing = manager
        steps.failed(StoreCorrupted("it does not end"))
        sound(manager, holding, _)

    monkeypatch.setattr(Manager, "leases_added", hear)
    queues.enqueue(b"1")
    queues.pass_time(1)
    assert [message.payload for message in running.result().messages] == [b"1"]


def test_a_queue_that_cannot_take_up_what_a_proposal_did_is_set_aside_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = Queues()
    queues.create()
    queues.create("other")
    sound, calls = Manager.speculate, []

    def speculate(manager: Manager, *note: Any) -> None:
        if manager.name == "emails":
            calls.append(1)
            raise KeyError("memory is wrong")
        sound(manager, *note)

    monkeypatch.setattr(Manager, "speculate", speculate)
    waiting = queues.start(queues.claim_request(10, wait=True))
    for number in range(10):
        other = queues.start(queues.claim_request(name="other", wait=True))
        queues.commit(queues.message(b"%d" % number), queues.message(b"%d" % number, "other"))
        assert [each.payload for each in other.result().messages] == [b"%d" % number]
    assert len(calls) == 1, "a queue that is set aside is asked again at once"
    stats = queues.stats()
    assert (stats.failures, "memory is wrong" in stats.trouble) == (1, True)
    queues.pass_time(SET_ASIDE_SECONDS + 1)
    assert len(waiting.result().messages) == 10, "nothing is lost"
    assert queues.stats().failures == 1


def test_repeated_firings_are_counted() -> None:
    queues = Queues()
    queues.create(ack_wait=5.0)
    queues.enqueue(b"1", b"2")
    first, _ = queues.claim(2)
    queues.reject(first, delay=0)
    assert queues.stats().retried == 0
    (again,) = queues.claim()
    queues.acknowledge(again)
    queues.pass_time(20)
    queues.claim()
    stats = queues.stats()
    assert (stats.fired, stats.retried, stats.rejected, stats.expired) == (4, 2, 1, 1)


def test_the_age_of_the_oldest_is_told() -> None:
    queues = Queues()
    queues.create()
    assert queues.stats().oldest_age is None
    queues.enqueue(b"1")
    queues.pass_time(40)
    age = queues.stats().oldest_age
    assert age is not None
    assert 39 <= age <= 41
