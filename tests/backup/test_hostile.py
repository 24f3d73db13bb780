"""Backups that are damaged, exchanged or made up: refused by name, and nothing is changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroom
from postroom import limits
from postroom.backup import folder as folders
from postroom.backup import restore, verify
from postroom.backup.blocks import HEADING, Block, block_of, packed
from postroom.backup.folder import BackupFolder
from postroom.backup.manifest import BackupPart
from postroom.errors import Invalid, SnapshotTooOld
from postroom.kv import keys, versions
from postroom.messaging.bulk_requests import PackedColumn
from tests.backup.places import forge


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Return the folder of a backup."""
    with postroom.open(":memory:") as db:
        for number in range(20):
            db.put(b"%02d" % number, b"value")
        db.backup(tmp_path / "full")
    return tmp_path / "full"


@pytest.fixture
def empty() -> Iterator[postroom.Database]:
    """Yield an empty store; nothing may have changed it at the end."""
    with postroom.open(":memory:") as db:
        yield db
        assert db.images.read().state == ""
        assert db.get(b"00") is None


def is_refused(folder: Path, db: postroom.Database, match: str) -> bool:
    """Return whether verification and restore refuse a backup, with a reason."""
    for use in (lambda: verify(folder), lambda: restore(db, folder)):
        with pytest.raises(Invalid, match=match):
            use()
    return True


def changed(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def with_content(content: bytes) -> Callable[[Path], None]:
    return lambda folder: void((folder / "manifest.json").write_bytes(content))


def void(_: object) -> None:
    """Ignore a result."""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_content(b""), "manifest.json is damaged"),
        (with_content(b"[" * 100_000), "manifest.json is damaged"),
        (with_content(b"\xff{}"), "manifest.json is damaged"),
        (changed(timestamp=7), "its checksum is another one"),
        (changed(format=1), "format 1, and this version of Postroom knows 2"),
        (changed(path="../../etc/passwd"), "unknown field `path`"),
        (changed(backup="../" * 10 + "aa"), "damaged"),
        (changed(parts=[]), "damaged"),
        (changed(parts=[{}] * (limits.BACKUP_PARTS_MAX + 1)), "damaged"),
    ],
)
def test_a_damaged_manifest_is_refused_by_name(
    change: Callable[[Path], None], why: str, full: Path, empty: postroom.Database
) -> None:
    change(full)
    assert is_refused(full, empty, why)


def test_a_manifest_is_read_up_to_its_longest_length(
    full: Path, empty: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "BACKUP_MANIFEST_BYTES_MAX", 100)
    assert is_refused(full, empty, "too large")


def test_parts_must_be_all_keys_once(full: Path, empty: postroom.Database) -> None:
    sound = (full / "manifest.json").read_bytes()
    parts = BackupFolder(full).complete().parts
    for wrong in (
        (*parts, parts[1]),
        (parts[0], msgspec.structs.replace(parts[1], start="61")),
        (parts[0], msgspec.structs.replace(parts[1], end="61")),
    ):
        forge(full, parts=wrong)
        assert is_refused(full, empty, "its parts")
        (full / "manifest.json").write_bytes(sound)


def test_files_that_are_exchanged_cut_or_gone_are_refused_by_name(
    full: Path, empty: postroom.Database
) -> None:
    first, second = full / "part-00000", full / "part-00001"
    sound = {path: path.read_bytes() for path in (first, second)}
    flipped = bytearray(sound[second])
    flipped[40] ^= 1
    for path, content in (
        (second, sound[second][:-1]),
        (second, sound[second] + b"\x00"),
        (second, bytes(flipped)),
        (second, sound[first]),
        (first, sound[second]),
        (second, b""),
    ):
        path.write_bytes(content)
        assert is_refused(full, empty, f"{path.name} is not as it was written")
        path.write_bytes(sound[path])
    second.unlink()
    assert is_refused(full, empty, "part-00001 is gone")


@pytest.mark.parametrize("name", ["part-00001", "manifest.json"])
def test_a_link_in_place_of_a_file_is_refused_by_name(
    name: str, full: Path, empty: postroom.Database
) -> None:
    elsewhere = full.with_name("elsewhere")
    shutil.move(full / name, elsewhere)
    (full / name).symlink_to(elsewhere)
    assert is_refused(full, empty, f"{name} is a link")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
@pytest.mark.parametrize("name", ["part-00001", "manifest.json"])
def test_a_thing_in_place_of_a_file_is_refused_by_name(
    name: str, make: Callable[[Path], None], full: Path, empty: postroom.Database
) -> None:
    (full / name).unlink()
    make(full / name)
    assert is_refused(full, empty, f"{name} is no file")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"time": "\x1b[2Jnoon"}, "its time"),
        ({"tables": {"\x1b[2J": 1}}, "tables that no store has"),
        ({"timestamp": (1 << 63) - 1}, "damaged"),
        ({"since_timestamp": (1 << 63) - 1, "since": "0" * 32}, "no folder beside it"),
    ],
)
def test_a_manifest_brings_no_text_of_its_own_to_a_terminal(
    changes: dict[str, Any], why: str, full: Path, empty: postroom.Database
) -> None:
    forge(full, **changes)
    assert is_refused(full, empty, why)


