"""Backups of a store that is in use: all of it, at one timestamp."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.backup import restore, taking, verify
from postroom.backup.folder import BackupFolder, PartFile
from postroom.backup.recount import Recount
from postroom.client.bulk import Bulk
from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.messaging.image_entries import INBOX, table_of
from tests.backup.places import busy, entries, is_sound, restored, view


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_a_restored_store_equals_its_original(seed: int, tmp_path: Path) -> None:
    db, _ = busy(seed)
    with db:
        done = db.backup(tmp_path / "full")
        found, shown = restored(tmp_path / "full")
        assert found == entries(db)
        assert shown == view(db)
    assert (sum(done.tables.values()), done.written) == (len(found), len(found))
    (manifest,) = verify(tmp_path / "full")
    assert manifest.tables == done.tables


def test_a_backup_is_taken_by_asyncio_too(tmp_path: Path) -> None:
    async def take() -> None:
        async with await postroom.aio.open(":memory:") as db:
            await db.put(b"a", b"1")
            assert (await db.backup(tmp_path / "full")).tables == {"data": 1}

    asyncio.run(take())
    with postroom.open(":memory:") as other:
        restore(other, tmp_path / "full")
        assert other.get(b"a") == b"1"


def test_an_empty_store_is_backed_up(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        assert db.backup(tmp_path / "full").tables == {}
    with postroom.open(":memory:") as other:
        restore(other, tmp_path / "full")
        other.put(b"a", b"1")


def test_a_backup_shows_one_moment_while_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction moves one from a sum to another one, and sends a message."""
    monkeypatch.setattr(taking, "PART_BYTES", 1024)
    stop = threading.Event()
    with postroom.open(tmp_path / "store", durability="none") as db:
        for number in range(300):
            db.put(b"filling/%04d" % number, bytes(2000))
        for account in (b"a", b"z"):
            db.increment(account, 1000)

        def once(tx: postroom.Transaction) -> None:
            tx.increment(b"a", -1)
            tx.increment(b"z", 1)
            tx.enqueue_message(b"filling/0150", b"moved")

        def move() -> None:
            while not stop.is_set():
                db.run(once)

        writers = [threading.Thread(target=move) for _ in range(3)]
        for writer in writers:
            writer.start()
        try:
            for number in range(3):
                db.backup(
                    tmp_path / f"{number}", since=tmp_path / f"{number - 1}" if number else None
                )
        finally:
            stop.set()
            for writer in writers:
                writer.join()
    moved = []
    for number in range(3):
        with postroom.open(":memory:") as other:
            restore(other, tmp_path / f"{number}")
            a, z = (postroom.integer(other.get(account)) for account in (b"a", b"z"))
            assert a + z == 2000
            other.drain()
            infos = other.inboxes()
            assert sum(info.messages for info in infos) == z - 1000
            moved.append(z)
    assert moved == sorted(moved)


def test_a_backup_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "file").write_text("dear")
    with postroom.open(":memory:") as db:
        with pytest.raises(Invalid, match=r"not empty \(file"):
            db.backup(tmp_path)
        with pytest.raises(Invalid, match="is a file"):
            db.backup(tmp_path / "letter")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "letter"]


def test_a_folder_that_has_a_backup_is_left_alone(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        db.put(b"a", b"1")
        first = db.backup(tmp_path / "full")
        db.put(b"a", b"2")
        again = db.backup(tmp_path / "full")
        assert again.done_before
        assert again.timestamp == first.timestamp
    with postroom.open(":memory:") as other, pytest.raises(Invalid, match="of another store"):
        other.backup(tmp_path / "full")


def test_two_backups_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        postroom.open(":memory:") as db,
        BackupFolder(tmp_path / "full").written(),
        pytest.raises(Unavailable, match="another backup is being written"),
    ):
        db.backup(tmp_path / "full")


def test_a_backup_begins_anew_under_another_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, lost = Bulk.scan, [2]

    def losing(self: Bulk, table: str, *given: Any, **named: Any) -> Any:
        if table == "image" and lost[0]:
            lost[0] -= 1
            raise SnapshotTooOld("another node leads")
        return scan(self, table, *given, **named)

    monkeypatch.setattr(Bulk, "scan", losing)
    with postroom.open(":memory:") as db:
        db.put(b"a", b"1")
        db.backup(tmp_path / "full")
        assert is_sound(tmp_path / "full")
        lost[0] = 3
        with pytest.raises(Unavailable, match="3 times the leader changed"):
            db.backup(tmp_path / "other")
        assert not is_sound(tmp_path / "other")


@pytest.mark.parametrize("step", ["_write", "end"])
def test_a_full_device_leaves_no_backup_and_the_next_run_makes_one(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    db, _ = busy(1)
    with db:
        with monkeypatch.context() as patched:
            patched.setattr(PartFile, step, full)
            with pytest.raises(Unavailable, match="there is no backup in it: free some room"):
                db.backup(tmp_path / "full")
        with pytest.raises(Invalid, match="no complete backup"):
            verify(tmp_path / "full")
        db.backup(tmp_path / "full")
        assert is_sound(tmp_path / "full")


def test_a_store_whose_counters_are_wrong_is_not_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postroom.open(":memory:") as db:
        with db.begin() as tx:
            tx.enqueue_message(b"a", b"1")
        db.drain()

        add = Recount.add

        def losing(self: Recount, names: list[bytes], stored: list[bytes]) -> None:
            kept = [pair for pair in zip(names, stored, strict=True) if table_of(pair[0]) != INBOX]
            add(self, [name for name, _ in kept], [value for _, value in kept])

        monkeypatch.setattr(Recount, "add", losing)
        with pytest.raises(Invalid, match="inboxes"):
            db.backup(tmp_path / "full")
    assert not is_sound(tmp_path / "full")


def test_a_cancelled_backup_is_none_and_the_next_run_makes_it(tmp_path: Path) -> None:
    async def cancel() -> None:
        async with await postroom.aio.open(":memory:") as db:
            for number in range(50):
                await db.put(b"%d" % number, bytes(1000))
            begun = asyncio.Event()
            backing = asyncio.create_task(
                db.backup(tmp_path / "full", rate=100, progress=lambda *_: begun.set())
            )
            await begun.wait()
            backing.cancel()
            await asyncio.wait((backing,))
            assert backing.cancelled()
            with pytest.raises(Invalid, match="no complete backup"):
                verify(tmp_path / "full")
            await db.backup(tmp_path / "full")

    asyncio.run(cancel())
    assert is_sound(tmp_path / "full")


def test_a_restored_store_has_the_grants(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        db.access.grant("shop", "read,write", b"shop/")
        db.access.grant("boss", "admin")
        grants = db.access.grants()
        db.backup(tmp_path / "full")
        db.access.revoke("shop")
        db.backup(tmp_path / "since", since=tmp_path / "full")
    for folder, names in (("full", {"boss", "shop"}), ("since", {"boss"})):
        verify(tmp_path / folder)
        with postroom.open(":memory:") as other:
            restore(other, tmp_path / folder)
            assert other.access.grants() == [each for each in grants if each.name in names]


def test_a_store_with_grants_takes_no_backup_until_they_are_revoked(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        db.access.grant("boss", "admin")
        db.backup(tmp_path / "full")
    with postroom.open(":memory:") as other:
        other.access.grant("other", "read")
        with pytest.raises(Invalid, match="not empty"):
            restore(other, tmp_path / "full")
        assert [each.name for each in other.access.grants()] == ["other"]
        other.access.revoke("other")
        restore(other, tmp_path / "full")
        assert [each.name for each in other.access.grants()] == ["boss"]
