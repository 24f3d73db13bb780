"""The peers of ``python -m benchmarks tail``: SQLite in the same process, and three nodes of etcd.

SQLite has one writer at a time. A thread does the transactions in the order of their arrival, and
another one takes the messages. etcd's transaction compares the key that was read, and puts two.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.etcd import (
    delete_request,
    put_request,
    range_request,
    started_etcd,
    txn_request,
    wait_until_ready,
)
from benchmarks.harness import Settings
from benchmarks.tail import (
    FILLED_WITH,
    INBOXES,
    MESSAGE,
    REAPED_MAX,
    VALUE,
    Load,
    Percentiles,
    at_open_rate,
    key_of,
)

HAS_ETCD: Final = shutil.which("etcd") is not None
_BUSY_SECONDS: Final = 30.0
_CONSUMER_PAUSE_SECONDS: Final = 0.01
_ETCD_FILLED_WITH: Final = 100


# --- SQLite


def _connection(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_SECONDS, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    return db


def _sqlite_transaction(db: sqlite3.Connection, key: bytes, inbox: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    db.execute("UPDATE state SET value = ? WHERE key = ?", (VALUE, key))
    db.execute("INSERT INTO queue(inbox, value) VALUES(?, ?)", (inbox, MESSAGE))
    db.execute("COMMIT")


def _sqlite_reap(db: sqlite3.Connection) -> None:
    """Take a hundred messages of any inbox, as one consumer."""
    db.execute("BEGIN IMMEDIATE")
    rows = db.execute("SELECT id, value FROM queue ORDER BY id LIMIT ?", (REAPED_MAX,)).fetchall()
    if rows:
        db.execute("DELETE FROM queue WHERE id <= ?", (rows[-1][0],))
    db.execute("COMMIT")


async def sqlite(load: Load) -> Percentiles:
    """Measure SQLite (WAL, synchronous=FULL)."""
    path, loop = load.folder / "peer.db", asyncio.get_running_loop()
    writer, consumer = _connection(path), _connection(path)
    writer.execute("CREATE TABLE state(key BLOB PRIMARY KEY, value BLOB)")
    writer.execute("CREATE TABLE queue(id INTEGER PRIMARY KEY, inbox INTEGER, value BLOB)")
    for first in range(0, load.keys, FILLED_WITH):
        writer.execute("BEGIN")
        numbers = range(first, min(first + FILLED_WITH, load.keys))
        rows = [(b"key/%08d" % number, VALUE) for number in numbers]
        writer.executemany("INSERT INTO state VALUES(?, ?)", rows)
        writer.execute("COMMIT")

    with ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(1) as consuming:

        async def once(number: int) -> None:
            arguments = writer, key_of(number, load.keys), number % INBOXES
            await loop.run_in_executor(writing, _sqlite_transaction, *arguments)

        async def consume() -> None:
            while True:
                await loop.run_in_executor(consuming, _sqlite_reap, consumer)
                await asyncio.sleep(_CONSUMER_PAUSE_SECONDS)

        beside = asyncio.ensure_future(consume())
        found = await at_open_rate(load, once)
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
    for each in (writer, consumer):
        each.close()
    return found


# --- etcd


class _Etcd:
    """The calls of a client of three nodes."""

    def __init__(self, channel: Any) -> None:
        self.put = channel.unary_unary("/etcdserverpb.KV/Put")
        self.txn = channel.unary_unary("/etcdserverpb.KV/Txn")
        self._range = channel.unary_unary("/etcdserverpb.KV/Range")
        self._delete = channel.unary_unary("/etcdserverpb.KV/DeleteRange")
        self._sent = itertools.count()

    async def fill(self, keys: int) -> None:
        for first in range(0, keys, _ETCD_FILLED_WITH):
            numbers = range(first, min(first + _ETCD_FILLED_WITH, keys))
            puts = [(b"key/%08d" % number, VALUE) for number in numbers]
            await self.txn(txn_request(puts[0][0], *puts))

    async def transaction(self, key: bytes, inbox: int) -> None:
        await self._range(range_request(key))
        message = b"inbox/%02d/%012d" % (inbox, next(self._sent))
        await self.txn(txn_request(key, (key, VALUE), (message, MESSAGE)))

    async def consume(self) -> None:
        """Take messages: all those that were there at the time of a read."""
        while True:
            for inbox in range(INBOXES):
                before = next(self._sent)
                begin, end = b"inbox/%02d/" % inbox, b"inbox/%02d/%012d" % (inbox, before)
                await self._range(range_request(begin, end, REAPED_MAX))
                await self._delete(delete_request(begin, end))
            await asyncio.sleep(_CONSUMER_PAUSE_SECONDS)


async def etcd(load: Load) -> Percentiles:
    """Measure three nodes of etcd: a linearizable read, and a transaction."""
    import grpc.aio  # noqa: PLC0415 - see :mod:`.etcd`

    with started_etcd(Settings(load.folder)) as clients:
        async with grpc.aio.insecure_channel(clients[0]) as channel:
            client = _Etcd(channel)
            await wait_until_ready(client.put, put_request(b"ready", b""))
            await client.fill(load.keys)
            beside = asyncio.ensure_future(client.consume())
            found = await at_open_rate(
                load,
                lambda number: client.transaction(key_of(number, load.keys), number % INBOXES),
            )
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
    return found
