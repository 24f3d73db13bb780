"""Tasks of inboxes: keys that have mail are shared out among the workers.

::

    keys with mail, oldest first ─▶ not backed off ─▶ locked ─▶ reaped ─▶ function ─▶ commit
              ▲                                          └─ another worker has it: the next key
              └── none: a pause, 20 ms at first, half a second at most

One worker a key at a time: whoever works on a key holds a lock in its transaction, on a key of its
own that is never written. A lock is in the leaseholder's memory; should that change hands while two
workers believe that they have it, both have reaped the same, oldest, messages, and only one of them
commits.

A message whose function fails is postponed: for a second, then for two, four, up to five minutes,
and after ``max_attempts`` it is a dead letter. That is stored, so it holds whichever worker comes
to it. What is behind it is worked off meanwhile, or waits for it (``hold``). ::

    function ─┬─ returned ────────▶ committed: the messages are consumed
              ├─ Reject(delay) ───▶ postponed
              ├─ Discard(reason) ─▶ a dead letter
              ├─ any other ───────▶ postponed, with the back-off; a dead letter after max_attempts
              └─ Retryable ───────▶ once more, for a minute; then the key is left alone, uncounted

A worker that is killed counts as an attempt too. Messages that a function has got together come one
by one when they have failed, so that one of them does not take the others along. What says nothing
about the message (no leader, no network, conflicts for a minute) is not counted: the key is left
alone for a while, by this worker, which remembers that in memory only.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from postroom.client.transaction import Transaction
from postroom.client.trying import ANY_ATTEMPTS
from postroom.client.values import Message
from postroom.client.worker.calling import Caller, Function
from postroom.client.worker.outcomes import Discard, Reject
from postroom.client.worker.supervision import Supervisor, told, waited
from postroom.errors import (
    CommitUnknown,
    Error,
    Retryable,
    TransactionConflict,
    TransactionTooLarge,
    WrongType,
)
from postroom.kv.tuples import prefix as span_of
from postroom.limits import INBOXES_LISTED_MAX, KEY_BYTES_MAX, WORKER_BACKOFF_SECONDS_MAX

LOCK_PREFIX: Final = b"\x00postroom/worker/"
BACKOFF_SECONDS_FIRST: Final = 1.0
ATTEMPTS_MAX_DEFAULT: Final = 16
"""Three quarters of an hour of them, as the back-off grows."""
BACKOFFS_KEPT: Final = 10_000
"""So many keys are remembered that failed; of more, the one that failed longest ago is
forgotten.
"""
IDLE_SECONDS_FIRST: Final = 0.02
LONGEST_IDLE_SECONDS: Final = 0.5
LOOKED_AT_ONCE: Final = 1000
"""So many keys are looked at together, besides those that are left alone just now."""
LOCK_PATIENCE_SECONDS: Final = 0.05
"""A lock that is not had in this time is another worker's."""
ELSEWHERE_SECONDS: Final = 0.25
"""After which a key is tried again that another worker was busy with."""


def lock_key(key: bytes) -> bytes:
    """What is locked by who works on the inbox of ``key``."""
    if len(LOCK_PREFIX) + len(key) > KEY_BYTES_MAX:
        key = hashlib.sha256(key).digest()
    return LOCK_PREFIX + key


