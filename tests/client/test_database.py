"""The database outside transactions, through the public names alone."""

from __future__ import annotations

import datetime
import inspect
import os
from itertools import islice
from pathlib import Path

import pytest

import postroom
import postroom.aio
from postroom.client import pages
from postroom.client.pages import PAIRS_PER_PAGE
from postroom.limits import FRAME_BYTES_MAX, VALUE_BYTES_MAX
from postroom.ranges.requests import GetMany
from tests.client.stores import Between, Store

PAGES = 2 * PAIRS_PER_PAGE + 500


def key(number: int) -> bytes:
    return b"k%05d" % number


def fill(db: postroom.Database, keys: int = PAGES) -> None:
    with db.begin() as tx:
        for number in range(keys):
            tx.put(key(number), b"%d" % number)


# --- one key


def test_a_key_holds_what_was_put_last(db: postroom.Database) -> None:
    assert db.get(b"a") is None
    db.put(b"a", b"1")
    db.put(b"a", b"2")
    assert db.get(b"a") == b"2"


def test_a_deleted_key_is_absent_and_may_be_deleted_again(db: postroom.Database) -> None:
    db.put(b"a", b"1")
    db.delete(b"a")
    db.delete(b"a")
    assert db.get(b"a") is None
    assert list(db.scan()) == []


@pytest.mark.parametrize("name", [b"", b"\x00", b"\x00\x01", b"a\x00\xffb", b"\xff" * 9])
def test_any_bytes_are_a_key(db: postroom.Database, name: bytes) -> None:
    db.put(name, b"")
    assert db.get(name) == b""
    assert list(db.scan()) == [(name, b"")]
    assert db.delete_range(b"", None) == 1


def test_get_at_a_timestamp_reads_what_was_there_then(db: postroom.Database) -> None:
    before = db.now()
    db.put(b"a", b"1")
    first = db.now()
    db.put(b"a", b"2")
    second = db.now()
    db.delete(b"a")
    assert [db.get(b"a", at=at) for at in (before, first, second)] == [None, b"1", b"2"]
    assert db.get_many([b"a", b"b"], at=first) == [b"1", None]
    assert list(db.scan(at=second)) == [(b"a", b"2")]
    assert db.get(b"a") is None


def test_get_many_answers_in_the_order_asked(db: postroom.Database) -> None:
    db.put(b"a", b"1")
    db.put(b"b", b"2")
    assert db.get_many([b"b", b"x", b"a", b"b"]) == [b"2", None, b"1", b"2"]
    assert db.get_many(name for name in [b"a"]) == [b"1"]
    assert db.get_many([]) == []


