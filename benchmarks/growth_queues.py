"""Subjects of ``python -m benchmarks growth``: queues, and what belongs to them."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded
from typing import Any

from benchmarks.growing import VALUE, Database, Growing, in_thousands, one_by_one, subject
from benchmarks.growth_at_rest import at_rest, ended


@subject("messages of a queue", 400_000)
def queue(growing: Growing) -> None:
    """Measure ready messages in one queue: claiming and acknowledging one, enqueueing another."""

    async def work(db: Database) -> None:
        await db.create_queue("queue")
        await in_thousands(db, growing.size, lambda tx, _: tx.enqueue("queue", VALUE))
        await growing.rate("enqueue, claim, acknowledge", lambda: _through(db, "queue"))

    growing.run(work)


async def _queues(db: Database, size: int) -> None:
    await one_by_one(size, lambda number: db.create_queue(f"queue-{number}"))


async def _used_queues(db: Database, size: int) -> None:
    await _queues(db, size)
    for _ in range(2):
        await in_thousands(db, size, lambda tx, number: tx.enqueue(f"queue-{number}", VALUE))
    await one_by_one(size, lambda number: _claim(db, f"queue-{number}"))


async def _queues_with_ticks(db: Database, size: int) -> None:
    await _queues(db, size)
    await one_by_one(
        size,
        lambda number: db.queue(f"queue-{number}").schedule(
            "daily", cron="0 0 * * *", payload=VALUE
        ),
    )


async def _through_many(growing: Growing, db: Database) -> None:
    """Measure messages that go through one queue, and through any of them."""
    chosen = random.Random(2)
    await growing.rate("one queue: enqueue, claim, acknowledge", lambda: _through(db, "queue-0"))
    await growing.rate(
        "any queue: enqueue, claim, acknowledge",
        lambda: _through(db, f"queue-{chosen.randrange(growing.size)}"),
    )
    await growing.rate("put", lambda: db.put(b"key", VALUE))


@subject("queues", 100_000)
def queues(growing: Growing) -> None:
    """Measure many empty queues: the store at rest; claiming and acknowledging one message."""
    at_rest(growing, _queues)
    growing.run(lambda db: _through_many(growing, db))


@subject("queues with messages", 100_000)
def used_queues(growing: Growing) -> None:
    """Measure many queues with a ready and a done message each."""
    at_rest(growing, _used_queues)
    growing.run(lambda db: _through_many(growing, db))


@subject("queues with a schedule", 100_000)
def queues_with_ticks(growing: Growing) -> None:
    """Measure many empty queues that have a daily schedule each."""
    at_rest(growing, _queues_with_ticks)
    growing.run(lambda db: _through_many(growing, db))


async def _schedules(db: Database, size: int) -> None:
    queue = await db.create_queue("queue")
    await one_by_one(
        size, lambda number: queue.schedule(f"daily-{number}", cron="0 0 * * *", payload=VALUE)
    )


@subject("schedules", 1000)
def schedules(growing: Growing) -> None:
    """Measure periodic schedules of one queue: the store at rest; a message through the queue."""

    async def work(db: Database) -> None:
        await growing.rate("enqueue, claim, acknowledge", lambda: _through(db, "queue"))

    at_rest(growing, _schedules)
    growing.run(work)


async def _groups(db: Database, size: int) -> None:
    await db.create_queue("queue", order="group")
    await in_thousands(
        db, size, lambda tx, number: tx.enqueue("queue", VALUE, group=f"group-{number}")
    )


@subject("groups of a queue", 400_000)
def groups(growing: Growing) -> None:
    """Measure groups with a message each, in an ordered queue.

    The store at rest; a message of one more group through the queue.
    """

    async def work(db: Database) -> None:
        await growing.rate(
            "enqueue, claim, acknowledge", lambda: _through(db, "queue", group="another")
        )

    at_rest(growing, _groups)
    growing.run(work)


async def _two_queues(db: Database, _: int) -> None:
    await db.create_queue("queue")
    await db.create_queue("consumed")


async def _consuming(db: Database, size: int) -> list[asyncio.Future[Any]]:
    async def consume() -> None:
        async for _ in db.queue("consumed").receive():
            raise AssertionError("nobody enqueues there")

    consuming = [asyncio.ensure_future(consume()) for _ in range(size)]
    while (await db.queue("consumed").stats()).consumers < size:
        await asyncio.sleep(0.05)
    return consuming


@subject("consumers", 10_000)
def consumers(growing: Growing) -> None:
    """Measure waiting consumers of one queue: the store at rest; a message through another."""

    async def work(db: Database) -> None:
        consuming = await _consuming(db, growing.size)
        await growing.rate("enqueue, claim, acknowledge", lambda: _through(db, "queue"))
        await ended(consuming)

    at_rest(growing, _two_queues, _consuming)
    growing.run(work)


async def _through(db: Database, name: str, group: str | None = None) -> None:
    async with db.begin() as tx:
        tx.enqueue(name, VALUE, group=group)
    await _claim(db, name)


async def _claim(db: Database, name: str) -> None:
    queue = db.queue(name)
    (message,) = await queue.claim(1)
    await queue.acknowledge(message)
