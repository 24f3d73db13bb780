"""The asyncio form: the same meanings, waits that can be cancelled, commits that share a write."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client.codec import resolve
from postroom.errors import Invalid, TransactionConflict, Unavailable
from postroom.kv.clock import SystemClock
from postroom.kv.memory import MemoryEngine
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.node import Node
from tests.client.watched_engine import WatchedEngine

Scenario = Callable[..., Coroutine[Any, Any, None]]


def on_a_loop(scenario: Scenario) -> Callable[..., None]:
    """Make a test of a coroutine function; a wait that does not end fails it."""

    @functools.wraps(scenario)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(scenario(*args, **kwargs), 60))

    return run


async def until_it_waits(task: asyncio.Task[Any]) -> None:
    """Let ``task`` go as far as it goes by itself."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()


async def send(db: postroom.aio.Database, key: bytes, *values: bytes) -> None:
    async with db.begin() as tx:
        for value in values:
            tx.enqueue_message(key, value)


async def reap(db: postroom.aio.Database, key: bytes, **options: Any) -> list[bytes]:
    async with db.begin() as tx:
        return [message.value for message in await tx.reap_queue(key, **options)]


@on_a_loop
async def test_the_database_awaited(path: str) -> None:
    async with await postroom.aio.open(path) as db:
        await db.put(b"a", b"1")
        await db.conditional_put(b"b", b"2", None)
        assert await db.increment(b"n", 2) == 2
        assert await db.get(b"a") == b"1"
        assert await db.get_many([b"b", b"x"]) == [b"2", None]
        assert [key async for key, _ in db.scan(b"a", b"c")] == [b"a", b"b"]
        before = db.now()
        await db.delete(b"a")
        assert await db.delete_range(b"b", b"c") == 1
        assert await db.get(b"a", at=before) == b"1"
        await send(db, b"k", b"m")
        await db.drain()
        assert [message.value for message in await db.peek(b"k")] == [b"m"]
        assert [inbox.key for inbox in await db.inboxes()] == [b"k"]
        assert await db.accounting(b"x") == {}
        assert await db.dead_letters() == []
        assert (await db.replay([]), await db.discard([])) == (0, 0)
        assert (await db.status()).delivered == 1
        with pytest.raises(postroom.NotInTransaction):
            db.reap_queue(b"k")
        async with db.snapshot() as snapshot:
            await db.put(b"a", b"3")
            assert await snapshot.get(b"a") is None
            assert await snapshot.get_many([b"n"]) == [(2).to_bytes(8, "big")]
            assert [key async for key, _ in snapshot.scan(b"", None)] == [b"n"]
            assert len(await snapshot.peek(b"k")) == 1


