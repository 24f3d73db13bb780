"""The second act's job: a departed aircraft arrives and is turned round. Work for later, done once.

::

    departure ──one transaction──▶  turn/000001     put: planned
                                    queue turn-rounds ◀─ message, due when the aircraft arrives
                                        │
                              due, one of the workers has it
                                        │
    worker ─────one transaction──▶  turn/000001     put: done, at which attempt, how late
                                    hangar/N14228   put: turn-rounds of this aircraft
                                    ramp/IAH        ◀─ deferred Increment
                                    queue turn-rounds: acknowledged

The time of the year is compressed: a day takes two seconds. An aircraft is a *group* of an ordered
queue: one worker at a time turns it round.

**Exactly once, whoever is killed.** A departure plans its turn-round if ``turn/...`` is not there
yet. A worker's writes and its acknowledgement are one transaction. A worker that dies before it has
changed nothing, and the message is fired again when its lease has passed.

**The crew** has two workers: in this process, or processes of their own on a cluster. One of them
is killed in the middle of its work, and another one takes its place. In this process, a worker is
killed by dropping its work without a word to the store; on a cluster, by ``kill -9``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import postroom
import postroom.aio
from postroom.demo.flights import MINUTES_PER_DAY, Leg
from postroom.demo.replay import IN_FLIGHT, decode, encode
from postroom.kv.clock import LOGICAL_BITS

QUEUE: Final = "turn-rounds"
ACK_WAIT_SECONDS: Final = 2.0
BACKOFF_SECONDS: Final = (0.1, 1.0)
DONE_SECONDS: Final = 86_400.0
FAILS_ONE_IN: Final = 50
CONCURRENCY: Final = 32
"""The number of turn-rounds that a worker does at a time."""
WORKERS: Final = 2
LONGEST_KILL_SECONDS: Final = 2.0
"""The time without work after which a worker is killed idle."""
STOP_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 60.0
"""The time after which a request is given up; starts and elections of a cluster take less."""


class WorkerKilled(BaseException):
    """The end of a worker as if its process was killed: the store is not told."""


async def make_queue(db: postroom.aio.Database) -> postroom.aio.Queue:
    """Return the queue of turn-rounds, or create it.

    Turn-rounds that are done stay for a day, to let the third act archive them.
    """
    if any(each.name == QUEUE for each in await db.queues()):
        queue = db.queue(QUEUE)
        await queue.update(purge_after=DONE_SECONDS)  # an earlier demonstration may have made it
        return queue
    min_backoff, max_backoff = BACKOFF_SECONDS
    return await db.create_queue(
        QUEUE, ack_wait=ACK_WAIT_SECONDS, min_backoff=min_backoff, max_backoff=max_backoff,
        purge_after=DONE_SECONDS, batch_size=CONCURRENCY, order="group",
    )  # fmt: skip


def turn_round_key(number: int) -> bytes:
    """Return the key of the turn-round after a departure."""
    return b"turn/%06d" % number


async def numbers_planned(db: postroom.aio.Database) -> AsyncIterator[int]:
    """Yield the departures whose turn-rounds are planned or done, in order."""
    async for key, _ in db.scan(*postroom.prefix(b"turn/")):
        yield int(key[len(b"turn/") :])


async def depart_all(db: postroom.aio.Database, legs: Iterator[Leg], day_seconds: float) -> None:
    """Let all of ``legs`` depart at their times, and plan their turn-rounds.

    Args:
        db: the store.
        legs: in the order of their departure; the first one departs now.
        day_seconds: how long a day takes. If the store cannot keep pace it takes longer.
    """
    minute_seconds = day_seconds / MINUTES_PER_DAY
    began, first = time.monotonic(), None

    async def worker() -> None:
        nonlocal first
        for leg in legs:
            first = leg.departs_minute if first is None else first
            departs = began + (leg.departs_minute - first) * minute_seconds
            if (wait := departs - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            await db.run(plan, leg, leg.flight_minutes * minute_seconds)

    async with asyncio.TaskGroup() as workers:
        for _ in range(IN_FLIGHT):
            workers.create_task(worker())


async def plan(tx: postroom.aio.Transaction, leg: Leg, flight_seconds: float) -> None:
    """Let an aircraft depart, and plan its turn-round on arrival."""
    key = turn_round_key(leg.number)
    if await tx.get(key) is None:
        tx.put(key, encode((leg.tail, leg.destination)))
        payload = encode((leg.number, leg.tail, leg.destination))
        tx.enqueue(QUEUE, payload, key=key, deliver_at=flight_seconds, group=leg.tail)


def add_task(worker: postroom.aio.Worker, is_killed: Callable[[], bool] = lambda: False) -> None:
    """Add the task that turns an aircraft round to a worker.

    Args:
        worker: that has no such task yet.
        is_killed: whether it is dead, and must not do anything.
    """

    @worker.task(QUEUE, concurrency=CONCURRENCY)
    async def turn_round(message: postroom.aio.QueueMessage, tx: postroom.aio.Transaction) -> None:
        if is_killed():
            raise WorkerKilled
        number, tail, airport = decode(message.payload)
        attempt = message.epoch + 1
        if fails(number, attempt):
            raise postroom.Reject("the fuel truck is late")
        fired_at = message.fired_at or message.scheduled  # both are times of the store
        late = max(fired_at - message.scheduled, 0) >> LOGICAL_BITS
        tx.put(turn_round_key(number), encode((tail, airport, attempt, late)))
        hangar = b"hangar/" + tail.encode()
        stored = await tx.get(hangar)
        rounds, numbers = (0, 0) if stored is None else decode(stored)
        tx.put(hangar, encode((rounds + 1, numbers + number)))
        tx.enqueue_update(postroom.Increment(b"ramp/" + airport.encode(), 1))


def fails(number: int, attempt: int) -> bool:
    """Return whether an attempt fails, whoever makes it: one in fifty does."""
    return zlib.crc32(b"%d/%d" % (number, attempt)) % FAILS_ONE_IN == 0


@dataclass(slots=True)
class TurnRoundOutcomes:
    """The outcomes of attempts of one number: of the first ones, the second ones, and so on.

    Attributes:
        failed: those that the worker gave back.
        lost: those whose worker, or whose leader, went away.
        late_milliseconds: of those that succeeded, from when they were due to when they began.
    """

    failed: int = 0
    lost: int = 0
    late_milliseconds: list[int] = field(default_factory=list)

    @property
    def begun(self) -> int:
        """Return the number of attempts."""
        return self.failed + self.lost + len(self.late_milliseconds)


async def attempts(db: postroom.aio.Database) -> list[TurnRoundOutcomes]:
    """Return the outcomes of all attempts, by their number.

    They come from what the store contains, and include all runs, however often the demonstration
    itself was killed.
    """
    found: list[TurnRoundOutcomes] = []
    async for key, value in db.scan(*postroom.prefix(b"turn/")):
        number, (_, _, *done) = int(key.removeprefix(b"turn/")), decode(value)
        if not done:
            continue
        last, late_milliseconds = done
        while len(found) < last:
            found.append(TurnRoundOutcomes())
        for attempt in range(1, last):
            if fails(number, attempt):
                found[attempt - 1].failed += 1
            else:
                found[attempt - 1].lost += 1
        found[last - 1].late_milliseconds.append(late_milliseconds)
    return found


# --- the crew -------------------------------------------------------------------------------------


class Crew(Protocol):
    """Workers, numbered from 1."""

    async def start(self) -> None:
        """Start all workers."""

    async def kill(self, number: int) -> None:
        """Kill a worker and start another one in its place."""

    async def stop(self) -> None:
        """Let all workers finish what they have begun, and stop them."""


class LocalWorker:
    """A worker of this process."""

    def __init__(self, db: postroom.aio.Database) -> None:
        self._worker = postroom.aio.Worker(db)
        self._killed = False
        self._has_lost = asyncio.Event()
        add_task(self._worker, self._is_killed)
        self._running = asyncio.ensure_future(self._worker.run())

    def _is_killed(self) -> bool:
        if self._killed:
            self._has_lost.set()
        return self._killed

    async def kill(self) -> None:
        """Let the worker drop the work that it has in hand, without a word to the store."""
        self._killed = True
        with suppress(TimeoutError):  # the worker had nothing to do
            await asyncio.wait_for(self._has_lost.wait(), LONGEST_KILL_SECONDS)
        await self.stop()

    async def stop(self) -> None:
        """Let the worker finish what it has begun, and stop it."""
        self._worker.stop()
        await self._running


class LocalCrew:
    """Workers of this process.

    Args:
        db: whose messages they work on.
    """

    def __init__(self, db: postroom.aio.Database) -> None:
        self._db = db
        self._workers: list[LocalWorker] = []

    async def start(self) -> None:
        """Start all workers."""
        # A worker logs the work that it loses when it is killed. This is no news here.
        logging.getLogger("postroom.worker").addHandler(logging.NullHandler())
        self._workers = [LocalWorker(self._db) for _ in range(WORKERS)]

    async def kill(self, number: int) -> None:
        """Kill a worker and start another one in its place."""
        await self._workers[number - 1].kill()
        self._workers[number - 1] = LocalWorker(self._db)

    async def stop(self) -> None:
        """Let all workers finish what they have begun, and stop them."""
        for worker in self._workers:
            await worker.stop()


class ProcessCrew:
    """Workers in processes of their own, which end with this one, however it ends.

    They read from a pipe whose other end only this process holds.

    Args:
        addresses: of the cluster.
        folder: for what they log.
    """

    def __init__(self, addresses: tuple[str, ...], folder: Path) -> None:
        self._addresses = addresses
        self._folder = folder
        self._workers: list[subprocess.Popen[bytes]] = []

    async def start(self) -> None:
        """Start all workers."""
        self._workers = [self._start(number) for number in range(1, WORKERS + 1)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "postroom.demo.turn_rounds", ",".join(self._addresses)]
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the process that started them
            )

    async def kill(self, number: int) -> None:
        """Kill a worker and start another one in its place."""
        await asyncio.to_thread(_end, self._workers[number - 1], kill=True)
        self._workers[number - 1] = self._start(number)

    async def stop(self) -> None:
        """Let all workers finish what they have begun, and stop them."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            await asyncio.to_thread(_end, worker)


def _end(worker: subprocess.Popen[bytes], *, kill: bool = False) -> None:
    if kill:
        worker.kill()
    try:
        worker.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    assert worker.stdin is not None
    worker.stdin.close()


async def _work(addresses: list[str]) -> None:
    worker = postroom.aio.Worker()
    add_task(worker)
    async with await postroom.aio.connect(
        addresses, insecure=True, timeout=PATIENCE_SECONDS, connect_timeout=PATIENCE_SECONDS
    ) as db:
        worker.bind(db)
        await worker.run(signals=True)


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)  # no byte is ever written to it
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    asyncio.run(_work(sys.argv[1].split(",")))
