"""Subjects of ``python -m benchmarks growth``: keys, versions, deleted keys."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Final

import postroom
from benchmarks.growing import (
    FILLED_WITH,
    IN_FLIGHT,
    VALUE,
    Database,
    Growing,
    in_thousands,
    subject,
)

VALUE_BYTES: Final = 95
"""The size of a value: with a key of 20 bytes, the pair has 115."""
SCANNED: Final = 100_000
COMPACTED_SECONDS_MAX: Final = 600.0
SETTLED_SECONDS: Final = 20.0
"""The time after a scan has met deleted keys when passing them is to cost nothing."""
COLLECTED_SECONDS: Final = 100.0
"""The time after which the collector has run, and its remains were compacted."""
COLLECTED_MIN: Final = 10_000
"""The size from which the collector is waited for: smaller runs only show that it works."""


def key_of(number: int) -> bytes:
    """Return a key of 20 bytes; those of successive numbers are scattered."""
    return b"key/%016x" % (number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)


@subject("keys", 10_000_000)
def keys(growing: Growing) -> None:
    """Measure keys of 20 bytes in random order, with 95 random bytes.

    They are filled by thousands. While they are compacted, puts are timed: how many milliseconds 99
    of 100 take at most (as puts a second). When the engine has compacted them, they are read one by
    one, and scanned; then there are outbox transactions at random keys. SQLite has the same data.
    """
    _measure_keys(growing, VALUE_BYTES)
    _sqlite_keys(growing)


@subject("20 GB", 100_000_000, is_by_name=True)
def many_keys(growing: Growing) -> None:
    """Measure the keys of the subject "keys" with 200 random bytes each, without SQLite.

    A hundred million of them take an hour, and 25 GB on the device.
    """
    _measure_keys(growing, 200)


def _measure_keys(growing: Growing, value_bytes: int) -> None:
    values, chosen = random.Random(1), random.Random(2)

    def any_key() -> bytes:
        return key_of(chosen.randrange(growing.size))

    async def work(db: Database) -> None:
        begun, busy = time.perf_counter(), time.thread_time()
        await in_thousands(
            db,
            growing.size,
            lambda tx, number: tx.put(key_of(number), values.randbytes(value_bytes)),
        )
        growing.rates["fill"] = growing.size / (time.perf_counter() - begun)
        busy = time.thread_time() - busy
        growing.rates["fill, processor time of the thread of the turns [µs]"] = (
            1e6 * busy / growing.size
        )
        await _slow_puts(growing, lambda: db.put(any_key(), values.randbytes(value_bytes)))
        await _compacted(growing)
        await growing.rate("get", lambda: db.get(any_key()))
        await growing.rate("get what never was", lambda: db.get(any_key() + b"x"))
        await growing.rate("outbox, 64 in flight", lambda: _outbox(db, any_key()), IN_FLIGHT)
        await growing.rate("transaction", lambda: _outbox(db, any_key()))
        begun, seen = time.perf_counter(), 0
        async for _ in db.scan(b"key/", b"key0", limit=SCANNED):
            seen += 1
        growing.rates["scan"] = seen / (time.perf_counter() - begun)

    growing.run(work)


async def _compacted(growing: Growing) -> None:
    """Wait until the engine makes no new tables any more, and note how long that took.

    It has ended after a time without new or removed tables that is as long as a measurement.
    """
    quiet_seconds = growing.seconds
    begun = changed = time.perf_counter()
    tables: set[str] = set()
    while changed + quiet_seconds > time.perf_counter() < begun + COMPACTED_SECONDS_MAX:
        found = {path.name for path in (growing.folder / "store").iterdir()}
        if found != tables:
            tables, changed = found, time.perf_counter()
        await asyncio.sleep(quiet_seconds / 10)
    growing.rates["1 / s until it is compacted"] = 1 / max(changed - begun, 0.1)


async def _slow_puts(growing: Growing, put: Callable[[], Awaitable[object]]) -> None:
    latencies: list[float] = []
    end = time.perf_counter() + growing.seconds
    while not latencies or time.perf_counter() < end:
        begun = time.perf_counter()
        await put()
        latencies.append(time.perf_counter() - begun)
    slow = sorted(latencies)[len(latencies) * 99 // 100]
    growing.rates["1 / p99 of a put after filling"] = 1 / slow


async def _outbox(db: Database, key: bytes) -> None:
    async with db.begin() as tx:
        await tx.get(key)
        tx.put(key, VALUE)
        tx.enqueue_message(b"inbox/" + key[-2:], VALUE)
        tx.enqueue_update(postroom.Increment(b"counter/" + key[-1:]))


def _sqlite_keys(growing: Growing) -> None:
    values, chosen = random.Random(1), random.Random(2)
    db = sqlite3.connect(growing.folder / "peer.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE state(key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    db.execute("CREATE TABLE queue(id INTEGER PRIMARY KEY, value BLOB)")
    db.execute("CREATE TABLE counter(key BLOB PRIMARY KEY, n INTEGER)")
    begun = time.perf_counter()
    for first in range(0, growing.size, FILLED_WITH):
        numbers = range(first, min(first + FILLED_WITH, growing.size))
        db.execute("BEGIN")
        db.executemany(
            "INSERT INTO state VALUES(?, ?)",
            [(key_of(number), values.randbytes(VALUE_BYTES)) for number in numbers],
        )
        db.execute("COMMIT")
    growing.rates["SQLite: fill"] = growing.size / (time.perf_counter() - begun)

    def any_key() -> bytes:
        return key_of(chosen.randrange(growing.size))

    def get(key: bytes) -> object:
        return db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()

    def transaction() -> None:
        key = any_key()
        db.execute("BEGIN IMMEDIATE")
        get(key)
        db.execute("UPDATE state SET value = ? WHERE key = ?", (VALUE, key))
        db.execute("INSERT INTO queue(value) VALUES(?)", (VALUE,))
        db.execute(
            "INSERT INTO counter VALUES(?, 1) ON CONFLICT DO UPDATE SET n = n + 1", (key[-1:],)
        )
        db.execute("COMMIT")

    growing.plain_rate("SQLite: get", lambda: get(any_key()))
    growing.plain_rate("SQLite: get what never was", lambda: get(any_key() + b"x"))
    growing.plain_rate("SQLite: transaction", transaction)
    begun = time.perf_counter()
    seen = sum(
        1 for _ in db.execute("SELECT key, value FROM state ORDER BY key LIMIT ?", (SCANNED,))
    )
    growing.rates["SQLite: scan"] = seen / (time.perf_counter() - begun)
    db.close()


@subject("versions of a key", 400_000)
def versions(growing: Growing) -> None:
    """Measure a key that was overwritten so often: read; overwritten; passed by a scan."""

    async def work(db: Database) -> None:
        await db.put(b"after", VALUE)
        left = iter(range(growing.size))

        async def overwrite() -> None:
            for number in left:
                await db.put(b"a", b"%d" % number)

        await asyncio.gather(*(overwrite() for _ in range(IN_FLIGHT)))
        await growing.rate("get", lambda: db.get(b"a"))
        await growing.rate("put", lambda: db.put(b"a", VALUE))
        await growing.rate("scan by it", lambda: _first(db, b"a\x00"))
        await growing.rate("scan with it", lambda: _first(db, b"", 2))

    growing.run(work)


async def _first(db: Database, start: bytes, limit: int = 1) -> None:
    seen = [pair async for pair in db.scan(start, limit=limit)]
    assert len(seen) == limit, seen


@subject("tombstones", 400_000)
def tombstones(growing: Growing) -> None:
    """Measure the first key behind so many deleted ones, and the last before them.

    They are read at once. From 10,000 on they are also read 20 s after a scan has met the deleted
    keys, after the collector has run, and after the store was opened again.
    """

    async def delete(db: Database) -> None:
        await db.put(b"last", VALUE)
        await in_thousands(db, growing.size, lambda tx, number: tx.put(key_of(number), b"x"))
        await in_thousands(db, growing.size, lambda tx, number: tx.delete(key_of(number)))
        await once(db, "at once")
        await look(db, "")
        if growing.size >= COLLECTED_MIN:
            await asyncio.sleep(COLLECTED_SECONDS - SETTLED_SECONDS)
        await look(db, ", collected")

    async def once(db: Database, when: str) -> None:
        begun = time.perf_counter()
        await _first(db, b"key/")
        growing.rates[f"first behind them, {when} [ms]"] = 1000 * (time.perf_counter() - begun)

    async def opened_again(db: Database) -> None:
        await once(db, "just opened")
        await look(db, ", opened again")

    async def look(db: Database, when: str) -> None:
        if growing.size >= COLLECTED_MIN and not when:
            await asyncio.sleep(SETTLED_SECONDS)
        await growing.rate(f"first behind them{when}", lambda: _first(db, b"key/"))
        await growing.rate(f"last before them{when}", lambda: _last_before(db))

    growing.run(delete)
    growing.run(opened_again)


async def _last_before(db: Database) -> None:
    assert [pair async for pair in db.scan(b"key/", b"last", limit=1, reverse=True)] == []


@subject("delete_range", 400_000)
def deleted_range(growing: Growing) -> None:
    """Measure the deletion of many keys: in a call, in a transaction, by a deferred update.

    A transaction may be refused: then the time until it is. Meanwhile the longest put of another
    key is measured.
    """

    async def work(db: Database) -> None:
        for how, delete in (("alone", _alone), ("in a transaction", _inside), ("deferred", _later)):
            await in_thousands(db, growing.size, lambda tx, number: tx.put(key_of(number), b"x"))
            begun = time.perf_counter()
            deleting = delete(db, growing.size)
            await growing.slowest_beside(
                f"slowest put beside it, {how}", deleting, lambda: db.put(b"other", VALUE)
            )
            growing.rates[f"keys, {how}"] = growing.size / (time.perf_counter() - begun)

    growing.run(work)


async def _alone(db: Database, size: int) -> None:
    assert await db.delete_range(b"key/", b"key0") == size


async def _inside(db: Database, size: int) -> None:
    try:
        async with db.begin() as tx:
            assert await tx.delete_range(b"key/", b"key0") == size
    except postroom.TransactionTooLarge as error:
        if "enqueue_update(DeleteRange(" not in str(error):
            raise


async def _later(db: Database, _: int) -> None:
    async with db.begin() as tx:
        tx.enqueue_update(postroom.DeleteRange(b"key/", b"key0"))
    await db.drain(600)
    assert [pair async for pair in db.scan(b"key/", b"key0", limit=1)] == []
