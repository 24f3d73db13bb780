"""Chains of backups: increments have what has changed, and make the store of their time."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postroom
from postroom.backup import chain as chains
from postroom.backup import restore, taking, verify
from postroom.backup.blocks import Entries
from postroom.backup.folder import BackupFolder
from postroom.backup.manifest import time_of
from postroom.backup.merging import Differences, merged
from postroom.errors import Invalid
from tests.backup.places import Found, busy, entries, forge, restored, view

NAMES = ("full", "one", "two")


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, list[tuple[Found, dict[str, Any]]]]:
    """Return a folder of three backups, and the store as it was at each."""
    db, work = busy(5)
    states, since = [], None
    with db:
        for name in NAMES:
            db.backup(tmp_path / name, since=since)
            states.append((entries(db), view(db)))
            since = tmp_path / name
            for _ in range(30):
                work.step()
            db.delete_range(b"", b"b")
            db.drain()
    return tmp_path, states


Chained = tuple[Path, list[tuple[Found, dict[str, Any]]]]


def test_each_backup_of_a_chain_makes_the_store_of_its_time(chain: Chained) -> None:
    folder, states = chain
    for name, state in zip(NAMES, states, strict=True):
        assert restored(folder / name) == state
    assert [each.backup for each in verify(folder / "two")] == [
        BackupFolder(folder / name).complete().backup for name in NAMES
    ]


def test_an_increment_has_only_what_has_changed(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        for number in range(1000):
            db.put(b"%04d" % number, b"x")
        db.backup(tmp_path / "full")
        db.delete(b"0500")
        db.put(b"0999", b"y")
        done = db.backup(tmp_path / "one", since=tmp_path / "full")
        assert (done.written, done.tables["data"]) == (2, 999)
        assert db.backup(tmp_path / "two", since=tmp_path / "one").written == 0
        db.delete_range(b"", None)
        assert db.backup(tmp_path / "three", since=tmp_path / "two").written == 999
    assert restored(tmp_path / "three")[0] == []


def test_a_restore_takes_the_time_of_a_backup_and_refuses_one_between(chain: Chained) -> None:
    folder, states = chain
    first, last = (BackupFolder(folder / name).complete() for name in (NAMES[0], NAMES[2]))
    found, _ = restored(folder / "two", at=datetime.fromisoformat(first.time))
    assert found == states[0][0] or first.time == last.time
    with pytest.raises(Invalid, match="no trail leads there"):
        restored(folder / "two", at=datetime(2020, 1, 1, tzinfo=UTC))


def test_a_chain_may_be_moved_and_renamed(chain: Chained) -> None:
    folder, states = chain
    shutil.move(folder / "full", folder / "renamed")
    elsewhere = folder.with_name(f"{folder.name} elsewhere")
    shutil.copytree(folder, elsewhere)
    assert restored(elsewhere / "two") == states[2]


def test_a_chain_with_a_missing_backup_is_refused_by_name(chain: Chained) -> None:
    folder, states = chain
    shutil.move(folder / "one", folder.with_name(f"{folder.name} away"))
    with pytest.raises(Invalid, match=r"two has what has changed since the backup .* no folder"):
        restored(folder / "two")
    assert restored(folder / "full") == states[0]
    (folder / "one").mkdir()
    with pytest.raises(Invalid, match="has that one whole"):
        verify(folder / "two")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"store": "00" * 16}, "of another store"),
        ({"timestamp": 5, "time": time_of(5)}, "not later"),
        ({"since_timestamp": 5}, "not later"),
    ],
)
def test_a_backup_that_does_not_follow_the_one_before_is_refused(
    changes: dict[str, Any], why: str, chain: Chained
) -> None:
    folder, _ = chain
    forge(folder / "two", **changes)
    with pytest.raises(Invalid, match=f"does not follow the backup .*: it is {why}"):
        restored(folder / "two")


def test_a_chain_that_leads_to_itself_is_refused(chain: Chained) -> None:
    folder, _ = chain
    two = BackupFolder(folder / "two").complete()
    forge(folder / "one", since=two.backup)
    with pytest.raises(Invalid, match="does not follow"):
        verify(folder / "two")


def test_a_chain_has_a_longest_length(chain: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = chain
    monkeypatch.setattr(chains, "BACKUP_CHAIN_MAX", 2)
    with pytest.raises(Invalid, match="make a full one"):
        verify(folder / "two")


def test_an_increment_that_no_restore_would_take_is_not_made(
    chain: Chained, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = chain
    monkeypatch.setattr(taking, "BACKUP_CHAIN_MAX", 3)
    with (
        postroom.open(":memory:") as db,
        pytest.raises(Invalid, match="ends a chain of 3 backups"),
    ):
        db.backup(folder / "three", since=folder / "two")
    assert not (folder / "three").exists()


def test_an_increment_is_made_of_a_sound_backup_of_the_same_store(chain: Chained) -> None:
    folder, _ = chain
    with postroom.open(":memory:") as other:
        with pytest.raises(Invalid, match="of another store"):
            other.backup(folder / "three", since=folder / "two")
        with pytest.raises(Invalid, match="does not lie beside"):
            other.backup(folder / "two" / "three", since=folder / "two")
        with pytest.raises(Invalid, match="no complete backup"):
            other.backup(folder / "three", since=folder / "none")
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)


def test_an_increment_of_a_restored_store_is_refused(chain: Chained) -> None:
    folder, _ = chain
    with postroom.open(":memory:") as other:
        restore(other, folder / "two")
        with pytest.raises(Invalid, match="of another store"):
            other.backup(folder / "three", since=folder / "two")


def test_a_damaged_backup_before_is_found_by_the_increment(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        db.put(b"a", b"1")
        db.backup(tmp_path / "full")
        file = tmp_path / "full" / "part-00001"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(Invalid, match="part-00001 is not as it was written"):
            db.backup(tmp_path / "one", since=tmp_path / "full")
    assert not (tmp_path / "one" / "manifest.json").exists()


Image = dict[bytes, bytes]
IMAGES = st.dictionaries(st.binary(min_size=1, max_size=2), st.binary(max_size=1), max_size=20)


def pieces(image: dict[bytes, bytes | None], size: int) -> list[Entries]:
    """Return the entries of an image, a few in each piece."""
    names = sorted(image)
    return [
        (some, [image[name] for name in some])
        for some in (names[first : first + size] for first in range(0, len(names), size))
    ]


@given(st.lists(IMAGES, min_size=1, max_size=4), st.integers(1, 7), st.integers(1, 7))
def test_merged_differences_are_the_image_that_they_were_made_of(
    images: list[Image], size: int, other_size: int
) -> None:
    files: list[list[Entries]] = []
    for image in images:
        differences = Differences(merged([iter(file) for file in files]))
        changed = [each for piece in pieces({**image}, size) for each in differences.of(piece)]
        changed += differences.rest()
        flat = {
            name: value
            for names, stored in changed
            for name, value in zip(names, stored, strict=True)
        }
        order = [name for names, _ in changed for name in names]
        assert order == sorted(set(order))
        files.append(pieces(flat, other_size))
        found = {
            n: v
            for names, stored in merged([iter(f) for f in files])
            for n, v in zip(names, stored, strict=True)
        }
        assert found == image