def test_files_of_another_backup_are_refused_by_name(
    full: Path, empty: postroom.Database, tmp_path: Path
) -> None:
    with postroom.open(":memory:") as other:
        other.put(b"a", b"1")
        other.backup(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "part-00001", full)
    assert is_refused(full, empty, "part-00001 is not as it was written")


# --- files that were made up, with a manifest that fits ----------------------------------------


def make_up(folder: Path, content: bytes, entries: int = 1) -> None:
    """Write a file in place of the second one, and a manifest for it."""
    (folder / "part-00001").write_bytes(content)
    first, second = BackupFolder(folder).complete().parts
    part = BackupPart(
        second.start, second.end, entries, len(content), hashlib.sha256(content).hexdigest()
    )
    forge(folder, parts=(first, part), tables={"data": entries})


def zipped(plain: bytes, told: int | None = None) -> bytes:
    small = zlib.compress(plain)
    return struct.pack(">II", len(small), len(plain) if told is None else told) + small


def ends(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def block(names: PackedColumn, stored: PackedColumn, gone: bytes = b"") -> bytes:
    return packed(Block(names, stored, gone))


NAME = PackedColumn(b"ab", ends(2))
BAD_FILES = {
    "another format": b"postroom backup 9\n",
    "half a block": HEADING + b"\x00\x00",
    "a block that is cut": HEADING + zipped(b"abc")[:-2],
    "a block too large": HEADING + struct.pack(">II", 10, 1 << 31) + bytes(10),
    "a block that grows": HEADING + zipped(bytes(1 << 24), told=10),
    "a block that shrinks": HEADING + zipped(b"abc", told=10),
    "no block": HEADING + zipped(b"\xc1"),
    "nested arrays": HEADING + zipped(b"\x91" * 100_000),
    "no entries": HEADING + block(PackedColumn(b""), PackedColumn(b"")),
    "more names than values": HEADING + block(NAME, PackedColumn(b"", b"")),
    "ends that fall": HEADING
    + block(PackedColumn(b"abc", ends(1, 2, 3)), PackedColumn(b"abc", ends(3, 0, 3))),
    "ends that are cut": HEADING + block(PackedColumn(b"ab", b"\x02\x00"), NAME),
    "ends that leave out": HEADING + block(PackedColumn(b"abc", ends(2)), NAME),
    "an end too many": HEADING
    + block(
        PackedColumn(b"", bytes(4 * limits.BACKUP_BLOCK_ROWS_MAX + 4)),
        PackedColumn(b"", bytes(4 * limits.BACKUP_BLOCK_ROWS_MAX + 4)),
    ),
    "names that fall": HEADING + packed(block_of(([b"b", b"a"], [b"", b""]))),
    "a name twice": HEADING + packed(block_of(([b"a", b"a"], [b"", b""]))),
    "blocks that fall": HEADING
    + 2 * packed(block_of(([keys.head_key(b"a")], [versions.VALUE_KIND + bytes(8)]))),
    "marks of too many": HEADING + block(NAME, NAME, b"\x00\x00"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_file_that_was_made_up_is_refused_by_name(what: str, full: Path) -> None:
    make_up(full, BAD_FILES[what])
    with pytest.raises(Invalid, match="part-00001 is damaged"):
        verify(full)
    with postroom.open(":memory:") as db:
        with pytest.raises(Invalid, match="part-00001 is damaged"):
            restore(db, full)
        db.images.abandon()
        db.put(b"a", b"1")


def head(timestamp: int) -> bytes:
    return versions.VALUE_KIND + keys.u64(timestamp) + b"v"


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        (keys.head_key(b"a"), head((1 << 62) - 1)),
        (keys.head_key(b"a"), b"\x09"),
        (keys.store_key("store"), b"mine"),
        (b"\xff" * 40, b""),
        (keys.DATA + b"a" * 30_000, b""),
    ],
)
def test_an_entry_that_cannot_be_is_refused(name: bytes, stored: bytes, full: Path) -> None:
    make_up(full, HEADING + packed(block_of(([name], [stored]))))
    with pytest.raises(Invalid):
        verify(full)
    with postroom.open(":memory:") as db:
        with pytest.raises(Invalid):
            restore(db, full)
        db.images.abandon()
        assert list(db.scan()) == []


def test_counts_that_a_manifest_makes_up_keep_the_store_closed(full: Path) -> None:
    forge(full, tables={"data": 21})
    with pytest.raises(Invalid, match="data: 21 entries are in the manifest, 20 are there"):
        verify(full)
    with postroom.open(":memory:") as db:
        with pytest.raises(Invalid, match="it stays closed"):
            restore(db, full)
        db.images.abandon()
        db.put(b"a", b"1")


def test_a_store_that_has_data_is_refused_and_left_as_it_is(full: Path) -> None:
    with postroom.open(":memory:") as db:
        db.put(b"a", b"1")
        with pytest.raises(Invalid, match="not empty"):
            restore(db, full)
        assert list(db.scan()) == [(b"a", b"1")]


def test_a_read_of_before_the_backup_is_refused_in_the_restored_store(full: Path) -> None:
    with postroom.open(":memory:") as db:
        done = restore(db, full)
        with pytest.raises(SnapshotTooOld):
            db.get(b"00", at=int(done.timestamp) - 1)
