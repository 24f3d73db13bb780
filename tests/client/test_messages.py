"""Messages: where they come from, order, due times, conservation, draining."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.errors import TransactionConflict
from tests.client.mail import aware, reap, send, update, waiting
from tests.client.stores import Store

# --- a message


def test_a_message_tells_where_it_comes_from(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.enqueue_message(b"k", b"v", headers={"kind": "greeting"})
        tx.enqueue_message(b"k", b"w")
    db.drain()
    first, second = db.peek(b"k")
    assert (first.key, first.value, first.headers) == (b"k", b"v", {"kind": "greeting"})
    assert second.headers == {}
    assert first.sent_at == second.sent_at == tx.commit_timestamp
    assert first.delivered_at > first.sent_at
    assert first.sender_range == second.sender_range == 1
    assert first.id != second.id


def test_headers_are_text_to_simple_values(db: postroom.Database) -> None:
    headers = {
        "text": "é",
        "bytes": b"\x00",
        "whole": -(2**63),
        "real": 1.5,
        "yes": True,
        "no": None,
    }
    send(db, b"k", b"v", headers=headers)
    assert db.peek(b"k")[0].headers == headers
    with db.begin() as tx:
        assert tx.reap_queue(b"k")[0].headers == headers


def test_a_recipient_need_not_exist(db: postroom.Database) -> None:
    send(db, b"nobody", b"m")
    assert db.get(b"nobody") is None
    assert waiting(db, b"nobody") == [b"m"]
    assert list(db.scan()) == []


def test_deleting_a_key_leaves_its_inbox(db: postroom.Database) -> None:
    db.put(b"k", b"1")
    send(db, b"k", b"m")
    db.delete(b"k")
    db.delete_range(b"", None)
    assert waiting(db, b"k") == [b"m"]


# --- order


def test_an_inbox_is_in_the_order_of_commits(store: Store) -> None:
    first, second = store.db.begin(), store.db.begin()
    first.enqueue_message(b"k", b"begun first")
    second.enqueue_message(b"k", b"begun second")
    second.enqueue_message(b"k", b"begun second, too")
    second.commit()
    first.commit()
    assert waiting(store.db, b"k") == [b"begun second", b"begun second, too", b"begun first"]
    assert reap(store.db, b"k") == [b"begun second", b"begun second, too", b"begun first"]


def test_a_delayed_message_takes_the_place_of_its_commit(store: Store) -> None:
    send(store.db, b"k", b"1")
    send(store.db, b"k", b"2", deliver_at=10)
    send(store.db, b"k", b"3")
    assert waiting(store.db, b"k") == [b"1", b"3"]
    store.advance(10.1)
    assert waiting(store.db, b"k") == [b"1", b"2", b"3"]
    assert reap(store.db, b"k") == [b"1", b"2", b"3"]


def test_a_delayed_message_arrives_below_what_others_hold(store: Store) -> None:
    send(store.db, b"k", b"early", deliver_at=10)
    send(store.db, b"k", b"1", b"2")
    holder = store.db.begin()
    assert len(holder.reap_queue(b"k")) == 2
    store.advance(10.1)
    assert reap(store.db, b"k") == [b"early"]
    holder.commit()
    assert waiting(store.db, b"k") == []


def test_more_messages_than_are_delivered_at_once_keep_their_order(store: Store) -> None:
    values = [b"%04d" % number for number in range(2000)]
    store.start(_sending(store, values[:1500]))
    for value in values[1500:]:
        store.start(_sending(store, [value]))
    store.db.drain()
    assert waiting(store.db, b"k") == values


async def _sending(store: Store, values: list[bytes]) -> None:
    async with store.core.begin() as tx:
        for value in values:
            tx.enqueue_message(b"k", value)


def test_receipt_is_after_sending(store: Store) -> None:
    for _ in range(10):
        send(store.db, b"k", b"a", b"b")
    assert all(message.delivered_at > message.sent_at for message in store.db.peek(b"k"))


# --- due times


DUE: dict[str, Any] = {
    "seconds": 2,
    "float": 2.0,
    "timedelta": datetime.timedelta(seconds=2),
    "datetime": aware(2),
}


@pytest.mark.parametrize("due", DUE)
def test_messages_and_updates_wait_until_they_are_due(store: Store, due: str) -> None:
    send(store.db, b"k", b"m", deliver_at=DUE[due])
    update(store.db, postroom.Increment(b"n"), execute_at=DUE[due])
    store.advance(1.9)
    assert waiting(store.db, b"k") == []
    assert store.db.get(b"n") is None
    assert store.counters().pending == 2
    store.db.drain(0)
    store.advance(0.15)
    assert waiting(store.db, b"k") == [b"m"]
    assert postroom.integer(store.db.get(b"n")) == 1
    assert store.counters().pending == 0


@pytest.mark.parametrize("due", [0, -5, datetime.timedelta(days=-1), aware(-1000)])
def test_a_message_due_in_the_past_is_delivered_at_once(store: Store, due: Any) -> None:
    send(store.db, b"k", b"1")
    send(store.db, b"k", b"2", deliver_at=due)
    update(store.db, postroom.Increment(b"n"), execute_at=due)
    assert waiting(store.db, b"k") == [b"1", b"2"]
    assert postroom.integer(store.db.get(b"n")) == 1


def test_a_due_time_survives_a_restart(store: Store) -> None:
    send(store.db, b"k", b"m", deliver_at=100)
    update(store.db, postroom.Put(b"a", b"1"), execute_at=100)
    store.kill()
    store.advance(99)
    assert (waiting(store.db, b"k"), store.db.get(b"a")) == ([], None)
    store.advance(1.1)
    assert (waiting(store.db, b"k"), store.db.get(b"a")) == ([b"m"], b"1")


def test_messages_that_fell_due_while_the_store_was_closed_come_on_opening(store: Store) -> None:
    send(store.db, b"k", b"m", deliver_at=10)
    update(store.db, postroom.Put(b"a", b"1"), execute_at=10)
    store.restart(after_seconds=100)
    store.db.drain()
    assert (waiting(store.db, b"k"), store.db.get(b"a")) == ([b"m"], b"1")


# --- conservation


def test_the_counters_agree_after_each_step(store: Store) -> None:
    db = store.db
    db.put(b"text", b"text")
    steps: list[tuple[Callable[[], Any], tuple[int, int, int, int, int]]] = [
        (lambda: send(db, b"k", b"1", b"2", b"3"), (3, 3, 0, 0, 0)),
        (lambda: send(db, b"k", b"4", deliver_at=50), (4, 3, 0, 1, 0)),
        (lambda: update(db, postroom.Increment(b"n")), (5, 3, 1, 1, 0)),
        (lambda: update(db, postroom.Increment(b"n"), execute_at=50), (6, 3, 1, 2, 0)),
        (lambda: update(db, postroom.Increment(b"text")), (7, 3, 1, 2, 1)),
        (lambda: reap(db, b"k", 2), (7, 3, 1, 2, 1)),
        (lambda: db.replay(letter.id for letter in db.dead_letters()), (7, 3, 1, 2, 1)),
        (lambda: db.discard(letter.id for letter in db.dead_letters()), (7, 3, 1, 2, 1)),
        (store.kill, (7, 3, 1, 2, 1)),
        (lambda: store.advance(50.1), (7, 4, 2, 0, 1)),
        (store.restart, (7, 4, 2, 0, 1)),
    ]
    for action, expected in steps:
        action()
        now = store.counters()
        assert (now.enqueued, now.delivered, now.executed, now.pending, now.dead) == expected
    assert waiting(db, b"k") == [b"3", b"4"]
    assert store.counters().reaped == 2


def test_an_aborted_transaction_counts_nothing(store: Store) -> None:
    before = store.counters()
    tx = store.db.begin()
    tx.enqueue_message(b"k", b"m")
    tx.enqueue_update(postroom.Increment(b"n"))
    tx.rollback()
    tx = store.db.begin()
    tx.get(b"a")
    store.db.put(b"a", b"1")
    tx.enqueue_message(b"k", b"m")
    with pytest.raises(TransactionConflict):
        tx.commit()
    assert store.counters() == before


# --- draining


def test_drain_returns_at_once_if_nothing_is_due(store: Store) -> None:
    send(store.db, b"k", b"m", deliver_at=3600)
    store.db.drain(0)
    assert store.clock.seconds == 0


def test_drain_waits_for_what_is_due(store: Store) -> None:
    update(store.db, *(postroom.Increment(b"n%d" % number) for number in range(9000)))
    store.db.drain()
    assert store.counters().executed == 9000


def test_drain_gives_up_after_its_time(store: Store) -> None:
    send(store.db, b"k", b"m", deliver_at=5)
    store.restart(after_seconds=10, services=False)
    with pytest.raises(TimeoutError, match="still due after 7 s"):
        store.db.drain(7)
