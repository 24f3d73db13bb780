"""Messages are enqueued in a store of several ranges: their ids are unique, and none is lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

import postroom
import postroom.aio
from postroom.errors import ConditionFailed

Q: Final = "work"
CUTS: Final = [b"%d" % number for number in range(1, 10)]
CLIENTS: Final = 50


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return a test that runs on a loop of its own."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


@asynccontextmanager
async def store(**settings: Any) -> AsyncIterator[Any]:
    """Return a store of ten ranges with a queue."""
    async with await postroom.aio.open(":memory:") as db:
        for key in CUTS:
            await db.split(key)
        await db.create_queue(Q, **settings)
        yield db


async def enqueue(db: Any, number: int, **options: Any) -> Any:
    """Enqueue a message in a transaction that writes in some range."""

    async def one(tx: Any) -> Any:
        if number % 3:
            tx.put(b"%d/written/%d" % (number % 10, number), b"")
        return tx.enqueue(Q, b"%d" % number, **options)

    return await db.run(one)


def place(number: int) -> dict[str, Any]:
    """Return the key and the group of a message; both may lie anywhere."""
    key = b"%d/key" % (number * 7 % 10)
    return {"key": key, "group": f"{number * 3 % 10}/group" if number % 2 else None}


@pytest.mark.parametrize("on_duplicate", ["ignore", "replace", "error"])
@asynchronous
async def test_an_id_is_inserted_once_by_clients_in_all_ranges(on_duplicate: str) -> None:
    async with store(on_duplicate=on_duplicate) as db:
        found = await asyncio.gather(
            *(enqueue(db, number, id="5/one", **place(number)) for number in range(CLIENTS)),
            return_exceptions=True,
        )
        handles = [each for each in found if not isinstance(each, ConditionFailed)]
        assert sum(each.inserted for each in handles) == 1
        assert len(handles) == (1 if on_duplicate == "error" else CLIENTS)
        replaced = sum(bool(each.replaced) for each in handles)
        assert replaced == (CLIENTS - 1 if on_duplicate == "replace" else 0)
        await db.drain()
        queue = db.queue(Q)
        assert (await queue.stats()).ready == 1
        [message] = await queue.claim(10)
        assert message.id == "5/one"


@asynchronous
async def test_messages_on_their_way_are_waited_for_by_a_drain() -> None:
    async with store() as db:
        handles = [await enqueue(db, number, **place(number)) for number in range(40)]
        await db.drain()
        queue = db.queue(Q)
        assert (await queue.stats()).ready == 40
        for handle in handles:
            assert (await queue.get(handle.id)).state == "ready"


@asynchronous
async def test_a_message_is_acknowledged_beside_writes_and_messages_in_other_ranges() -> None:
    async with store() as db:
        await enqueue(db, 1, key=b"2/key")
        await db.drain()
        async with db.begin() as tx:
            [message] = await tx.claim(Q)
            tx.put(b"8/done", message.payload)
            following = tx.enqueue(Q, b"next", key=b"5/key")
        await db.drain()
        assert following.inserted
        assert await db.get(b"8/done") == b"1"
        stats = await db.queue(Q).stats()
        assert (stats.acknowledged, stats.ready, stats.enqueued) == (1, 1, 2)


@asynchronous
async def test_a_follower_comes_when_the_messages_of_its_group_are_done() -> None:
    async with store() as db:
        async with db.begin() as tx:
            tx.put(b"8/begun", b"")
            for number in range(5):
                tx.enqueue(Q, b"%d" % number, key=b"%d/key" % number, group="6/group")
            tx.when_done(Q, "6/group", postroom.Enqueue(Q, b"all", id="3/all", key=b"9/key"))
        await db.drain()
        queue = db.queue(Q)
        assert await queue.get("3/all") is None
        for message in await queue.claim(10):
            await queue.acknowledge(message)
        await db.drain()
        [message] = await queue.claim(10)
        assert (message.id, message.payload) == ("3/all", b"all")
