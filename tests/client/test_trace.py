"""The time lines of messages in each of their states, embedded and over several ranges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import postroom
from postroom.client.history import Commits, message_id_in
from postroom.limits import QUEUE_ID_BYTES_MAX, TRACED_QUEUES_MAX
from postroom.messaging.history_requests import FoundCommit
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from tests.client.stores import Store
from tests.remote.servers import Server

LONG_AGO = 4 * RECORD_SECONDS


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = Store(remote=request.param)
    yield store
    store.db.close()


def sent(store: Store, **options: Any) -> tuple[bytes, bytes]:
    """Send a message; return the timestamp of its commit (8 bytes), and its transaction."""
    with store.db.begin() as tx:
        tx.put(b"order", b"paid")
        tx.enqueue_message(b"inbox", b"payload", **options)
        identity = tx.id
    assert tx.commit_timestamp is not None
    return tx.commit_timestamp.to_bytes(8, "big"), identity


def only(store: Store, id_: str | bytes, **options: Any) -> postroom.MessageTrace:
    (found,) = store.db.trace(id_, **options)
    return found


def told(found: postroom.MessageTrace) -> list[str]:
    return [each.what for each in found.events]


def test_a_message_in_its_inbox(store: Store) -> None:
    stamp, identity = sent(store)
    (message,) = store.db.peek(b"inbox")
    found = only(store, message.id)
    assert (found.state, found.key, found.queue) == ("inbox", b"inbox", "")
    assert told(found) == ["sent", "delivered"]
    assert found.events[0].at == int.from_bytes(stamp, "big")
    assert found.events[0].transaction_id == identity
    assert found.events[1].at == message.delivered_at
    assert found.unknown == []


def test_a_scheduled_message(store: Store) -> None:
    _, identity = sent(store, deliver_at=100)
    (waiting,) = store.db.scheduled()
    found = only(store, waiting.id)
    assert (found.state, told(found)) == ("scheduled", ["sent", "due"])
    assert found.events[0].transaction_id == identity
    assert found.events[1].at == waiting.due
    assert only(store, found.id) == found


def test_a_scheduled_message_tells_its_transaction_after_the_record_is_collected(
    store: Store,
) -> None:
    _, identity = sent(store, deliver_at=10 * LONG_AGO)
    store.advance(LONG_AGO)
    (waiting,) = store.db.scheduled()
    found = only(store, waiting.id)
    assert found.events[0].transaction_id == identity
    assert found.unknown == []


def test_a_scheduled_update(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_update(postroom.Put(b"key", b"value"), execute_at=100)
    (waiting,) = store.db.scheduled()
    found = only(store, waiting.id)
    assert (found.state, found.key, found.is_update) == ("scheduled", b"key", True)


def test_a_claimed_message(store: Store) -> None:
    sent(store)
    with store.db.begin() as tx:
        (message,) = tx.reap_queue(b"inbox")
        found = only(store, message.id)
        assert (found.state, told(found)) == ("claimed", ["sent", "delivered", "claimed"])
        assert found.events[-1].transaction_id == tx.id
        tx.rollback()
    assert only(store, message.id).state == "inbox"


def test_a_consumed_message_tells_the_reaper_while_its_record_is_kept(store: Store) -> None:
    sent(store)
    with store.db.begin() as tx:
        (message,) = tx.reap_queue(b"inbox")
    found = only(store, message.id)
    assert (found.state, told(found)) == ("consumed", ["sent", "delivered", "consumed"])
    assert found.events[-1].at == tx.commit_timestamp
    assert found.events[-1].transaction_id == tx.id
    assert found.unknown == []
    assert only(store, message.id, key=b"inbox") == found
    store.advance(LONG_AGO)
    assert store.db.trace(message.id) == []


def test_a_consumed_message_is_found_by_its_key_while_its_record_is_kept(store: Store) -> None:
    sent(store)
    with store.db.snapshot():  # keeps everything
        with store.db.begin() as tx:
            (message,) = tx.reap_queue(b"inbox")
        store.advance(40.0)
        for number in range(5):
            store.db.put(b"other", b"%d" % number)
        assert only(store, message.id, key=b"inbox").state == "consumed"


def test_a_postponed_message_tells_its_attempts_and_reasons(store: Store) -> None:
    sent(store)
    for reason in ("first", "second"):
        with store.db.begin() as tx:
            (message,) = tx.reap_queue(b"inbox")
            tx.postpone(message, 5, reason)
        last = tx.commit_timestamp
        store.advance(4.0 if reason == "second" else 6.0)
    found = only(store, message.id)
    assert found.state == "postponed"
    assert told(found) == [
        "sent", "delivered", "attempt 1 failed", "attempt 2 failed", "due again",
    ]  # fmt: skip
    assert [each.detail for each in found.events[2:4]] == ["first", "second"]
    assert found.events[3].at == last
    store.advance(6.0)
    found = only(store, message.id)
    assert (found.state, told(found)[-1]) == ("inbox", "delivered again")
    store.advance(LONG_AGO)
    found = only(store, message.id)
    assert [each.detail for each in found.events if "attempt" in each.what] == ["second"]
    assert any("1 earlier attempt" in each for each in found.unknown)
    assert any("that sent it" in each for each in found.unknown)


def test_a_dead_message_tells_its_reason(store: Store) -> None:
    sent(store)
    with store.db.begin() as tx:
        (message,) = tx.reap_queue(b"inbox")
        tx.bury(message, "no such order")
    (letter,) = store.db.dead_letters()
    found = only(store, letter.id)
    assert (found.state, found.id) == ("dead", message.id)
    assert told(found)[-1] == "dead"
    assert found.events[-1].detail == "no such order"
    assert found.events[-1].at == tx.commit_timestamp


def test_a_dead_update_tells_its_reason(store: Store) -> None:
    store.db.put(b"key", b"text")
    with store.db.begin() as tx:
        tx.enqueue_update(postroom.Increment(b"key"))
    store.db.drain()
    (letter,) = store.db.dead_letters()
    found = only(store, letter.id)
    assert (found.state, found.is_update) == ("dead", True)
    assert found.events[0].transaction_id == tx.id
    assert "WrongType" in found.events[-1].detail


def test_a_cancelled_message_is_known_to_have_been_sent(store: Store) -> None:
    _, identity = sent(store, deliver_at=100)
    (waiting,) = store.db.scheduled()
    store.db.cancel([waiting.id])
    found = only(store, waiting.id)
    assert (found.state, told(found)) == ("unknown", ["sent"])
    assert found.events[0].transaction_id == identity
    assert "its present place" in found.unknown[0]


def enqueued(store: Store, **options: Any) -> str:
    store.db.create_queue("mail", purge_after=1000)
    with store.db.begin() as tx:
        handle = tx.enqueue("mail", b"payload", **options)
    assert isinstance(handle.id, str)
    return handle.id


def test_messages_of_queues_in_each_state(store: Store) -> None:
    id_, queue = enqueued(store, deliver_at=50), store.db.queue("mail")
    found = only(store, id_)
    assert (found.state, found.queue) == ("scheduled", "mail")
    assert told(found) == ["enqueued", "due"]
    store.advance(60.0)
    assert only(store, id_).state == "ready"
    (message,) = queue.claim()
    found = only(store, id_)
    assert (found.state, told(found)) == ("leased", ["enqueued", "due", "claimed"])
    assert found.events[-1].at == message.fired_at
    message.reject(0, reason="no answer")
    (message,) = queue.claim()
    found = only(store, id_)
    assert told(found) == ["enqueued", "due", "1 attempt failed", "claimed"]
    assert found.events[2].detail == "no answer"
    with store.db.begin() as tx:
        tx.acknowledge("mail", message)
    found = only(store, id_, queue="mail")
    assert (found.state, told(found)[-1]) == ("done", "acknowledged")
    assert found.events[-1].transaction_id == tx.id
    assert found.events[-1].at == tx.commit_timestamp


def test_a_dead_and_a_cancelled_message_of_a_queue(store: Store) -> None:
    id_, queue = enqueued(store), store.db.queue("mail")
    (message,) = queue.claim()
    message.reject(dead=True, reason="broken")
    found = only(store, id_)
    assert (found.state, found.events[-1].detail) == ("dead", "broken")
    other = enqueued(store)
    queue.cancel([other])
    found = only(store, other)
    assert (found.state, told(found)[-1]) == ("cancelled", "cancelled")


def test_an_archived_message_of_a_queue(store: Store) -> None:
    store.db.create_queue("kept", archive=True)
    with store.db.begin() as tx:
        tx.enqueue("kept", b"payload", id="text id")
    (message,) = store.db.queue("kept").claim()
    message.acknowledge()
    found = only(store, "text id")
    assert (found.state, told(found)[-1]) == ("archived", "acknowledged, and archived")


def test_messages_of_one_id_in_several_queues_are_all_told(store: Store) -> None:
    for name in ("a", "b"):
        store.db.create_queue(name)
        with store.db.begin() as tx:
            tx.enqueue(name, b"payload", id="same")
    assert [each.queue for each in store.db.trace("same")] == ["a", "b"]
    assert [each.queue for each in store.db.trace("same", queue="b")] == ["b"]


def test_unknown_and_malformed_ids(store: Store) -> None:
    assert store.db.trace("00" * 20) == []
    assert store.db.trace("ff" * 20) == []
    assert store.db.trace("no such id") == []
    with pytest.raises(postroom.Invalid, match="bytes"):
        store.db.trace("x" * (QUEUE_ID_BYTES_MAX + 1))
    with pytest.raises(postroom.Invalid):
        store.db.trace("x", queue="no such queue")
    assert message_id_in("0" * 41) is None
    assert message_id_in(b"\x00" * 20) is None


def test_more_queues_than_are_looked_in_have_to_be_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.client.history.TRACED_QUEUES_MAX", 1)
    assert TRACED_QUEUES_MAX > 1
    for name in ("a", "b"):
        store.db.create_queue(name)
    with pytest.raises(postroom.Invalid, match="name its queue"):
        store.db.trace("id")


def test_a_message_is_found_among_many(store: Store) -> None:
    for number in range(300):
        with store.db.begin() as tx:
            for key in range(10):
                tx.enqueue_message(b"%d/%d" % (number, key), b"x")
            tx.enqueue_message(b"later", b"x", deliver_at=100 + number)
    (message,) = store.db.peek(b"150/5")
    found = only(store, message.id)
    assert (found.state, found.key) == ("inbox", b"150/5")
    waiting = store.db.scheduled(limit=300)[-1]
    assert only(store, waiting.id).state == "scheduled"


@contextmanager
def opened(*, remote: bool) -> Iterator[postroom.Database]:
    """Open a store of two ranges, or connect to one."""
    if remote:
        with Server() as server, postroom.connect(server.address, insecure=True) as db:
            yield db
    else:
        with postroom.open(":memory:") as db:
            yield db


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "remote"])
def test_a_message_between_two_ranges(*, remote: bool) -> None:
    with opened(remote=remote) as db:
        db.split(b"m")
        with db.begin() as tx:
            tx.put(b"a", b"1")
            tx.enqueue_message(b"z", b"payload")
            tx.enqueue_message(b"z", b"later", deliver_at=100)
        db.drain()
        (message,) = db.peek(b"z")
        (found,) = db.trace(message.id)
        assert (found.state, found.key) == ("inbox", b"z")
        assert found.events[0].transaction_id == tx.id
        (found,) = db.trace(db.scheduled()[0].id)
        assert (found.state, found.key) == ("scheduled", b"z")
        with db.begin() as both:
            both.reap_queue(b"z")
            both.put(b"a", b"2")
        assert not db.peek(b"z")  # it waits until the other range has heard of the commit
        (found,) = db.trace(message.id)
        assert found.state == "consumed"
        assert found.events[-1].transaction_id == both.id


def test_a_search_goes_over_many_turns(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    sent(store)
    (message,) = store.db.peek(b"inbox")
    for number in range(50):
        with store.db.begin() as tx:
            tx.enqueue_message(b"%d" % number, b"x")
            tx.enqueue_message(b"busy", b"x")
            tx.enqueue_message(b"later", b"x", deliver_at=100)
        with store.db.begin() as tx:
            tx.reap_queue(b"busy")
    with store.db.begin() as tx:
        tx.reap_queue(b"inbox")
    monkeypatch.setattr("postroom.limits.TURN_STEPS_MAX", 16)
    found = only(store, message.id)
    assert (found.state, found.events[-1].transaction_id) == ("consumed", tx.id)


def test_a_message_on_its_way_to_another_range() -> None:
    store = Store()
    store.db.split(b"m")
    store.driver.settle()
    store.restart(services=False)
    with store.db.begin() as tx:
        tx.put(b"a", b"1")
        tx.enqueue_message(b"z", b"payload")
    assert tx.commit_timestamp is not None
    id_ = tx.commit_timestamp.to_bytes(8, "big") + (1).to_bytes(8, "big")
    lines = [store.db.trace((id_ + bytes((0, 0, 0, number))).hex()) for number in range(3)]
    found = next(each for (each,) in lines if each.state != "unknown")
    assert (found.state, found.key) == ("outgoing", b"z")
    assert told(found) == ["sent", "on its way to another range"]
    store.db.close()


def test_commits_of_one_timestamp_are_told_apart_by_their_ranges() -> None:
    commits = Commits([FoundCommit(5, 1, b"one", b""), FoundCommit(5, 2, b"two", b"")])
    assert (commits.at(5, 2), commits.at(5, 3), commits.at(6)) == (b"two", b"", b"")
    assert Commits([FoundCommit(5, 1, b"one", b"")]).at(5, 3) == b"one"
