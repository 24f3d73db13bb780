"""Messages that left inboxes are read after one timestamp and up to another."""

from __future__ import annotations

import msgspec
import pytest

import postroom
from postroom.errors import SnapshotTooOld
from postroom.limits import READ_BYTES_MAX
from postroom.messaging.bulk_requests import (
    TABLES,
    RecordFilter,
    RecordsPage,
    ScanRecords,
    records,
)
from tests.client.stores import Store

Left = tuple[bytes, bool, bytes]


def left(db: postroom.Database, after: int, at: int | None = None) -> list[Left]:
    """Return the rows of a page: key, whether it was consumed, value."""
    found = []
    wanted = RecordFilter(after)
    for page in db.bulk.records("reaped", at=db.now() if at is None else at, wanted=wanted):
        for each in page:
            assert after < each.reaped_at
            found.append((each.key, bool(each.consumed), each.message.value))
    return found


def send(db: postroom.Database, key: bytes, *values: bytes) -> None:
    with db.begin() as tx:
        for value in values:
            tx.enqueue_message(key, value)


def test_messages_that_left_inboxes_tell_whether_they_were_consumed(store: Store) -> None:
    db = store.db
    db.put(b"b", b"a value")
    db.put(b"b", b"another one")
    send(db, b"a\x00", b"1", b"2")
    send(db, b"b", b"3", b"4", b"5")
    first = int(db.now())
    with db.begin() as tx:
        tx.reap_queue(b"a\x00", 1)
        tx.reap_queue(b"b", 1)
    second = int(db.now())
    with db.begin() as tx:
        (four,) = tx.reap_queue(b"b", 1)
        tx.postpone(four, 1000)
    with db.begin() as tx:
        (five,) = tx.reap_queue(b"b", 1)
        tx.bury(five)
    third = int(db.now())
    assert left(db, first) == [
        (b"a\x00", True, b"1"), (b"b", False, b"5"), (b"b", False, b"4"), (b"b", True, b"3"),
    ]  # fmt: skip
    assert left(db, first, second) == [(b"a\x00", True, b"1"), (b"b", True, b"3")]
    assert left(db, second, third) == [(b"b", False, b"5"), (b"b", False, b"4")]
    assert left(db, third) == []
    # A look back finds all of it.
    assert [message.value for message in db.peek(b"b", at=first)] == [b"3", b"4", b"5"]


def test_pages_fit_together(store: Store) -> None:
    db = store.db
    first = int(db.now())
    values = [b"%d" % number * 300 for number in range(40)]
    for key in (b"a", b"b"):
        send(db, key, *values)
        with db.begin() as tx:
            tx.reap_queue(key, 30)
        with db.begin() as tx:
            tx.reap_queue(key, 30)
    request = ScanRecords("reaped", b"", None, int(db.now()), RecordFilter(first), bytes_max=4000)
    found, pages = [], 0
    while True:
        page = store.driver.run(_ask(store, request))
        pages += 1
        for each in records("reaped", page):
            assert each.consumed
            found.append((each.key, each.message.value))
        if page.resume is None:
            break
        request = msgspec.structs.replace(request, cursor=page.resume)
    assert sorted(found) == sorted((key, value) for key in (b"a", b"b") for value in values)
    assert pages > 4
    assert READ_BYTES_MAX > 4000


async def _ask(store: Store, request: ScanRecords) -> RecordsPage:
    page: RecordsPage = await store.driver.send(request)
    return page


@pytest.mark.parametrize("resume", [b"\xff" * 40, b"", b"x", b"\x00" * 5])
def test_a_page_that_was_never_told_is_an_answer_all_the_same(store: Store, resume: bytes) -> None:
    db = store.db
    send(db, b"a", b"1")
    first = int(db.now())
    with db.begin() as tx:
        tx.reap_queue(b"a", 1)
    for table in TABLES:
        wanted = RecordFilter(first)
        request = ScanRecords(table, b"", None, int(db.now()), wanted, (), resume)
        if table not in {"data", "changes", "inbox", "reaped"}:
            request = msgspec.structs.replace(request, timestamp=0)
        assert store.driver.run(_ask(store, request)).rows <= 2


def test_a_collected_span_of_reaped_messages_is_an_error(store: Store) -> None:
    db = store.db
    first = int(db.now())
    send(db, b"a", b"1")
    with db.begin() as tx:
        tx.reap_queue(b"a", 1)
    store.advance(1000)
    db.put(b"k", b"v")
    store.advance(100)
    with pytest.raises(SnapshotTooOld):
        left(db, first)
    assert left(db, int(db.now())) == []
