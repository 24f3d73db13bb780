"""One database, many threads: they share syncs, and never each other's halves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import resolve
from postroom.errors import (
    Error,
    Invalid,
    TransactionConflict,
    TransactionExpired,
    Unavailable,
)
from postroom.kv import keys
from postroom.kv.clock import SystemClock
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.node import Node
from postroom.server.thread_driver import ThreadDriver
from tests.client.watched_engine import WatchedEngine

THREADS = 16
PATIENCE_SECONDS = 60


class _CountingDriver(ThreadDriver):
    """A driver that tells how many requests were sent."""

    def __init__(self, node: Node, random: Random) -> None:
        super().__init__(node, random)
        self.sent = threading.Semaphore(0)

    def send(self, request: Any, timeout_seconds: float | None = None) -> Any:
        answer = super().send(request, timeout_seconds)
        self.sent.release()
        return answer


class _SettableClock(SystemClock):
    """The system's clock, whose wall clock stands still until it is set ahead.

    If it went on, a read more than a second after the last write would have to store a ceiling for
    it first. The write of the ceiling would wait for a write that is held back.
    """

    def __init__(self) -> None:
        self.ahead_milliseconds = 0
        self._began = super().wall_milliseconds()

    def wall_milliseconds(self) -> int:
        return self._began + self.ahead_milliseconds


class Threaded:
    """A store whose writes to the engine can be held back, and a pool of threads."""

    def __init__(self) -> None:
        self.engine = WatchedEngine(MemoryEngine())
        self.clock = _SettableClock()
        options = NodeOptions(lease_seconds=3600.0)  # none is extended, which would be a write
        node = Node(self.engine, self.clock, Random(1), NoPeers(), options)
        self.driver = _CountingDriver(node, Random(2))
        self.driver.start()
        core = asynchronous.CoreDatabase(
            self.driver, resolve(None), self._status, self.driver.close
        )
        self.db = blocking.CoreDatabase(self.driver, core)
        self.db.put(b"ready", b"1")
        self.pool = ThreadPoolExecutor(THREADS)
        self._held = threading.Event()
        self._go_on = threading.Event()

    @staticmethod
    async def _status(_: Any) -> Any:
        raise NotImplementedError

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Call in a thread of its own; return once its first request is on its way."""
        while self.driver.sent.acquire(blocking=False):
            pass
        future = self.pool.submit(function, *args, **kwargs)
        assert self.driver.sent.acquire(timeout=PATIENCE_SECONDS)
        return future

    def hold(self, key: bytes) -> Future[Any]:
        """Begin a put that hangs in the middle of its write until ``release``."""

        def stop(writes: WriteSet) -> None:
            if keys.head_key(key) not in writes:
                return
            self.engine.before_write = lambda _: None
            self._held.set()
            assert self._go_on.wait(PATIENCE_SECONDS)

        self.engine.before_write = stop
        future = self.start(self.db.put, key, b"held")
        assert self._held.wait(PATIENCE_SECONDS)
        return future

    def release(self) -> None:
        self._go_on.set()


@pytest.fixture
def threaded() -> Iterator[Threaded]:
    threaded = Threaded()
    yield threaded
    threaded.release()
    threaded.db.close()
    threaded.pool.shutdown()


def in_threads(function: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, range(threads), timeout=PATIENCE_SECONDS))


def test_increments_of_many_threads_are_all_counted(db: postroom.Database) -> None:
    def work(_: int) -> None:
        for _ in range(10):
            db.increment(b"blind")
            db.run(lambda tx: tx.increment(b"read"))

    in_threads(work)
    assert postroom.integer(db.get(b"blind")) == 10 * THREADS
    assert postroom.integer(db.get(b"read")) == 10 * THREADS


def test_transactions_that_lock_first_never_conflict(db: postroom.Database) -> None:
    def work(_: int) -> None:
        for _ in range(5):
            with db.begin() as tx:
                value = postroom.integer(tx.get_for_update(b"n"))
                tx.put(b"n", (value + 1).to_bytes(8, "big"))

    in_threads(work)
    assert postroom.integer(db.get(b"n")) == 5 * THREADS


def test_sums_stay_what_they_are_while_money_moves(db: postroom.Database) -> None:
    accounts = [b"account/%d" % number for number in range(5)]
    for account in accounts:
        db.increment(account, 100)

    def work(thread: int) -> None:
        random = Random(thread)
        for _ in range(10):
            source, target = random.sample(accounts, 2)
            db.run(lambda tx, s=source, t=target: (tx.increment(s, -1), tx.increment(t)))
            with db.snapshot() as snapshot:
                pairs = snapshot.scan(*postroom.prefix(b"account/"))
                assert sum(postroom.integer(value) for _, value in pairs) == 500

    in_threads(work, 8)


def test_each_message_is_reaped_by_one_of_them(db: postroom.Database) -> None:
    with db.begin() as tx:
        for number in range(400):
            tx.enqueue_message(b"k", b"%d" % number)

    def work(_: int) -> list[bytes]:
        mine: list[bytes] = []
        while True:
            with db.begin() as tx:
                taken = [message.value for message in tx.reap_queue(b"k", 7)]
                if taken:
                    tx.increment(b"done/%d" % threading.get_ident(), len(taken))
            if not taken:
                return mine
            mine += taken

    reaped = [value for mine in in_threads(work, 8) for value in mine]
    assert sorted(reaped, key=int) == [b"%d" % number for number in range(400)]
    done = sum(postroom.integer(value) for _, value in db.scan(*postroom.prefix(b"done/")))
    assert done == 400


