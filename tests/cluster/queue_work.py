"""Queues in a run of chaos: jobs by pushed consumers, by consumers that claim, and by workers.

Producers and the reckoning are those of the simulator (:mod:`tests.sim.workloads.jobs`). The
comment on Jepsen's ``tests/kafka.clj`` tells, case by case, what may be seen of a queue; here:

* Every job that was sent is done once. Consumers go on, in the loops that they are in, until the
  queues are empty, so streams have found the new leader by themselves.
* An attempt is handed out once, and the next one begins for a reason: this one was rejected, or its
  lease had run out, or its consumer had gone. Those that nobody has asked for are counted. Without
  a fault there are none.
* Nothing comes before its time. In a group all that were due before are done.
* Fired messages keep to ``max_rate``, in any length of time, and held ones to
  ``max_concurrency``. They are not judged where clocks are set, since leases that outlive a leader
  end by the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import postroom
from postroom import aio
from postroom.client.database import CoreDatabase
from postroom.errors import LeaseLost
from postroom.kv.clock import LOGICAL_BITS, from_seconds
from postroom.messaging.queues.advance import TIME_IS_OVER
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.claiming import CONSUMER_HAS_GONE
from tests.sim.workloads.jobs import LANES, PLAIN, PRODUCERS, Jobs
from tests.sim.workloads.workload import EXPECTED, Client

RATED: Final = "rated"
NARROW: Final = "narrow"
BURSTS: Final = {RATED: 15, NARROW: 8}
"""The number of jobs that are sent at once, now and then."""
BURST_CHANCE: Final = 0.1
ACK_WAIT: Final = 4.0
MAX_RATE: Final = 20.0
BURST: Final = MAX_RATE / 10
MAX_CONCURRENCY: Final = 3
CREDIT: Final = 10
REJECTED: Final = "not today"
NOT_IN_HASTE_SECONDS: Final = 0.15
ROUNDED_SECONDS: Final = 0.002
FOREVER: Final = 1 << 63
PRODUCER_PAUSE_SECONDS: Final = 0.6
LOOK_SECONDS: Final = 0.2
EMPTY_SECONDS: Final = 75.0
"""The time in which the consumers empty the queues when nothing breaks any more."""

Attempted = tuple[str, bytes, int]


class QueueWork(Jobs):
    """A workload of queues in a run of chaos.

    Args:
        has_faults: whether anything has been broken so far.
        has_skew: whether clocks are ever set.
    """

    clients = 8
    queues = (PLAIN, LANES, RATED, NARROW)

    def __init__(self, has_faults: Callable[[], bool], has_skew: bool) -> None:
        super().__init__()
        self._has_faults = has_faults
        self._has_skew = has_skew
        self._rejected: set[Attempted] = set()
        self._late: set[Attempted] = set()
        self._until: dict[Attempted, int] = {}
        self._held: dict[Attempted, tuple[int, int]] = {}
        """The attempts in hand: their clients, and the ends of their leases."""
        self._fired: list[int] = []
        self._broken: list[AssertionError] = []
        self.seen: Counter[str] = Counter()

    async def setup(self, db: CoreDatabase) -> None:
        """Create four queues."""
        settings: dict[str, Any] = {
            "ack_wait": ACK_WAIT, "max_backoff": 0.5, "max_attempts": None, "purge_after": 5.0
        }  # fmt: skip
        await db.create_queue(PLAIN, **settings)
        await db.create_queue(LANES, order="group", **settings)
        await db.create_queue(RATED, max_rate=MAX_RATE, **settings)
        await db.create_queue(NARROW, max_concurrency=MAX_CONCURRENCY, **settings)

    async def start(self, client: Client) -> None:
        """Enqueue with the first clients; let the others work, each in its way."""
        for attempt, (number, _) in list(self._held.items()):
            if number == client.number:  # the client before this one was killed
                del self._held[attempt]
        if client.number < PRODUCERS:
            while client.goes_on():
                is_burst = client.random.random() < BURST_CHANCE
                await client.attempt(self._burst(client) if is_burst else self._produce(client))
                await client.pause(PRODUCER_PAUSE_SECONDS)
            return
        ways = (self._receive, self._claim, self._hire)
        way = ways[client.number % len(ways)]
        tasks = [asyncio.ensure_future(way(client, queue)) for queue in self.queues]
        try:
            await self._until_empty(client, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _burst(self, client: Client) -> None:
        """Enqueue more than may be fired, and held, at once."""
        async with client.db.begin() as tx:
            for queue, jobs in BURSTS.items():
                for _ in range(jobs):
                    name = client.token() + b"-0"
                    tx.enqueue(queue, name, id=name, kind="a", headers={"due": 0})
                    tx.put(b"job sent/" + name, b"")

    async def _until_empty(self, client: Client, tasks: list[asyncio.Future[None]]) -> None:
        calm_since: float | None = None
        sender = client.db._sender
        while not self._broken:
            await asyncio.wait(tasks, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
                    raise AssertionError(f"a consumer of client {client.number} has ended")
            if client.goes_on():
                continue
            calm_since = sender.monotonic() if calm_since is None else calm_since
            assert sender.monotonic() - calm_since < EMPTY_SECONDS, "queues are not worked off"
            if await client.attempt(self._is_empty(client.db)):
                return
        raise self._broken[0]

    async def _is_empty(self, db: CoreDatabase) -> bool:
        stats = [await db.queue(queue).stats() for queue in self.queues]
        return not any(each.ready or each.scheduled or each.leased for each in stats)

    # --- three ways to consume

    async def _receive(self, client: Client, queue: str) -> None:
        credit = client.random.choice([1, CREDIT])
        stream = client.db.queue(queue).receive(credit=credit)
        async with contextlib.aclosing(stream) as messages:
            async for message in messages:
                await self._handle(client, message)

    async def _claim(self, client: Client, queue: str) -> None:
        while True:
            found = await client.attempt(client.db.queue(queue).claim(3, wait=1.0))
            for message in found or ():
                await self._look_at(client, message)
            for message in found or ():
                await self._act(client, message)

    async def _hire(self, client: Client, queue: str) -> None:
        worker = aio.Worker(client.db)

        looked_at: dict[Attempted, aio.QueueMessage] = {}

        async def work(message: aio.QueueMessage, tx: aio.Transaction) -> None:
            attempt = _attempted(message)
            if looked_at.get(attempt) is not message:  # else its transaction was in conflict
                looked_at[attempt] = message
                try:
                    await self._look_at(client, message)
                except AssertionError as error:  # a worker goes on, whatever its function raises
                    self._broken.append(error)
            self._held.pop(attempt, None)
            if client.random.random() < 0.05:
                self._rejected.add(attempt)
                raise postroom.Reject(REJECTED)
            tx.put(_done(client, message), b"")

        for kind in ("a", "b"):
            worker.task(queue, kind, concurrency=2)(work)
        while True:
            with contextlib.suppress(*EXPECTED):  # it looks for its queues, and nobody leads
                await worker.run()

    async def _handle(self, client: Client, message: aio.QueueMessage) -> None:
        await self._look_at(client, message)
        await self._act(client, message)

    async def _act(self, client: Client, message: aio.QueueMessage) -> None:
        """Do the work; or be late, or fail, or forget."""
        what = client.random.choice(["done"] * 40 + ["reject", "forget", "late", "extend"])
        attempt = _attempted(message)
        with contextlib.suppress(LeaseLost, *EXPECTED):
            if what == "reject":
                self._rejected.add(attempt)
                self._held.pop(attempt, None)
                await message.reject(reason=REJECTED)
                return
            if what in {"forget", "late"}:
                self._late.add(attempt)
            if what == "forget":
                return
            if what == "extend":
                self._until.pop(attempt, None)  # its outcome may stay unknown
                self._until[attempt] = int(await message.extend(ACK_WAIT))
            await client.pause(2 * ACK_WAIT if what == "late" else NOT_IN_HASTE_SECONDS)
            self._held.pop(attempt, None)

            async def finish(tx: aio.Transaction) -> None:
                tx.put(_done(client, message), b"")
                tx.acknowledge(message.queue, message)

            await client.db.run(finish)
            self._ended.add(message.stored.id)

    # --- observations

    async def _look_at(self, client: Client, message: aio.QueueMessage) -> None:
        """Check a message that has just been handed out."""
        attempt, stored = _attempted(message), message.stored
        sender = client.db._sender
        now = FOREVER if self._has_skew else sender.reading()
        if stored.epoch:
            self._check_reason(sender.monotonic(), attempt, stored)
        self._check_claimed(client, message.queue, stored, sender.monotonic())
        self._until[attempt] = stored.leased_until
        self._held[attempt] = client.number, stored.leased_until
        if message.queue == RATED:
            self._fired.append(stored.leased_until - from_seconds(ACK_WAIT))
        if message.queue == NARROW:
            held = [a for a, (_, until) in self._held.items() if a[0] == NARROW and until > now]
            assert len(held) <= MAX_CONCURRENCY, f"{held} are held at the same time"
        if message.queue == LANES:
            with contextlib.suppress(*EXPECTED):
                await self._check_group(client, stored)

    def _check_reason(self, now: float, attempt: Attempted, stored: StoredQueueMessage) -> None:
        queue, id_, epoch = attempt
        before = (queue, id_, epoch - 1)
        why = stored.last_error
        if why == REJECTED:
            assert before in self._rejected, f"{before} was not rejected"
            return
        assert why in {TIME_IS_OVER, CONSUMER_HAS_GONE}, f"{attempt} came again: {why}"
        if before in self._until and why == TIME_IS_OVER and not self._has_skew:
            assert stored.scheduled >= self._until[before], f"{attempt} came too early: {stored}"
        if before in self._late:
            self.seen["fired again, as somebody was late"] += 1
            return
        self.seen[f"fired again: {why}"] += 1
        was_slow = now - self._asked_at.get(before, now) >= ACK_WAIT / 2
        assert was_slow or self._has_faults(), f"{attempt} came again without a fault: {why}"

    async def _check_group(self, client: Client, message: StoredQueueMessage) -> None:
        sent = self._sent[message.group]
        before = {job: first for job, first in sent.items() if first < message.first_scheduled}
        await self._check_order(client, message, {message.group: before})
        for job in before:
            sent.pop(job, None)  # it is done for good

    async def check(self, db: CoreDatabase) -> None:
        """Check that all jobs are done, each once, and not too fast."""
        assert not self._broken, self._broken[0]
        await super().check(db)
        for queue in self.queues:
            stats = await db.queue(queue).stats()
            assert not stats.dead, f"{queue}: {stats}"
            self.seen["jobs"] += stats.acknowledged
        if not self._has_skew:
            check_rate(self._fired)

    async def _check_counters(self, db: CoreDatabase, queue: str) -> None:
        """Check nothing: bursts and workers leave no notes of their queues."""


def check_rate(fired: list[int]) -> None:
    """Check that in no length of time more were fired than ``max_rate`` and a burst allow."""
    moments = sorted((each >> LOGICAL_BITS) / 1000 for each in fired)
    for place, first in enumerate(moments):
        for more, last in enumerate(moments[place:]):
            most = MAX_RATE * (last - first + ROUNDED_SECONDS) + BURST
            assert more <= most, f"{more + 1} were fired in {last - first:.3f} s"


def _attempted(message: aio.QueueMessage) -> Attempted:
    return message.queue, message.stored.id, message.epoch


def _done(client: Client, message: aio.QueueMessage) -> bytes:
    return b"job done/%s/%s" % (message.stored.id, client.token())
