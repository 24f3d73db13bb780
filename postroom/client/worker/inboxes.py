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

:mod:`.mail` says what becomes of the mail of a key. Sometimes it could not be worked on, for a
reason that says nothing about the mail (no leader, no network, conflicts for a minute). Then this
worker leaves the key alone for a while, and remembers this in memory only.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from postroom.client.values import InboxInfo
from postroom.client.worker.calling import Callee
from postroom.client.worker.calls import Calls, Running
from postroom.client.worker.failures import Failures
from postroom.client.worker.mail import Desk, InboxTask, Mail, lock_key
from postroom.client.worker.outcomes import told
from postroom.client.worker.supervision import waited
from postroom.client.worker.workplace import Workplace
from postroom.kv.tuples import prefix as span_of
from postroom.limits import WORKER_BACKOFF_SECONDS_MAX

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
    """

    def __init__(self, task: InboxTask, workplace: Workplace, failures: Failures) -> None:
        self.task = task
        self._caller = caller = workplace.caller
        self._supervisor = workplace.supervisor
        self._stopping = workplace.stopping
        self._monotonic = caller.db.sender.monotonic
        options = task.options
        self._calls = Calls(
            self._monotonic, options.concurrency, caller.lost, workplace.slots, options.timeout
        )
        self._desk = Desk(
            task, Callee(task.function), caller, failures, self._worked_elsewhere, self._leave_alone
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
            jittered = pause * self._caller.db.sender.random.uniform(0.5, 1.0)
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
            found = await self._caller.db.inboxes(
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
            await self._caller.room(self._stopping)
            started[info.key] = self._start(info.key)

    def _start(self, key: bytes) -> asyncio.Future[bool]:
        mail = Mail(self._desk, key)
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

    def _worked_elsewhere(self, key: bytes) -> None:
        self._elsewhere[key] = self._monotonic() + ELSEWHERE_SECONDS

    def _leave_alone(self, key: bytes, error: Exception) -> None:
        seconds = self._backoffs.failed(key, self._monotonic())
        self._supervisor.say(
            f"{key!r} {type(error).__name__}", "the mail of %s is left alone for %g s: %s",
            repr(key), seconds, told(error),
        )  # fmt: skip


__all__ = ["Backoffs", "InboxLoop", "InboxTask", "lock_key"]
