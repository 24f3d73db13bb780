"""Whole tables of a store with several ranges, which split between two pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.client.bulk import Bulk
from postroom.limits import KEY_BYTES_MAX
from postroom.messaging import bulk_requests, scanning
from postroom.messaging.bulk_requests import RecordFilter, RecordsPage, ScanRecords, cursor_at
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.queues.queries import ListQueueMessages
from postroom.ranges.requests import Accounting
from tests.client.stores import Store

KEYS = (b"", b"a", b"a\x00", b"m", b"m\x00", b"m\xff", b"x", b"\xff" * 20)
CUTS = (b"a\x00", b"m", b"m\x00", b"m\xff", b"w")
OF_KEYS = ("data", "changes", "inbox", "reaped", "accounting", "inbox_index", "beside")
OF_NO_KEY = ("outbox", "dead_letters", "places", "counters")


def fill(db: postroom.Database) -> None:
    """Put something of each kind at each key."""
    db.create_queue("q")
    for number, key in enumerate(KEYS):
        for value in (b"first", b"%d" % number):
            db.put(key, value)
        with db.begin() as tx:
            for _ in range(3):
                tx.enqueue_message(key, b"mail")
            tx.enqueue_message(key, b"later", deliver_at=1000)
            tx.enqueue_update(Accounting(key or b"none", {"n": 1}))
        with db.begin() as tx:
            tx.enqueue("q", b"work %d" % number, key=key, id=key + b"/id")
        db.drain()
        with db.begin() as tx:
            tx.reap_queue(key, 1)
        with db.begin() as tx:
            tx.bury(tx.reap_queue(key, 1), "useless")


def records(pages: Iterator[RecordsPage], table: str) -> list[Any]:
    return [each for page in pages for each in bulk_requests.records(table, page)]


def bulk_of(store: Store, page_bytes: int) -> Any:
    return type(store.db.bulk)(store.driver, Bulk(store.driver, page_bytes))


@pytest.mark.parametrize("table", [*OF_KEYS, "outbox", "dead_letters"])
@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_table_is_read_once_whenever_its_range_splits(
    monkeypatch: pytest.MonkeyPatch, table: str, when: str
) -> None:
    monkeypatch.setattr(scanning, "LIST_MAX", 2)
    store = Store()
    fill(store.db)
    if when == "before":
        for key in CUTS:
            store.db.split(key)
    left = [key for key in CUTS if when == "meanwhile"]
    with store.db.hold(whole=True) as at:
        expected = records(store.db.bulk.scan(table, at=at), table)
        if when == "after":
            for key in CUTS:
                store.db.split(key)
        found, pages = [], 0
        for page in bulk_of(store, 100).scan(table, at=at):
            pages += 1
            found += bulk_requests.records(table, page)
            if left:
                store.db.split(left.pop())
                store.db.put(b"m\x00", b"meanwhile")
    assert found == expected
    assert len(expected) >= len(KEYS)
    assert pages > 1
    assert len(left) < len(CUTS)


def test_each_page_of_columns_fits_the_one_before_whatever_splits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(10):
        random, store = Random(seed), Store()
        for number in range(200):
            store.db.put(b"k%03d" % random.randrange(60), b"%d" % number)
        with store.db.hold() as at, monkeypatch.context() as patch:
            patch.setattr(limits, "TURN_STEPS_MAX", random.randrange(1, 20))
            expected = dict(store.db.scan(at=at))
            found: dict[bytes, bytes] = {}
            for page in store.db.bulk.scan("data", b"k005", b"k055", at=at):
                rows = bulk_requests.records("data", page)
                assert not found.keys() & {each.key for each in rows}
                found |= {each.key: each.value for each in rows}
                if random.random() < 0.3:
                    _split(store, b"k%03d" % random.randrange(60))
                store.db.put(b"k%03d" % random.randrange(60), b"meanwhile")
        assert found == {k: v for k, v in expected.items() if b"k005" <= k < b"k055"}


def _split(store: Store, key: bytes) -> None:
    if key not in {each.start for each in store.db.ranges()}:
        store.db.split(key)


def test_a_range_that_began_later_had_no_records_of_no_key() -> None:
    """The copies for its queues were there already, in part."""
    store = Store()
    fill(store.db)
    store.db.split(b"b")
    with store.db.hold(whole=True) as at:
        before = _of_no_key(store, at)
        for key in (b"m", b"n"):
            store.db.split(key)
        assert _of_no_key(store, at) == before
    with store.db.hold(whole=True) as at:
        pages = [*store.db.bulk.scan("counters", at=at)]
        assert [page.range_id for page in pages] == [1, 2, 3, 4]


def _of_no_key(store: Store, at: int) -> dict[str, list[Any]]:
    found = {table: records(store.db.bulk.scan(table, at=at), table) for table in OF_NO_KEY}
    of_queue = store.db.bulk.scan("places", at=at, wanted=RecordFilter(0, "q"))
    return found | {"queue": records(of_queue, "places")}


@pytest.mark.parametrize("are_taken", [False, True], ids=["unsent", "taken"])
def test_an_entry_that_another_range_has_taken_is_in_no_outbox(
    monkeypatch: pytest.MonkeyPatch, are_taken: bool
) -> None:
    """Entries that receivers have taken stay in the outboxes, or none leaves them."""

    async def never_drop(*_: Any) -> None:
        pass

    if are_taken:
        monkeypatch.setattr(SendingService, "_drop", never_drop)
    else:
        monkeypatch.setattr(SendingService, "send_batches", lambda _: 3600.0)
    store = Store()
    store.db.create_queue("q")
    for key in (b"m", b"x"):
        store.db.split(key)
    for number in range(4):
        with store.db.begin() as tx:
            tx.put(b"a", b"1")
            for key in (b"b", b"n", b"y"):
                tx.enqueue_message(key, b"to " + key)
            tx.enqueue_update(Accounting(b"z/sum", {"n": 1}))
            tx.enqueue("q", b"%d" % number, key=b"z")
    store.advance(1.0)
    with store.db.hold(whole=True) as at:
        waiting = records(store.db.bulk.scan("outbox", at=at), "outbox")
        ids = records(store.db.bulk.scan("outbox", at=at, columns=("id",)), "outbox")
        arrived = len(records(store.db.bulk.scan("inbox", at=at), "inbox"))
        updates = [*store.db.bulk.waiting_updates(at=at)]
    assert [each.id for each in waiting] == [each.id for each in ids]
    assert len({each.id for each in waiting}) == len(waiting)
    assert len(waiting) == (0 if are_taken else 16)
    assert arrived == (12 if are_taken else 4)
    assert updates == [each.update.request for each in waiting if each.update]


@pytest.mark.parametrize("state", ["", "done", "dead"])
def test_messages_of_a_queue_are_read_by_the_span_of_their_homes(state: str) -> None:
    store = Store()
    fill(store.db)
    queue = store.db.queue("q")
    if state == "done":
        queue.acknowledge(list(queue.claim(100)))
    elif state == "dead":
        queue.reject(list(queue.claim(100)), dead=True)
    for key in CUTS:
        store.db.split(key)
    with store.db.hold() as at:
        expected = _ids(store, state, at)
        assert len(expected) == len(KEYS)
        found: list[bytes] = []
        for each in store.db.ranges():
            found += _ids(store, state, at, homes=(each.start, each.end))
            _split(store, each.start + b"\x00\x00")
        assert sorted(found) == sorted(expected)
        assert _ids(store, state, at, homes=(b"m", b"m\xff")) == [b"m/id", b"m\x00/id"]
        assert _ids(store, state, at, homes=(b"x", b"a")) == []


def _ids(store: Store, state: str, at: int, **options: Any) -> list[bytes]:
    pages = store.db.bulk.queue("q", state, at=at, **options)
    return [each.id for page in pages for each in page.messages]


def test_parts_of_many_ranges_are_not_many_more_than_the_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    for number in range(400):
        store.db.put(b"%03d" % number, b"x" * 1000)
    for number in range(0, 400, 50):
        _split(store, b"%03d" % number)
    monkeypatch.setattr("postroom.ranges.partitions.PARTITION_BYTES_MIN", 1)
    every = store.db.partitions(part_bytes=3000)
    monkeypatch.setattr("postroom.client.bulk.PARTITIONS_MAX", 10)
    few = store.db.partitions(part_bytes=3000)
    assert len(every) > 50
    assert 9 <= len(few) <= 10 + 9
    assert [each.end for each in few] == [*(each.start for each in few[1:]), None]


HOSTILE = (
    b"", b"\x00", b"\x00" * 12, b"\xff" * 300, b"\x00\x00\x00\x01\x06", b"\x00\x00\x00\x00\x03" * 9,
    b"\x00\x00\x00\x00\x06m\x00", b"\xff\xff\xff\xff\x06m\x00\x01\x03",
    bytes(8) + b"z" * KEY_BYTES_MAX,
    cursor_at("data", b"m"), cursor_at("inbox", b"\x00m\x00"), cursor_at("inbox_index", b"x"),
)  # fmt: skip


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "remote"])
def test_a_cursor_that_is_none_shows_no_more_than_the_span(tmp_path: Path, remote: bool) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with postroom.open(":memory:", serve=address) as served:
        fill(served)
        for key in CUTS:
            served.split(key)
        with postroom.connect(address) as client, served.hold(whole=True) as at:
            db: Any = client if remote else served
            for table in OF_KEYS:
                for cursor in HOSTILE:
                    request = ScanRecords(
                        table, b"a", b"m\x00", int(at), cursor=cursor, bytes_max=1
                    )
                    for each in _told(db, request):
                        key = each[0] if table != "beside" else each.key
                        assert b"a" <= key < b"m\x00"
            for homes in ((b"x", b"a"), (b"", b""), (b"\xff" * KEY_BYTES_MAX, None)):
                lists = ListQueueMessages("q", timestamp=int(at), homes=homes)
                assert _answer(db, lists).messages == []


def _told(db: Any, request: ScanRecords) -> list[Any]:
    return bulk_requests.records(request.table, _answer(db, request))


def _answer(db: Any, request: Any) -> Any:
    async def ask() -> Any:
        return await db._core.sender.send(request)

    return db._blocking.run(ask())
