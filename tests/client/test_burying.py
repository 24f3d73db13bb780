"""Messages that cannot be digested become dead letters, in every store."""

from __future__ import annotations

import pytest

import postroom
import postroom.aio
from postroom.kv import keys
from postroom.messaging.requests import (
    PostponeMessages,
    ReapMessages,
)
from postroom.ranges.requests import CommitTransaction
from tests.client.postponed import KEY, postpone, reap, send
from tests.client.stores import Store


def test_the_last_attempt_makes_a_dead_letter(db: postroom.Database) -> None:
    send(db, b"m", headers={"h": 1})
    for number in range(3):
        assert reap(db, max_attempts=3)[0][1] == number
        postpone(db, 1, 0, f"no {number}", of=3)
    assert reap(db) == []
    (letter,) = db.dead_letters()
    assert (letter.key, letter.message, letter.headers) == (KEY, b"m", {"h": 1})
    assert (letter.attempts, letter.reason, letter.request) == (3, "no 2", None)
    counters = db.status().counters
    assert (counters.delivered, counters.dead, counters.pending) == (0, 1, 0)
    assert db.replay([letter.id]) == 1
    db.drain()
    assert reap(db) == [(b"m", 0, "")]


def test_a_message_that_was_seen_can_be_buried(db: postroom.Database) -> None:
    send(db, b"1", b"2")
    with db.begin() as tx:
        tx.bury(db.peek(KEY)[1], "nobody wants it")
    assert [message.value for message in db.peek(KEY)] == [b"1"]
    (letter,) = db.dead_letters()
    assert (letter.message, letter.reason, letter.attempts) == (b"2", "nobody wants it", 1)
    assert db.discard([letter.id]) == 1


def test_one_transaction_consumes_postpones_and_buries(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2", b"3", b"4")
    before = db.now()
    with db.begin() as tx:
        one, two, three, _ = tx.reap_queue(KEY)
        tx.bury(one)
        tx.postpone([one, two], 10)
        tx.bury(three, "no")
    assert [letter.message for letter in db.dead_letters()] == [b"3"]
    assert [each.message for each in db.scheduled()] == [b"1", b"2"]
    assert [message.value for message in db.peek(KEY, at=before)] == [b"1", b"2", b"3", b"4"]
    assert db.peek(KEY) == []
    between = db.now()
    store.advance(11)
    assert [message.value for message in db.peek(KEY)] == [b"1", b"2"]
    assert db.peek(KEY, at=between) == []
    then = [(message.value, message.attempts) for message in db.peek(KEY, at=before)]
    assert then == [(b"1", 0), (b"2", 0), (b"3", 0), (b"4", 0)]


def test_each_with_a_reason_of_its_own(store: Store) -> None:
    """Each reason is a request of its own.

    The history that they leave is not written anew with each of them.
    """
    db = store.db
    send(db, *[b"%d" % number for number in range(300)])
    before = db.now()
    with db.begin() as tx:
        for number, message in enumerate(tx.reap_queue(KEY, 300)):
            tx.postpone(message, 10, str(number))
    assert db.peek(KEY) == []
    assert len(db.peek(KEY, 300, at=before)) == 300
    records = [key for key in store.dump() if key.startswith(keys.suffix_span(KEY, keys.REAPED)[0])]
    assert len(records) == 300


def test_one_that_is_taken_out_twice_by_a_commit(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2")
    before = db.now()
    one, two = (bytes.fromhex(message.id) for message in db.peek(KEY))
    writes = [
        PostponeMessages(KEY, [(two, 0)], 0.0),
        PostponeMessages(KEY, [(one, 0)], 0.0),
        ReapMessages(KEY, [one]),
        ReapMessages(KEY, []),
    ]
    request = CommitTransaction(
        store.driver.next_id(), store.driver.reading(), 10.0, 0, KEY, [], [], writes
    )

    async def send_it() -> None:
        await store.driver.send(request)

    store.driver.run(send_it())
    assert reap(db) == [(b"2", 1, "")]
    assert [message.value for message in db.peek(KEY, at=before)] == [b"1", b"2"]


def test_somebody_else_was_faster(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2")
    one, two = db.peek(KEY)
    with db.begin() as tx:
        tx.reap_queue(KEY, 1)
    slow = db.begin()
    slow.put(b"k", b"v")
    slow.postpone(one)
    with pytest.raises(postroom.TransactionConflict, match="reaped"):
        slow.commit()
    postpone(db, 1, 0)
    slow = db.begin()
    slow.bury(two)
    with pytest.raises(postroom.TransactionConflict, match="tried by another consumer"):
        slow.commit()
    assert db.get(b"k") is None
    assert reap(db) == [(b"2", 1, "")]


def test_the_holder_of_a_buried_message_cannot_consume_it(store: Store) -> None:
    db = store.db
    send(db, b"1")
    holder = db.begin()
    (message,) = holder.reap_queue(KEY)
    with db.begin() as tx:
        tx.bury(message)
    with pytest.raises(postroom.TransactionConflict):
        holder.commit()
    assert store.counters().reaped == 0
