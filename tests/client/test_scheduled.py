"""Scheduled messages and updates: they can be listed and cancelled, and each has one end."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.client import pages
from postroom.kv import versions
from postroom.kv.engine import WriteSet
from postroom.messaging import undelivered
from postroom.messaging.requests import CancelScheduled, ListScheduled
from postroom.ranges.requests import CommitTransaction
from tests.client.stores import Between, Store

DAY = datetime.timedelta(days=1)


def send(db: postroom.Database, key: bytes, value: Any, later: Any = DAY) -> None:
    with db.begin() as tx:
        tx.put(b"source", value)
        tx.enqueue_message(key, value, headers={"n": 1}, deliver_at=later)


def defer(db: postroom.Database, request: Any, later: Any = DAY) -> None:
    with db.begin() as tx:
        tx.enqueue_update(request, execute_at=later)


def names(found: list[postroom.Scheduled]) -> list[Any]:
    return [each.message if each.request is None else each.request for each in found]


def test_both_outboxes_are_listed_in_the_order_of_due(store: Store) -> None:
    db = store.db
    send(db, b"a", b"third", 30)
    defer(db, postroom.Increment(b"b", 2), 20)
    send(db, b"c", b"first", 10)
    first, second, third = db.scheduled()
    assert names([first, second, third]) == [b"first", postroom.Increment(b"b", 2), b"third"]
    assert (first.key, first.headers, first.source_key) == (b"c", {"n": 1}, b"source")
    assert (second.key, second.message, second.headers) == (b"b", None, {})
    assert len(first.transaction_id) == 16
    assert first.due < second.due < third.due
    assert first.due.datetime - db.now().datetime == pytest.approx(
        datetime.timedelta(seconds=10), abs=datetime.timedelta(seconds=1)
    )
    assert names(db.scheduled(limit=2)) == names([first, second])
    assert store.driver.run(store.core.scheduled()) == [first, second, third]


def test_a_due_message_is_not_listed_as_scheduled(store: Store) -> None:
    send(store.db, b"a", b"soon", 10)
    send(store.db, b"a", b"now", None)
    assert names(store.db.scheduled()) == [b"soon"]
    store.advance(11)
    assert store.db.scheduled() == []


def test_only_those_about_keys_in_a_span(store: Store) -> None:
    db = store.db
    for key in (b"a", b"b", b"c"):
        send(db, key, key)
        defer(db, postroom.Put(key, b"put"))
    defer(db, postroom.DeleteRange(b"a", b"b"))
    defer(db, postroom.DeleteRange(b"b", b"c"))
    defer(db, postroom.DeleteRange(b"c", None))
    found = db.scheduled(b"b", b"c")
    assert {each.key for each in found} == {b"b"}
    assert len(found) == 3  # a message, a Put, and the DeleteRange from b on
    assert {each.key for each in db.scheduled(b"bb", b"c")} == {b"b"}
    assert {each.key for each in db.scheduled(*postroom.prefix(b"c"))} == {b"c"}
    assert len(db.scheduled()) == 9


def test_codecs_unpack_what_is_scheduled() -> None:
    store = Store(codec="json")
    send(store.db, b"a", {"order": 17})
    (found,) = store.db.scheduled()
    assert found.message == {"order": 17}
    store.db.close()


def test_a_page_has_an_end_and_the_next_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little a page looks at, also where nothing on it is wanted."""
    for number in range(30):
        send(store.db, b"k%d" % (number % 3), b"%d" % number, 100 + number // 2)
        defer(store.db, postroom.Put(b"k%d" % (number % 3), b"u%d" % number), 100 + number // 2)
    whole, wanted = store.db.scheduled(), store.db.scheduled(b"k1", b"k2")
    assert (len(whole), len(wanted)) == (60, 20)
    for looked_at, size in ((1, 1 << 20), (7, 1 << 20), (1000, 1), (1000, 150)):
        monkeypatch.setattr(undelivered, "LOOKED_AT_ONCE", looked_at)
        monkeypatch.setattr(pages, "LIST_BYTES_PER_PAGE", size)
        assert store.db.scheduled() == whole
        assert store.db.scheduled(b"k1", b"k2") == wanted
        assert store.db.scheduled(b"k1", b"k2", limit=7) == wanted[:7]


def test_a_long_schedule_is_looked_at_in_bounded_steps(store: Store) -> None:
    with store.db.begin() as tx:
        for number in range(3000):
            tx.enqueue_message(b"k%d" % number, b"m", deliver_at=DAY)
    pages_asked = Between(store, ListScheduled, lambda: None)
    store.engine.steps = 0
    assert [each.key for each in store.db.scheduled(b"k2999", b"k3")] == [b"k2999"]
    assert pages_asked.times == 3 + 1 - (3000 % undelivered.LOOKED_AT_ONCE == 0)
    assert store.engine.steps <= 3000 + 2 * pages_asked.times


@pytest.mark.parametrize("again", ["now", "after a restart"])
def test_a_cancelled_message_or_update_does_not_take_place(store: Store, again: str) -> None:
    db = store.db
    send(db, b"a", b"not", 10)
    send(db, b"a", b"still", 10)
    defer(db, postroom.Increment(b"n"), 10)
    defer(db, postroom.Increment(b"m"), 10)
    ids = [each.id for each in db.scheduled() if each.key in (b"n",) or each.message == b"not"]
    if again == "after a restart":
        store.kill()
    assert db.cancel(ids) == 2
    assert len(db.scheduled()) == 2
    assert db.cancel(ids) == 0
    store.advance(11)
    db.drain()
    assert [message.value for message in db.peek(b"a")] == [b"still"]
    assert (db.get(b"n"), postroom.integer(db.get(b"m"))) == (None, 1)
    now = store.counters()
    assert (now.enqueued, now.delivered, now.executed, now.pending, now.dead) == (4, 1, 1, 0, 2)
    assert (now.discarded, now.cancelled) == (2, 2)
    assert db.dead_letters() == []


def test_one_named_twice_is_cancelled_once(store: Store) -> None:
    send(store.db, b"a", b"m")
    (each,) = store.db.scheduled()
    assert store.db.cancel([each.id, each.id]) == 1
    assert store.counters().cancelled == 1


def test_a_message_that_was_delivered_cannot_be_cancelled(store: Store) -> None:
    send(store.db, b"a", b"m", 5)
    (each,) = store.db.scheduled()
    store.advance(6)
    before = store.counters()
    assert store.db.cancel([each.id]) == 0
    assert store.counters() == before


def test_a_deletion_that_has_begun_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled half-way it would count as one that has not taken place."""
    for number in range(5):
        store.db.put(b"k%d" % number, b"v")
    defer(store.db, postroom.DeleteRange(b"k", b"l"), 5)
    (each,) = store.db.scheduled()
    monkeypatch.setattr(limits, "DELETED_AT_ONCE_MAX", 2)
    cancelled: list[int] = []

    async def cancel() -> None:
        cancelled.append(await store.core.cancel([each.id]))

    def when_it_begins(writes: WriteSet) -> None:
        if any(stored and stored[0] == versions.TOMBSTONE for stored in writes.values()):
            store.engine.before_write = lambda _: None
            store.driver.later(cancel())

    store.engine.before_write = when_it_begins
    store.advance(6)
    assert cancelled == [0]
    assert list(store.db.scan(b"k", b"l")) == []
    assert store.counters().cancelled == 0


def test_a_due_message_can_be_cancelled_until_it_has_moved(store: Store) -> None:
    """Then a client that drains need not wait for it."""
    send(store.db, b"a", b"m", 5)
    (each,) = store.db.scheduled()
    store.restart(after_seconds=10, services=False)
    draining = store.start(store.core.drain(60))
    assert not draining.done
    assert store.db.cancel([each.id]) == 1
    store.driver.settle()
    assert draining.done
    assert store.db.peek(b"a") == []


def test_a_cancellation_is_part_of_one_transaction_and_safe_to_send_again(store: Store) -> None:
    send(store.db, b"a", b"m")
    (each,) = store.db.scheduled()
    request = CancelScheduled([bytes.fromhex(each.id)])
    commit = CommitTransaction(
        store.driver.next_id(), store.node.clock.now(), 60.0, 0, b"", [], [], [request]
    )

    async def ask() -> Any:
        return (await store.driver.send(commit)).answers

    assert [store.driver.run(ask()) for _ in range(2)] == [[1], [1]]
    assert store.counters().cancelled == 1


def test_the_next_one_is_still_on_time(store: Store) -> None:
    """The dispatcher sleeps until the first is due, which is cancelled."""
    send(store.db, b"a", b"first", 5)
    send(store.db, b"a", b"second", 6)
    store.db.cancel([store.db.scheduled(limit=1)[0].id])
    store.advance(6.01)
    assert [message.value for message in store.db.peek(b"a")] == [b"second"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda db: db.cancel("00"), TypeError),
        (lambda db: db.cancel(["xy"]), ValueError),
        (lambda db: db.cancel(["00"]), ValueError),
        (lambda db: db.cancel([b"00"]), ValueError),
        (lambda db: db.scheduled(limit=0), ValueError),
        (lambda db: db.scheduled("a"), TypeError),
    ],
)
def test_wrong_arguments(
    store: Store, call: Callable[[postroom.Database], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(store.db)


def test_a_name_of_no_outbox_is_nothing_to_cancel(store: Store) -> None:
    send(store.db, b"a", b"m")
    assert store.db.cancel(["ff" * 37, "00" * 37, "01" * 37]) == 0
    assert len(store.db.scheduled()) == 1


def test_an_alert_on_dead_letters_can_clear(db: postroom.Database) -> None:
    db.put(b"text", b"text")
    defer(db, postroom.Increment(b"text"), None)
    send(db, b"a", b"m")
    db.cancel([each.id for each in db.scheduled()])
    status = db.status()
    assert (status.dead, status.discarded, status.cancelled, status.dead_letters) == (2, 1, 1, 1)
    db.discard(letter.id for letter in db.dead_letters())
    status = db.status()
    assert (status.dead, status.discarded, status.cancelled, status.dead_letters) == (2, 2, 1, 0)
