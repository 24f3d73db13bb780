"""The part of a soak that works with queues.

=============  ===========================================================================
producers      enqueue jobs, now and for later, and tasks of groups, in transactions
pushed         consumers with credit; now and then one dies with messages in its hands
claimers       take ten at a time; they die as well
workers        :class:`postroom.aio.Worker`; stopped and made anew again and again
foremen        take the tasks of groups, and find each group in order
optimist       takes messages that it rejects, without end, and what is sent every minute
idle           consumers of a queue to which nothing is ever sent
=============  ===========================================================================

Each job is counted in the transaction that acknowledges it, so the end can be reckoned to the
unit. Jobs are not sent faster than they are done: a backlog would change what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any, Final

import postroom
from postroom import aio
from postroom.errors import Error, LeaseLost
from tests.soak.worker import Died, Worker

JOBS: Final = "soak jobs"
LANES: Final = "soak lanes"
HOPELESS: Final = "soak hopeless"
NOBODYS: Final = "soak nobody's"
TICKS: Final = "soak ticks"
ACK_WAIT_SECONDS: Final = 3.0
PURGE_SECONDS: Final = 5.0
GROUPS: Final = 2
"""The number of groups of each sender."""
KINDS: Final = ("pushed", "claimed", "worker")
UNDER_WAY_MAX: Final = 300
HOPELESS_MESSAGES: Final = 20
IDLE_CONSUMERS: Final = 20
QUEUES: Final = (JOBS, LANES, HOPELESS, NOBODYS, TICKS)
TERM_SECONDS: Final = (2.0, 6.0)
"""The shortest and the longest time for which a consumer or worker is employed."""
LOOK_SECONDS: Final = 0.2
LOOK_EVERY: Final = 8
READ_SECONDS: Final = 5.0
"""The time for which somebody reads an old snapshot, and then the time for which nobody does."""

Connect = Callable[[], Awaitable[aio.Database]]


class QueueWork:
    """The part of a soak that works with queues.

    Args:
        connect: makes a client; each consumer that may die has its own.
        goes_on: whether the soak does.

    Attributes:
        deaths: of consumers.
        is_read: whether somebody is reading what was there long ago.
    """

    def __init__(self, connect: Connect, goes_on: Callable[[], bool]) -> None:
        self._connect = connect
        self._goes_on = goes_on
        self._numbers = itertools.count()
        self._under_way = 0
        self._idle: list[asyncio.Task[None]] = []
        self.deaths = 0
        self.is_read = False

    async def setup(self, db: aio.Database) -> list[Worker]:
        """Create the queues, and return the clients."""
        self.db = db
        common: dict[str, Any] = {
            "ack_wait": ACK_WAIT_SECONDS, "purge_after": PURGE_SECONDS, "max_attempts": None
        }  # fmt: skip
        await db.create_queue(JOBS, min_backoff=0.05, max_backoff=1.0, **common)
        await db.create_queue(LANES, min_backoff=0.05, max_backoff=0.2, order="group", **common)
        await db.create_queue(HOPELESS, min_backoff=0.2, max_backoff=0.5, **common)
        await db.create_queue(NOBODYS, **common)
        ticks = await db.create_queue(TICKS, **common)
        await ticks.schedule("minute", cron="* * * * *", payload=b"tick")
        async with db.begin() as tx:
            for number in range(HOPELESS_MESSAGES):
                tx.enqueue(HOPELESS, b"%d" % number)
        for number in range(IDLE_CONSUMERS):
            self._idle.append(asyncio.create_task(self._wait_in_vain(), name=f"idle {number}"))
        random = Random("queues")
        return [
            Worker(f"{kind} {number}", loop, Random(f"{kind} {number} {random.random()}"))
            for kind, loop, count in (
                ("sender", self._send, 2),
                ("pushed", self._pushed, 2),
                ("claimer", self._claim, 2),
                ("worker", self._employ, 2),
                ("foreman", self._foreman, 2),
                ("optimist", self._reject, 1),
                ("auditor", self._audit, 1),
            )
            for number in range(count)
        ]

    # --- senders

    async def _send(self, worker: Worker) -> None:
        number = next(self._numbers)
        if number % LOOK_EVERY == 0:
            stats = [await self.db.queue(queue).stats() for queue in (JOBS, LANES)]
            self._under_way = sum(each.ready + each.scheduled + each.leased for each in stats)
        if self._under_way < UNDER_WAY_MAX:
            group = f"{worker.name} {number % GROUPS}"
            delay = worker.random.choice([None, None, 0.05, 1.0])
            await self.db.run(_enqueue, number, group, delay)
            worker.did()
        await asyncio.sleep(0.02)

    # --- consumers

    async def _pushed(self, worker: Worker) -> None:
        """Consume messages that are pushed for a while; then leave, or die."""

        async def consume(db: aio.Database) -> None:
            async with contextlib.aclosing(db.queue(JOBS).receive(kinds="pushed", credit=10)) as it:
                async for message in it:
                    await self._do(worker, db, [message])

        await self._for_a_term(worker, consume)

    async def _claim(self, worker: Worker) -> None:
        async def consume(db: aio.Database) -> None:
            while self._goes_on():
                messages = await db.queue(JOBS).claim(10, kinds="claimed", wait=0.5)
                if messages and worker.random.random() < 0.01:
                    self.deaths += 1  # the store cannot tell it from a death
                elif messages and worker.random.random() < 0.01:
                    await db.queue(JOBS).reject(messages, 0, reason="not today")
                elif messages:
                    await self._do(worker, db, messages)

        await self._for_a_term(worker, consume)

    async def _employ(self, worker: Worker) -> None:
        async def work(db: aio.Database) -> None:
            employed = aio.Worker(db)

            @employed.task(JOBS, "worker", concurrency=4)
            async def handle(message: aio.QueueMessage, tx: aio.Transaction) -> None:
                if worker.random.random() < 0.02:
                    raise postroom.Reject("not today", delay=0.05)
                await _note(tx, worker, [message])
                worker.did()

            await employed.run()

        await self._for_a_term(worker, work)

    async def _foreman(self, worker: Worker) -> None:
        """Find each group in order, whoever has died."""

        async def consume(db: aio.Database) -> None:
            async with contextlib.aclosing(db.queue(LANES).receive(credit=4)) as it:
                async for message in it:
                    await self._do(worker, db, [message], in_order=True)

        await self._for_a_term(worker, consume)

    async def _do(
        self,
        worker: Worker,
        db: aio.Database,
        messages: list[aio.QueueMessage],
        *,
        in_order: bool = False,
    ) -> None:
        async def note(tx: aio.Transaction) -> None:
            for message in messages if in_order else ():
                key = b"soak/lane/" + message.group.encode()
                last = int(await tx.get(key) or b"-1")
                assert last < int(message.payload), f"{message} came after {last}"
                tx.put(key, message.payload)
            await _note(tx, worker, messages)
            tx.acknowledge(messages[0].queue, messages)

        with contextlib.suppress(LeaseLost):
            await db.run(note)
            worker.did(len(messages))

    async def _for_a_term(
        self, worker: Worker, consume: Callable[[aio.Database], Awaitable[None]]
    ) -> None:
        """Let it consume for a while. One time in four the client dies with what it holds."""
        db = await self._connect()
        until = asyncio.get_running_loop().time() + worker.random.uniform(*TERM_SECONDS)
        task: asyncio.Future[None] = asyncio.ensure_future(consume(db))
        try:
            while not task.done() and self._goes_on():
                await asyncio.wait({task}, timeout=LOOK_SECONDS)
                if asyncio.get_running_loop().time() > until:
                    break
            dies = db is not self.db and worker.random.random() < 0.25 and self._goes_on()
            if dies:
                self.deaths += 1
                sender: Any = db._sender
                sender.abort()
                await asyncio.wait({task}, timeout=LOOK_SECONDS)
            task.cancel()
            await asyncio.wait({task})
            if dies:
                await sender._streams.closed()
                raise Died
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        finally:
            if db is not self.db:
                with contextlib.suppress(Error):
                    await db.close()

    # --- those that get nothing done

    async def _reject(self, worker: Worker) -> None:
        for message in await self.db.queue(HOPELESS).claim(10, wait=1.0):
            with contextlib.suppress(LeaseLost):
                await message.reject(reason="no")
        for tick in await self.db.queue(TICKS).claim(1):
            with contextlib.suppress(LeaseLost):
                await tick.acknowledge()
        worker.did()

    async def _wait_in_vain(self) -> None:
        async for message in self.db.queue(NOBODYS).receive():
            raise AssertionError(f"{message} came to nobody")

    async def _audit(self, worker: Worker) -> None:
        """Read what there was at one moment, slowly, and keep that for a while; then nothing.

        Both are counted: what it does not do on purpose is no silence.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + READ_SECONDS
        async with self.db.snapshot() as snapshot:
            self.is_read = True
            try:
                await self._read(worker.random.choice(QUEUES), snapshot.timestamp, until)
                await self._rest(until)
            finally:
                self.is_read = False
        worker.did()
        await self._rest(loop.time() + READ_SECONDS)
        worker.did()

    async def _rest(self, until: float) -> None:
        while asyncio.get_running_loop().time() < until and self._goes_on():
            await asyncio.sleep(LOOK_SECONDS)

    async def _read(self, queue: str, at: int, until: float) -> None:
        async with contextlib.aclosing(self.db.queue(queue).scan(at=at)) as found:
            async for message in found:
                assert message.created_at <= at, f"{message} is of later than {at}"
                await asyncio.sleep(0.02)
                if asyncio.get_running_loop().time() > until or not self._goes_on():
                    return

    # --- the end

    async def finish(self) -> None:
        """Let nobody wait any more."""
        for task in self._idle:
            task.cancel()
        await asyncio.gather(*self._idle, return_exceptions=True)

    async def reckon(self) -> list[str]:
        """Return what is not as it must be when all clients have ended."""
        wrong = []
        sent = postroom.integer(await self.db.get(b"soak/queued") or bytes(8))
        done = 0
        async for _, count in self.db.scan(b"soak/job/", b"soak/job0"):
            done += postroom.integer(count)
        left = 0
        for queue in (JOBS, LANES):
            stats = await self.db.queue(queue).stats()
            left += stats.ready + stats.scheduled + stats.leased
            wrong += [f"{queue}: {stats.dead} have died"] if stats.dead else []
        if sent != done + left:
            wrong.append(f"{sent} were queued, {done} done, {left} are left")
        sums = {
            name: (await self.db.accounting(b"soak/jobs/" + name)).get("sum", 0)
            for name in (b"sent", b"done")
        }
        waiting = 0
        for queue in (JOBS, LANES):
            async for message in self.db.queue(queue).scan():
                waiting += int(message.payload)
        if sums[b"sent"] != sums[b"done"] + waiting:
            wrong.append(f"of numbers queued, {sums}, {waiting} are left")
        hopeless = await self.db.queue(HOPELESS).stats()
        if hopeless.enqueued != HOPELESS_MESSAGES or hopeless.dead or hopeless.acknowledged:
            wrong.append(f"hopeless: {hopeless}")
        return wrong


def _enqueue(tx: Any, number: int, group: str, delay: float | None) -> None:
    for kind in KINDS:
        tx.enqueue(JOBS, b"%d" % number, kind=kind, deliver_at=delay)
    tx.enqueue(LANES, b"%d" % number, group=group)
    tx.enqueue_update(postroom.Increment(b"soak/queued", len(KINDS) + 1))
    tx.enqueue_update(postroom.Accounting(b"soak/jobs/sent", {"sum": number * (len(KINDS) + 1)}))


async def _note(tx: aio.Transaction, worker: Worker, messages: list[Any]) -> None:
    tx.enqueue_update(postroom.Increment(b"soak/job/" + worker.name.encode(), len(messages)))
    total = sum(int(message.payload) for message in messages)
    tx.enqueue_update(postroom.Accounting(b"soak/jobs/done", {"sum": total}))
