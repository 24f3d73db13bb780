"""The limits of the machine, and other stores on it, measured in the same run for comparison."""

from __future__ import annotations

import os
import sqlite3
import time

from benchmarks.harness import Measured, Settings, benchmark
from postroom.kv.engine_folder import is_installed

VALUE = b"x" * 100


@benchmark("floor: fdatasync of an appended block", "/s")
def fdatasync(settings: Settings) -> Measured:
    """Measure how often a second 4 KiB are appended and synced."""
    path = settings.folder / "file"
    done, end = 0, time.perf_counter() + settings.seconds
    with path.open("wb", buffering=0) as file:
        while not done or time.perf_counter() < end:
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            done += 1
    return Measured(done / settings.seconds)


def leveldb(settings: Settings) -> Measured:
    """Measure LevelDB's batches of ten puts of 100 bytes a second, each batch synced."""
    import plyvel  # noqa: PLC0415 - it may not be installed

    db = plyvel.DB(str(settings.folder / "db"), create_if_missing=True)
    done, end = 0, time.perf_counter() + settings.seconds
    while not done or time.perf_counter() < end:
        with db.write_batch(sync=True) as batch:
            for number in range(10):
                batch.put(b"%012d" % (done * 10 + number), VALUE)
        done += 1
    db.close()
    return Measured(done / settings.seconds)


def rocksdb(settings: Settings) -> Measured:
    """Measure RocksDB's batches of ten puts of 100 bytes a second, each batch synced."""
    import rocksdict  # noqa: PLC0415 - it may not be installed

    db = rocksdict.Rdict(str(settings.folder / "db"), rocksdict.Options(raw_mode=True))
    synced = rocksdict.WriteOptions()
    synced.sync = True
    done, end = 0, time.perf_counter() + settings.seconds
    while not done or time.perf_counter() < end:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for number in range(10):
            batch.put(b"%012d" % (done * 10 + number), VALUE)
        db.write(batch, synced)
        done += 1
    db.close()
    return Measured(done / settings.seconds)


if is_installed("leveldb"):
    benchmark("floor: LevelDB, synced batches of 10", "/s")(leveldb)
if is_installed("rocksdb"):
    benchmark("floor: RocksDB, synced batches of 10", "/s")(rocksdb)


def _sqlite(settings: Settings) -> sqlite3.Connection:
    db = sqlite3.connect(settings.folder / "peer.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE state(key INTEGER PRIMARY KEY, value BLOB)")
    db.execute("CREATE TABLE queue(id INTEGER PRIMARY KEY, value BLOB)")
    db.execute("CREATE TABLE counter(key INTEGER PRIMARY KEY, n INTEGER)")
    db.executemany("INSERT INTO state VALUES(?, ?)", [(key, VALUE) for key in range(10_000)])
    db.executemany("INSERT INTO counter VALUES(?, 0)", [(key,) for key in range(100)])
    return db


@benchmark("peer: SQLite, the outbox transaction by hand, one at a time", "/s")
def sqlite_outbox(settings: Settings) -> Measured:
    """Measure SQLite's outbox transactions a second (WAL, synchronous=FULL).

    BEGIN; SELECT, UPDATE, INSERT into a queue, UPDATE a counter; COMMIT.
    """
    db = _sqlite(settings)
    done, end = 0, time.perf_counter() + settings.seconds
    while not done or time.perf_counter() < end:
        key = done * 7919 % 10_000
        db.execute("BEGIN IMMEDIATE")
        db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        db.execute("UPDATE state SET value = ? WHERE key = ?", (VALUE, key))
        db.execute("INSERT INTO queue(value) VALUES(?)", (VALUE,))
        db.execute("UPDATE counter SET n = n + 1 WHERE key = ?", (done % 100,))
        db.execute("COMMIT")
        done += 1
    db.close()
    return Measured(done / settings.seconds)


@benchmark("peer: SQLite, a hundred taken with a state change", "messages/s")
def sqlite_reap(settings: Settings) -> Measured:
    """Measure SQLite's reaps a second (WAL, synchronous=FULL).

    BEGIN; SELECT 100, DELETE them, UPDATE a row; COMMIT.
    """
    db = _sqlite(settings)
    messages = settings.size(300_000)
    db.execute("BEGIN")
    db.executemany("INSERT INTO queue(value) VALUES(?)", [(VALUE,)] * messages)
    db.execute("COMMIT")
    taken, start = 0, time.perf_counter()
    while True:
        db.execute("BEGIN IMMEDIATE")
        rows = db.execute("SELECT id, value FROM queue ORDER BY id LIMIT 100").fetchall()
        if rows:
            db.execute("DELETE FROM queue WHERE id BETWEEN ? AND ?", (rows[0][0], rows[-1][0]))
            db.execute("UPDATE state SET value = ? WHERE key = 1", (rows[-1][1],))
        db.execute("COMMIT")
        if not rows:
            break
        taken += len(rows)
    elapsed = time.perf_counter() - start
    db.close()
    return Measured(taken / elapsed)
