"""Peeking into inboxes, now and in the past, and who has mail."""

from __future__ import annotations

import pytest

import postroom
import postroom.aio
from postroom.client import pages
from postroom.limits import FRAME_BYTES_MAX, VALUE_BYTES_MAX
from postroom.messaging.requests import Peek
from tests.client.mail import reap, send, waiting
from tests.client.stores import Between, Store


def test_peek_consumes_nothing_and_is_limited(db: postroom.Database) -> None:
    send(db, b"k", *(b"%d" % number for number in range(5)))
    assert [message.value for message in db.peek(b"k", 2)] == [b"0", b"1"]
    assert waiting(db, b"k") == [b"0", b"1", b"2", b"3", b"4"]
    assert db.peek(b"absent") == []


def test_peek_at_a_past_timestamp_sees_what_was_reaped_since(store: Store) -> None:
    db = store.db
    moments = [db.now()]
    send(db, b"k", b"1", b"2")
    moments.append(db.now())
    assert reap(db, b"k", 1) == [b"1"]
    moments.append(db.now())
    send(db, b"k", b"3")
    assert reap(db, b"k") == [b"2", b"3"]
    moments.append(db.now())
    seen = [[message.value for message in db.peek(b"k", at=at)] for at in moments]
    assert seen == [[], [b"1", b"2"], [b"2"], []]
    assert [message.value for message in db.peek(b"k", 1, at=moments[1])] == [b"1"]


def test_peek_at_a_past_timestamp_does_not_see_what_was_still_to_come(store: Store) -> None:
    send(store.db, b"k", b"delayed", deliver_at=5)
    send(store.db, b"k", b"1")
    before = store.db.now()
    store.advance(6)
    assert [message.value for message in store.db.peek(b"k", at=before)] == [b"1"]
    assert waiting(store.db, b"k") == [b"delayed", b"1"]


def test_peek_tells_more_than_an_answer_can_hold(store: Store) -> None:
    sent = 0
    while sent * VALUE_BYTES_MAX <= FRAME_BYTES_MAX:
        send(store.db, b"k", *(bytes(VALUE_BYTES_MAX - 10) for _ in range(11)))
        sent += 11
    before = store.db.now()
    assert len(store.db.peek(b"k")) == len(store.db.peek(b"k", at=before)) == sent


@pytest.mark.parametrize("past", [False, True])
def test_peek_is_of_one_view_however_many_pages_it_takes(
    store: Store, monkeypatch: pytest.MonkeyPatch, past: bool
) -> None:
    monkeypatch.setattr(pages, "LIST_BYTES_PER_PAGE", 50)
    values = [b"%d" % number for number in range(10)]
    send(store.db, b"k", b"delayed", deliver_at=100)
    send(store.db, b"k", *values)
    at = store.db.now() if past else None

    def meanwhile() -> None:
        assert reap(store.db, b"k", 7) == values[:7]
        send(store.db, b"k", b"new")
        store.advance(200)  # reaped messages are collected by then, unless protected

    for limit in (9, 10, 100):
        between = Between(store, Peek, lambda: None)
        assert [message.value for message in store.db.peek(b"k", limit, at=at)] == values[:limit]
        assert between.times > 2
    Between(store, Peek, meanwhile)
    assert [message.value for message in store.db.peek(b"k", at=at)] == values
    assert waiting(store.db, b"k") == [b"delayed", b"7", b"8", b"9", b"new"]


def test_inboxes_tells_who_has_mail_the_oldest_first(db: postroom.Database) -> None:
    for key, values in ((b"c", 1), (b"a", 2), (b"d/1", 1), (b"b", 3)):
        send(db, key, *(b"m" for _ in range(values)))
    db.put(b"a0", b"no mail")
    found = db.inboxes()
    assert [(each.key, each.messages) for each in found] == [
        (b"c", 1), (b"a", 2), (b"d/1", 1), (b"b", 3),
    ]  # fmt: skip
    assert [each.oldest for each in found] == [db.peek(each.key)[0].sent_at for each in found]
    assert [each.key for each in db.inboxes(limit=2)] == [b"c", b"a"]
    assert [each.key for each in db.inboxes(b"b", b"d")] == [b"c", b"b"]
    assert [each.key for each in db.inboxes(*postroom.prefix(b"d/"))] == [b"d/1"]
    reap(db, b"c")
    reap(db, b"a", 1)
    assert [(each.key, each.messages) for each in db.inboxes()][:2] == [(b"a", 1), (b"d/1", 1)]


def test_inboxes_follows_the_oldest_message_that_is_left(store: Store) -> None:
    send(store.db, b"a", b"1")
    send(store.db, b"b", b"2")
    send(store.db, b"a", b"3")
    skipper = store.db.begin()
    skipper.reap_queue(b"a", 1)
    assert reap(store.db, b"a") == [b"3"]
    assert [each.key for each in store.db.inboxes()] == [b"a", b"b"]
    skipper.rollback()
    send(store.db, b"a", b"4")
    assert reap(store.db, b"a", 1) == [b"1"]
    assert [each.key for each in store.db.inboxes()] == [b"b", b"a"]
