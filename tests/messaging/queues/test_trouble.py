"""A queue that fails is seen, and keeps no other one from what is due."""

from __future__ import annotations

import pytest

from postroom.messaging.queues.trouble import SOUND_SECONDS
from tests.messaging.queues.harness import Queues


@pytest.fixture
def queues() -> Queues:
    """One queue has a message whose body is gone, and somebody waits for it."""
    queues = Queues()
    queues.create(ack_wait=1000.0)
    queues.create("other")
    queues.enqueue(b"1", id=b"broken")
    key = queues.manager().layout.body_key(b"broken", "", b"broken")
    queues.body = queues.store.engine.get(key)  # type: ignore[attr-defined]
    queues.key = key  # type: ignore[attr-defined]
    queues.store.engine.inner.write({key: None}, sync=True)
    queues.store.restart()
    queues.start(queues.claim_request(wait=True))
    queues.pass_time(2)
    return queues


def test_it_is_shown_by_the_queue_and_by_the_status(queues: Queues) -> None:
    stats = queues.stats()
    assert stats.failures > 0
    assert "its body is gone" in stats.trouble
    assert queues.stats("other").trouble == ""
    service = next(s for s in queues.store.node.services.status() if s.name == "queues")
    assert service.running
    assert service.failures >= stats.failures
    assert service.trouble.startswith("queue 'emails': StoreCorrupted")


def test_it_is_not_shown_any_more_when_it_is_sound(queues: Queues) -> None:
    queues.store.engine.inner.write({queues.key: queues.body}, sync=True)  # type: ignore
    queues.pass_time(SOUND_SECONDS + 2)
    assert (queues.stats().leased, queues.stats().failures, queues.stats().trouble) == (1, 0, "")
    assert not any(each.failures for each in queues.store.node.services.status())


def test_what_fails_for_a_minute_does_not_make_others_late(queues: Queues) -> None:
    """Each failure would make the service pause for longer if it had to begin again."""
    queues.pass_time(60)
    running = queues.start(queues.claim_request(name="other", wait=True))
    queues.enqueue(b"due", name="other", after=1.5)
    due = queues.now() + (1500 << 16)
    queues.pass_time(3)
    (message,) = running.result().messages
    assert message.leased_until - due < (30_000 + 100) << 16


def test_what_was_fired_again_is_counted() -> None:
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
