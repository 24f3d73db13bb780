"""Logs of LevelDB that do not fit together, or do not fit the manifest: refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from postroom.errors import StoreCorrupted
from postroom.kv import leveldb_files
from postroom.kv.engine import EngineFailed
from tests.kv.on_disk import newest_log, split_log

pytest.importorskip("plyvel", reason="LevelDB is not installed")
from postroom.kv import leveldb
from postroom.kv.leveldb import LevelDBEngine


def count(folder: Path) -> int:
    """Return how many keys there are, after opening and closing."""
    engine = LevelDBEngine.open(folder, create=False)
    try:
        return sum(1 for _ in engine.iterate(b"", b"\xff" * 8))
    finally:
        engine.close()


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Return a folder as a crash leaves it: 300 write sets of 1000 bytes are in its log."""
    engine = LevelDBEngine.open(tmp_path / "live")
    for number in range(300):
        engine.write({b"%03d" % number: os.urandom(1000)}, sync=False)
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    engine.close()
    return tmp_path / "crashed"


@pytest.fixture
def cut_short(tmp_path: Path) -> tuple[Path, int]:
    """Return a folder that crashed in the write of a long record, and the record's beginning."""
    engine = LevelDBEngine.open(tmp_path / "live")
    engine.write({b"%03d" % number: os.urandom(1000) for number in range(50)}, sync=True)
    engine.write({b"x": os.urandom(1000)}, sync=True)
    begin = newest_log(tmp_path / "live").stat().st_size
    engine.write({b"y%03d" % number: os.urandom(1000) for number in range(200)}, sync=False)
    shutil.copytree(tmp_path / "live", tmp_path / "cut")
    engine.close()
    return tmp_path / "cut", begin


@pytest.fixture
def two_logs(crashed: Path) -> Path:
    """Return a folder with two logs: its memtable was about to become a table."""
    split_log(newest_log(crashed), 100)
    return crashed


def test_two_logs_are_read(two_logs: Path) -> None:
    assert count(two_logs) == 300


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_the_older_one_of_two_logs_is_not_cut(two_logs: Path, left: float) -> None:
    """LevelDB would read what is left of it, and all of the newer one: a hole."""
    older, _ = sorted(two_logs.glob("*.log"))
    os.truncate(older, int(older.stat().st_size * left))
    with pytest.raises(StoreCorrupted, match="is cut off"):
        LevelDBEngine.open(two_logs)


def left_of(folder: Path) -> list[bytes]:
    """Return the keys that are there after opening a folder whose writes are also elsewhere."""
    engine = LevelDBEngine.open(folder, replays=True)
    try:
        return [key for key, _ in engine.iterate(b"", b"\xff" * 8)]
    finally:
        engine.close()


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_hole_between_logs_is_cut_off_if_another_log_has_its_records(
    two_logs: Path, left: float
) -> None:
    older, newer = sorted(two_logs.glob("*.log"))
    os.truncate(older, int(older.stat().st_size * left))
    whole = len(list(leveldb_files.records(older.read_bytes())))
    assert whole < 100
    assert left_of(two_logs) == [b"%03d" % number for number in range(whole)]
    assert newer.with_suffix(".torn").exists()
    engine = LevelDBEngine.open(two_logs, replays=True)
    engine.write({b"after": b""}, sync=True)
    engine.close()
    assert len(left_of(two_logs)) == whole + 1


@pytest.mark.parametrize("at", [0, 1])
def test_logs_are_cut_off_where_one_is_damaged_if_another_log_has_its_records(
    two_logs: Path, at: int
) -> None:
    logs = sorted(two_logs.glob("*.log"))
    flip(logs[at], 50_500)
    assert left_of(two_logs) == [b"%03d" % number for number in range(100 * at + 49)]


def test_the_older_one_of_two_logs_is_not_missing(two_logs: Path) -> None:
    older, _ = sorted(two_logs.glob("*.log"))
    older.unlink()
    with pytest.raises(StoreCorrupted, match=rf"{older.name} is missing, or the manifest is cut"):
        LevelDBEngine.open(two_logs)


def test_a_manifest_without_its_last_edit_is_refused(tmp_path: Path) -> None:
    """After a clean close: 300 keys would be gone without a word."""
    for _ in range(2):
        engine = LevelDBEngine.open(tmp_path / "store")
        engine.write({b"%03d" % number: os.urandom(1000) for number in range(300)}, sync=True)
        engine.close()
    manifest = next((tmp_path / "store").glob("MANIFEST-*"))
    os.truncate(manifest, manifest.stat().st_size - 5)
    with pytest.raises(StoreCorrupted, match="manifest is cut"):
        LevelDBEngine.open(tmp_path / "store")


def test_a_damaged_end_is_cut_off_if_another_log_has_its_records(
    cut_short: tuple[Path, int],
) -> None:
    """A flipped bit, and records behind it: see ``replays``."""
    folder, begin = cut_short
    flip(newest_log(folder), begin - 500)
    engine = LevelDBEngine.open(folder, replays=True)
    assert sum(1 for _ in engine.iterate(b"", b"\xff")) == 50
    engine.close()


def test_a_prepared_batch_is_not_written_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is synced beside the turns: that may fail while a batch waits to be written."""

    def fail(_: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(leveldb, "sync_logs", fail)
    engine = LevelDBEngine.open(tmp_path / "store")
    write = engine.prepare({b"k": b"1"})
    with pytest.raises(EngineFailed):
        engine.sync()
    with pytest.raises(EngineFailed):
        write()
    assert engine.get(b"k") is None
    engine.close()
