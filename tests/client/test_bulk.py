"""Reads of everything: columns, changes, messages and sums at one timestamp, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.client import bulk
from postroom.client.bulk import Columns
from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.kv.engine_folder import EngineName
from postroom.ranges.requests import Accounting, Increment, Put
from tests.client.stores import Store
from tests.kv.on_disk import INSTALLED

LONG_SECONDS = 200.0
Row = tuple[bytes, bytes, int, int]


def column(joined: bytes, ends: bytes) -> Iterator[bytes]:
    start = 0
    for at in range(0, len(ends), 4):
        end = int.from_bytes(ends[at : at + 4], "little")
        yield joined[start:end]
        start = end


def rows(pages: Iterable[Columns]) -> list[Row]:
    """Return rows of key, value, timestamp and kind."""
    found: list[Row] = []
    for page in pages:
        stamps = [page.timestamps[at : at + 8] for at in range(0, 8 * page.rows, 8)]
        found += zip(
            column(page.keys, page.key_ends),
            column(page.values, page.value_ends),
            (int.from_bytes(stamp, "big") for stamp in stamps),
            page.kinds,
            strict=True,
        )
    return found


def test_columns_are_what_a_scan_tells(db: postroom.Database) -> None:
    for number in range(300):
        db.put(postroom.key("k", number, b"\x00"), b"%d" % number)
    db.increment(b"n", 7)
    db.delete(postroom.key("k", 5, b"\x00"))
    with db.begin() as tx:
        tx.enqueue_message(postroom.key("k", 1, b"\x00"), b"not a value")
    with db.hold() as at:
        expected = list(db.scan())
        db.put(b"later", b"1")
        db.delete(b"n")
        found = rows(db.bulk.columns(at=at))
        assert [(key, value) for key, value, _, _ in found] == expected
        assert [kind for _, _, _, kind in found if kind != 1] == [4]
        assert all(0 < stamp <= at for _, _, stamp, _ in found)
        middle = expected[100][0]
        bounded = rows(db.bulk.columns(middle, expected[110][0], at=at))
        assert [key for key, *_ in bounded] == [key for key, _ in expected[100:110]]
        since = found[200][2]
        assert {row for row in found if row[2] > since} == set(
            rows(db.bulk.columns(at=at, after=since))
        )


def test_without_values_none_travel(store: Store) -> None:
    store.db.put(b"a", b"x" * 1000)
    with store.db.hold() as at:
        (page,) = store.db.bulk.columns(at=at, values=False)
    assert (page.rows, page.keys, page.values, page.value_ends) == (1, b"a", b"", b"")


def test_changes_are_every_version_and_deletion_the_oldest_of_a_key_first(store: Store) -> None:
    db = store.db
    db.put(b"a", b"0")
    before = db.now()
    db.put(b"a", b"1")
    db.put(b"b", b"1")
    db.delete(b"a")
    db.put(b"a", b"2")
    until = db.now()
    db.put(b"a", b"3")
    db.put(b"c", b"3")
    found = rows(db.bulk.columns(at=until, after=before, changes=True))
    assert [(key, value, kind) for key, value, _, kind in found] == [
        (b"a", b"1", 1),
        (b"a", b"", 2),
        (b"a", b"2", 1),
        (b"b", b"1", 1),
    ]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 50])
def test_pages_fit_together_wherever_they_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Random histories, read in pages of a few steps while more is written."""
    random, db = Random(steps), store.db
    history: list[tuple[bytes, bytes, int]] = []
    for number in range(150):
        key = b"k%d" % random.randrange(12)
        with db.begin() as tx:
            if random.random() < 0.2 and tx.get(key) is not None:
                tx.delete(key)
                value = b""
            else:
                value = b"%d" % number
                tx.put(key, value)
            if random.random() < 0.3:
                tx.enqueue_message(key, b"m")
        history.append((key, value, tx.commit_timestamp))
    after, at = history[40][2], history[110][2]
    state = dict(db.scan(at=at))
    wanted = [each for each in history if after < each[2] <= at]
    with monkeypatch.context() as patch:
        patch.setattr(limits, "TURN_STEPS_MAX", steps)
        changes, pages = [], db.bulk.columns(at=at, after=after, changes=True)
        for page in pages:
            changes += rows([page])
            db.put(b"k%d" % random.randrange(12), b"meanwhile")
        assert sorted((stamp, key, value) for key, value, stamp, _ in changes) == [
            (stamp, key, value) for key, value, stamp in wanted
        ]
        assert all(a[0] < b[0] or a[2] < b[2] for a, b in pairwise(changes))
        now = rows(db.bulk.columns(at=at))
    assert {key: value for key, value, _, _ in now} == state