def test_get_many_tells_more_than_an_answer_can_hold(store: Store) -> None:
    names = [bytes([number]) for number in range(FRAME_BYTES_MAX // VALUE_BYTES_MAX + 1)]
    for name in names:
        store.db.put(name, name * VALUE_BYTES_MAX)
    wanted = [b"absent", *names]
    with store.db.begin() as tx:
        for values in (store.db.get_many(wanted), tx.get_many(wanted)):
            assert [value and value[:1] for value in values] == [None, *names]


def test_get_many_reads_at_one_timestamp_however_many_pages_it_takes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LIST_BYTES_PER_PAGE", 25)
    names = [b"%d" % number for number in range(10)]
    for name in names:
        store.db.put(name, name * 10)

    def meanwhile() -> None:
        store.db.delete_range(b"", None)
        store.advance(200)  # deleted versions are collected by then, unless protected

    between = Between(store, GetMany, meanwhile)
    assert store.db.get_many(names) == [name * 10 for name in names]
    assert between.times == 5
    assert store.db.get_many(names) == [None] * 10


# --- integers, conditions


def test_increment_adds_and_returns_the_sum(db: postroom.Database) -> None:
    assert [db.increment(b"n"), db.increment(b"n", 41), db.increment(b"n", -50)] == [1, 42, -8]
    assert db.get(b"n") == (-8).to_bytes(8, "big", signed=True)
    assert postroom.integer(db.get(b"n")) == -8
    assert postroom.integer(db.get(b"absent")) == 0


@pytest.mark.parametrize(("last", "by"), [(2**63 - 1, 1), (-(2**63), -1)])
def test_increment_beyond_64_bits_overflows(db: postroom.Database, last: int, by: int) -> None:
    db.increment(b"n", last)
    with pytest.raises(postroom.Overflow, match=r"b'n'.*64-bit.*nothing was changed"):
        db.increment(b"n", by)
    assert postroom.integer(db.get(b"n")) == last


def test_only_eight_bytes_are_an_integer(db: postroom.Database) -> None:
    db.put(b"n", b"seven")
    with pytest.raises(postroom.WrongType, match=r"b'n' contains 5 bytes.*nothing was changed"):
        db.increment(b"n")
    with pytest.raises(postroom.WrongType, match="b'seven'"):
        postroom.integer(db.get(b"n"))


def test_conditional_put_writes_only_over_what_is_expected(db: postroom.Database) -> None:
    db.conditional_put(b"a", b"1", None)
    db.conditional_put(b"a", b"2", b"1")
    for expected in (None, b"1"):
        with pytest.raises(postroom.ConditionFailed, match="b'a' contains b'2'") as failed:
            db.conditional_put(b"a", b"3", expected)
        assert failed.value.actual == b"2"
    with pytest.raises(postroom.ConditionFailed, match="contains nothing") as failed:
        db.conditional_put(b"b", b"3", b"1")
    assert failed.value.actual is None
    assert list(db.scan()) == [(b"a", b"2")]


# --- spans


def test_scan_yields_the_span_in_order(db: postroom.Database) -> None:
    for name in (b"b", b"a\x00", b"c", b"a", b"a\xff"):
        db.put(name, name)
    names = [name for name, _ in db.scan()]
    assert names == [b"a", b"a\x00", b"a\xff", b"b", b"c"]
    assert [name for name, _ in db.scan(reverse=True)] == names[::-1]
    assert [name for name, _ in db.scan(b"a\x00", b"b")] == [b"a\x00", b"a\xff"]
    assert [name for name, _ in db.scan(b"b", None)] == [b"b", b"c"]
    assert list(db.scan(b"c", b"a")) == list(db.scan(b"b", b"b")) == []
    assert [name for name, _ in db.scan(*postroom.prefix(b"a"))] == [b"a", b"a\x00", b"a\xff"]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [0, 1, PAIRS_PER_PAGE, PAIRS_PER_PAGE + 1, PAGES, 10 * PAGES])
def test_scan_stops_at_its_limit(store: Store, reverse: bool, limit: int) -> None:
    fill(store.db)
    expected = sorted((key(number) for number in range(PAGES)), reverse=reverse)
    found = [name for name, _ in store.db.scan(limit=limit, reverse=reverse)]
    assert found == expected[:limit]


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_is_consistent_however_long_it_takes(db: postroom.Database, reverse: bool) -> None:
    fill(db)
    pairs = db.scan(reverse=reverse)
    first = list(islice(pairs, 10))
    db.delete_range(b"", None)
    db.put(key(1), b"new")
    db.put(b"k00001a", b"new")
    rest = list(pairs)
    assert sorted(first + rest) == [(key(number), b"%d" % number) for number in range(PAGES)]


def test_scan_holds_a_page_in_memory(store: Store) -> None:
    fill(store.db)
    store.engine.steps = 0
    pairs = store.db.scan()
    next(pairs)
    assert store.engine.steps <= PAIRS_PER_PAGE + 1
    pairs.close()


def test_scan_of_large_values_holds_a_mebibyte(store: Store) -> None:
    for number in range(12):
        store.db.put(key(number), bytes(256 * 1024))
    store.engine.steps = 0
    pairs = store.db.scan()
    next(pairs)
    assert store.engine.steps <= 5
    assert sum(1 for _ in pairs) == 11


def test_scans_step_past_history_and_inboxes(store: Store) -> None:
    for name in (b"a", b"z"):
        store.db.put(name, b"neighbour")
    with store.db.begin() as tx:
        for number in range(2000):
            tx.enqueue_message(b"m", b"%d" % number)
    for number in range(2000):
        store.db.put(b"m", b"%d" % number)
    for reverse in (False, True):
        store.engine.steps = 0
        assert [name for name, _ in store.db.scan(reverse=reverse)][1] == b"m"
        assert store.engine.steps < 20


def test_a_key_overwritten_often_does_not_slow_its_neighbours(store: Store) -> None:
    for name in (b"a", b"m", b"z"):
        store.db.put(name, b"0")
    for number in range(20_000):
        store.start(store.core.put(b"m", b"%d" % number))
    for reverse in (False, True):
        store.engine.steps = 0
        assert [value for _, value in store.db.scan(reverse=reverse)][1] == b"19999"
        assert store.engine.steps < 20
    with store.db.begin() as tx:
        store.engine.steps = 0
        list(tx.scan())
        tx.put(b"b", b"1")
    assert store.engine.steps < 40


def test_delete_range_says_how_many_keys_there_were(db: postroom.Database) -> None:
    fill(db, 20)
    assert db.delete_range(key(5), key(15)) == 10
    assert db.delete_range(key(5), key(16)) == 1
    assert db.delete_range(key(16), None) == 4
    assert [name for name, _ in db.scan()] == [key(number) for number in range(5)]


def test_delete_range_goes_beyond_a_page(store: Store) -> None:
    fill(store.db)
    assert store.db.delete_range(b"", None) == PAGES
    assert list(store.db.scan()) == []


# --- accounting


def test_accounting_adds_to_every_prefix(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.enqueue_update(postroom.Accounting(b"eu/de/berlin", {"orders": 2, "cents": 500}))
        tx.enqueue_update(postroom.Accounting(b"eu/de", {"orders": 1}))
        tx.enqueue_update(postroom.Accounting(b"eu/fr", {"orders": 4, "cents": -1}))
    db.drain()
    assert db.accounting(b"eu") == {"orders": 7, "cents": 499}
    assert db.accounting(b"eu/de") == db.accounting(b"eu/de/") == {"orders": 3, "cents": 500}
    assert db.accounting(b"eu/de/berlin") == {"orders": 2, "cents": 500}
    assert db.accounting(b"e") == db.accounting(b"eu/d") == {}
    assert list(db.scan()) == []


# --- the store itself


def test_now_is_above_every_commit_and_has_a_datetime(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.put(b"a", b"1")
    moment = db.now()
    assert tx.commit_timestamp is not None
    assert isinstance(moment, int)
    assert tx.commit_timestamp < moment < db.now()
    assert moment.datetime.tzinfo == datetime.UTC
    assert repr(moment) == f"Timestamp({int(moment)})"


def test_the_clock_of_a_timestamp_is_the_wall_clock(store: Store) -> None:
    store.advance(1.5)
    assert store.db.now().datetime.timestamp() == pytest.approx(1_700_000_001.5)


def test_status_tells_how_the_store_is(db: postroom.Database) -> None:
    before = db.status()
    with db.begin() as tx:
        tx.enqueue_message(b"a", b"1")
        tx.enqueue_message(b"a", b"2", deliver_at=3600)
        tx.enqueue_update(postroom.Increment(b"n"))
    with db.begin() as tx:
        tx.reap_queue(b"a")
    after = db.status()
    assert (after.path, after.node_id) == (before.path, 1)
    assert after.timestamp > before.timestamp
    assert after.applied_index > before.applied_index
    db.put(b"large", os.urandom(100_000))
    assert db.status().disk_bytes >= after.disk_bytes + 100_000
    told = (after.enqueued, after.delivered, after.executed, after.pending, after.dead)
    assert told == (3, 1, 1, 1, 0)
    assert (after.reaped, after.dead_letters) == (1, 0)


def test_status_tells_where_the_store_is(path: str) -> None:
    with postroom.open(path) as db:
        assert db.status().path == path


def test_committed_data_is_there_after_opening_again(tmp_path: Path) -> None:
    with postroom.open(tmp_path) as db:
        db.put(b"a", b"1")
        with db.begin() as tx:
            tx.enqueue_message(b"a", b"m")
            tx.enqueue_message(b"a", b"later", deliver_at=3600)
        last = db.now()
    with postroom.open(str(tmp_path)) as db:
        assert db.now() > last
        assert db.get(b"a") == b"1"
        assert db.get(b"a", at=last) == b"1"
        assert [message.value for message in db.peek(b"a")] == [b"m"]
        assert db.status().pending == 1


@pytest.mark.parametrize("durability", ["commit", "interval", "none"])
def test_each_durability_keeps_what_a_clean_close_left(tmp_path: Path, durability: str) -> None:
    with postroom.open(tmp_path, durability=durability) as db:  # type: ignore[arg-type]
        db.put(b"a", b"1")
    with postroom.open(tmp_path) as db:
        assert db.get(b"a") == b"1"


def test_a_commit_is_synced_unless_asked_otherwise() -> None:
    for options, syncs in (({}, 2), ({"sync": False}, 0)):
        store = Store(**options)
        store.engine.syncs = 0
        store.db.put(b"a", b"1")
        store.db.put(b"a", b"2")
        assert store.engine.syncs == syncs


def test_an_interval_bounds_what_a_loss_of_power_may_cost() -> None:
    store = Store(sync=False, sync_interval_seconds=0.05)
    store.db.put(b"a", b"1")
    store.engine.syncs = 0
    store.advance(0.06)
    assert store.engine.syncs == 1


def test_close_is_idempotent(path: str) -> None:
    db = postroom.open(path)
    db.close()
    db.close()


def test_both_forms_offer_the_same() -> None:
    for blocking, asynchronous in (
        (postroom.Database, postroom.aio.Database),
        (postroom.Transaction, postroom.aio.Transaction),
        (postroom.Snapshot, postroom.aio.Snapshot),
        (postroom.Queue, postroom.aio.Queue),
        (postroom.QueueMessage, postroom.aio.QueueMessage),
        (postroom.Worker, postroom.aio.Worker),
    ):
        names = {name for name in dir(blocking) if not name.startswith("_")}
        names -= {"timestamp", "name", "on_loop", "core", "wait"}  # for layers on top, mostly
        assert names <= {name for name in dir(asynchronous) if not name.startswith("_")}
        for name in names:
            method = getattr(blocking, name)
            if callable(method) and name != "reap_queue":
                there = inspect.signature(getattr(asynchronous, name)).parameters
                assert list(inspect.signature(method).parameters) == list(there), name


def test_the_documented_names_are_there() -> None:
    for name in (
        "open", "key", "unpack", "prefix", "integer", "transactional", "Database", "Transaction",
        "Put", "Increment", "Delete", "DeleteRange", "Accounting", "Message", "Timestamp",
        "Error", "Retryable", "TransactionConflict", "Unavailable", "CommitUnknown", "Invalid",
        "KeyTooLarge", "ValueTooLarge", "TransactionTooLarge", "TransactionExpired",
        "TransactionClosed", "WrongType", "Overflow", "NotInTransaction", "SnapshotTooOld",
        "ConditionFailed", "StoreLocked", "StoreCorrupted", "VersionMismatch", "AccessDenied",
    ):  # fmt: skip
        assert hasattr(postroom, name), name


def test_the_errors_form_the_documented_tree() -> None:
    errors = postroom.errors
    for kind, children in {
        errors.Error: (errors.Retryable, errors.CommitUnknown, errors.Invalid,
                       errors.ConditionFailed, errors.StoreLocked, errors.StoreCorrupted,
                       errors.VersionMismatch, errors.AccessDenied),
        errors.Retryable: (errors.TransactionConflict, errors.Unavailable),
        errors.Invalid: (errors.KeyTooLarge, errors.ValueTooLarge, errors.TransactionTooLarge,
                         errors.TransactionExpired, errors.TransactionClosed, errors.WrongType,
                         errors.Overflow, errors.NotInTransaction, errors.SnapshotTooOld),
    }.items():  # fmt: skip
        assert all(issubclass(child, kind) for child in children)
    assert errors.Unavailable("x").retry_after > 0