@on_a_loop
async def test_a_transaction_awaited(path: str) -> None:
    async with await postroom.aio.open(path) as db:
        await send(db, b"k", b"m")
        async with db.begin() as tx:
            tx.put(b"a", b"1")
            tx.put(b"b", b"1")
            tx.delete(b"b")
            tx.enqueue_update(postroom.Put(b"c", b"1"))
            assert await tx.get(b"a") == await tx.get_for_update(b"a") == b"1"
            assert await tx.get_many([b"a", b"b"]) == [b"1", None]
            assert [key async for key, _ in tx.scan(b"", None)] == [b"a"]
            assert await tx.increment(b"n") == 1
            await tx.conditional_put(b"d", b"1", None)
            assert await tx.delete_range(b"d", b"e") == 1
            (message,) = await tx.reap_queue(b"k")
            assert message.value == b"m"
        assert tx.commit_timestamp is not None
        with pytest.raises(ZeroDivisionError):
            async with db.begin() as tx:
                tx.put(b"a", b"%d" % (1 // 0))
        tx = db.begin()
        tx.put(b"a", b"3")
        await tx.rollback()
        assert [key async for key, _ in db.scan()] == [b"a", b"c", b"n"]
        assert await db.get(b"a") == b"1"


@on_a_loop
async def test_run_awaits_coroutines_and_tries_again() -> None:
    async with await postroom.aio.open(":memory:") as db:
        calls = []

        async def count(tx: postroom.aio.Transaction, by: int) -> int:
            calls.append(by)
            total = await tx.increment(b"n", by)
            if len(calls) == 1:
                await db.increment(b"n", 10)
            return total

        assert await db.run(count, by=1) == 11
        assert await db.run(lambda tx: tx.id) != b""
        assert len(calls) == 2


@on_a_loop
async def test_commits_of_one_moment_share_a_write() -> None:
    engine = WatchedEngine(MemoryEngine())
    node = Node(engine, SystemClock(), Random(1), NoPeers(), NodeOptions())
    driver = AsyncioDriver(node, Random(2))
    driver.start()

    async def no_status() -> Any:
        raise NotImplementedError

    db = postroom.aio.Database(driver, resolve(None), no_status, driver.close)
    before = engine.writes
    await asyncio.gather(*(db.put(b"%d" % number, b"1") for number in range(500)))
    assert engine.writes - before <= 2
    await asyncio.gather(*(db.run(_increment) for _ in range(50)))
    assert postroom.integer(await db.get(b"n")) == 50
    await db.close()


async def _increment(tx: postroom.aio.Transaction) -> None:
    value = postroom.integer(await tx.get_for_update(b"n"))
    tx.put(b"n", (value + 1).to_bytes(8, "big"))


# --- waiting, being woken


@on_a_loop
async def test_waiting_for_a_message_ends_with_its_arrival(path: str) -> None:
    async with await postroom.aio.open(path) as db:
        task = asyncio.create_task(reap(db, b"k", wait=50))
        await until_it_waits(task)
        await send(db, b"other", b"1")
        await until_it_waits(task)
        await send(db, b"k", b"2", b"3")
        assert await task == [b"2", b"3"]
        assert await reap(db, b"k", wait=0.001) == []


@on_a_loop
async def test_waiting_for_a_delayed_message_ends_when_it_is_due() -> None:
    async with await postroom.aio.open(":memory:") as db:
        async with db.begin() as tx:
            tx.enqueue_message(b"k", b"m", deliver_at=0.01)
        assert await reap(db, b"k", wait=50) == [b"m"]


@on_a_loop
async def test_waiting_for_a_lock_ends_with_its_release() -> None:
    async with await postroom.aio.open(":memory:") as db:
        order: list[str] = []

        async def work(name: str) -> None:
            async with db.begin() as tx:
                await tx.get_for_update(b"a")
                order.append(f"{name} in")
                await asyncio.sleep(0)
                order.append(f"{name} out")

        await asyncio.gather(*(work(name) for name in "abc"))
        assert order == ["a in", "a out", "b in", "b out", "c in", "c out"]


@on_a_loop
async def test_drain_ends_when_the_last_entry_is_done() -> None:
    async with await postroom.aio.open(":memory:") as db:
        async with db.begin() as tx:
            for number in range(9000):
                tx.enqueue_update(postroom.Increment(b"n%d" % number))
        await db.drain()
        assert (await db.status()).pending == 0


@on_a_loop
async def test_watching_from_several_tasks() -> None:
    async with await postroom.aio.open(":memory:") as db:

        async def first_two() -> list[bytes]:
            found: list[bytes] = []
            async with aclosing(db.watch(b"a")) as changes:
                async for change in changes:
                    found.append(change.value)
                    if len(found) == 2:
                        break
            return found

        tasks = [asyncio.create_task(first_two()) for _ in range(3)]
        await until_it_waits(tasks[-1])
        await db.put(b"a", b"1")
        await db.put(b"a", b"2")
        assert await asyncio.gather(*tasks) == [[b"1", b"2"]] * 3


# --- being cancelled


@on_a_loop
async def test_a_cancelled_wait_takes_no_message() -> None:
    async with await postroom.aio.open(":memory:") as db:
        task = asyncio.create_task(reap(db, b"k", wait=50))
        await until_it_waits(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await send(db, b"k", b"m")
        assert await reap(db, b"k") == [b"m"]


@on_a_loop
async def test_a_message_whose_reaper_is_cancelled_before_it_sees_it_is_free() -> None:
    async with await postroom.aio.open(":memory:") as db:
        tx = db.begin()
        task = asyncio.create_task(tx.reap_queue(b"k", wait=50))
        await until_it_waits(task)
        commit = asyncio.create_task(send(db, b"k", b"m"))
        while not (await db.status()).delivered:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task, commit])
        assert task.cancelled()
        await tx.rollback()
        assert await reap(db, b"k") == [b"m"]


@on_a_loop
async def test_a_cancelled_wait_for_a_lock_does_not_get_it() -> None:
    async with await postroom.aio.open(":memory:") as db:
        holder, waiter = db.begin(), db.begin()
        await holder.get_for_update(b"a")
        task = asyncio.create_task(waiter.get_for_update(b"a"))
        await until_it_waits(task)
        task.cancel()
        await asyncio.wait([task])
        await holder.rollback()
        async with db.begin() as tx:
            assert await tx.get_for_update(b"a") is None


@on_a_loop
async def test_after_a_cancelled_commit_another_one_tells_the_outcome() -> None:
    async with await postroom.aio.open(":memory:") as db:
        for turns in range(5):
            tx = db.begin()
            await tx.increment(b"n")
            task = asyncio.create_task(tx.commit())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not tx.closed:
                await tx.commit()
            assert postroom.integer(await db.get(b"n")) == turns + 1


@on_a_loop
async def test_a_block_that_is_cancelled_rolls_back() -> None:
    async with await postroom.aio.open(":memory:") as db:
        await send(db, b"k", b"m")

        async def work() -> None:
            async with db.begin() as tx:
                await tx.reap_queue(b"k")
                await tx.get_for_update(b"a")
                tx.put(b"a", b"1")
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await until_it_waits(task)
        task.cancel()
        await asyncio.wait([task])
        assert await db.get(b"a") is None
        assert await reap(db, b"k") == [b"m"]
        async with db.begin(timeout=10) as tx:
            await tx.get_for_update(b"a")


@on_a_loop
async def test_cancelled_scans_and_watches_leave_nothing_behind() -> None:
    async with await postroom.aio.open(":memory:") as db:
        changes = db.watch(b"a")
        task = asyncio.create_task(anext(changes))  # type: ignore[arg-type]
        await until_it_waits(task)
        task.cancel()
        await asyncio.wait([task])
        async with db.begin() as tx:
            for number in range(2000):
                tx.put(b"%d" % number, b"1")
        async with aclosing(db.scan()) as pairs:
            async for _ in pairs:
                break
        await db.put(b"a", b"1")


# --- closing


@on_a_loop
async def test_close_ends_every_wait(path: str) -> None:
    db = await postroom.aio.open(path)
    holder = db.begin()
    await holder.get_for_update(b"a")
    tx = db.begin()
    changes = db.watch(b"a")
    tasks = [
        asyncio.create_task(tx.reap_queue(b"k", wait=50)),
        asyncio.create_task(tx.get_for_update(b"a")),
        asyncio.create_task(anext(changes)),  # type: ignore[arg-type]
    ]
    await until_it_waits(tasks[-1])
    await db.close()
    for task in tasks:
        with pytest.raises((Unavailable, Invalid), match="closed"):
            await task


@on_a_loop
async def test_close_finishes_what_was_sent(tmp_path: Any) -> None:
    db = await postroom.aio.open(tmp_path)
    tasks = [asyncio.create_task(db.put(b"%d" % number, b"1")) for number in range(20)]
    await asyncio.sleep(0)
    await db.close()
    await db.close()
    await asyncio.gather(*tasks)
    async with await postroom.aio.open(tmp_path) as again:
        assert len([key async for key, _ in again.scan()]) == 20


@on_a_loop
async def test_a_conflict_is_the_same_error() -> None:
    async with await postroom.aio.open(":memory:") as db:
        tx = db.begin()
        await tx.get(b"a")
        await db.put(b"a", b"1")
        tx.put(b"b", b"1")
        with pytest.raises(TransactionConflict):
            await tx.commit()


@pytest.mark.parametrize("moment", ["before", "with"])
@on_a_loop
async def test_a_snapshot_that_was_cancelled_when_it_opened_protects_nothing(moment: str) -> None:
    """The answer had come, and nobody took it: what it protected stayed for ever."""
    node = Node(MemoryEngine(), SystemClock(), Random(1), NoPeers(), NodeOptions())
    driver = AsyncioDriver(node, Random(2))
    driver.start()

    async def no_status() -> Any:
        raise NotImplementedError

    db = postroom.aio.Database(driver, resolve(None), no_status, driver.close)
    node.root.replica.lease_holder._until = 0.0  # the lease has lapsed: the snapshot waits for it

    async def look() -> None:
        async with db.snapshot():
            raise AssertionError("it was opened")

    task = asyncio.create_task(look())
    await asyncio.sleep(0)
    assert node.sizes()["blocked"] == 1
    if moment == "with":
        node.turn()
        assert node.sizes()["protections"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (node.sizes()["blocked"], node.sizes()["protections"]) == (0, 0)
    await db.close()
