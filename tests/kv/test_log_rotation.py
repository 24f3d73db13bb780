"""Logs of the state that are begun: no write is durable without those before it."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random  # noqa: TID251 (each use is seeded)
from typing import Any

import pytest

from tests.kv.on_disk import END, INSTALLED, OnDisk, newest_log

on_leveldb = pytest.mark.skipif("leveldb" not in INSTALLED, reason="LevelDB is not installed")
on_rocksdb = pytest.mark.skipif("rocksdb" not in INSTALLED, reason="RocksDB is not installed")


def sizes_of_values(kind: str, rng: Random) -> list[int]:
    match kind:
        case "tiny":
            return [rng.randrange(4) for _ in range(40_000)]
        case "wasteful":  # a block of the memtable's arena takes three of these, and 24 % are lost
            return [1000 + rng.randrange(12) for _ in range(1500)]
        case "large":
            return [rng.choice([300_000, 10, 140_000]) for _ in range(60)]
        case _:
            return [int(10 ** rng.uniform(0, 5)) for _ in range(600)]


KINDS = ["tiny", "wasteful", "large", "mixed"]


# LevelDB begins new logs by itself


@on_leveldb
@pytest.mark.parametrize("how", ["sync", "write", "close"])
def test_a_sync_is_one_of_all_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """LevelDB syncs the newest log only: the end of the one before it would be lost."""
    from postroom.kv import folder  # noqa: PLC0415 - as the engine

    engine: Any = OnDisk("leveldb").open(tmp_path)
    (tmp_path / "000001.log").touch()  # its memtable is not a table yet
    engine.write({b"a": b"1"}, sync=False)
    synced = []
    sync = os.fdatasync
    monkeypatch.setattr(
        folder.os, "fdatasync", lambda file: (synced.append(_name(file)), sync(file))
    )
    newest = newest_log(tmp_path).name
    match how:
        case "sync":
            engine.sync()
        case "write":
            engine.write({b"b": b"1"}, sync=True)
        case _:
            engine.close()
    assert synced == ["000001.log", newest]
    engine.close()


def _name(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


@on_leveldb
def test_a_compaction_finds_a_log_that_has_a_write(tmp_path: Path) -> None:
    """It would look like one that was cut off."""
    engine: Any = OnDisk("leveldb").open(tmp_path)
    begun = _Begun(engine._db, tmp_path)
    engine._db = begun
    for _ in range(3):
        engine.compact(b"a", b"b")
    engine._db = begun.db
    engine.close()
    assert begun.sizes
    assert all(begun.sizes)


class _Begun:
    """The database, but for noting how long the log is before each compaction."""

    def __init__(self, db: Any, folder: Path) -> None:
        self.db = db
        self.sizes: list[int] = []
        self._folder = folder

    def compact_range(self, **span: bytes) -> None:
        self.sizes.append(newest_log(self._folder).stat().st_size)
        self.db.compact_range(**span)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)


# RocksDB: the engine itself begins a new log


class RecordingRocksDB:
    """The database, but for noting what is called, and whether that has begun a new log."""

    def __init__(self, db: Any, folder: Path) -> None:
        self._db = db
        self._folder = folder
        self.calls: list[str] = []
        self.began_a_log: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._db, name)
        if name not in {"write", "flush", "flush_wal"}:
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            log = newest_log(self._folder)
            try:
                return method(*arguments, **named)
            finally:
                self.calls.append(name)
                self.began_a_log.append(newest_log(self._folder) != log)

        return call


@on_rocksdb
@pytest.mark.parametrize("kind", KINDS)
def test_only_a_flush_begins_a_log_and_a_sync_is_before_it(tmp_path: Path, kind: str) -> None:
    rng = Random(7)
    engine: Any = OnDisk("rocksdb").open(tmp_path, write_buffer_bytes=256 * 1024)
    engine._db = recording = RecordingRocksDB(engine._db, tmp_path)
    sizes = sizes_of_values(kind, rng)
    per_write = 100 if kind == "tiny" else 1
    for start in range(0, len(sizes), per_write):
        writes = {rng.randbytes(8): bytes(size) for size in sizes[start : start + per_write]}
        engine.write(writes, sync=False)
    began = [at for at, new in enumerate(recording.began_a_log) if new]
    assert len(began) >= 3
    assert {recording.calls[at] for at in began} == {"flush"}
    assert {recording.calls[at - 1] for at in began} == {"flush_wal"}
    assert recording.calls.count("flush_wal") == len(began)  # nothing else was synced
    engine.close()


@on_rocksdb
def test_writes_beside_a_compaction_are_synced(tmp_path: Path) -> None:
    engine: Any = OnDisk("rocksdb").open(tmp_path)
    db = engine._db

    class CompactingDatabase(RecordingRocksDB):
        def compact_range(self, *span: Any) -> None:
            engine.write({b"before": b""}, sync=False)
            db.compact_range(*span)
            engine.write({b"after": b""}, sync=False)

    engine._db = recording = CompactingDatabase(db, tmp_path)
    engine.write({b"a": bytes(1000)}, sync=False)
    engine.compact(b"a", b"b")
    engine.write({b"later": b""}, sync=False)
    synced_write = ["write", "flush_wal"]
    assert recording.calls == ["write", "flush_wal", "flush", *synced_write * 2, "write"]
    engine._db = db
    engine.close()


@on_rocksdb
def test_a_memtable_takes_no_more_than_it_was_given(tmp_path: Path) -> None:
    engine: Any = OnDisk("rocksdb").open(tmp_path, write_buffer_bytes=1 << 20)
    for number in range(3000):
        engine.write({b"%05d" % number: bytes(1000)}, sync=False)
        assert engine._db.property_int_value("rocksdb.cur-size-active-mem-table") < 2 << 20
    assert sum(1 for _ in engine.iterate(b"", END)) == 3000
    engine.close()
