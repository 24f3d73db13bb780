"""A new log is begun only when all of the one before it has been synced: no hole between them."""

from __future__ import annotations

from pathlib import Path
from random import Random  # noqa: TID251 (each use is seeded)
from typing import Any

import pytest

from postroom.kv.engine_folder import ENTRY_OVERHEAD_BYTES
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


# LevelDB: writes are synced while its log is about to be rotated


class RecordingDatabase:
    """The database, but for noting which batches are made to be synced."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.syncs: list[bool] = []

    def write_batch(self, *, sync: bool = False) -> Any:
        self.syncs.append(sync)
        return self._db.write_batch(sync=sync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@on_leveldb
def test_writes_are_synced_from_the_danger_zone_on() -> None:
    from postroom.kv.leveldb import LogRotation  # noqa: PLC0415 - it may not be installed

    rotation = LogRotation(write_buffer_bytes=1000)
    assert [rotation.must_sync(200) for _ in range(5)] == [False, False, True, True, True]
    rotation.rotated(200)
    assert [rotation.must_sync(200) for _ in range(2)] == [False, True]
    assert LogRotation(1000).must_sync(5000)


@on_leveldb
@pytest.mark.parametrize("kind", KINDS)
def test_the_write_before_a_rotation_was_synced(tmp_path: Path, kind: str) -> None:
    rng = Random(7)
    engine: Any = OnDisk("leveldb").open(tmp_path, write_buffer_bytes=256 * 1024)
    engine._db = recording = RecordingDatabase(engine._db)
    log, synced_before, rotations, synced = newest_log(tmp_path), True, 0, 0
    sizes = sizes_of_values(kind, rng)
    per_write = 100 if kind == "tiny" else 1
    for start in range(0, len(sizes), per_write):
        writes = {rng.randbytes(8): bytes(size) for size in sizes[start : start + per_write]}
        engine.write(writes, sync=False)
        if newest_log(tmp_path) != log:
            assert synced_before
            log, rotations = newest_log(tmp_path), rotations + 1
        synced_before = recording.syncs[-1]
        synced += synced_before
    assert rotations >= 3
    if kind != "large":
        assert synced < 0.7 * len(sizes) / per_write
    engine.close()


@on_leveldb
def test_writes_during_a_compaction_are_synced(tmp_path: Path) -> None:
    engine: Any = OnDisk("leveldb").open(tmp_path)
    db = engine._db

    class CompactingDatabase(RecordingDatabase):
        def compact_range(self, **span: bytes) -> None:
            engine.write({b"before": b""}, sync=False)
            db.compact_range(**span)
            engine.write({b"after": b""}, sync=False)

    engine._db = recording = CompactingDatabase(db)
    engine.write({b"a": bytes(1000)}, sync=False)
    engine.compact(b"a", b"b")
    assert engine._rotation.memtable_bytes < 2 * ENTRY_OVERHEAD_BYTES
    made_anew = [False, True]  # a batch that turned out to have to be synced
    assert recording.syncs == [False, True, *made_anew * 2, True, *made_anew * 2]
    engine._db = db
    engine.close()


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
