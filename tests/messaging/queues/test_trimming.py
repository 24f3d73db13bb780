"""Archived messages are deleted when somebody has them elsewhere: up to a timestamp, no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import postroom
import postroom.testing
from postroom.messaging.queues import advance

GC_TTL = 80.0
"""History is kept for less."""


@pytest.fixture
def store() -> Iterator[postroom.testing.Store]:
    with postroom.testing.Store() as store:
        yield store


def finish(db: postroom.Database, *ids: str, key: bytes | None = None) -> int:
    """Enqueue and acknowledge messages; return the timestamp after that."""
    with db.begin() as tx:
        for id_ in ids:
            tx.enqueue("q", b"payload", id=id_, key=key)
    q = db.queue("q")
    while messages := q.claim(10):
        q.acknowledge(messages)
    return int(db.now())


def archived(db: postroom.Database) -> list[object]:
    return [message.id for message in db.queue("q").archive()]


def test_only_messages_archived_up_to_the_timestamp_are_trimmed(
    store: postroom.testing.Store,
) -> None:
    db = store.db
    q = db.create_queue("q", archive=True)
    other = db.create_queue("other", archive=True)
    with db.begin() as tx:
        tx.enqueue("other", b"", id="a")
    other.acknowledge(other.claim(1))
    first = finish(db, "a", "b", key=b"elsewhere")
    finish(db, "c")
    store.advance(2 * GC_TTL)
    assert q.trim_archive(first) == 2
    assert archived(db) == ["c"]
    assert q.get("a") is None
    assert [message.id for message in other.archive()] == ["a"]
    stats = q.stats()
    assert (stats.archived, stats.purged, stats.acknowledged) == (1, 2, 3)
    assert q.trim_archive(first) == 0  # it may be repeated
    assert q.stats() == stats
    with db.begin() as tx:
        handle = tx.enqueue("q", b"again", id="a")
    assert handle.inserted  # its id is free


def test_archived_messages_stay_as_long_as_their_past_can_be_read(
    store: postroom.testing.Store,
) -> None:
    db = store.db
    q = db.create_queue("q", archive=True)
    before = db.now()
    until = finish(db, "a")
    assert q.trim_archive(until) == 0, "gc_ttl has not passed"
    with db.hold(before):
        store.advance(2 * GC_TTL)
        assert q.trim_archive(until) == 0, "somebody reads what was before its end"
    assert q.trim_archive(until) == 1


def test_archived_messages_are_trimmed_in_steps(
    store: postroom.testing.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advance, "TRIMMED_AT_ONCE", 3)
    db = store.db
    q = db.create_queue("q", archive=True)
    with db.begin() as tx:
        for number in range(10):
            tx.enqueue("q", b"", id=f"{number}")
    q.acknowledge([f"{number}" for number in range(10)])  # one list
    store.advance(2 * GC_TTL)
    until = db.now()
    page = q.archive(limit=None)
    assert next(page).id == "0"
    assert q.trim_archive(until, limit=1) == 3
    assert archived(db) == [f"{number}" for number in range(7)], "the last of a list go first"
    assert q.trim_archive(until, limit=4) == 6
    assert q.stats().archived == 1
    assert q.trim_archive(until) == 1
    assert not archived(db)


def test_large_keys_make_smaller_steps(
    store: postroom.testing.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advance, "TRIMMED_BYTES_AT_ONCE", 100_000)
    db = store.db
    q = db.create_queue("q", archive=True)
    with db.begin() as tx:
        for number in range(20):
            tx.enqueue("q", b"", id=f"{number}", key=b"%d" % number + b"k" * 8000)
    q.acknowledge([f"{number}" for number in range(20)])
    store.advance(2 * GC_TTL)
    assert 0 < q.trim_archive(db.now(), limit=1) < 10
    q.trim_archive(db.now())
    assert not archived(db)


def test_a_queue_that_was_made_anew_is_another_one(store: postroom.testing.Store) -> None:
    db = store.db
    made = int(db.create_queue("q", archive=True).info().created_at)
    db.queue("q").drop()
    store.advance(1)
    q = db.create_queue("q", archive=True)
    until = finish(db, "a")
    store.advance(2 * GC_TTL)
    with pytest.raises(postroom.Invalid, match="made anew"):
        q.trim_archive(until, created_at=made)
    assert archived(db) == ["a"]
    with pytest.raises(postroom.Invalid):
        db.queue("none").trim_archive(until)


def test_the_past_of_what_was_archived_is_read_in_the_order_of_its_end(
    store: postroom.testing.Store,
) -> None:
    db = store.db
    db.create_queue("q", archive=True)
    first = finish(db, "z")
    second = finish(db, "a", "b")
    finish(db, "c")

    def read(state: str, at: int, start: int = 0) -> list[bytes]:
        pages = db.bulk.queue("q", state, at=at, start=start)
        return [message.id for page in pages for message in page.messages]

    assert read("archived", second) == [b"z", b"a", b"b"]
    assert read("archived", first) == [b"z"]
    assert read("archived", second, first + 1) == [b"a", b"b"]
    assert read("done", second) == []


def test_done_messages_at_a_protected_timestamp_stay_readable(
    store: postroom.testing.Store,
) -> None:
    db = store.db
    db.create_queue("q", purge_after=1000)
    finish(db, "old")
    store.advance(900)
    finish(db, "a", "b")

    def read(at: int) -> list[bytes]:
        pages = db.bulk.queue("q", "done", at=at)
        return [message.id for page in pages for message in page.messages]

    with db.hold() as at:
        assert read(at) == [b"old", b"a", b"b"]
        store.advance(5000)
        assert db.queue("q").messages("done") == []
        assert read(at) == [b"old", b"a", b"b"]
        with db.hold() as later:
            assert read(later) == [], "whether they are purged already or not"
    store.advance(601)  # purging that is held back for long is tried again every ten minutes
    stats = db.queue("q").stats()
    assert (stats.done, stats.purged) == (0, 3)
    assert read(db.now()) == []


def test_the_archive_tells_when_a_message_was_fired(store: postroom.testing.Store) -> None:
    db = store.db
    q = db.create_queue("q", archive=True, ack_wait=60)
    with db.begin() as tx:
        tx.enqueue("q", b"", id="a")
        tx.enqueue("q", b"", id="never held")
    (message,) = q.claim(1)
    fired = message.fired_at
    assert fired is not None
    assert fired >= message.scheduled
    store.advance(1)
    message.extend(60)
    store.advance(1)
    held = q.get("a")
    assert held is not None
    assert held.fired_at == fired, "it was extended, and not fired again"
    message.acknowledge()
    q.acknowledge(["never held"])
    done = {each.id: each for each in q.archive()}
    assert done["a"].fired_at == fired
    assert done["never held"].fired_at is None