def test_a_key_of_many_versions_takes_many_pages(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.db.now()
    for number in range(40):
        store.db.put(b"hot", b"%d" % number)
    monkeypatch.setattr(bulk, "_PAGE_BYTES", 100)
    pages = list(store.db.bulk.columns(at=store.db.now(), after=before, changes=True))
    assert len(pages) > 4
    assert [value for _, value, _, _ in rows(pages)] == [b"%d" % number for number in range(40)]


def test_a_collected_timestamp_is_refused(store: Store) -> None:
    db = store.db
    db.put(b"a", b"1")
    old = db.now()
    db.put(b"a", b"2")
    store.advance(LONG_SECONDS)
    db.put(b"b", b"1")
    store.advance(LONG_SECONDS)
    with pytest.raises(SnapshotTooOld):
        next(db.bulk.columns(at=old))
    with pytest.raises(SnapshotTooOld):
        next(db.bulk.columns(at=db.now(), after=old, changes=True))
    with pytest.raises(SnapshotTooOld):
        next(db.bulk.scan("inbox", at=old))
    with pytest.raises(SnapshotTooOld), db.hold(old):
        pass
    assert rows(db.bulk.columns(at=db.now(), after=old))  # no history is needed for that
    assert db.partitions()[0].readable_from > old


def test_a_held_timestamp_serves_others_until_it_is_given_back(store: Store) -> None:
    db = store.db
    db.put(b"a", b"1")
    with db.hold() as at:
        db.put(b"a", b"2")
        store.advance(LONG_SECONDS)
        with db.hold(at) as again:
            assert again == at
        store.advance(LONG_SECONDS)
        assert [row[:2] for row in rows(db.bulk.columns(at=at))] == [(b"a", b"1")]
    store.advance(LONG_SECONDS)
    db.put(b"a", b"3")
    store.advance(LONG_SECONDS)
    with pytest.raises(SnapshotTooOld):
        next(db.bulk.columns(at=at))
    assert store.node.replicas.sizes()["protections"] == 0


def records(db: postroom.Database, table: str, at: int) -> list[Any]:
    return [each for page in db.bulk.records(table, at=at) for each in page]


def messages(db: postroom.Database, at: int, *span: bytes) -> list[tuple[bytes, bytes, bytes]]:
    return [
        (each.key, each.id, each.message.value)
        for page in db.bulk.records("inbox", *span, at=at)
        for each in page
    ]


@pytest.mark.parametrize("steps", [3, 1000])
def test_inboxes_are_as_they_were_whatever_was_reaped_since(
    store: Store, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    db = store.db
    for number in range(30):
        with db.begin() as tx:
            tx.put(b"data%d" % number, b"beside")
            tx.enqueue_message(b"k%d" % (number % 4), b"%d" % number)
    with db.begin() as tx:
        tx.reap_queue(b"k0", 2)
    with db.hold() as at:
        expected = [
            (key, bytes.fromhex(message.id), message.value)
            for key in (b"k0", b"k1", b"k2", b"k3")
            for message in db.peek(key, 100)
        ]
        monkeypatch.setattr(limits, "TURN_STEPS_MAX", steps)
        monkeypatch.setattr(bulk, "_PAGE_BYTES", 60)
        with db.begin() as tx:
            tx.reap_queue(b"k1")  # all of them: no index knows this inbox any more
            tx.enqueue_message(b"k2", b"later")
        found: list[tuple[bytes, bytes, bytes]] = []
        for page in db.bulk.records("inbox", at=at):
            found += [(each.key, each.id, each.message.value) for each in page]
            with db.begin() as tx:
                tx.reap_queue(b"k%d" % (len(found) % 4), 1)
        assert found == expected
        assert messages(db, at, b"k2", b"k3") == [each for each in expected if each[0] == b"k2"]


def test_data_without_versions_is_read_as_of_a_whole_hold(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_PAGE_BYTES", 64)
    db.put(b"text", b"no number")
    with db.begin() as tx:
        tx.put(b"sums", b"")
        tx.enqueue_update(Accounting(b"a/b", {"bytes": 7}))
        tx.enqueue_message(b"k", b"later", deliver_at=3600)
        tx.enqueue_update(Put(b"p", b"1"), execute_at=3600)
        tx.enqueue_update(Increment(b"text"))
    db.drain()
    with db.hold(whole=True) as at:
        (letter,) = db.dead_letters()
        db.discard([letter.id])
        db.cancel([each.id for each in db.scheduled()])
        with db.begin() as tx:
            tx.enqueue_update(Accounting(b"a/c", {"bytes": 1}))
        db.drain()
        entries = records(db, "outbox", at)
        assert [each.message is None for each in entries] == [False, True]
        letters = records(db, "dead_letters", at)
        assert [each.id.hex() for each in letters] == [letter.id]
        sums = records(db, "accounting", at)
        assert sums == [(b"a", {"bytes": 7}), (b"a/b", {"bytes": 7})]
        assert records(db, "outbox", 0) == []
        assert records(db, "dead_letters", 0) == []
        now = records(db, "accounting", 0)
        assert now == [(b"a", {"bytes": 8}), (b"a/b", {"bytes": 7}), (b"a/c", {"bytes": 1})]
    with pytest.raises(SnapshotTooOld, match="hold"):
        next(db.bulk.scan("outbox", at=at))
    with db.hold() as at, pytest.raises(SnapshotTooOld):
        next(db.bulk.scan("accounting", at=at))


def test_sums_are_found_over_many_turns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    db = store.db
    db.create_queue("q")
    for number in range(20):
        with db.begin() as tx:
            tx.put(b"k/%d" % number, b"")
            tx.enqueue_update(Accounting(b"k/%d" % number, {"n": 1}))
            tx.enqueue("q", b"", id=b"k/%d" % number)
    db.drain()
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 4)
    with db.hold(whole=True) as at:
        sums = records(db, "accounting", at)
    assert len(sums) == len(dict(sums)) == 21
    assert dict(sums)[b"k"] == {"n": 20}


def test_few_are_held_as_a_whole_and_only_now(store: Store) -> None:
    """A client has no more of them than it leaves to others, the node's own process all."""
    held = []
    with pytest.raises((Unavailable, Invalid), match="nothing was protected"):  # noqa: PT012
        while True:
            held.append(store.db.hold(whole=True))
            held[-1].__enter__()
            store.advance(0.01)
    held.pop()
    assert len(held) in {limits.ENGINE_SNAPSHOTS_MAX // 2, limits.ENGINE_SNAPSHOTS_MAX}
    for each in held:
        each.__exit__(None, None, None)
    store.advance(0.01)
    assert store.node.replicas.sizes()["engine snapshots"] == 0
    refused = pytest.raises(Invalid, match="only what is stored now")
    with refused, store.db.hold(store.db.now(), whole=True):
        pass


def test_a_large_range_falls_into_parts_of_about_one_size(tmp_path: Path) -> None:
    pytest.importorskip("plyvel", reason="LevelDB is not installed")
    with postroom.open(tmp_path, engine="leveldb", durability="none") as db:
        for start in range(0, 12_000, 500):
            with db.begin() as tx:
                for number in range(start, start + 500):
                    value = Random(number).randbytes(1000)
                    tx.put(b"user/%08d/\x00name" % number, value)
    with postroom.open(tmp_path) as db:
        parts = db.partitions(part_bytes=1_000_000)
        assert len(parts) >= 4
        assert (parts[0].start, parts[-1].end) == (b"", None)
        assert all(before.end == after.start for before, after in pairwise(parts))
        assert {(part.range_id, part.generation) for part in parts} == {(1, 1)}
        with db.hold() as at:
            counts = [len(rows(db.bulk.columns(p.start, p.end, at=at))) for p in parts]
        assert sum(counts) == 12_000
        assert max(counts) < 12_000 * 2 / 3
        inner = db.partitions(b"user/00003000", b"user/00006000", part_bytes=1_000_000)
        assert (inner[0].start, inner[-1].end) == (b"user/00003000", b"user/00006000")
        assert len(db.partitions(part_bytes=1)) <= 1024


def test_a_small_span_is_one_part(db: postroom.Database) -> None:
    assert [(each.start, each.end) for each in db.partitions()] == [(b"", None)]
    db.put(b"a", b"1")
    (part,) = db.partitions(b"a", b"c")
    assert (part.start, part.end, part.range_id, part.generation) == (b"a", b"c", 1, 1)


def test_recent_changes_do_not_wait(db: postroom.Database) -> None:
    before = db.now()
    assert db.bulk.recent_changes(b"", None, before).changes == []
    db.put(b"a", b"1")
    found = db.bulk.recent_changes(b"", None, before)
    assert [(each.key, each.value) for each in found.changes] == [(b"a", b"1")]
    assert found.until >= found.changes[0].timestamp


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_store_is_closed_while_it_is_held_as_a_whole(tmp_path: Path, engine: EngineName) -> None:
    with postroom.open(tmp_path / "store", engine=engine) as db:
        with db.begin() as tx:
            tx.enqueue_update(Accounting(b"a", {"n": 1}))
        db.drain()
        manager = db.hold(whole=True)
        at = manager.__enter__()
        with db.begin() as tx:
            tx.enqueue_update(Accounting(b"a", {"n": 1}))
        db.drain()
        assert records(db, "accounting", at) == [(b"a", {"n": 1})]
    with postroom.open(tmp_path / "store") as db:
        assert db.accounting(b"a") == {"n": 2}
        with pytest.raises(SnapshotTooOld):
            next(db.bulk.scan("accounting", at=at))