def test_a_producer_wakes_consumers_in_other_threads(db: postroom.Database) -> None:
    def consume(_: int) -> bytes:
        with db.begin() as tx:
            value: bytes = tx.reap_queue(b"k", 1, wait=PATIENCE_SECONDS)[0].value
            return value

    with ThreadPoolExecutor(4) as pool:
        consumers = [pool.submit(consume, number) for number in range(4)]
        for number in range(4):
            with db.begin() as tx:
                tx.enqueue_message(b"k", b"%d" % number)
        reaped = {consumer.result(PATIENCE_SECONDS) for consumer in consumers}
    assert reaped == {b"0", b"1", b"2", b"3"}


def test_commits_that_arrive_during_a_write_share_the_next_one(threaded: Threaded) -> None:
    before = threaded.engine.writes
    first = threaded.hold(b"0")
    others = [threaded.start(threaded.db.put, b"%d" % n, b"1") for n in range(1, THREADS)]
    assert not first.done()
    threaded.release()
    for each in (first, *others):
        each.result(PATIENCE_SECONDS)
    assert threaded.engine.writes - before == 2
    assert len(list(threaded.db.scan())) == 1 + THREADS


def test_reads_go_on_during_a_write_but_for_what_it_writes(threaded: Threaded) -> None:
    threaded.db.put(b"other", b"1")
    held = threaded.hold(b"a")
    assert threaded.db.get(b"other") == b"1"
    reader = threaded.start(threaded.db.get, b"a")
    assert not reader.done()
    threaded.release()
    held.result(PATIENCE_SECONDS)
    assert reader.result(PATIENCE_SECONDS) == b"held"


def test_a_wait_that_ends_during_a_write_ends_empty(threaded: Threaded) -> None:
    with threaded.db.begin() as tx:
        tx.enqueue_message(b"k", b"m")

    def sending() -> None:
        with threaded.db.begin() as tx:
            tx.enqueue_message(b"k", b"n")

    held = threaded.hold(b"a")
    sender = threaded.start(sending)
    blocked = threading.Event()

    def hold_again(writes: WriteSet) -> None:
        if keys.mail_key(b"k") not in writes:
            return
        blocked.set()
        assert again.wait(PATIENCE_SECONDS)

    again = threading.Event()
    threaded.engine.before_write = hold_again
    threaded.release()
    assert blocked.wait(PATIENCE_SECONDS)
    with threaded.db.begin() as tx:
        assert list(tx.reap_queue(b"k", wait=0.001)) == []
    again.set()
    held.result(PATIENCE_SECONDS)
    sender.result(PATIENCE_SECONDS)
    with threaded.db.begin() as tx:
        assert [message.value for message in tx.reap_queue(b"k")] == [b"m", b"n"]


def test_a_lock_is_waited_for_no_longer_than_the_transaction(threaded: Threaded) -> None:
    holder = threaded.db.begin()
    holder.get_for_update(b"a")

    def impatient() -> None:
        for seconds in (0.5, 2, 8):  # it may be over before the lock is asked for
            with suppress(TransactionExpired), threaded.db.begin(timeout=seconds) as tx:
                tx.get_for_update(b"a")

    with pytest.raises(TransactionConflict):
        threaded.start(impatient).result(PATIENCE_SECONDS)


def test_the_engine_is_written_by_one_thread_at_a_time(threaded: Threaded) -> None:
    held = threaded.hold(b"a")
    threaded.clock.ahead_milliseconds = 10_000
    reader = threaded.pool.submit(threaded.db.now)
    wait([reader], timeout=0.2)
    threaded.release()
    held.result(PATIENCE_SECONDS)
    reader.result(PATIENCE_SECONDS)
    assert threaded.engine.overlaps == 0


def test_close_ends_every_wait(threaded: Threaded) -> None:
    def reap() -> None:
        with threaded.db.begin() as tx:
            tx.reap_queue(b"k", wait=PATIENCE_SECONDS)

    def watch() -> None:
        next(threaded.db.watch(b"k"))

    def drain() -> None:
        threaded.db.drain(PATIENCE_SECONDS)

    waiting = [threaded.start(function) for function in (reap, reap, watch)]
    threaded.db.close()
    for each in waiting:
        with pytest.raises((Unavailable, Invalid), match="was closed"):
            each.result(PATIENCE_SECONDS)


def test_close_waits_for_what_is_under_way(threaded: Threaded) -> None:
    held = threaded.hold(b"a")
    closing = threaded.pool.submit(threaded.db.close)
    threaded.release()
    closing.result(PATIENCE_SECONDS)
    held.result(PATIENCE_SECONDS)
    assert not threaded.engine.inner.is_open  # type: ignore[attr-defined]


def test_every_call_of_every_thread_ends_when_the_store_is_closed(db: postroom.Database) -> None:
    started = threading.Barrier(9)

    def work(thread: int) -> None:
        started.wait(PATIENCE_SECONDS)
        for _ in iter(int, None):
            db.put(b"%d" % thread, b"1")

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(work, thread) for thread in range(8)]
        started.wait(PATIENCE_SECONDS)
        db.put(b"mine", b"1")
        db.close()
        for future in futures:
            with pytest.raises(Error, match="closed"):
                future.result(PATIENCE_SECONDS)
