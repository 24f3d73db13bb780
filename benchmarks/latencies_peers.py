"""The peers of ``python -m benchmarks latencies``: what they do like our subjects, synced.

* PostgreSQL: a queue is a table. A claim updates a row that it locks with ``SKIP LOCKED``, a reap
  deletes one. Consumers and watchers ``LISTEN``.
* Redis, with ``appendfsync always``: a queue is a stream (``XREADGROUP``), an inbox a list
  (``BLPOP``).
* etcd, three nodes: a put, and a ``watch``.

None of them has a timer for messages. A peer is there if its program is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from benchmarks.cluster import free_addresses
from benchmarks.etcd import put_request, started_etcd, wait_until_ready, watch_request
from benchmarks.harness import Settings
from benchmarks.latencies_subjects import (
    CLAIM,
    PUT,
    SEND_REAP,
    THROUGH,
    TO_CONSUMER,
    TO_REAPER,
    VALUE,
    WATCH,
    Once,
    now,
    pause,
)
from benchmarks.peer_connections import PostgresConnection, RedisConnection

START_SECONDS: Final = 30.0

T = TypeVar("T")
Place: TypeAlias = Callable[[Path], AbstractAsyncContextManager[dict[str, Once]]]


async def _until_open(connect: Callable[[], Awaitable[T]]) -> T:
    """Connect to a server that may just be starting."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            return await connect()
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    """Run a server, and end it at the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _port() -> int:
    return int(free_addresses(1)[0].rpartition(":")[2])


async def _timed(*steps: Callable[[], Awaitable[object]]) -> float:
    """Measure steps, one after another, after a pause."""
    await pause()
    began = now()
    for step in steps:
        await step()
    return now() - began


async def _waited(waiting: Awaitable[object], act: Callable[[], Awaitable[object]]) -> float:
    """Measure the time from the beginning of ``act`` until a task that waits has gone on."""

    async def wait() -> float:
        await waiting
        return now()

    other = asyncio.ensure_future(wait())
    await pause()
    began = now()
    await act()
    return await other - began


# --- PostgreSQL

_TABLES: Final = (
    "CREATE TABLE state(key text PRIMARY KEY, value text)",
    "CREATE TABLE queue(id bigserial PRIMARY KEY, value text, leased bool DEFAULT false)",
)
_STATEMENTS: Final = (
    f"PREPARE put AS INSERT INTO state VALUES($1, '{VALUE.decode()}') "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    f"PREPARE enqueue AS INSERT INTO queue(value) VALUES('{VALUE.decode()}')",
    "PREPARE claim AS UPDATE queue SET leased = true WHERE id = (SELECT id FROM queue "
    "WHERE NOT leased ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id",
    "PREPARE reap AS DELETE FROM queue WHERE id = (SELECT id FROM queue "
    "ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id",
)
_POSTGRES: Final = shutil.which("postgres") or ""


def _postgres_command(program: str, *arguments: str) -> list[str]:
    """Return a command of PostgreSQL, which does not run as root."""
    command = [str(Path(_POSTGRES).resolve().with_name(program)), *arguments]
    return command if os.getuid() else ["runuser", "-u", "postgres", "--", *command]


@asynccontextmanager
async def _postgres(folder: Path) -> AsyncIterator[dict[str, Once]]:
    data, port = folder / "postgres", _port()
    data.mkdir()
    if not os.getuid():
        folder.chmod(0o755)
        shutil.chown(data, "postgres")
    subprocess.run(
        _postgres_command("initdb", "-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync"),
        check=True, capture_output=True, cwd="/",
    )  # fmt: skip
    command = _postgres_command("postgres", "-D", str(data), "-p", str(port), "-k", str(data))
    with _running(command, folder / "postgres.log"):
        client = await _until_open(lambda: PostgresConnection.open(port))
        other = await PostgresConnection.open(port)
        for statement in _TABLES:
            await client.execute(statement)
        for statement in _STATEMENTS:
            await client.execute(statement)
            await other.execute(statement)
        for channel in ("queue", "state"):
            await other.execute(f"LISTEN {channel}")
        with contextlib.closing(client), contextlib.closing(other):
            yield _postgres_subjects(client, other)


def _postgres_subjects(client: PostgresConnection, other: PostgresConnection) -> dict[str, Once]:
    def call(statement: str) -> Callable[[], Awaitable[list[bytes]]]:
        return lambda: client.execute(statement)

    def notifying(statement: str, channel: str) -> Callable[[], Awaitable[list[bytes]]]:
        return call(f"BEGIN; {statement}; NOTIFY {channel}; COMMIT")

    async def take(statement: str) -> None:
        await other.notified()
        assert await other.execute(statement)

    async def claim() -> float:
        await client.execute("EXECUTE enqueue")
        took = await _timed(call("EXECUTE claim"))
        await client.execute("DELETE FROM queue")
        return took

    async def to_consumer() -> float:
        took = await _waited(take("EXECUTE claim"), notifying("EXECUTE enqueue", "queue"))
        await client.execute("DELETE FROM queue")
        return took

    return {
        PUT: lambda: _timed(call("EXECUTE put('key')")),
        CLAIM: claim,
        THROUGH: lambda: _timed(
            call("EXECUTE enqueue"), call("EXECUTE claim"), call("DELETE FROM queue WHERE leased")
        ),
        TO_CONSUMER: to_consumer,
        TO_REAPER: lambda: _waited(take("EXECUTE reap"), notifying("EXECUTE enqueue", "queue")),
        SEND_REAP: lambda: _timed(call("EXECUTE enqueue"), call("EXECUTE reap")),
        WATCH: lambda: _waited(other.notified(), notifying("EXECUTE put('key')", "state")),
    }


# --- Redis


@asynccontextmanager
async def _redis(folder: Path) -> AsyncIterator[dict[str, Once]]:
    port = _port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with _running(command, folder / "redis.log"):
        client = await _until_open(lambda: RedisConnection.open(port))
        other = await RedisConnection.open(port)
        await client.execute(b"XGROUP", b"CREATE", b"queue", b"group", b"$", b"MKSTREAM")
        with contextlib.closing(client), contextlib.closing(other):
            yield _redis_subjects(client, other)


def _redis_subjects(client: RedisConnection, other: RedisConnection) -> dict[str, Once]:
    claimed: list[bytes] = []

    def call(*words: bytes) -> Callable[[], Awaitable[Any]]:
        return lambda: client.execute(*words)

    async def take(connection: RedisConnection, *options: bytes) -> None:
        words = (b"XREADGROUP", b"GROUP", b"group", b"consumer", b"COUNT", b"1", *options)
        [[_, [[id_, _]]]] = await connection.execute(*words, b"STREAMS", b"queue", b">")
        claimed.append(id_)

    def acknowledge() -> Awaitable[Any]:
        return client.execute(b"XACK", b"queue", b"group", claimed.pop())

    enqueue = call(b"XADD", b"queue", b"*", b"value", VALUE)
    send = call(b"RPUSH", b"inbox", VALUE)

    async def claim() -> float:
        await enqueue()
        took = await _timed(lambda: take(client))
        await acknowledge()
        return took

    async def to_consumer() -> float:
        took = await _waited(take(other, b"BLOCK", b"0"), enqueue)
        await acknowledge()
        return took

    return {
        PUT: lambda: _timed(call(b"SET", b"key", VALUE)),
        CLAIM: claim,
        THROUGH: lambda: _timed(enqueue, lambda: take(client), acknowledge),
        TO_CONSUMER: to_consumer,
        TO_REAPER: lambda: _waited(other.execute(b"BLPOP", b"inbox", b"0"), send),
        SEND_REAP: lambda: _timed(send, call(b"LPOP", b"inbox")),
    }


# --- etcd


@asynccontextmanager
async def _etcd(folder: Path) -> AsyncIterator[dict[str, Once]]:
    import grpc.aio  # noqa: PLC0415 - see :mod:`.etcd`

    request = put_request(b"key", VALUE)
    with started_etcd(Settings(folder)) as clients:
        async with grpc.aio.insecure_channel(clients[0]) as channel:
            put = channel.unary_unary("/etcdserverpb.KV/Put")
            await wait_until_ready(put, request)
            changes = channel.stream_stream("/etcdserverpb.Watch/Watch")()
            await changes.write(watch_request(b"key"))
            await changes.read()
            yield {
                PUT: lambda: _timed(lambda: put(put_request(b"other", VALUE))),
                WATCH: lambda: _waited(changes.read(), lambda: put(request)),
            }
            changes.cancel()


PEERS: Final[dict[str, Place]] = {
    name: place
    for name, program, place in (
        ("PostgreSQL", "postgres", _postgres), ("Redis", "redis-server", _redis),
        ("etcd", "etcd", _etcd),
    )
    if shutil.which(program)
}  # fmt: skip
"""The peers that are there, by name."""
