"""Messages that cannot be digested come back: when, where, and what waits for them."""

from __future__ import annotations

import pytest

import postroom
import postroom.aio
from tests.client.postponed import KEY, postpone, reap, send
from tests.client.stores import Store


def test_a_message_comes_back_to_its_place(db: postroom.Database) -> None:
    send(db, b"first", headers={"n": 1})
    send(db, b"second")
    assert [message.attempts for message in db.peek(KEY)] == [0, 0]
    before = db.peek(KEY)[0]
    postpone(db, 1, 0.5, "not now")
    assert [message.value for message in db.peek(KEY)] == [b"second"]
    with db.begin() as tx:
        assert [each.value for each in tx.reap_queue(KEY, 1, wait=5)] == [b"second"]
    with db.begin() as tx:
        (message,) = tx.reap_queue(KEY, wait=30)
        assert (message.value, message.headers, message.id) == (b"first", {"n": 1}, before.id)
        assert (message.attempts, message.last_error) == (1, "not now")
        assert message.delivered_at >= before.delivered_at
    counters = db.status().counters
    assert (counters.enqueued, counters.delivered, counters.reaped, counters.pending) == (
        2,
        2,
        2,
        0,
    )


def test_the_wait_doubles_up_to_five_minutes(store: Store) -> None:
    send(store.db, b"m")
    waits = []
    for _ in range(11):
        postpone(store.db, 1)
        (waiting,) = store.db.scheduled()
        waits.append((waiting.due.datetime - store.db.now().datetime).total_seconds())
        assert waiting.attempts == len(waits)
        store.advance(400)
    wanted = [min(2**number, 300) for number in range(11)]
    assert all(0.89 * each <= wait <= 1.11 * each for wait, each in zip(waits, wanted, strict=True))
    assert max(waits) <= 300


def test_a_message_postponed_without_a_delay_comes_at_once(store: Store) -> None:
    send(store.db, b"m")
    postpone(store.db, 1, 0, "again")
    assert reap(store.db) == [(b"m", 1, "again")]
    assert store.counters().delivered == 1


def test_a_waiting_reaper_is_woken_when_a_postponed_message_is_due(store: Store) -> None:
    send(store.db, b"m")
    postpone(store.db, 1, 7)
    began = store.clock.seconds
    assert reap(store.db, wait=100) == [(b"m", 1, "")]
    assert 7 <= store.clock.seconds - began < 7.1


def test_messages_behind_a_postponed_one_wait_if_its_consumer_says_so(store: Store) -> None:
    db = store.db
    send(db, b"1")
    send(db, b"2", b"3")
    postpone(db, 1, 10, hold=True)
    assert reap(db) == []
    send(db, b"4")
    assert reap(db) == []
    (info,) = db.inboxes()
    assert (info.messages, info.held_up) == (3, True)
    assert db.inboxes(ready=True) == []
    assert [message.value for message in db.peek(KEY)] == [b"2", b"3", b"4"]
    store.advance(11)
    assert [value for value, *_ in reap(db)] == [b"1", b"2", b"3", b"4"]
    assert not db.inboxes(ready=True)[0].held_up


def test_messages_sent_before_a_postponed_one_are_not_held_up(store: Store) -> None:
    db = store.db
    send(db, b"older", deliver_at=5)
    send(db, b"held")
    postpone(db, 1, 1000, hold=True)
    send(db, b"newer")
    assert reap(db) == []
    store.advance(6)
    assert [value for value, *_ in reap(db)] == [b"older"]


def test_several_hold_up_an_inbox_until_the_last_is_back(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2", b"3")
    postpone(db, 1, 10, hold=True)
    store.advance(11)
    with db.begin() as tx:
        one, two = tx.reap_queue(KEY, 2)
        tx.postpone(two, 100, hold=True)
        tx.postpone(one, 10, hold=True)
    assert reap(db) == []
    store.advance(11)
    assert [value for value, *_ in reap(db)] == [b"1"]
    store.advance(100)
    assert [value for value, *_ in reap(db)] == [b"1", b"2", b"3"]


def test_an_inbox_is_free_when_what_held_it_up_is_cancelled(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2")
    postpone(db, 1, 1000, "bad", hold=True)
    (waiting,) = db.scheduled()
    assert (waiting.message, waiting.key) == (b"1", KEY)
    assert (waiting.attempts, waiting.last_error) == (1, "bad")
    assert db.cancel([waiting.id]) == 1
    assert [value for value, *_ in reap(db)] == [b"2"]
    counters = store.counters()
    assert (counters.delivered, counters.dead, counters.cancelled) == (1, 1, 1)


def test_an_empty_inbox_that_is_held_up_is_not_listed(store: Store) -> None:
    send(store.db, b"1")
    postpone(store.db, 1, 1000, hold=True)
    assert store.db.inboxes() == []
    store.db.cancel([each.id for each in store.db.scheduled()])
    send(store.db, b"2")
    assert [value for value, *_ in reap(store.db)] == [b"2"]


def test_a_postponed_message_is_absent_until_it_comes(store: Store) -> None:
    """An inbox that was found empty beside it is empty; the commit notices when it comes."""
    db = store.db
    send(db, b"m")
    postpone(db, 1, 10)
    with db.begin() as tx:
        assert not tx.reap_queue(KEY)
        tx.put(b"empty", b"1")
    tx = db.begin()
    assert not tx.reap_queue(KEY)
    tx.put(b"empty", b"2")
    store.advance(11)
    with pytest.raises(postroom.TransactionConflict):
        tx.commit()


def test_messages_that_are_held_up_make_an_inbox_not_empty(store: Store) -> None:
    """Then nothing was found empty."""
    db = store.db
    send(db, b"1", b"2")
    postpone(db, 1, 1000, hold=True)
    tx = db.begin()
    assert not tx.reap_queue(KEY)
    tx.put(b"k", b"v")
    send(db, b"3")
    tx.commit()
