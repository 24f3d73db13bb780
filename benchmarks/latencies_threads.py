"""The subjects of :mod:`.latencies_subjects` with the synchronous interface: threads wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from threading import Event, Thread
from typing import TypeVar

import postroom
from benchmarks.latencies_subjects import (
    DUE_SECONDS,
    KEPT_SECONDS,
    NAMES,
    PATIENCE_SECONDS,
    PAUSE_SECONDS,
    QUEUE,
    SCHEDULED,
    VALUE,
    WAITED_FOR,
    WORKED,
    now,
)

T = TypeVar("T")


class ThreadSubjects:
    """The subjects, measured by one thread, and a second one that waits."""

    def __init__(self, db: postroom.Database) -> None:
        self._db = db
        self._number = 0
        self._other = ThreadPoolExecutor(1)
        self._never = Event()
        self._worker = postroom.Worker(db)
        self._task = self._worker.task(WORKED, keep_result=KEPT_SECONDS)(self._work)
        self._returned_at = 0.0
        for name in (QUEUE, WAITED_FOR, SCHEDULED, WORKED):
            db.create_queue(name)
        self.consumer = db.queue(WAITED_FOR).receive()
        self.changes = db.watch(b"watched")
        self.seen()
        self._works = Thread(target=self._worker.run)
        self._works.start()

    def all(self) -> dict[str, Callable[[], float]]:
        """Return the subjects by name."""
        return dict(zip(NAMES, (
            self.put, self.claim, self.through, self.to_consumer, self.to_reaper, self.send_reap,
            self.to_result, self.seen, self.late_reaped, self.late_claimed,
        ), strict=True))  # fmt: skip

    def close(self) -> None:
        """End the worker and the thread that waits."""
        self._worker.stop()
        self._works.join()
        self._other.shutdown()

    def _waits(self, function: Callable[[], T]) -> Future[T]:
        """Let the other thread call a function that waits, and pause until it does."""
        waiting = self._other.submit(function)
        self._never.wait(PAUSE_SECONDS)
        return waiting

    def put(self) -> float:
        """Measure a put of one of a thousand keys."""
        self._number += 1
        self._never.wait(PAUSE_SECONDS)
        began = now()
        self._db.put(b"key/%d" % (self._number % 1000), VALUE)
        return now() - began

    def _enqueue(self, queue: str, deliver_at: float | None = None) -> None:
        with self._db.begin() as tx:
            tx.enqueue(queue, VALUE, deliver_at=deliver_at)

    def _send(self, deliver_at: float | None = None) -> None:
        with self._db.begin() as tx:
            tx.enqueue_message(b"inbox", VALUE, deliver_at=deliver_at)

    def claim(self) -> float:
        """Measure the claim of a message that was enqueued before the pause."""
        self._enqueue(QUEUE)
        queue = self._db.queue(QUEUE)
        self._never.wait(PAUSE_SECONDS)
        began = now()
        [message] = queue.claim()
        took = now() - began
        message.acknowledge()
        return took

    def through(self) -> float:
        """Measure three calls, one after another."""
        queue = self._db.queue(QUEUE)
        self._never.wait(PAUSE_SECONDS)
        began = now()
        self._enqueue(QUEUE)
        [message] = queue.claim()
        message.acknowledge()
        return now() - began

    def to_consumer(self) -> float:
        """Measure the time from the beginning of the transaction until the other thread has it."""
        waiting = self._waits(lambda: (next(self.consumer), now()))
        began = now()
        self._enqueue(WAITED_FOR)
        message, received = waiting.result()
        message.acknowledge()
        return received - began

    def _reap(self, wait: float | None = None) -> tuple[float, float]:
        """Reap one message, and commit; return when it was there, and when that was done."""
        with self._db.begin() as tx:
            [_] = tx.reap_queue(b"inbox", 1, wait=wait)
            reaped = now()
        return reaped, now()

    def to_reaper(self) -> float:
        """Measure the time from the beginning of the sender until the reaper has committed."""
        waiting = self._waits(lambda: self._reap(PATIENCE_SECONDS))
        began = now()
        self._send()
        _, committed = waiting.result()
        return committed - began

    def send_reap(self) -> float:
        """Measure two transactions, one after the other."""
        self._never.wait(PAUSE_SECONDS)
        began = now()
        self._send()
        _, committed = self._reap()
        return committed - began

    def _work(self, _: object, __: object) -> bytes:
        """Return when one waits for the result."""
        self._never.wait(PAUSE_SECONDS)
        self._returned_at = now()
        return VALUE

    def to_result(self) -> float:
        """Measure the time from the return of a task until one who waits has what it returned."""
        with self._db.begin() as tx:
            handle = self._task.enqueue(tx, VALUE)
        handle.result(wait=PATIENCE_SECONDS)
        return now() - self._returned_at

    def seen(self) -> float:
        """Measure the time from the beginning of the put until the other thread has the change."""
        waiting = self._waits(lambda: (next(self.changes), now()))
        began = now()
        self._db.put(b"watched", VALUE)
        _, received = waiting.result()
        return received - began

    def late_reaped(self) -> float:
        """Measure how much later than due, counted from the call, one who waits has a message."""
        waiting = self._waits(lambda: self._reap(PATIENCE_SECONDS))
        began = now()
        self._send(DUE_SECONDS)
        reaped, _ = waiting.result()
        return reaped - began - DUE_SECONDS

    def _claimed_later(self) -> float:
        [message] = self._db.queue(SCHEDULED).claim(wait=PATIENCE_SECONDS)
        received = now()
        message.acknowledge()
        return received

    def late_claimed(self) -> float:
        """Measure how much later than due, counted from the call, a claim has a message."""
        waiting = self._waits(self._claimed_later)
        began = now()
        self._enqueue(SCHEDULED, DUE_SECONDS)
        return waiting.result() - began - DUE_SECONDS


@contextmanager
def thread_subjects_of(db: postroom.Database) -> Iterator[dict[str, Callable[[], float]]]:
    """Prepare the subjects for a store that is new; yield them by name."""
    subjects = ThreadSubjects(db)
    with closing(subjects), closing(subjects.consumer), closing(subjects.changes):
        yield subjects.all()
