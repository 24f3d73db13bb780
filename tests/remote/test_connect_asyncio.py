"""``connect`` for asyncio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import postroom
import postroom.aio
from postroom.errors import Invalid, TransactionConflict
from postroom.kv.clock import Timestamp
from tests.client.test_asyncio import on_a_loop, reap, send, until_it_waits
from tests.remote.servers import Server


@on_a_loop
async def test_the_database_awaited(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:
        await db.put(b"a", b"1")
        before = await db.now()
        assert isinstance(before, Timestamp)
        await db.delete(b"a")
        assert await db.get(b"a", at=before) == b"1"
        assert [key async for key, _ in db.scan(at=before)] == [b"a"]
        await send(db, b"k", b"m")
        await db.drain()
        assert await reap(db, b"k") == [b"m"]
        async with db.snapshot() as snapshot:
            await db.put(b"a", b"3")
            assert await snapshot.get(b"a") is None
        assert (await db.status()).reaped == 1


@on_a_loop
async def test_both_spellings_of_now(path: Path) -> None:
    async with await postroom.aio.open(":memory:") as db:
        moment = db.now()
        assert isinstance(moment, Timestamp)
        assert await db.now() > moment


@pytest.fixture
def path() -> str:
    return ":memory:"


@on_a_loop
async def test_many_at_once_share_frames_and_writes(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:
        await asyncio.gather(*(db.increment(b"n") for _ in range(500)))
        assert postroom.integer(await db.get(b"n")) == 500


@on_a_loop
async def test_a_cancelled_wait_holds_nothing(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:
        waiting = asyncio.create_task(reap(db, b"k", wait=30))
        await until_it_waits(waiting)
        await db.get(b"a")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await send(db, b"k", b"m")
        assert await reap(db, b"k", wait=5) == [b"m"]


@on_a_loop
async def test_watching_awaited(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:
        changes = db.watch(b"a")
        await db.put(b"a", b"1")
        assert (await anext(changes)).value == b"1"
        await changes.aclose()


@on_a_loop
async def test_conflicts_are_retried(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:

        async def add(tx: postroom.aio.Transaction) -> None:
            before = postroom.integer(await tx.get(b"n"))
            await asyncio.sleep(0)
            await tx.increment(b"n", 1 if before >= 0 else 0)

        await asyncio.gather(*(db.run(add) for _ in range(20)))
        assert postroom.integer(await db.get(b"n")) == 20
        tx = db.begin()
        await tx.get(b"n")
        await db.increment(b"n")
        tx.put(b"n", b"x")
        with pytest.raises(TransactionConflict):
            await tx.commit()


@on_a_loop
async def test_closing_that_is_cancelled_ends_everything_at_once(server: Server) -> None:
    """It went on connecting for ever, and closing again did nothing."""
    db = await postroom.aio.connect(server.address, insecure=True)
    server.stop()  # something is always under way then
    try:
        put = asyncio.ensure_future(db.put(b"a", b"1"))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(db.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert db.sender.router._closed  # type: ignore[attr-defined]
        with pytest.raises(postroom.Error):
            await put
        await db.close()
    finally:
        server.start()


@on_a_loop
async def test_closing_ends_every_wait(server: Server) -> None:
    db = await postroom.aio.connect(server.address, insecure=True)
    waiting = asyncio.create_task(reap(db, b"k", wait=30))
    await until_it_waits(waiting)
    await db.put(b"a", b"1")
    await db.close()
    await db.close()
    with pytest.raises(Invalid, match="closed"):
        await waiting


_FORKING = """
import asyncio, os, sys
import postroom, postroom.aio

async def main():
    async with await postroom.aio.connect(sys.argv[1], insecure=True) as db:
        await db.put(b"a", b"1")
        child = os.fork()
        if child == 0:
            try:
                await db.put(b"a", b"child")
            except postroom.Invalid as error:
                os._exit(7 if "before the process was forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        await db.put(b"b", b"2")
        assert await db.get_many([b"a", b"b"]) == [b"1", b"2"]
    print("well")

asyncio.run(main())
"""


def test_the_child_of_a_fork_is_refused(server: Server) -> None:
    """It has the parent's connection, and would use the ids of the parent's next transactions."""
    command = [sys.executable, "-W", "error", "-c", _FORKING, server.address]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("well\n", "", 0)
