"""The subjects of ``python -m benchmarks latencies``: one thing after another, from one client.

A subject is a coroutine that does one thing once and returns the seconds that it took. The client
pauses before each of them, so that those that wait do wait, and the store is at rest. Values and
payloads have 100 bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import postroom.aio

VALUE: Final = b"x" * 100
QUEUE: Final = "latencies"
WAITED_FOR: Final = "latencies of a consumer who waits"
WORKED: Final = "latencies of a task"
SCHEDULED: Final = "latencies of what is due later"
KEPT_SECONDS: Final = 60.0
DUE_SECONDS: Final = 0.02
PAUSE_SECONDS: Final = 0.005
PATIENCE_SECONDS: Final = 30.0

PUT: Final = "put"
CLAIM: Final = "claim of a message that is there"
THROUGH: Final = "enqueue, claim, acknowledge"
TO_CONSUMER: Final = "enqueue to a consumer who waits, until it has it"
TO_REAPER: Final = "send to one who waits in reap_queue, until its commit"
SEND_REAP: Final = "send, then reap"
TO_RESULT: Final = "return of a task, until one who waits has its result"
WATCH: Final = "put, until a watcher sees it"
LATE_REAPED: Final = "due in 20 ms: lateness, reaped"
LATE_CLAIMED: Final = "due in 20 ms: lateness, claimed"

NAMES: Final = (
    PUT, CLAIM, THROUGH, TO_CONSUMER, TO_REAPER, SEND_REAP, TO_RESULT, WATCH, LATE_REAPED,
    LATE_CLAIMED,
)  # fmt: skip

Once: TypeAlias = Callable[[], Awaitable[float]]
now: Final = time.perf_counter


async def pause() -> None:
    """Wait until everything is at rest, and those that wait stand in line."""
    await asyncio.sleep(PAUSE_SECONDS)


class Subjects:
    """The subjects, measured with one client of a store."""

    def __init__(self, db: postroom.aio.Database) -> None:
        self._db = db
        self._number = 0
        self._consumer = db.queue(WAITED_FOR).receive()
        self._changes = db.watch(b"watched")
        self._worker = postroom.aio.Worker(db)
        self._task = self._worker.task(WORKED, keep_result=KEPT_SECONDS)(self._work)
        self._returned_at = 0.0

    async def begin(self) -> None:
        """Create the queues, let the watch begin, and start the worker."""
        for name in (QUEUE, WAITED_FOR, SCHEDULED, WORKED):
            await self._db.create_queue(name)
        await self.seen()
        self._works = asyncio.ensure_future(self._worker.run())

    def all(self) -> dict[str, Once]:
        """Return the subjects by name."""
        return dict(zip(NAMES, (
            self.put, self.claim, self.through, self.to_consumer, self.to_reaper, self.send_reap,
            self.to_result, self.seen, self.late_reaped, self.late_claimed,
        ), strict=True))  # fmt: skip

    async def close(self) -> None:
        """End the consumer and the watch."""
        await self._consumer.aclose()
        await self._changes.aclose()
        self._worker.stop()
        await self._works

    async def put(self) -> float:
        """Measure a put of one of a thousand keys."""
        self._number += 1
        await pause()
        began = now()
        await self._db.put(b"key/%d" % (self._number % 1000), VALUE)
        return now() - began

    async def _enqueue(self, queue: str, deliver_at: float | None = None) -> None:
        async with self._db.begin() as tx:
            tx.enqueue(queue, VALUE, deliver_at=deliver_at)

    async def _send(self, deliver_at: float | None = None) -> None:
        async with self._db.begin() as tx:
            tx.enqueue_message(b"inbox", VALUE, deliver_at=deliver_at)

    async def claim(self) -> float:
        """Measure the claim of a message that was enqueued before the pause."""
        await self._enqueue(QUEUE)
        queue = self._db.queue(QUEUE)
        await pause()
        began = now()
        [message] = await queue.claim()
        took = now() - began
        await message.acknowledge()
        return took

    async def through(self) -> float:
        """Measure three calls, one after another."""
        queue = self._db.queue(QUEUE)
        await pause()
        began = now()
        await self._enqueue(QUEUE)
        [message] = await queue.claim()
        await message.acknowledge()
        return now() - began

    async def to_consumer(self) -> float:
        """Measure the time from the beginning of the transaction until another task has it."""

        async def consume() -> tuple[postroom.aio.QueueMessage, float]:
            return await anext(self._consumer), now()

        waiting = asyncio.ensure_future(consume())
        await pause()
        began = now()
        await self._enqueue(WAITED_FOR)
        message, received = await waiting
        await message.acknowledge()
        return received - began

    async def _reap(self, wait: float | None = None) -> tuple[float, float]:
        """Reap one message, and commit; return when it was there, and when that was done."""
        async with self._db.begin() as tx:
            [_] = await tx.reap_queue(b"inbox", 1, wait=wait)
            reaped = now()
        return reaped, now()

    async def to_reaper(self) -> float:
        """Measure the time from the beginning of the sender until the reaper has committed."""
        waiting = asyncio.ensure_future(self._reap(PATIENCE_SECONDS))
        await pause()
        began = now()
        await self._send()
        _, committed = await waiting
        return committed - began

    async def send_reap(self) -> float:
        """Measure two transactions, one after the other."""
        await pause()
        began = now()
        await self._send()
        _, committed = await self._reap()
        return committed - began

    async def _work(self, _: object, __: object) -> bytes:
        """Return when one waits for the result."""
        await pause()
        self._returned_at = now()
        return VALUE

    async def to_result(self) -> float:
        """Measure the time from the return of a task until one who waits has what it returned."""
        async with self._db.begin() as tx:
            handle = self._task.enqueue(tx, VALUE)
        await handle.result(wait=PATIENCE_SECONDS)
        return now() - self._returned_at

    async def seen(self) -> float:
        """Measure the time from the beginning of the put until another task has the change."""

        async def see() -> float:
            await anext(self._changes)
            return now()

        waiting = asyncio.ensure_future(see())
        await pause()
        began = now()
        await self._db.put(b"watched", VALUE)
        return await waiting - began

    async def late_reaped(self) -> float:
        """Measure how much later than due, counted from the call, one who waits has a message."""
        waiting = asyncio.ensure_future(self._reap(PATIENCE_SECONDS))
        await pause()
        began = now()
        await self._send(DUE_SECONDS)
        reaped, _ = await waiting
        return reaped - began - DUE_SECONDS

    async def late_claimed(self) -> float:
        """Measure how much later than due, counted from the call, a claim has a message."""
        queue = self._db.queue(SCHEDULED)

        async def consume() -> float:
            [message] = await queue.claim(wait=PATIENCE_SECONDS)
            received = now()
            await message.acknowledge()
            return received

        waiting = asyncio.ensure_future(consume())
        await pause()
        began = now()
        await self._enqueue(SCHEDULED, DUE_SECONDS)
        return await waiting - began - DUE_SECONDS


@asynccontextmanager
async def subjects_of(db: postroom.aio.Database) -> AsyncIterator[dict[str, Once]]:
    """Prepare the subjects for a store that is new; yield them by name."""
    subjects = Subjects(db)
    await subjects.begin()
    try:
        yield subjects.all()
    finally:
        await subjects.close()
