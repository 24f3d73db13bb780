"""Queues are made, changed and dropped; what is wrong with their settings is told by name."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import Invalid
from postroom.messaging.queues import range_steps
from postroom.messaging.queues.definition_requests import CreateQueue, DropQueue, QueueSettings
from postroom.ranges import proposer
from tests.messaging.queues.harness import Q, Queues


def test_a_queue_is_found_by_its_name_also_by_the_next_leaseholder() -> None:
    queues = Queues()
    queues.create("b")
    queues.create("a")
    assert queues.names() == ["a", "b"]
    queues.store.restart()
    assert queues.names() == ["a", "b"]


def test_a_queue_is_made_and_used_in_one_transaction() -> None:
    queues = Queues()
    queues.commit(CreateQueue(Q, QueueSettings()), queues.message(b"first"))
    assert queues.payloads() == [b"first"]


def test_several_queues_are_made_and_used_in_one_transaction() -> None:
    queues = Queues()
    names = ["first", "second", "third"]
    queues.commit(
        *(CreateQueue(name, QueueSettings()) for name in names),
        *(queues.message(name.encode(), name) for name in names),
    )
    assert [queues.payloads(name=name) for name in names] == [[b"first"], [b"second"], [b"third"]]
    queues.store.restart()
    assert [queues.stats(name).leased for name in names] == [1, 1, 1]


def test_a_queue_made_in_a_failed_transaction_does_not_exist() -> None:
    queues = Queues()
    with pytest.raises(Invalid, match="no queue 'other'"):
        queues.commit(CreateQueue(Q, QueueSettings()), queues.message(b"x", "other"))
    assert queues.names() == []
    queues.create()
    queues.enqueue(b"y")
    assert queues.payloads() == [b"y"]


def test_making_it_again_alike_is_fine_and_otherwise_is_refused() -> None:
    queues = Queues()
    queues.create(ack_wait=10.0)
    queues.create(ack_wait=10.0)
    with pytest.raises(Invalid, match=r"ack_wait is 10\.0, not 20\.0"):
        queues.create(ack_wait=20.0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ack_wait": 0}, "ack_wait is a number from 0.05, up to 31,622,400, not 0"),
        ({"ack_wait": float("nan")}, "ack_wait is"),
        ({"ack_wait": True}, "ack_wait is"),
        ({"min_backoff": -1}, "min_backoff is"),
        ({"min_backoff": 9, "max_backoff": 3}, r"min_backoff \(9\) is above max_backoff \(3\)"),
        ({"max_attempts": 0}, "max_attempts is"),
        ({"max_attempts": 1.5}, "max_attempts is"),
        ({"purge_after": -1}, "purge_after is"),
        ({"archive": 1}, "archive is True or False"),
        ({"batch_size": 0}, "batch_size is"),
        ({"cache_size": 0}, "cache_size is"),
        ({"poller_interval": 0}, "poller_interval is"),
        ({"max_rate": 0}, "max_rate is"),
        ({"max_concurrency": 0}, "max_concurrency is"),
        ({"group_max_rate": -1}, "group_max_rate is"),
        ({"group_max_concurrency": 0}, "group_max_concurrency is"),
        ({"order": "random"}, "order is one of 'none', 'group'"),
        ({"on_duplicate": "maybe"}, "on_duplicate is one of"),
        ({"dead_letter_queue": Q}, "is another queue"),
        ({"dead_letter_queue": "nowhere"}, "'nowhere' is not there"),
        ({"dead_letter_queue": 7}, "dead_letter_queue is"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_happens(settings: dict[str, Any], told: str) -> None:
    queues = Queues()
    with pytest.raises(Invalid, match=told):
        queues.create(**settings)
    assert queues.names() == []
    queues.create()
    with pytest.raises(Invalid, match=told):
        queues.update(**settings)
    assert queues.manager().definition.settings == QueueSettings()


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(Invalid, match=r"ack_wait is .*; order is"):
        Queues().create(ack_wait=0, order="random")


def test_a_setting_that_there_is_not_is_named() -> None:
    queues = Queues()
    queues.create()
    with pytest.raises(Invalid, match="no setting colour; settings are ack_wait"):
        queues.update(colour="red")


def test_a_change_takes_effect_at_once_and_lasts() -> None:
    queues = Queues()
    queues.create()
    queues.update(batch_size=2)
    queues.enqueue(b"1", b"2", b"3")
    assert queues.payloads() == [b"1", b"2"]
    queues.store.restart()
    assert queues.manager().definition.settings.batch_size == 2


def test_the_order_changes_only_while_nothing_is_waiting() -> None:
    queues = Queues()
    queues.create()
    queues.update(order="group")
    queues.update(order="none")
    queues.enqueue(b"1")
    with pytest.raises(Invalid, match="order can change only while"):
        queues.update(order="group")


def test_a_paused_queue_fires_nothing_until_it_is_resumed() -> None:
    queues = Queues()
    queues.create()
    queues.update(paused=True)
    queues.enqueue(b"1")
    waiting = queues.start(queues.claim_request(wait=True))
    queues.pass_time(60)
    assert not waiting.done
    assert queues.claim(wait=False) == []
    queues.update(paused=False)
    assert [message.payload for message in waiting.result().messages] == [b"1"]


def test_dropping_a_queue_ends_its_claims_with_the_reason() -> None:
    queues = Queues()
    queues.create()
    waiting = queues.start(queues.claim_request(wait=True))
    queues.drop()
    with pytest.raises(Invalid, match="was dropped"):
        waiting.result()
    with pytest.raises(Invalid, match="no queue"):
        queues.enqueue(b"1")
    with pytest.raises(Invalid, match="no queue"):
        queues.claim()


def test_a_dropped_queue_leaves_nothing_and_a_new_one_finds_nothing() -> None:
    queues = Queues()
    queues.create()
    queues.create("other")
    queues.enqueue(*[b"%d" % number for number in range(2000)])
    queues.enqueue(b"keyed", id=b"1", key=b"elsewhere")
    queues.enqueue(b"later", after=100)
    held = queues.claim(3)
    queues.acknowledge(held[0])
    queues.reject(held[1], dead=True)
    queues.drop()
    queues.create()
    queues.pass_time(1)
    assert queues.stored() == {}
    assert queues.list() == []
    assert queues.counts() == {}


def test_many_large_queues_are_dropped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One proposal deletes no more than one command has room for."""
    queues = Queues()
    names = [f"queue {number}" for number in range(8)]
    for name in names:
        queues.create(name)
        queues.enqueue(*[b""] * 100, name=name, key=b"k" * 100)
    queues.create()
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", 100_000)
    monkeypatch.setattr(range_steps, "UPKEEP_BYTES", 30_000)
    queues.commit(*map(DropQueue, names))
    queues.pass_time(1)
    assert not queues.range_queues._dropped
    queues.enqueue(b"1")
    assert queues.payloads() == [b"1"]
    queues.drop()
    queues.pass_time(1)
    assert queues.stored() == {}


