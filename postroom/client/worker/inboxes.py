"""Tasks of inboxes: keys that have mail are shared out among the workers.

::

    keys with mail, in rounds ─▶ not backed off ─▶ locked ─▶ reaped ─▶ function ─▶ commit
              ▲                                          └─ another worker has it: the next key
              └── none: a pause, 20 ms at first, half a second at most

A round goes through the keys in their order, a page at a time. It thus looks at each key that has
mail once, however many there are.

One worker works on a key at a time. It holds a lock in its transaction, on a key of its own that is
never written. A lock is in the leaseholder's memory. If the leaseholder changes, two workers may
believe that they have the lock. Then both have reaped the same, oldest, messages, and only one of
them commits.

A message whose function fails is postponed: for a second, then for two, four, up to five minutes.
After ``max_attempts`` it is a dead letter. The store keeps this, so it is true for each worker that
comes to the message. Messages behind it are worked off meanwhile, or wait for it (``hold``). ::

    function ─┬─ returned ────────▶ committed: the messages are consumed
              ├─ Reject(delay) ───▶ postponed
              ├─ Discard(reason) ─▶ a dead letter
              ├─ any other ───────▶ postponed, with the back-off; a dead letter after max_attempts
              └─ Retryable ───────▶ once more, for a minute; then the key is left alone, uncounted

An attempt at which the worker is killed counts as well. Messages that a function has got together
come one by one when they have failed, so that one of them does not take the others along. Errors
that say nothing about the message (no leader, no network, conflicts for a minute) are not counted.
Then this worker leaves the key alone for a while, and remembers this in memory only.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from postroom.client.reaping import ANY_ATTEMPTS
from postroom.client.transaction import Transaction
from postroom.client.values import InboxInfo, Message
from postroom.client.worker.calling import Callee, Function, Workplace
from postroom.client.worker.calls import Calls, Running
from postroom.client.worker.failures import (
    Failure,
    Failures,
    Options,
    Outcome,
    Reject,
    outcome_of,
    told,
)
from postroom.client.worker.supervision import waited
from postroom.errors import (
    CommitUnknown,
    Error,
    Retryable,
    TransactionConflict,
    TransactionTooLarge,
    WrongType,
)
from postroom.kv.tuples import prefix as span_of
from postroom.limits import KEY_BYTES_MAX, WORKER_BACKOFF_SECONDS_MAX
from postroom.messaging.undelivered import reviving_letter

LOCK_PREFIX: Final = b"\x00postroom/worker/"
LOCK_PATIENCE_SECONDS: Final = 0.05
"""The time to wait for a lock, in seconds; if that is not enough, another worker has the key."""


def lock_key(key: bytes) -> bytes:
    """Return the key that a worker locks while it works on the inbox of ``key``."""
    if len(LOCK_PREFIX) + len(key) > KEY_BYTES_MAX:
        key = hashlib.sha256(key).digest()
    return LOCK_PREFIX + key


@dataclass(frozen=True, slots=True)
class InboxTask:
    """A function that is called with the mail of keys.

    Attributes:
        function: called with a message, or with a list of messages if ``batch`` is given.
        prefix: the prefix of the keys.
        batch: how many messages of a key it gets at most; ``None``: one, not in a list.
        hold: whether messages behind one that has failed wait for it.
        options: how they are worked off.
    """

    function: Function
    prefix: bytes
    batch: int | None
    hold: bool
    options: Options

    @property
    def name(self) -> str:
        """Return its name in the log."""
        return f"the task of inboxes {self.prefix!r}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)


class Mail:
    """The mail of one key, while a worker works on it.

    Args:
        loop: the loop of the task, which has found it.
        key: the recipient.
    """

    def __init__(self, loop: InboxLoop, key: bytes) -> None:
        self._loop = loop
        self._task = loop.task
        self._key = key
        self._taken: list[Message] = []
        self._is_given_back = False

    async def work(self, running: Running) -> bool:
        """Work on the mail; return whether it was consumed, buried or postponed.

        A message that is postponed without a delay does not count.
        """

        async def failed(error: Exception) -> None:
            if not (running.is_stopped or running.is_lost):
                self._is_given_back = await self._give_back(error)

        loop = self._loop
        try:
            await loop.caller.call_with(loop.callee, self._take, failed, running)
        except (Retryable, CommitUnknown) as error:
            loop.leave_alone(self._key, error)
            return False
        except Exception as error:
            if running.is_stopped or running.is_lost:
                return False  # the mail stays in its inbox, or its outcome is stored already
            if not self._is_given_back and not await self._give_back(error):
                return False
            # run_ready does not try a key again whose messages come again at once.
            return not (isinstance(error, Reject) and error.delay is not None and not error.delay)
        return bool(self._taken)

    async def abandon(self, running: Running) -> bool:
        """Store a failure, since the function goes on although it was cancelled."""
        try:
            if running.is_stopped:
                return False
            error = TimeoutError(f"{running.given_up}; it goes on although it was cancelled")
            return await self._give_back(error)
        finally:
            running.release()

    async def _take(self, tx: Transaction) -> Any:
        self._is_given_back = False
        self._taken.clear()
        if not await tx.try_lock(lock_key(self._key), LOCK_PATIENCE_SECONDS):
            self._loop.work_elsewhere(self._key)
            return None
        self._taken.extend(await self._reap(tx))
        if not self._taken:
            return None
        return self._taken[0] if self._task.batch is None else list(self._taken)

    async def _reap(self, tx: Transaction) -> list[Message]:
        """Return the oldest messages of the key.

        Raises:
            WrongType: the codec cannot unpack one of them; ``_taken`` has their ids.
        """
        key, task = self._key, self._task
        try:
            most = task.options.max_attempts
            return list(await tx.reap_queue(key, task.batch or 1, max_attempts=most))
        except WrongType:
            ids = tx.reaped_ids(key)
            self._taken += [Message(key, None, None, id_, 0, ANY_ATTEMPTS) for id_ in ids]
            raise

    async def _give_back(self, error: Exception) -> bool:
        """Postpone or bury the messages that have failed; return whether nothing is left to store.

        There is nothing to store if the messages are gone, or if another worker has tried them
        meanwhile.
        """
        taken = list(self._taken)
        if not taken:
            self._loop.leave_alone(self._key, error)
            return False
        outcome = outcome_of(error)
        try:
            await self._write_down(taken, outcome)
        except TransactionConflict:
            return True
        except Error as other:
            self._loop.leave_alone(self._key, other)
            return False
        for each in taken:
            await self._loop.failures.tell(self._failure(each, error, outcome))
        return True

    def _failure(self, message: Message, error: Exception, outcome: Outcome) -> Failure:
        attempt, most = max(message.attempts, 0) + 1, self._task.options.max_attempts
        dead = outcome.dead or (most is not None and attempt >= most)
        revive = f"to revive it: {reviving_letter(message.id)}"
        name = f"message {message.id} of {message.key!r}"
        return Failure(message, name, attempt, error, revive if dead else "")

    async def _write_down(self, taken: list[Message], outcome: Outcome) -> None:
        """Store an outcome in one transaction, or in several if it is too large for one."""
        task = self._task
        try:
            async with self._loop.caller.db.begin() as tx:
                if outcome.dead:
                    tx.bury(taken, outcome.reason)
                else:
                    tx.postpone(
                        taken, outcome.delay, outcome.reason,
                        hold=task.hold, max_attempts=task.options.max_attempts,
                    )  # fmt: skip
        except TransactionTooLarge:
            half = len(taken) // 2
            if not half:
                raise
            await self._write_down(taken[:half], outcome)
            await self._write_down(taken[half:], outcome)


BACKOFF_SECONDS_FIRST: Final = 1.0
BACKOFFS_KEPT: Final = 10_000
"""The number of failed keys that are remembered; the one that failed longest ago goes first."""
IDLE_SECONDS_FIRST: Final = 0.02
LONGEST_IDLE_SECONDS: Final = 0.5
LOOKED_AT_ONCE: Final = 1000
"""The number of keys that are looked at together."""
ELSEWHERE_SECONDS: Final = 0.25
"""The time after which a key is tried again that another worker was busy with, in seconds."""


class Backoffs:
    """The keys that are left alone for a while, because their mail could not be worked on.

    ``len`` is their number.
    """

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many have failed, and not succeeded since."""
        return len(self._until)

    def failed(self, key: bytes, now: float, delay: float | None = None) -> float:
        """Note that a key has failed; return for how many seconds it is left alone."""
        _, last = self._until.pop(key, (0.0, BACKOFF_SECONDS_FIRST / 2))
        pause = min(2 * last, WORKER_BACKOFF_SECONDS_MAX)
        self._until[key] = (now + (pause if delay is None else delay), pause)
        if len(self._until) > BACKOFFS_KEPT:
            self._until.popitem(last=False)
        return pause if delay is None else delay

    def succeeded(self, key: bytes) -> None:
        """Note that a key has succeeded."""
        self._until.pop(key, None)

    def holds(self, key: bytes, now: float) -> bool:
        """Return whether the key is to be left alone."""
        return self._until.get(key, (0.0, 0.0))[0] > now