@dataclass(frozen=True, slots=True)
class InboxTask:
    """A function that is called with the mail of keys.

    Attributes:
        function: called with a message, or with a list of messages if ``batch`` is given.
        prefix: of the keys.
        batch: how many messages of a key it gets at most; ``None``: one, not in a list.
        concurrency: how many keys a worker works on at a time.
        max_attempts: after which a message is dead; ``None``: never.
        hold: whether what is behind a message that has failed waits for it.
    """

    function: Function
    prefix: bytes
    batch: int | None
    concurrency: int
    max_attempts: int | None = ATTEMPTS_MAX_DEFAULT
    hold: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, here and now."""
        return self.function(*args, **kwargs)


class Backoffs:
    """Keys that are left alone for a while, as their mail could not be worked on. ``len`` is how
    many.
    """

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """How many have failed, and not succeeded since."""
        return len(self._until)

    def failed(self, key: bytes, now: float, delay: float | None = None) -> float:
        """It could not; returns for how many seconds the key is left alone."""
        _, last = self._until.pop(key, (0.0, BACKOFF_SECONDS_FIRST / 2))
        pause = min(2 * last, WORKER_BACKOFF_SECONDS_MAX)
        self._until[key] = (now + (pause if delay is None else delay), pause)
        if len(self._until) > BACKOFFS_KEPT:
            self._until.popitem(last=False)
        return pause if delay is None else delay

    def succeeded(self, key: bytes) -> None:
        """It has not."""
        self._until.pop(key, None)

    def holds(self, key: bytes, now: float) -> bool:
        """Whether the key is to be left alone."""
        return self._until.get(key, (0.0, 0.0))[0] > now


class InboxLoop:
    """Brings an inbox task its mail.

    Args:
        task: which one.
        caller: calls it.
        supervisor: for what is to be said.
        stopping: set when it is to stop.
        slots: of the worker; ``None``: it has as many as its tasks.
    """

    def __init__(
        self,
        task: InboxTask,
        caller: Caller,
        supervisor: Supervisor,
        stopping: asyncio.Event,
        slots: asyncio.Semaphore | None,
    ) -> None:
        self.task = task
        self._caller = caller
        self._supervisor = supervisor
        self._stopping = stopping
        self._slots = slots or asyncio.Semaphore(task.concurrency)
        self._own_slots = asyncio.Semaphore(task.concurrency)
        self._backoffs = Backoffs()
        self._busy: dict[bytes, asyncio.Task[bool]] = {}
        self._elsewhere: dict[bytes, float] = {}

    # --- finding keys

    async def run(self) -> None:
        """Until it is to stop; what runs goes on (:meth:`finish`)."""
        pause = IDLE_SECONDS_FIRST
        while not self._stopping.is_set():
            if await self._round():
                pause = IDLE_SECONDS_FIRST
                continue
            jittered = pause * self._caller.db.sender.random.uniform(0.5, 1.0)
            stopped: asyncio.Future[bool] = asyncio.ensure_future(self._stopping.wait())
            busy = [asyncio.shield(each) for each in self._busy.values()]
            await waited([stopped, *busy], jittered)
            pause = min(2 * pause, LONGEST_IDLE_SECONDS)

    async def run_ready(self) -> int:
        """Works off the mail that is there now; returns how many batches of it that were.

        A key whose function has asked for the same again at once is not tried again by this call.
        """
        done, failed = 0, set[bytes]()
        while started := await self._round(failed):
            worked = await asyncio.gather(*started.values())
            done += sum(worked)
            failed.update(key for key, has in zip(started, worked, strict=True) if not has)
        return done

    async def _round(self, passed: Collection[bytes] = ()) -> dict[bytes, asyncio.Task[bool]]:
        """Begins to work on the keys that have mail; those that it could begin with.

        Args:
            passed: these keys are left alone.
        """
        db = self._caller.db
        start, end = span_of(self.task.prefix)
        now = db.sender.monotonic()
        self._elsewhere = {key: until for key, until in self._elsewhere.items() if until > now}
        passed_by = len(passed) + len(self._backoffs) + len(self._elsewhere) + len(self._busy)
        limit = min(LOOKED_AT_ONCE + passed_by, INBOXES_LISTED_MAX)
        found = await db.inboxes(start, end, limit=limit, ready=True)
        started: dict[bytes, asyncio.Task[bool]] = {}
        for info in found:
            if self._stopping.is_set():
                break
            left_alone = self._backoffs.holds(info.key, now) or info.key in self._elsewhere
            if info.key in self._busy or left_alone or info.key in passed:
                continue
            await self._own_slots.acquire()
            running = asyncio.ensure_future(self._work(info.key))
            self._busy[info.key] = running
            running.add_done_callback(functools.partial(self._freed, info.key))
            started[info.key] = running
        return started

    def _freed(self, key: bytes, _: asyncio.Task[bool]) -> None:
        del self._busy[key]
        self._own_slots.release()

    async def finish(self) -> None:
        """Until everything that runs has ended."""
        while self._busy:
            await asyncio.wait(set(self._busy.values()))

    def cancel(self) -> None:
        """Ends what runs, as far as it can be ended; the mail stays where it is."""
        for each in self._busy.values():
            each.cancel()

    # --- one key

    async def _work(self, key: bytes) -> bool:
        """Whether there was something to do, and it was done, or is left for later."""
        taken: list[Message] = []
        given_back = False

        async def take(tx: Transaction) -> Any:
            nonlocal given_back
            given_back = False
            taken.clear()
            if not await tx.try_lock(lock_key(key), LOCK_PATIENCE_SECONDS):
                self._elsewhere[key] = self._caller.db.sender.monotonic() + ELSEWHERE_SECONDS
                return None
            taken.extend(await self._reap(tx, key, taken))
            if not taken:
                return None
            return taken[0] if self.task.batch is None else list(taken)

        async def failed(error: Exception) -> None:
            nonlocal given_back
            given_back = await self._give_back(key, taken, error)

        try:
            async with self._slots:
                await self._caller.call_with(self.task.function, take, failed)
        except (Retryable, CommitUnknown) as error:
            self._leave_alone(key, error)
            return False
        except Exception as error:
            if not given_back and not await self._give_back(key, taken, error):
                return False
            if isinstance(error, Reject) and not error.delay and error.delay is not None:
                return False  # it comes again at once
        self._backoffs.succeeded(key)
        return bool(taken)

    async def _reap(self, tx: Transaction, key: bytes, taken: list[Message]) -> list[Message]:
        """The oldest messages of a key.

        Raises:
            WrongType: the codec cannot unpack one of them; ``taken`` tells which they are.
        """
        task = self.task
        try:
            return list(await tx.reap_queue(key, task.batch or 1, max_attempts=task.max_attempts))
        except WrongType:
            ids = tx.reaped_ids(key)
            taken += [Message(key, None, None, id_, 0, ANY_ATTEMPTS) for id_ in ids]
            raise

    async def _give_back(self, key: bytes, taken: list[Message], error: Exception) -> bool:
        """Messages have failed; whether that is written down. (If they are not there any more, or
        somebody else has tried them meanwhile, there is nothing to write down.)
        """
        if not taken:
            self._leave_alone(key, error)
            return False
        reason = told(error)
        self._supervisor.say(
            f"{key!r} {type(error).__name__}",
            "messages of %s have failed (%d, of which the first had failed %d times): %s",
            repr(key), len(taken), max(taken[0].attempts, 0), reason,
        )  # fmt: skip
        try:
            await self._write_down(taken, error, reason)
        except TransactionConflict:
            return True
        except Error as other:
            self._leave_alone(key, other)
            return False
        return True

    async def _write_down(self, taken: list[Message], error: Exception, reason: str) -> None:
        """In one transaction, or in several if they are too large for one."""
        try:
            async with self._caller.db.begin() as tx:
                if isinstance(error, Discard):
                    tx.bury(taken, error.reason or "discarded")
                elif isinstance(error, Reject):
                    self._postpone(tx, taken, error.delay, error.reason or "rejected")
                else:
                    self._postpone(tx, taken, None, reason)
        except TransactionTooLarge:
            half = len(taken) // 2
            if not half:
                raise
            await self._write_down(taken[:half], error, reason)
            await self._write_down(taken[half:], error, reason)

    def _postpone(self, tx: Transaction, taken: list[Message], delay: Any, reason: str) -> None:
        task = self.task
        tx.postpone(taken, delay, reason, hold=task.hold, max_attempts=task.max_attempts)

    def _leave_alone(self, key: bytes, error: Exception) -> None:
        seconds = self._backoffs.failed(key, self._caller.db.sender.monotonic())
        self._supervisor.say(
            f"{key!r} {type(error).__name__}",
            "the mail of %s is left alone for %g s: %s: %s",
            repr(key), seconds, type(error).__name__, str(error),
        )  # fmt: skip


__all__ = ["ATTEMPTS_MAX_DEFAULT", "Backoffs", "InboxLoop", "InboxTask", "lock_key"]