def test_messages_with_long_keys_are_purged_in_as_many_proposals_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = Queues()
    queues.create(purge_after=10.0, batch_size=100)
    for _ in range(12):
        queues.enqueue(*[b""] * 20, key=b"k" * 200)
        queues.acknowledge(*queues.claim(20))
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", 100_000)
    monkeypatch.setattr(range_steps, "UPKEEP_BYTES", 30_000)
    queues.pass_time(200)
    assert queues.stats().purged == 240
    assert queues.stored() == {}


def test_a_dropped_queue_is_emptied_by_the_next_leaseholder() -> None:
    queues = Queues()
    queues.create()
    queues.enqueue(*[b"%d" % number for number in range(100)])
    queues.store.restart(services=False)
    queues.start(queues.transaction(DropQueue(Q)))
    queues.store.restart()
    queues.pass_time(1)
    assert queues.stored() == {}
    assert not queues.range_queues._dropped


def test_a_message_scheduled_in_the_transaction_that_makes_its_queue_is_due_in_time() -> None:
    """It was found by the next look at the queues, seconds later."""
    queues = Queues()
    queues.store.driver.advance(60.0)
    queues.commit(CreateQueue(Q, QueueSettings()), queues.message(b"payload", after=0.02))
    began = queues.store.clock.seconds
    assert queues.payloads(wait=True) == [b"payload"]
    assert round(queues.store.clock.seconds - began, 6) == 0.02
