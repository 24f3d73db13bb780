"""The stored counters and the records that they count, as of one timestamp, for audits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.client import bulk
from postroom.errors import Invalid, SnapshotTooOld
from postroom.messaging.bulk_requests import RecordFilter
from postroom.ranges import accounting
from postroom.ranges.requests import Accounting, Increment, Put
from tests.client.stores import Store


def records(db: postroom.Database, table: str, at: int, *span: Any, queue: str = "") -> list[Any]:
    pages = db.bulk.records(table, *span, at=at, wanted=RecordFilter(queue=queue))
    return [each for page in pages for each in page]


def beside(db: postroom.Database, at: int, *span: Any) -> list[Any]:
    return records(db, "beside", at, *span)


def places(db: postroom.Database, at: int, queue: str = "") -> list[Any]:
    return records(db, "places", at, queue=queue)


def sums(db: postroom.Database, what: str) -> dict[bytes, dict[str, int]]:
    return {each.key: each.sums for each in beside(db, 0) if each.what == what}


def fill(db: postroom.Database) -> None:
    """Write a little of everything."""
    db.create_queue("jobs", max_attempts=1)
    db.create_queue("kept", archive=True)
    db.put(b"text", b"no number")
    with db.begin() as tx:
        for number in range(5):
            tx.put(b"k\x00%d" % number, b"")
            tx.enqueue_message(b"inbox/%d" % (number % 2), b"hello")
            tx.enqueue("jobs", b"work", id=b"%d" % number, group="g" if number < 2 else "")
        tx.enqueue("jobs", b"later", id=b"later", deliver_at=3600)
        tx.enqueue("kept", b"done", id=b"done", key=b"elsewhere", kind="mail")
        tx.enqueue_update(Accounting(b"a/b", {"n": 1}))
        tx.enqueue_message(b"later", b"", deliver_at=3600)
        tx.enqueue_update(Put(b"p", b"1"), execute_at=3600)
        tx.enqueue_update(Increment(b"text"))
    db.drain()
    with db.begin() as tx:
        (first,) = tx.reap_queue(b"inbox/0", 1)
        tx.postpone([first], delay=3600, hold=True)
    with db.begin() as tx:
        tx.reap_queue(b"inbox/1", 1)
    jobs = db.queue("jobs")
    jobs.acknowledge([b"2"])
    jobs.cancel([b"3"])
    jobs.reject([b"4"], dead=True)
    db.queue("kept").acknowledge([b"done"])


def held(db: postroom.Database) -> Any:
    return db.hold(whole=True)


def test_counters_and_recounted_records_agree(db: postroom.Database) -> None:
    fill(db)
    with held(db) as at:
        of_range, *of_queues = records(db, "counters", at)
        index = records(db, "inbox_index", at)
        outside, lying = Counter(each.part for each in places(db, at)), beside(db, at)
        jobs, kept = places(db, at, "jobs"), places(db, at, "kept")
    claimed = of_range.counters
    assert (outside["message"], claimed.pending_messages) == (2, 2)
    assert (outside["update"], claimed.pending_updates) == (1, 1)
    assert (outside["dead_letter"], claimed.dead_letters) == (1, 1)
    inbox = Counter(each.key for each in lying if each.what == "message")
    assert inbox == {each.key: each.messages for each in index}
    assert sum(inbox.values()) == claimed.delivered - claimed.reaped == 3
    (hold,) = (each for each in lying if each.what == "hold")
    assert {each.key: each.held for each in index} == {
        b"inbox/0": hold.id, b"inbox/1": b""
    }  # fmt: skip
    oldest = min(each.id for each in lying if each.what == "message" and each.key == b"inbox/1")
    assert index[1].oldest == oldest

    by_name = {each.queue: each for each in of_queues}
    counted = by_name["jobs"].counted
    parts = Counter(each.part for each in jobs if each.part != "group")
    assert parts == {"ready": 2, "scheduled": 1, "done": 1, "cancelled": 1, "dead": 1}
    assert (counted.ready, counted.scheduled, counted.done, counted.dead) == (2, 1, 1, 1)
    assert [(each.group, each.outstanding) for each in jobs if each.part == "group"] == [("g", 2)]
    assert sum(each.group == "g" for each in jobs if each.part == "ready") == 2
    (archived,) = kept
    assert (archived.part, archived.key, archived.kind, archived.id) == (
        "archived", b"elsewhere", "mail", b"done"
    )  # fmt: skip
    assert by_name["kept"].counted.archived == 1
    bodies = {(each.number, each.key, each.kind, each.id, each.seq) for each in lying
              if each.what == "body"}  # fmt: skip
    found = {(by_name[name].number, each.key, each.kind, each.id, each.seq)
             for name, those in (("jobs", jobs), ("kept", kept)) for each in those
             if each.part != "group"}  # fmt: skip
    assert bodies == found
    states = {each.id: each.status for each in lying if each.what == "state"}
    assert states == {b"2": 1, b"3": 4, b"4": 3, b"done": 2}


def test_only_held_messages_of_a_claim_count_as_leased(db: postroom.Database) -> None:
    """In places, and as an image is checked when it has been restored."""
    jobs = db.create_queue("jobs", ack_wait=1000)
    with db.begin() as tx:
        for number in range(4):
            tx.enqueue("jobs", b"work", id=b"%d" % number)
    for message in jobs.claim(4)[:2]:
        message.acknowledge()
    with held(db) as at:
        found = [(each.part, each.id) for each in places(db, at, "jobs")]
        counted = db.images.check(at)
    assert sorted(found) == [("done", b"0"), ("done", b"1"), ("leased", b"2"), ("leased", b"3")]
    assert not counted.wrong


def test_all_of_it_is_as_it_was_then(db: postroom.Database) -> None:
    fill(db)

    def everything(at: int) -> list[Any]:
        found = [records(db, table, at) for table in ("counters", "inbox_index", "beside")]
        return found + [places(db, at, name) for name in ("", "jobs", "kept")]

    with held(db) as at:
        before = everything(at)
        fill_more(db)
        assert everything(at) == before
        assert everything(0) != before
        db.queue("kept").drop()
        assert everything(at) == before
        with pytest.raises(Invalid, match="no queue 'new'"):
            places(db, at, "new")
    for table in ("counters", "inbox_index", "places", "beside"):
        with pytest.raises(SnapshotTooOld, match="whole"):
            records(db, table, at)


def fill_more(db: postroom.Database) -> None:
    db.create_queue("new")
    with db.begin() as tx:
        tx.enqueue("new", b"", id=b"1")
        tx.enqueue_message(b"inbox/9", b"")
        tx.enqueue_update(Accounting(b"a/c", {"n": 1}))
        tx.enqueue_message(b"later", b"", deliver_at=3600)
    db.queue("jobs").cancel([b"0", b"1"])
    with db.begin() as tx:
        tx.reap_queue(b"inbox/1", 9)
    db.drain()


def test_pages_are_bounded_and_fit_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    db = store.db
    for number in range(4):
        db.create_queue(f"q{number}")
    with db.begin() as tx:
        for number in range(30):
            tx.put(b"k/%02d" % number, b"")
            tx.enqueue_message(b"k/%02d" % (number % 7), b"")
            tx.enqueue_message(b"late", b"", deliver_at=60 + number)
            tx.enqueue("q1", b"", id=b"k/%02d" % number)
            tx.enqueue_update(Accounting(b"k/%02d" % number, {"n": 1}))
    db.drain()
    with held(db) as at:
        whole = [places(db, at), places(db, at, "q1"), beside(db, at)]
        index = records(db, "inbox_index", at)
        monkeypatch.setattr(bulk, "_PAGE_BYTES", 200)
        assert [places(db, at), places(db, at, "q1"), beside(db, at)] == whole
        pages = [page.rows for page in db.bulk.scan("beside", at=at)]
        assert len(pages) > 10
        assert max(pages) < 10
        of_queue = RecordFilter(queue="q1")
        assert all(page.rows < 10 for page in db.bulk.scan("places", at=at, wanted=of_queue))
        assert records(db, "inbox_index", at) == index
        assert [page.rows for page in db.bulk.scan("counters", at=at)] == [4, 1]
        monkeypatch.setattr(limits, "TURN_STEPS_MAX", 4)
        assert [places(db, at), places(db, at, "q1"), beside(db, at)] == whole
        span = (b"k/05", b"k/07")
        inside = [each for each in whole[2] if b"k/05" <= each.key < b"k/07"]
        assert beside(db, at, *span) == inside != []


def test_a_dropped_queue_has_no_counters(store: Store) -> None:
    db = store.db
    db.create_queue("q")
    db.create_queue("a")
    with db.begin() as tx:
        tx.enqueue("q", b"", id=b"1")
    db.queue("q").drop()
    _, *found = records(db, "counters", 0)
    assert {each.queue: each.dropped for each in found} in ({"a": False}, {"a": False, "q": True})
    store.advance(10)
    assert [each.queue for each in records(db, "counters", 0)] == ["", "a"]
    assert beside(db, 0) == []


# --- posted sums ----------------------------------------------------------------------------------


def post(db: postroom.Database, *posted: tuple[bytes, dict[str, int]]) -> None:
    with db.begin() as tx:
        for key, deltas in posted:
            tx.enqueue_update(Accounting(key, deltas))
    db.drain()


def recounted(db: postroom.Database) -> dict[bytes, dict[str, int]]:
    """Return the sums that follow from what was posted."""
    found: dict[bytes, Counter[str]] = {}
    for key, posted in sums(db, "posted").items():
        for prefix in accounting.prefixes(key):
            of_prefix = found.setdefault(prefix, Counter())
            for metric, value in posted.items():
                of_prefix[metric] += value
    return {prefix: dict(of_prefix) for prefix, of_prefix in found.items()}


def test_sums_follow_from_what_was_posted(db: postroom.Database) -> None:
    post(db, (b"a/b/c", {"n": 1}), (b"a/b", {"n": 10, "m": 2}), (b"a/b/c/", {"n": 5}))
    post(db, (b"a", {"n": 100}), (b"//x//y", {"n": 1}), (b"/", {"n": 7}), (b"a/d", {"n": -3}))
    assert sums(db, "posted")[b"a/b/c"] == {"n": 6}
    assert recounted(db) == sums(db, "sum")
    assert sums(db, "sum")[b"a"] == {"n": 113, "m": 2}


def test_posted_amounts_may_leave_64_bits_while_their_sum_does_not(store: Store) -> None:
    db = store.db
    most = (1 << 63) - 1
    post(db, (b"a", {"n": most}))
    post(db, (b"a/b", {"n": -most}))
    post(db, (b"a", {"n": most}))
    assert store.dead_reasons() == []
    assert sums(db, "sum") == {b"a": {"n": most}, b"a/b": {"n": -most}}
    found = recounted(db)
    assert (found[b"a"]["n"] - most) % (1 << 64) == 0
    assert found[b"a/b"] == {"n": -most}
