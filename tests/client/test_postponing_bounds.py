"""Postponing and burying: bounds, hostile requests, the asyncio form."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import msgspec
import pytest

import postroom
import postroom.aio
from postroom import limits
from postroom.client.commits import commit_one
from postroom.messaging.requests import (
    BuryMessages,
    NoteAttempts,
    PostponeMessages,
)
from postroom.protocol.requests import REQUESTS
from tests.client.postponed import KEY, postpone, reap, send
from tests.client.stores import Store


def test_bounds(db: postroom.Database) -> None:
    send(db, b"m")
    with db.begin() as tx:
        (message,) = tx.reap_queue(KEY)
        for wrong in (float("nan"), float("inf"), -1):
            with pytest.raises(ValueError, match="delay"):
                tx.postpone(message, wrong)
        for call in (tx.postpone, tx.bury):
            with pytest.raises(TypeError):
                call(b"m")  # type: ignore[operator]
            with pytest.raises(TypeError):
                call([message, message.id])  # type: ignore[operator]
        with pytest.raises(ValueError, match="max_attempts"):
            tx.postpone(message, max_attempts=0)
        with pytest.raises(ValueError, match="max_attempts"):
            tx.reap_queue(KEY, max_attempts=0)
        tx.postpone(message, datetime.timedelta(days=1), "\ud800" + "x" * 5000)
    (waiting,) = db.scheduled()
    assert len(waiting.last_error) == limits.REASON_CHARACTERS_MAX
    assert waiting.due.datetime - db.now().datetime > datetime.timedelta(hours=23)
    with pytest.raises(postroom.TransactionClosed):
        tx.bury(message)
    with db.begin() as tx:
        tx.postpone([])
        tx.put(b"k", b"v")


def test_the_longest_delay_has_a_timestamp(store: Store) -> None:
    send(store.db, b"m")
    postpone(store.db, 1, datetime.timedelta.max)
    assert len(store.db.scheduled()) == 1


@pytest.mark.parametrize("wrong", [
    PostponeMessages(KEY, [(bytes(20), 0)], 1.0, "x" * 1001),
    PostponeMessages(KEY, [(bytes(20), 0)], -1.0),
    PostponeMessages(KEY, [(bytes(20), 0)], float("nan")),
    PostponeMessages(KEY, [(bytes(20), -2)]),
    PostponeMessages(KEY, [(bytes(19), 0)]),
    PostponeMessages(KEY, [(bytes(20), 0)], attempts_max=-1),
    PostponeMessages(bytes(9000), [(bytes(20), 0)]),
    BuryMessages(KEY, [(bytes(20), 0)], "x" * 1001),
    BuryMessages(KEY, [(bytes(21), 0)]),
    NoteAttempts(KEY, [bytes(20)], "lost", "", 0, b""),
], ids=repr)  # fmt: skip
def test_hostile_requests_are_not_understood(wrong: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=REQUESTS.write)


def test_hostile_requests_change_nothing(store: Store) -> None:
    """Well-formed, but of messages that are not there, or of none, or of one several times."""
    send(store.db, b"m")
    (message,) = store.db.peek(KEY)
    id_ = bytes.fromhex(message.id)
    for request in (
        PostponeMessages(b"another", [(id_, 0)]),
        BuryMessages(KEY, [(id_, 0), (bytes(20), -1)]),
        BuryMessages(KEY, [(id_, 7)]),
    ):
        with pytest.raises(postroom.TransactionConflict):
            commit(store, request)
    commit(store, PostponeMessages(KEY, []))
    commit(store, BuryMessages(b"nothing there", []))
    assert reap(store.db) == [(b"m", 0, "")]
    commit(store, BuryMessages(KEY, [(id_, 5), (id_, 0)]))
    counters = store.counters()
    assert (counters.delivered, counters.dead) == (0, 1)


def commit(store: Store, write: Any) -> None:
    store.driver.run(commit_one(store.driver, KEY, write))


def test_the_asyncio_form() -> None:
    async def main() -> None:
        async with await postroom.aio.open(":memory:") as db:
            async with db.begin() as tx:
                for value in (b"1", b"2"):
                    tx.enqueue_message(KEY, value)
            async with db.begin() as tx:
                one, two = await tx.reap_queue(KEY, max_attempts=2)
                tx.postpone(one, 0.01, "later")
                tx.bury(two, "never")
            async with db.begin() as tx:
                (message,) = await tx.reap_queue(KEY, wait=30)
                assert (message.value, message.attempts) == (b"1", 1)
            assert [each.reason for each in await db.dead_letters()] == ["never"]
            assert await db.inboxes(ready=True) == []

    asyncio.run(main())
