"""Evaluations that come to nothing, and queues that are damaged: nothing is lost, others go on."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.messaging.queues import firing, range_steps
from postroom.messaging.queues.records import PAYLOAD_KEPT_BYTES
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges import proposer
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.requests import Get, Put
from tests.messaging.queues.harness import Queues


def test_messages_of_a_proposal_that_was_too_large_are_fired_by_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = Queues()
    queues.create(cache_size=50)
    waiting = [
        queues.start(queues.claim_request(3, wait=True, consumer=queues.consumer(number)))
        for number in range(20)
    ]
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", 8000)
    driver = queues.store.driver
    sent = [
        driver.send(queues.transaction(*[queues.message(bytes(500)) for _ in range(2)]))
        for _ in range(30)
    ]

    async def all_sent() -> None:
        for each in sent:
            await each

    driver.run(all_sent())
    got = [message for each in waiting if each.done for message in each.result().messages]
    while messages := queues.claim(9, wait=False):
        got += messages
    assert len(got) == len({message.id for message in got}) == queues.counts()["enqueued"]
    monkeypatch.undo()
    assert queues.acknowledge(*got) == len(got)
    assert queues.counts()["fired"] == len(got)


def test_a_firing_that_fails_on_the_way_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = Queues()
    queues.create()
    waiting = queues.start(queues.claim_request(9, wait=True))
    original, calls = firing.Firing._answer_later, []

    def fail_once(self: firing.Firing, more: bool) -> None:
        calls.append(more)
        if len(calls) == 1:
            raise RuntimeError("on purpose")
        original(self, more)

    monkeypatch.setattr(firing.Firing, "_answer_later", fail_once)
    queues.enqueue(b"1", b"2", b"3")
    assert not waiting.done
    queues.pass_time(2)
    assert [message.payload for message in waiting.result().messages] == [b"1", b"2", b"3"]
    assert queues.counts() == {"enqueued": 3, "leased": 3, "fired": 3}


def test_a_queue_that_is_damaged_is_set_aside_and_the_others_go_on() -> None:
    queues = Queues()
    queues.create()
    queues.create("other")
    queues.enqueue(bytes(PAYLOAD_KEPT_BYTES + 1), id=b"broken")
    key = queues.manager().layout.body_key(b"broken", "", b"broken")
    body = queues.store.engine.get(key)
    assert body is not None
    queues.store.engine.inner.write({key: None}, sync=True)
    queues.store.restart()
    broken = queues.start(queues.claim_request(wait=True))
    before = queues.store.engine.writes
    queues.pass_time(20)
    assert not broken.done
    assert queues.store.engine.writes < before + 60
    queues.enqueue(b"sound", name="other")
    assert queues.payloads(name="other", wait=True) == [b"sound"]
    queues.store.engine.inner.write({key: body}, sync=True)
    queues.store.restart()
    assert queues.payloads() == [bytes(PAYLOAD_KEPT_BYTES + 1)]


def test_endless_rejections_grow_neither_log_nor_disk_more_than_is_counted() -> None:
    queues = Queues()
    queues.create(ack_wait=5.0)
    queues.enqueue(b"poison")
    state = queues.store.node.root.replica.state
    stored, entries = len(queues.stored()), []
    for _ in range(12):
        before, fired = state.applied_index(), queues.counts().get("fired", 0)
        (message,) = queues.claim(wait=True)
        queues.reject(message)
        entries.append(state.applied_index() - before)
        assert queues.counts()["fired"] == fired + 1
        assert len(queues.stored()) <= stored + 1
    assert max(entries) <= 6 + 2 * 3600 / 5  # a write for each attempt, due date and garbage list


def test_waiting_consumers_of_many_queues_are_served_by_several_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = Queues()
    names = [f"queue {number}" for number in range(8)]
    for name in names:
        queues.create(name, batch_size=100)
        queues.enqueue(*[b""] * 50, name=name, key=b"k" * 200)
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", 60_000)
    monkeypatch.setattr(range_steps, "UPKEEP_BYTES", 20_000)
    monkeypatch.setattr(firing, "UPKEEP_BYTES", 20_000)
    claims: list[Any] = []

    async def claim(name: str) -> None:
        claims.append(await queues.store.driver.send(queues.claim_request(100, name=name)))

    for name in names:
        queues.store.driver.later(claim(name))
    queues.pass_time(1)
    assert len(claims) == 8
    assert all(claimed.messages for claimed in claims)


def test_a_waiting_consumer_is_served_after_a_proposal_was_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its fired messages wait yet, and nothing else happens in its queue."""
    queues = Queues()
    queues.create(batch_size=100)
    queues.enqueue(*[b""] * 30, key=b"k" * 200)
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", 20_000)
    driver, messages = queues.store.driver, []

    async def claim() -> None:
        messages.extend((await driver.send(queues.claim_request(100))).messages)

    async def put(key: bytes) -> None:
        await driver.send(Get(key))  # then the service has something to fire
        await driver.send(queues.transaction(Put(key, bytes(8000))))

    driver.later(claim())
    driver.later(put(b"a"))
    driver.later(put(b"b"))
    queues.pass_time(1)
    assert len(messages) == 30


def test_messages_fired_by_a_proposal_that_replaces_the_state_go_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The messages are neither lost, nor late, nor counted as tried.

    Memory begins afresh once the proposal is applied, before the waiting consumer is answered: the
    messages are leased to a consumer that was not told.
    """
    queues = Queues()
    queues.create(ack_wait=1000.0)
    waiting = queues.start(queues.claim_request(2, wait=True))
    replica = queues.store.node.root.replica
    replica.usual_way = None  # it does not ask the evaluator that is replaced
    sound = replica.registry.writes[EnqueueInQueue]

    def enqueue(ctx: Evaluation, request: EnqueueInQueue) -> object:
        if request.payload == b"2":
            ctx.after.append(replica.begin_anew)
        return sound(ctx, request)

    monkeypatch.setitem(replica.registry.writes, EnqueueInQueue, enqueue)
    queues.enqueue(b"1", b"2")
    queues.pass_time(1)
    got = waiting.result().messages
    assert [(message.payload, message.epoch) for message in got] == [(b"1", 0), (b"2", 0)]
    assert queues.acknowledge(*got) == 2
    assert queues.counts() == {"enqueued": 2, "fired": 4, "acknowledged": 2, "done": 2}
