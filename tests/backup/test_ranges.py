"""Backups of stores with several ranges: all of them at one timestamp, restored into one range."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.backup import restore, taking, verify
from postroom.client.bulk import Bulk
from postroom.messaging.handover.sending import SendingService
from postroom.ranges.requests import DeleteRange
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from tests.backup.moves import MOVES_MAX, check_moves, check_restored, move, split_store, total
from tests.backup.places import entries
from tests.client.stores import Store
from tests.server.splitting import split


def test_a_backup_of_several_ranges_shows_one_moment_while_others_write(tmp_path: Path) -> None:
    stop = threading.Event()
    with split_store() as db:

        def work(own: bytes) -> None:
            for _ in range(MOVES_MAX):
                if not stop.is_set():
                    db.run(lambda tx: move(tx, own))

        workers = [threading.Thread(target=work, args=(b"%d" % own,)) for own in range(3)]
        for worker in workers:
            worker.start()
        try:
            while not total(db, b"n"):
                pass
            for number in range(4):
                db.backup(tmp_path / str(number))
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        moved = check_moves(db)
    found = [check_restored(tmp_path / str(number)) for number in range(4)]
    assert sorted(found) == found
    assert 0 < found[0] <= found[3] <= moved


@pytest.mark.parametrize("are_taken", [False, True], ids=["unsent", "taken"])
def test_an_entry_in_transit_between_ranges_arrives_once_in_the_restored_store(
    are_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that receivers have taken stay in the outboxes, or none leaves them."""

    async def never_drop(*_: Any) -> None:
        pass

    if are_taken:
        monkeypatch.setattr(SendingService, "_drop", never_drop)
    else:
        monkeypatch.setattr(SendingService, "send_batches", lambda _: 3600.0)
    with split_store() as db:
        for _ in range(20):
            db.run(move)
        if are_taken:
            while len(db.peek(b"z", 100)) < 20 or total(db, b"y") != 20:
                pass
        db.backup(tmp_path / "full")
    monkeypatch.undo()
    assert check_restored(tmp_path / "full", 20) == 20


def test_a_deferred_update_that_some_ranges_have_carried_out_goes_on_in_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range in the middle takes nothing, so that its part is in transit."""
    batch = SendingService._batch

    def not_to_the_middle(self: SendingService, destination: Any) -> Any:
        return None if destination.recipient.start == b"m" else batch(self, destination)

    monkeypatch.setattr(SendingService, "_batch", not_to_the_middle)
    with split_store() as db:
        for key in (b"b", b"n", b"z"):
            db.put(key, b"old")

        def delete(tx: postroom.Transaction) -> None:
            tx.put(b"a", b"1")
            tx.enqueue_update(DeleteRange(b"b", None))

        db.run(delete)
        while db.get(b"b") or db.get(b"z"):
            pass
        db.put(b"b", b"new")
        db.backup(tmp_path / "full")
    monkeypatch.undo()
    with postroom.open(":memory:") as db:
        restore(db, tmp_path / "full")
        db.drain()
        assert [db.get(key) for key in (b"b", b"n", b"z")] == [b"new", None, None]


def test_a_part_whose_range_splits_goes_on_with_both_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PART_BYTES", 1 << 40)
    with split_store() as db:
        for number in range(300):
            db.put(b"p/%04d" % number, bytes(10_000))
            db.run(lambda tx, n=number: tx.enqueue_message(b"p/%04d" % n, b"sent"))
        db.drain()
        scan, splits = Bulk.scan, iter([b"p/0010", b"p/0150"])

        def splitting(self: Bulk, table: str, *args: Any, **options: Any) -> Any:
            pages = scan(self, table, *args, **options)

            async def beside() -> Any:
                async for page in pages:
                    yield page
                    if table == "image" and page.rows and (cut := next(splits, None)):
                        thread = threading.Thread(target=db.split, args=(cut,))
                        thread.start()
                        thread.join()

            return beside()

        monkeypatch.setattr(Bulk, "scan", splitting)
        db.backup(tmp_path / "full")
        monkeypatch.undo()
        assert len(db.ranges()) == 5
        seen = [*db.scan()], [(each.key, each.messages) for each in db.inboxes(limit=1000)]
    verify(tmp_path / "full")
    with postroom.open(":memory:") as other:
        restore(other, tmp_path / "full")
        assert [*other.scan()] == seen[0]
        assert [(each.key, each.messages) for each in other.inboxes(limit=1000)] == seen[1]


def test_an_increment_has_what_has_changed_though_ranges_have_split(tmp_path: Path) -> None:
    with split_store() as db:
        db.run(move)
        db.drain()
        db.backup(tmp_path / "0")
        db.split(b"c")
        for number in range(1, 4):
            db.run(move)
            db.put(b"d", b"%d" % number)
            db.drain()
            done = db.backup(tmp_path / str(number), since=tmp_path / str(number - 1))
            assert done.written < sum(done.tables.values()) + 5
    assert check_restored(tmp_path / "3", 4) == 4
    assert check_restored(tmp_path / "1", 2) == 2


def test_a_store_of_several_ranges_is_backed_up_with_asyncio(tmp_path: Path) -> None:
    async def take() -> None:
        async with await postroom.aio.open(":memory:") as db:
            await db.put(b"a", b"1")
            await db.split(b"m")
            await db.put(b"z", b"2")
            await db.backup(tmp_path / "full")

    asyncio.run(take())
    with postroom.open(":memory:") as other:
        restore(other, tmp_path / "full")
        assert [*other.scan()] == [(b"a", b"1"), (b"z", b"2")]


def test_a_restored_store_may_be_split_after_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SendingService, "send_batches", lambda _: 3600.0)
    with split_store() as db:
        for _ in range(7):
            db.run(move)
        done = db.backup(tmp_path / "full")
    monkeypatch.undo()
    store = Store()
    store.clock.seconds = done.timestamp.datetime.timestamp()
    restore(store.db, tmp_path / "full")
    store.advance(2 * RECORD_SECONDS)
    split(store, b"p")
    store.db.run(move)
    store.advance(1.0)
    assert check_moves(store.db, 8) == 8
    store.node.close()


def test_a_restored_store_of_several_ranges_is_backed_up_as_it_was(tmp_path: Path) -> None:
    with split_store() as db:
        for _ in range(5):
            db.run(move)
        db.drain()
        db.backup(tmp_path / "first")
    with postroom.open(":memory:") as other:
        restore(other, tmp_path / "first")
        found = entries(other)
        other.backup(tmp_path / "second")
    with postroom.open(":memory:") as third:
        restore(third, tmp_path / "second")
        assert entries(third) == found
