"""Subjects of ``python -m benchmarks growth``: inboxes, messages, scheduled ones, watches."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded
import time
from typing import Any, Final

import postroom
import postroom.aio
from benchmarks.growing import IN_FLIGHT, VALUE, Database, Growing, in_thousands, subject
from benchmarks.growth_at_rest import at_rest, ended

MIB: Final = 1 << 20
WORKED_MIN: Final = 20_000
"""The messages for a worker, or a hundred in each inbox if that is less."""
FIRST_WORKED: Final = 100
PUTS_SHARE: Final = 50
"""The number of watches that are taken in, at least, beside a put that is not measured."""


async def _mail(db: Database, size: int) -> None:
    await in_thousands(db, size, lambda tx, number: tx.enqueue_message(b"inbox/%d" % number, VALUE))
    await db.drain(600)


@subject("inboxes", 400_000)
def inboxes(growing: Growing) -> None:
    """Measure inboxes with a message each.

    The store at rest; listing a hundred, oldest first and by key; sending to any of them and
    reaping it.
    """
    chosen = random.Random(2)

    def any_inbox() -> bytes:
        return b"inbox/%d" % chosen.randrange(growing.size)

    async def work(db: Database) -> None:
        await db.inboxes(limit=100)
        await growing.rate("list 100", lambda: db.inboxes(limit=100))
        await growing.rate("list 100 that are ready", lambda: db.inboxes(limit=100, ready=True))
        await growing.rate("list 100 by key", lambda: db.inboxes(limit=100, by_key=True))
        await growing.rate("send and reap", lambda: _send_and_reap(db, any_inbox()))

    at_rest(growing, _mail)
    growing.run(work)


@subject("inboxes of a worker", 400_000)
def worked(growing: Growing) -> None:
    """Measure a worker, a coroutine function that puts a key, on these inboxes.

    There are 20,000 messages at least. The first hundred are not counted: the worker begins.
    """

    async def work(db: Database) -> None:
        messages = max(growing.size, min(WORKED_MIN, 100 * growing.size))
        await in_thousands(
            db, messages,
            lambda tx, number: tx.enqueue_message(b"inbox/%d" % (number % growing.size), VALUE),
        )  # fmt: skip
        worker, done, begun = postroom.aio.Worker(db), 0, time.perf_counter()
        enough = asyncio.Event()

        @worker.inbox(b"inbox/", concurrency=IN_FLIGHT)
        async def one(message: postroom.Message, tx: postroom.aio.Transaction) -> None:
            nonlocal done, begun
            tx.put(b"work/" + message.key, VALUE)
            done += 1
            if done == FIRST_WORKED:
                begun = time.perf_counter()
            if done == messages or time.perf_counter() > begun + growing.seconds:
                enough.set()

        working = asyncio.ensure_future(worker.run())
        await enough.wait()
        counted = max(done - FIRST_WORKED, 1)
        growing.rates["work"] = counted / (time.perf_counter() - begun)
        await ended([working])

    growing.run(work)


@subject("messages of an inbox", 400_000)
def messages(growing: Growing) -> None:
    """Measure one inbox with so many messages: sending and reaping one; peeking at a hundred."""

    async def work(db: Database) -> None:
        await in_thousands(db, growing.size, lambda tx, _: tx.enqueue_message(b"inbox", VALUE))
        await db.drain(600)
        await growing.rate("send and reap", lambda: _send_and_reap(db, b"inbox"))
        await growing.rate("peek at 100", lambda: db.peek(b"inbox", 100))

    growing.run(work)


async def _send_and_reap(db: Database, inbox: bytes, value: bytes = VALUE) -> None:
    async with db.begin() as tx:
        tx.enqueue_message(inbox, value)
    async with db.begin() as tx:
        assert await tx.reap_queue(inbox, 1)


@subject("large messages", 1000)
def large_messages(growing: Growing) -> None:
    """Measure messages of 1 MiB in one inbox: sending one and reaping one."""
    value = random.Random(1).randbytes(MIB - 1024)

    async def work(db: Database) -> None:
        for _ in range(growing.size):
            async with db.begin() as tx:
                tx.enqueue_message(b"inbox", value)
        await growing.rate("send and reap", lambda: _send_and_reap(db, b"inbox", value))

    growing.run(work)


async def _tomorrow(db: Database, size: int) -> None:
    await in_thousands(
        db, size,
        lambda tx, number: tx.enqueue_message(b"later/%d" % number, VALUE, deliver_at=86_400),
    )  # fmt: skip


@subject("scheduled", 400_000)
def scheduled(growing: Growing) -> None:
    """Measure messages that are scheduled for tomorrow.

    The store at rest; listing a hundred; sending one and reaping it.
    """

    async def work(db: Database) -> None:
        await growing.rate("list 100", lambda: db.scheduled(limit=100))
        await growing.rate("send and reap", lambda: _send_and_reap(db, b"inbox"))

    at_rest(growing, _tomorrow)
    growing.run(work)


@subject("dead letters", 100_000)
def dead_letters(growing: Growing) -> None:
    """Measure deferred increments of a text, which always fail: listing a hundred; putting."""

    async def work(db: Database) -> None:
        await db.put(b"text", b"no number")
        await in_thousands(
            db, growing.size, lambda tx, _: tx.enqueue_update(postroom.Increment(b"text"))
        )
        await db.drain(600)
        await growing.rate("list 100", lambda: db.dead_letters(limit=100))
        await growing.rate("put", lambda: db.put(b"key", VALUE))

    growing.run(work)


async def _nothing(db: Database, _: int) -> None:
    await db.put(b"key", VALUE)


async def _watching(db: Database, size: int) -> list[asyncio.Future[Any]]:
    async def follow(number: int) -> None:
        async for _ in db.watch(b"watched/%d" % number):
            raise AssertionError("nobody writes there")

    following = [asyncio.ensure_future(follow(number)) for number in range(size)]
    for _ in range(1 + size // PUTS_SHARE):
        await asyncio.sleep(0)
        await db.put(b"key", VALUE)
    return following


@subject("watches", 100_000)
def watches(growing: Growing) -> None:
    """Measure watches of as many other keys: the store at rest; putting one, and 64 in flight."""

    async def work(db: Database) -> None:
        following = await _watching(db, growing.size)
        await growing.rate("put", lambda: db.put(b"key", VALUE))
        await growing.rate("put, 64 in flight", lambda: db.put(b"key", VALUE), IN_FLIGHT)
        await ended(following)

    at_rest(growing, _nothing, _watching)
    growing.run(work)