class InboxLoop:
    """The loop that brings an inbox task its mail.

    Args:
        task: the task.
        workplace: what the loops of the run share.
        failures: where failures are told.

    Attributes:
        callee: the function of the task.
        caller: calls it.
    """

    def __init__(self, task: InboxTask, workplace: Workplace, failures: Failures) -> None:
        self.task = task
        self.callee = Callee(task.function)
        self.caller = caller = workplace.caller
        self.failures = failures
        self._supervisor = workplace.supervisor
        self._stopping = workplace.stopping
        self._monotonic = caller.db.sender.monotonic
        options = task.options
        self._calls = Calls(
            self._monotonic, options.concurrency, caller.lost, workplace.slots, options.timeout
        )
        self._backoffs = Backoffs()
        self._busy: dict[bytes, asyncio.Future[bool]] = {}
        self._elsewhere: dict[bytes, float] = {}
        self._cursor = b""

    # --- finding keys

    async def run(self) -> None:
        """Run until it is to stop; calls that run then go on (:meth:`finish`)."""
        pause = IDLE_SECONDS_FIRST
        while not self._stopping.is_set():
            if await self._round():
                pause = IDLE_SECONDS_FIRST
                continue
            jittered = pause * self.caller.db.sender.random.uniform(0.5, 1.0)
            stopped: asyncio.Future[bool] = asyncio.ensure_future(self._stopping.wait())
            busy = [asyncio.shield(each) for each in self._busy.values()]
            await waited([stopped, *busy], jittered)
            pause = min(2 * pause, LONGEST_IDLE_SECONDS)

    async def run_ready(self) -> int:
        """Work off the mail that is there now; return how many batches of it there were.

        A key whose function has asked for another attempt at once is not tried again by this call.
        """
        done, failed = 0, set[bytes]()
        while started := await self._round(failed):
            worked = await asyncio.gather(*started.values())
            done += sum(worked)
            failed.update(key for key, has in zip(started, worked, strict=True) if not has)
        return done

    async def _round(self, passed: Collection[bytes] = ()) -> dict[bytes, asyncio.Future[bool]]:
        """Begin to work on keys that have mail; return those that it has begun with.

        Args:
            passed: keys to leave alone.
        """
        start, end = span_of(self.task.prefix)
        now = self._monotonic()
        self._elsewhere = {key: until for key, until in self._elsewhere.items() if until > now}
        first = cursor = self._cursor or start
        started: dict[bytes, asyncio.Future[bool]] = {}
        is_over = first == start  # there is nothing before it
        while not started and not self._stopping.is_set():
            found = await self.caller.db.inboxes(
                cursor, end, limit=LOOKED_AT_ONCE, ready=True, by_key=True
            )
            await self._begin(found, passed, now, started)
            if len(found) == LOOKED_AT_ONCE:
                cursor = found[-1].key + b"\x00"
                if is_over and cursor > first > start:
                    break
                continue
            cursor = start
            if is_over:
                break
            is_over = True
        self._cursor = cursor
        return started

    async def _begin(
        self,
        found: list[InboxInfo],
        passed: Collection[bytes],
        now: float,
        started: dict[bytes, asyncio.Future[bool]],
    ) -> None:
        """Begin to work on the keys of a page that are not to be left alone."""
        for info in found:
            if self._stopping.is_set():
                return
            left_alone = self._backoffs.holds(info.key, now) or info.key in self._elsewhere
            if info.key in self._busy or left_alone or info.key in passed:
                continue
            await self._calls.slot()
            await self.caller.room(self._stopping)
            started[info.key] = self._start(info.key)

    def _start(self, key: bytes) -> asyncio.Future[bool]:
        mail = Mail(self, key)
        ended = self._calls.start(Running(self._monotonic), mail.work, mail.abandon)
        self._busy[key] = ended
        ended.add_done_callback(functools.partial(self._freed, key))
        return ended

    def _freed(self, key: bytes, ended: asyncio.Future[bool]) -> None:
        del self._busy[key]
        if not ended.cancelled() and ended.exception() is None and ended.result():
            self._backoffs.succeeded(key)

    async def finish(self) -> None:
        """Wait until everything that runs has ended."""
        await self._calls.finish()

    def cancel(self) -> None:
        """End what runs, as far as it can be ended; the mail stays in its inboxes."""
        self._calls.cancel()

    # --- news of mail

    def work_elsewhere(self, key: bytes) -> None:
        """Try a key again soon that another worker is busy with."""
        self._elsewhere[key] = self._monotonic() + ELSEWHERE_SECONDS

    def leave_alone(self, key: bytes, error: Exception) -> None:
        """Leave a key alone for a while whose mail could not be worked on."""
        seconds = self._backoffs.failed(key, self._monotonic())
        self._supervisor.say(
            f"{key!r} {type(error).__name__}", "the mail of %s is left alone for %g s: %s",
            repr(key), seconds, told(error),
        )  # fmt: skip
