"""The work of a soak's clients, all of it at once, and the checks when they have ended.

Each client loops until it is told to stop, and counts what it has got done. A consumer now and then
dies with messages in its hands, another one takes its place. Whatever was promised is noted in the
same transactions, so the end can be reckoned to the unit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any, Final

import postroom
from postroom.aio import Database
from postroom.errors import CommitUnknown
from postroom.server.node import Node
from tests.soak.crowd import Crowd
from tests.soak.queue_work import QueueWork
from tests.soak.signals import Signals
from tests.soak.slow import SlowReaders
from tests.soak.splits import Splits
from tests.soak.trouble import Trouble
from tests.soak.worker import Died, Worker

INBOXES: Final = 4
LOCKS: Final = 3
ACCOUNTS: Final = 8
OPENING_BALANCE: Final = 1000
WIDE: Final = 200
"""Keys that snapshots read."""
SWEPT: Final = 300
"""Keys that are written and deleted again and again: more than a gap has, that scans jump over."""
CONTENDED: Final = 20
"""Keys that some write, and others lock."""
LARGE_BYTES: Final = (100_000, 400_000, 1_048_576)
HELD_SECONDS: Final = 2.0
"""The longest time for which a consumer may hold messages, a dead one too."""


def _inbox(number: int) -> bytes:
    return b"soak/inbox/%d" % number


def _contended(number: int) -> bytes:
    return b"soak/contended/%02d" % number


class Soak:
    """The clients of a store.

    Args:
        connect: makes a client; each process has its own.
        randomness: what they do follows from it.
        addresses: where nodes are reached by slow readers, who speak to their sockets.
        node: of an embedded store, whose machine has trouble.
        split_seconds: the time from one split to the next; 0: none is made.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Database]],
        randomness: Random,
        addresses: Sequence[str] = (),
        node: Node | None = None,
        split_seconds: float = 0.0,
    ) -> None:
        self._connect = connect
        self._split_seconds = split_seconds
        self._addresses = addresses
        self._node = node
        self._random = randomness
        self.workers: list[Worker] = []
        self.acknowledged: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._databases: list[Database] = []
        self._consumers: dict[str, Database] = {}
        self.goes_on = True
        self.deaths = 0
        self.queues = QueueWork(connect, lambda: self.goes_on)
        self.queue_workers: list[Worker] = []

    async def setup(self) -> None:
        """Set up the accounts and keys before the soak begins."""
        self.db = await self._client()

        def write(tx: Any) -> None:
            for number in range(ACCOUNTS):
                tx.put(b"soak/account/%d" % number, b"%d" % OPENING_BALANCE)
            for number in range(WIDE):
                tx.put(b"soak/wide/%03d" % number, b"0")

        await self.db.run(write)
        for kind, loop, count in (
            ("producer", self._produce, 4),
            ("consumer", self._consume, 8),
            ("locker", self._lock, 4),
            ("teller", self._transfer, 4),
            ("overwriter", self._overwrite, 2),
            ("changer", self._change, 1),
            ("watcher", self._watch, 2),
            ("archivist", self._read_wide, 1),
            ("writer", self._write_wide, 1),
            ("sweeper", self._sweep, 1),
            ("porter", self._carry, 2),
            ("idler", self._wait_in_vain, 2),
            ("slow watcher", self._watch_slowly, 1),
            ("slow iterator", self._iterate_slowly, 2),
            *self._slow_readers(),
            *self._trouble(),
            *self._splits(),
        ):
            for number in range(count):
                name = f"{kind} {number}"
                self.workers.append(Worker(name, loop, Random(f"{name} {self._random.random()}")))
        self.queue_workers = await self.queues.setup(self.db)
        self.workers += self.queue_workers

    def _slow_readers(self) -> list[tuple[str, Callable[[Worker], Awaitable[None]], int]]:
        if not self._addresses:
            return []
        readers = SlowReaders(self._addresses, lambda: self.goes_on)
        crowd = Crowd(self._addresses, lambda: self.goes_on)
        return [
            ("trickler", readers.trickle, 2),
            ("staller", readers.stall, 2),
            ("mute", readers.read_nothing, 2),
            ("flooder", crowd.flood, 1),
            ("program", crowd.program, 1),
            ("idle crowd", crowd.idle, 1),
            ("watchers", crowd.watch, 1),
            ("glutton", crowd.glut, 1),
        ]

    def _trouble(self) -> list[tuple[str, Callable[[Worker], Awaitable[None]], int]]:
        if self._node is None:
            return []
        trouble = Trouble(self._node, lambda: self.goes_on)
        signals = Signals(self._node, lambda: self.goes_on)
        return [
            ("signals", lambda worker: signals.interrupt(worker, self.db), 1),
            ("full device", lambda worker: trouble.fill_device(worker, self.db), 1),
            ("wrong clock", trouble.set_clock, 1),
        ]

    def _splits(self) -> list[tuple[str, Callable[[Worker], Awaitable[None]], int]]:
        if not self._split_seconds:
            return []
        randomness = Random(f"splits {self._random.random()}")
        splits = Splits(self.db, self._split_seconds, randomness, lambda: self.goes_on)
        return [("splits", splits.split, 1)]

    async def _client(self) -> Database:
        database = await self._connect()
        self._databases.append(database)
        return database

    async def _sweep(self, worker: Worker) -> None:
        """Fill a span and empty it; a scan finds what is there, and the first key behind it."""
        start, end = b"soak/swept/", b"soak/swept/~"
        first = worker.done % 7 * SWEPT

        def fill(tx: Any) -> None:
            tx.put(end, b"behind")
            for number in range(first, first + SWEPT):
                tx.put(start + b"%05d" % number, b"x")

        await self.db.run(fill)
        found = [key async for key, _ in self.db.scan(start, end)]
        if len(found) != SWEPT:
            raise AssertionError(f"{len(found)} keys, {SWEPT} were written")
        await self.db.delete_range(start, end)
        found = [key async for key, _ in self.db.scan(start, limit=1)]
        if found != [end]:
            raise AssertionError(f"behind what was deleted there is {found}, not {end!r}")
        worker.did()
        await asyncio.sleep(0.5)

    # --- messages

    async def _produce(self, worker: Worker) -> None:
        number = next(self._numbers)
        delay = worker.random.choice([None, None, None, 0.1, 1.5])

        def send(tx: Any) -> None:
            key = _inbox(number % INBOXES)
            tx.enqueue_message(key, b"%d" % number, headers={"n": number}, deliver_at=delay)
            tx.enqueue_update(postroom.Increment(b"soak/sent", 1), execute_at=delay)
            tx.enqueue_update(postroom.Accounting(b"soak/stats/sent", {"sum": number}))

        await self.db.run(send)
        self.acknowledged["sent"] += 1
        worker.did()
        await asyncio.sleep(0.01)

    async def _consume(self, worker: Worker) -> None:
        """Take up to ten messages, and write down how many; or die with them."""
        db = self._consumers.get(worker.name)
        if db is None:
            self._consumers[worker.name] = db = await self._client()
        tx = db.begin(timeout=HELD_SECONDS)
        try:
            taken = await tx.reap_queue(_inbox(worker.random.randrange(INBOXES)), 10, wait=1.5)
            if worker.random.random() < 0.01:
                await self._die(worker)
            if taken:
                await tx.increment(b"soak/taken/" + worker.name.encode(), len(taken))
                total = sum(message.headers["n"] for message in taken)
                tx.enqueue_update(postroom.Accounting(b"soak/stats/taken", {"sum": total}))
            await self._end(tx)
        except BaseException:
            if not tx.closed and self._consumers.get(worker.name) is db:
                await tx.rollback()
            raise
        self.acknowledged["taken"] += len(taken)
        worker.did()

    async def _end(self, tx: Any) -> None:
        """Commit, until the outcome is known."""
        while not tx.closed:
            try:
                await tx.commit()
            except CommitUnknown:
                if not tx.may_be_told:
                    raise
                await asyncio.sleep(0.05)

    async def _die(self, worker: Worker) -> None:
        """Die with all holdings; another client comes in its place."""
        self.deaths += 1
        database = self._consumers.pop(worker.name)
        if database is not self.db:
            sender: Any = database._sender
            sender.abort()
            await sender._streams.closed()
            self._databases.remove(database)
        raise Died

    async def _wait_in_vain(self, worker: Worker) -> None:
        async with self.db.begin() as tx:
            assert not await tx.reap_queue(b"soak/nobody", 1, wait=0.5)
        worker.did()

    # --- values

    async def _lock(self, worker: Worker) -> None:
        keys = worker.random.sample([b"soak/lock/%d" % number for number in range(LOCKS)], 2)

        async def count(tx: Any) -> None:
            for key in keys:
                number = int(await tx.get_for_update(key) or b"0")
                tx.put(key, b"%d" % (number + 1))

        await self.db.run(count)
        self.acknowledged["locked"] += len(keys)
        worker.did()
        await asyncio.sleep(0.01)

    async def _transfer(self, worker: Worker) -> None:
        source, target = worker.random.sample(range(ACCOUNTS), 2)

        async def transfer(tx: Any) -> None:
            one, other = b"soak/account/%d" % source, b"soak/account/%d" % target
            tx.put(one, b"%d" % (int(await tx.get(one)) - 1))
            tx.put(other, b"%d" % (int(await tx.get(other)) + 1))

        await self.db.run(transfer)
        worker.did()

    async def _overwrite(self, worker: Worker) -> None:
        """Write keys that others lock, without asking for the lock."""
        await self.db.put(_contended(worker.random.randrange(CONTENDED)), b"theirs")
        worker.did()
        await asyncio.sleep(0.01)

    async def _change(self, worker: Worker) -> None:
        """Delete all of these keys in one transaction, beside those who write them."""

        async def change(tx: Any) -> None:
            for number in range(CONTENDED):
                await tx.get_for_update(_contended(number))
            for number in range(CONTENDED):
                tx.delete(_contended(number))

        await self.db.run(change)
        worker.did()
        await asyncio.sleep(0.05)

    async def _watch(self, worker: Worker) -> None:
        """Watch for a while; the last client reads slowly."""
        left, last = 200, 0
        stream = self.db.watch(b"soak/", b"soak0")
        try:
            async for change in stream:
                assert change.timestamp >= last, "changes are not in order"
                last, left = change.timestamp, left - 1
                worker.did()
                if worker.name.endswith("1"):
                    await asyncio.sleep(0.02)
                if not left or not self.goes_on:
                    return
        finally:
            await stream.aclose()

    async def _write_wide(self, worker: Worker) -> None:
        """Write all wide keys in one transaction: a snapshot sees one number only."""
        number = b"%d" % next(self._numbers)

        def write(tx: Any) -> None:
            for each in range(WIDE):
                tx.put(b"soak/wide/%03d" % each, number)

        await self.db.run(write)
        worker.did()
        await asyncio.sleep(0.5)

    async def _read_wide(self, worker: Worker) -> None:
        """Read slowly, at one moment."""
        async with self.db.snapshot() as snapshot:
            found = {value async for _, value in snapshot.scan(b"soak/wide/", b"soak/wide0")}
            await asyncio.sleep(worker.random.choice([0.1, 2.0]))
            keys = [b"soak/wide/%03d" % number for number in range(0, WIDE, 7)]
            found.update(await snapshot.get_many(keys))
            total = 0
            async for _, balance in snapshot.scan(b"soak/account/", b"soak/account0"):
                total += int(balance)
        assert len(found) == 1, f"a snapshot of several moments: {found}"
        assert total == ACCOUNTS * OPENING_BALANCE, f"the accounts hold {total}"
        worker.did()

    async def _watch_slowly(self, worker: Worker) -> None:
        """Fall behind the changes that are kept, read on from the versions, fall behind again.

        The stream has few keys: the cost of catching up grows with the versions that are kept of
        them, which become more for 75 seconds.
        """
        left, last = 40, 0
        stream = self.db.watch(b"soak/lock/", b"soak/lock0")
        try:
            async for change in stream:
                assert change.timestamp >= last, "changes are not in order"
                last, left = change.timestamp, left - 1
                worker.did()
                if not left or not self.goes_on:
                    return
                await asyncio.sleep(worker.random.choice([0.0, 0.0, 0.1, 4.0]))
        finally:
            await stream.aclose()

    async def _iterate_slowly(self, worker: Worker) -> None:
        """Iterate at one moment, large values included, and not always to the end."""
        previous = b""
        async with (
            self.db.snapshot() as snapshot,
            contextlib.aclosing(snapshot.scan(b"soak/la", b"soak/lp")) as pairs,  # type: ignore[type-var]
        ):
            async for key, _ in pairs:
                assert key > previous, "a scan is not in order"
                previous = key
                await asyncio.sleep(0.3)
                if worker.random.random() < 0.05 or not self.goes_on:
                    break
        worker.did()

    async def _carry(self, worker: Worker) -> None:
        """Carry large values there and back."""
        key = b"soak/large/%d" % worker.random.randrange(4)
        size = worker.random.choice(LARGE_BYTES)
        await self.db.put(key, b"%d" % size + b"x" * (size - len(b"%d" % size)))
        value = await self.db.get(key)
        assert len(value) == int(value.partition(b"x")[0]), "a large value is cut"
        worker.did()
        await asyncio.sleep(0.3)

    # --- the end

    async def close(self) -> None:
        """Close all clients."""
        await self.queues.finish()
        for database in self._databases:
            if database is not self.db:
                await database.close()

    async def reckon(self) -> list[str]:
        """Wait until nothing is under way; return what is not as it must be."""
        await asyncio.sleep(HELD_SECONDS)  # scheduled messages are due, those of the dead free
        await self.db.drain(60.0)
        left = left_sum = 0
        for number in range(INBOXES):
            for message in await self.db.peek(_inbox(number), 1_000_000):
                left, left_sum = left + 1, left_sum + message.headers["n"]
        sent = postroom.integer(await self.db.get(b"soak/sent") or bytes(8))
        taken = 0
        async for _, count in self.db.scan(b"soak/taken/", b"soak/taken0"):
            taken += postroom.integer(count)
        sums = {
            name: (await self.db.accounting(b"soak/stats/" + name)).get("sum", 0)
            for name in (b"sent", b"taken")
        }
        locked = sum(
            [int(await self.db.get(b"soak/lock/%d" % number) or b"0") for number in range(LOCKS)]
        )
        total = sum(
            [int(await self.db.get(b"soak/account/%d" % number)) for number in range(ACCOUNTS)]
        )
        counters = (await self.db.status()).counters
        found = {
            "sent = taken + left": (sent, taken + left),
            "sum of sent = sum of taken + left": (sums[b"sent"], sums[b"taken"] + left_sum),
            "acknowledged sendings are there": (True, sent >= self.acknowledged["sent"]),
            "acknowledged takings are there": (True, taken >= self.acknowledged["taken"]),
            "acknowledged countings are there": (True, locked >= self.acknowledged["locked"]),
            "money": (total, ACCOUNTS * OPENING_BALANCE),
            "conserved": (True, counters.conserved()),
            "pending": (counters.pending, 0),
        }
        wrong = [f"{name}: {one}, {other}" for name, (one, other) in found.items() if one != other]
        return wrong + await self.queues.reckon()
