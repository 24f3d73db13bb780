"""The messages that a transaction sends to queues with its commit."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

import postroom
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.arguments import ATTEMPTS_PER_REQUEST
from postroom.client.codec import resolve
from postroom.client.queues.messages import QueueMessage
from postroom.messaging import due
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    CancelMessages,
    EnqueueInQueue,
    RejectMessages,
    Reschedule,
    WhenDone,
)
from postroom.ranges.requests import Committed, Put
from tests.client.queues.fakes import NOW, FakeSender, stored


@pytest.fixture
def sender() -> FakeSender:
    return FakeSender()


@pytest.fixture
def db(sender: FakeSender) -> blocking.CoreDatabase:
    async def no_status(_: Any) -> Any:
        raise NotImplementedError

    async def never() -> Any:
        raise NotImplementedError

    return blocking.CoreDatabase(
        sender, asynchronous.CoreDatabase(sender, resolve("msgpack"), no_status, never)
    )


def message(name: str, **more: Any) -> QueueMessage:
    return QueueMessage("q", stored(name, **more), resolve(None))


def test_all_arguments_of_enqueue(sender: FakeSender, db: blocking.CoreDatabase) -> None:
    with db.begin() as tx:
        tx.put(b"k", 1)
        handle = tx.enqueue(
            "q", {"a": 1}, id="i", kind="mail", key=b"user/1", priority=-3,
            deliver_at=datetime.timedelta(seconds=60), group="g", headers={"h": 1},
        )  # fmt: skip
        assert handle.id == "i"
        assert handle.inserted is None
    put, enqueue = sender.asked[0]
    assert type(put) is Put
    assert enqueue == EnqueueInQueue(
        "q", b"user/1", "mail", b"i", b"\x81\xa1a\x01", {"h": 1}, -3, due.after(60_000), "g"
    )
    assert handle.inserted is True
    assert handle.replaced is False


def test_an_id_is_made_up_and_is_the_key(sender: FakeSender, db: blocking.CoreDatabase) -> None:
    with db.begin() as tx:
        one, two = tx.enqueue("q", 1), tx.enqueue("q", 2)
    first, second = sender.asked[0]
    assert first.is_unique
    assert second.is_unique
    assert (first.key, second.key) == (first.id, second.id)
    assert (one.id, two.id) == (first.id.decode(), second.id.decode())
    assert one.id != two.id


def test_handles_tell_what_became_of_them(sender: FakeSender, db: blocking.CoreDatabase) -> None:
    sender.answers.append(Committed(NOW, [None, None, "ignored", 1, "replaced"]))
    with db.begin() as tx:
        tx.put(b"k", 1)
        new, old = tx.enqueue("q", 1, id="a"), tx.enqueue("q", 1, id="b")
        tx.acknowledge("q", "c")
        changed = tx.enqueue("q", 1, id="d")
    assert (new.inserted, old.inserted, changed.inserted) == (True, False, False)
    assert (new.replaced, old.replaced, changed.replaced) == (False, False, True)


def test_a_commit_without_answers_has_inserted_everything(
    sender: FakeSender, db: blocking.CoreDatabase
) -> None:
    sender.answers.append(Committed(NOW, []))
    with db.begin() as tx:
        handle = tx.enqueue("q", 1)
    assert handle.inserted is True


def test_a_message_names_its_attempt_and_an_id_the_message(
    sender: FakeSender, db: blocking.CoreDatabase
) -> None:
    held, also_held = message("m", epoch=3), message("n", epoch=3)
    with db.begin() as tx:
        tx.acknowledge("q", held)
        tx.reject("q", [also_held, "i", b"\xff"], 5, reason="because")
        tx.cancel("q", "i", kind="k")
        tx.reschedule("q", ["i"], epoch=0)
    attempt, also = Attempt(b"m", "", b"m", 3), Attempt(b"n", "", b"n", 3)
    by_id, other = Attempt(b"", "", b"i", by_id=True), Attempt(b"", "", b"\xff", by_id=True)
    assert sender.asked[0] == [
        Acknowledge("q", [attempt]),
        RejectMessages("q", [also, by_id, other], 5.0, False, "because"),
        CancelMessages("q", [Attempt(b"", "k", b"i", by_id=True, of_kind=True)]),
        Reschedule("q", [by_id], 0, 0),
    ]


def test_long_lists_are_cut(sender: FakeSender, db: blocking.CoreDatabase) -> None:
    ids = [str(each) for each in range(2 * ATTEMPTS_PER_REQUEST + 1)]
    with db.begin() as tx:
        tx.acknowledge("q", ids)
    sizes = [len(each.attempts) for each in sender.asked[0]]
    assert sizes == [ATTEMPTS_PER_REQUEST, ATTEMPTS_PER_REQUEST, 1]
    sender.asked.clear()
    sender.answers.extend(Committed(NOW, [each]) for each in sizes)
    assert db.queue("q").replay(ids) == len(ids)
    assert len(sender.asked) == 3


def test_gathered_messages_count_towards_the_limit_of_the_transaction(
    db: blocking.CoreDatabase,
) -> None:
    tx = db.begin()
    for _ in range(16):
        tx.enqueue("q", b"x" * 1_000_000)
    with pytest.raises(postroom.TransactionTooLarge):
        tx.enqueue("q", b"x" * 1_000_000)


def test_a_follower_can_be_given_as_an_enqueue_or_a_mapping(
    sender: FakeSender, db: blocking.CoreDatabase
) -> None:
    with db.begin() as tx:
        tx.when_done("q", "g", postroom.Enqueue("q", 1, kind="sum", id="all"))
        tx.when_done("q", "g", {"queue": "q", "payload": 1, "kind": "sum", "id": "all"})
    asked, again = sender.asked[0]
    assert asked == again == WhenDone("q", "g", EnqueueInQueue("q", b"all", "sum", b"all", b"\x01"))


def test_the_commit_acknowledges_what_was_claimed_and_not_settled(
    sender: FakeSender, db: blocking.CoreDatabase
) -> None:
    sender.answers.append(Claimed([stored("a"), stored("b"), stored("c")]))
    with db.begin() as tx:
        a, b, c = tx.claim("q", 3)
        tx.reject("q", b, 1.0)
        tx.cancel("q", "c")
    claim, writes = sender.asked[0], sender.asked[1]
    assert type(claim) is ClaimQueue
    assert claim.transaction_id == tx.id
    assert [type(each) for each in writes] == [RejectMessages, CancelMessages, Acknowledge]
    assert writes[2].attempts == [a.attempt()]
    with pytest.raises(postroom.Invalid, match="in a transaction"):
        c.acknowledge()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"kind": b"x"}, TypeError),
        ({"kind": "x" * 257}, postroom.Invalid),
        ({"id": ""}, postroom.Invalid),
        ({"id": 1}, TypeError),
        ({"id": b"x" * 513}, postroom.Invalid),
        ({"priority": 128}, ValueError),
        ({"priority": True}, TypeError),
        ({"group": 1}, TypeError),
        ({"key": "text"}, TypeError),
        ({"headers": {"a": object()}}, TypeError),
        ({"deliver_at": "tomorrow"}, TypeError),
        ({"deliver_at": datetime.datetime(2030, 1, 1)}, TypeError),  # noqa: DTZ001
    ],
)
def test_bad_arguments_of_enqueue(
    db: blocking.CoreDatabase, arguments: dict[str, Any], error: type[Exception]
) -> None:
    tx = db.begin()
    with pytest.raises(error):
        tx.enqueue("q", 1, **arguments)
    with pytest.raises(TypeError):
        tx.enqueue(b"q", 1)  # type: ignore[arg-type]
    with pytest.raises(postroom.Invalid):
        tx.enqueue("", 1)


def test_settings_are_named_in_errors(sender: FakeSender, db: blocking.CoreDatabase) -> None:
    queue = db.create_queue("q", max_rate=5, ack_wait=1)
    assert sender.asked[0] == [CreateQueue("q", QueueSettings(max_rate=5, ack_wait=1))]
    with pytest.raises(TypeError, match="ack_wait"):
        db.create_queue("q", ack_wait="long")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_speed"):
        queue.update(max_speed=1)
    with pytest.raises(TypeError, match="batch_size"):
        queue.update(batch_size=1.5)
    assert len(sender.asked) == 1
