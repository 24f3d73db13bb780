"""Snapshots, reads of the past, and garbage collection of what nobody can ask for: no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

import postroom
from postroom.errors import SnapshotTooOld
from postroom.kv import keys
from tests.client.stores import Store

LONG_SECONDS = 200.0
"""The time after which all that may be collected is collected."""


def data(store: Store) -> dict[bytes, bytes]:
    """Return the stored user keys, COMMIT records and garbage lists."""
    spaces = (keys.TRANSACTION, keys.MAIL, keys.DATA, keys.garbage_prefix(1))
    return {key: value for key, value in store.dump().items() if key.startswith(spaces)}


def test_a_snapshot_reads_everything_at_one_timestamp(db: postroom.Database) -> None:
    db.put(b"a", b"1")
    db.put(b"b", b"1")
    with db.begin() as tx:
        tx.enqueue_message(b"a", b"m")
    with db.snapshot() as snapshot:
        db.put(b"a", b"2")
        db.delete(b"b")
        db.put(b"c", b"2")
        with db.begin() as tx:
            tx.reap_queue(b"a")
            tx.enqueue_message(b"a", b"n")
        assert snapshot.get(b"a") == b"1"
        assert snapshot.get_many([b"c", b"b", b"a"]) == [None, b"1", b"1"]
        assert list(snapshot.scan()) == [(b"a", b"1"), (b"b", b"1")]
        assert list(snapshot.scan(b"", b"b", reverse=True, limit=5)) == [(b"a", b"1")]
        assert [message.value for message in snapshot.peek(b"a", 10)] == [b"m"]
        assert snapshot.timestamp < db.now()
    assert list(db.scan()) == [(b"a", b"2"), (b"c", b"2")]
    assert [message.value for message in db.peek(b"a")] == [b"n"]


def test_versions_seen_by_an_open_snapshot_are_not_collected(store: Store) -> None:
    store.db.put(b"a", b"old")
    store.db.put(b"b", b"deleted")
    with store.db.begin() as tx:
        tx.enqueue_message(b"a", b"m")
    with store.db.snapshot() as snapshot:
        for number in range(100):
            store.db.put(b"a", b"%d" % number)
        store.db.delete(b"b")
        with store.db.begin() as tx:
            tx.reap_queue(b"a")
        store.advance(LONG_SECONDS)
        assert list(snapshot.scan()) == [(b"a", b"old"), (b"b", b"deleted")]
        assert [message.value for message in snapshot.peek(b"a")] == [b"m"]
    store.advance(LONG_SECONDS)
    with pytest.raises(SnapshotTooOld):
        snapshot.get(b"a")


def test_two_snapshots_protect_independently(store: Store) -> None:
    store.db.put(b"a", b"1")
    with store.db.snapshot() as outer:
        store.db.put(b"a", b"2")
        with store.db.snapshot() as inner:
            store.db.put(b"a", b"3")
            store.advance(LONG_SECONDS)
            assert (outer.get(b"a"), inner.get(b"a")) == (b"1", b"2")
        store.advance(LONG_SECONDS)
        assert outer.get(b"a") == b"1"


@pytest.mark.parametrize("finish", [True, False])
def test_a_scan_protects_what_it_reads_until_it_ends(store: Store, finish: bool) -> None:
    with store.db.begin() as tx:
        for number in range(3000):
            tx.put(b"%04d" % number, b"old")
    pairs = store.db.scan()
    assert next(pairs) == (b"0000", b"old")
    with store.db.begin() as tx:
        for number in range(3000):
            tx.put(b"%04d" % number, b"new")
    moment = store.db.now()
    store.db.put(b"0000", b"newer")
    store.advance(LONG_SECONDS)
    if finish:
        assert {value for _, value in pairs} == {b"old"}
    else:
        pairs.close()
    store.advance(LONG_SECONDS)
    with pytest.raises(SnapshotTooOld):
        store.db.get(b"0000", at=moment)


@pytest.mark.parametrize("read", ["get", "get_many", "scan", "peek"])
def test_a_timestamp_that_is_too_old_is_refused(store: Store, read: str) -> None:
    moment = store.db.now()
    for value in (b"1", b"2"):
        store.db.put(b"a", value)
    store.advance(LONG_SECONDS)
    reads: dict[str, Callable[[], object]] = {
        "get": lambda: store.db.get(b"a", at=moment),
        "get_many": lambda: store.db.get_many([b"a"], at=moment),
        "scan": lambda: next(store.db.scan(at=moment)),
        "peek": lambda: store.db.peek(b"a", at=moment),
    }
    with pytest.raises(SnapshotTooOld, match="read at a later timestamp, or open with a longer"):
        reads[read]()


def test_the_past_is_readable_for_as_long_as_was_asked() -> None:
    store = Store(gc_ttl_seconds=600.0)
    store.db.put(b"a", b"1")
    moment = store.db.now()
    store.db.put(b"a", b"2")
    store.advance(590)
    assert store.db.get(b"a", at=moment) == b"1"
    store.advance(30)
    with pytest.raises(SnapshotTooOld):
        store.db.get(b"a", at=moment)


def test_too_old_stays_too_old_after_a_restart(store: Store) -> None:
    moment = store.db.now()
    for value in (b"1", b"2"):
        store.db.put(b"a", value)
    store.advance(LONG_SECONDS)
    store.kill()
    with pytest.raises(SnapshotTooOld):
        store.db.get(b"a", at=moment)


# --- collecting


def _overwrite(store: Store) -> None:
    for number in range(100):
        store.db.put(b"a", b"%d" % number)


def _delete(store: Store) -> None:
    for _ in range(3):
        store.db.put(b"b", b"1")
        store.db.delete(b"b")


def _delete_range(store: Store) -> None:
    with store.db.begin() as tx:
        for number in range(3000):
            tx.put(b"range/%04d" % number, b"1")
    store.db.delete_range(*postroom.prefix(b"range/"))


def _message(store: Store) -> None:
    for _ in range(50):
        with store.db.begin() as tx:
            tx.enqueue_message(b"k", b"m")
    for _ in range(5):
        with store.db.begin() as tx:
            tx.reap_queue(b"k", 10)


def _update(store: Store) -> None:
    put, delete = postroom.Put(b"c", b"1"), postroom.Delete(b"c")
    for request in (put, postroom.Increment(b"d"), delete, postroom.Delete(b"d"), put, delete):
        with store.db.begin() as tx:
            tx.enqueue_update(request)
            tx.enqueue_update(request)


def _read_and_write(store: Store) -> None:
    for _ in range(10):
        with store.db.begin() as tx:
            tx.increment(b"n")
    store.db.delete(b"n")


WORKS = {
    each.__name__: each
    for each in (_overwrite, _delete, _delete_range, _message, _update, _read_and_write)
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("work", WORKS)
def test_garbage_collection_removes_the_past_wholly(
    store: Store, work: str, restarted: bool
) -> None:
    WORKS[work](store)
    if restarted:
        store.kill()
    alive = dict(store.db.scan())
    store.advance(LONG_SECONDS)
    assert dict(store.db.scan()) == alive
    assert len(data(store)) == len(alive)


def test_collecting_leaves_nothing_to_step_over(store: Store) -> None:
    _overwrite(store)
    store.advance(LONG_SECONDS)
    store.engine.steps = 0
    store.advance(100)
    assert store.engine.steps == 0


def test_a_key_that_was_put_again_after_a_deletion_stays(store: Store) -> None:
    store.db.put(b"a", b"1")
    store.db.delete(b"a")
    store.db.put(b"a", b"2")
    with store.db.begin() as tx:
        tx.delete(b"a")
        tx.put(b"a", b"3")
    store.advance(LONG_SECONDS)
    assert store.db.get(b"a") == b"3"
    assert len(data(store)) == 1


def test_a_commit_record_stays_while_its_transaction_may_be_retried(store: Store) -> None:
    tx = store.db.begin()
    tx.put(b"a", b"1")
    tx.commit()
    record = keys.transaction_key(b"a", tx.id)
    store.advance(70)
    assert record in store.dump()
    store.advance(60)
    assert record not in store.dump()


def test_garbage_is_collected_in_portions(store: Store) -> None:
    _delete_range(store)
    most = max(islice(_keys_written(store), 50))
    assert most < 8000


def _keys_written(store: Store) -> Iterator[int]:
    while True:
        before = store.engine.keys_written
        store.advance(5)
        yield store.engine.keys_written - before
