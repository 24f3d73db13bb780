"""Tasks of queues: a function, and the loop that brings it messages.

::

    claimed ─▶ a slot is free ─▶ the function is called ─┬─ returned ──▶ acknowledged, with its
               (its lease is extended meanwhile)         │               writes
                                                         ├─ Reject ────▶ given back, with its delay
                                                         ├─ Discard ───▶ a dead letter
                                                         └─ any other ─▶ given back, with the
                                                                         queue's back-off; dead
                                                                         after max_attempts

Whatever a function does, its message gets one of these ends, with a reason, at once. A lease that
was lost has ended the attempt already.

A keeper looks at all messages that a task works on, four times a lease. A message that has less
than half of its lease left gets a whole one more. A transaction in which nothing could become too
old begins its time again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, ParamSpec, TypeVar

from postroom.client import database as asynchronous
from postroom.client.queues.messages import QueueMessage
from postroom.client.queues.queue import Queue
from postroom.client.queues.results import failure_of, packed_result
from postroom.client.queues.sending import Enqueue, HandleT, QueueSends
from postroom.client.sender import Sender
from postroom.client.worker.calling import Callee, Workplace
from postroom.client.worker.calls import Calls, Running
from postroom.client.worker.failures import (
    Failure,
    Failures,
    Options,
    ResultRefused,
    outcome_of,
    text_of,
    told,
    user_calls,
)
from postroom.errors import Error, LeaseLost
from postroom.log_once import shown
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.requests import KeepResult
from postroom.messaging.undelivered import reviving_queue_message

LOOKS_PER_LEASE: Final = 4
YOUNG_SECONDS: Final = 20.0
"""The longest pause between two looks, in seconds: a third of a transaction's time."""
LOOK_SECONDS_MIN: Final = 0.01


class Keeper:
    """A keeper of the messages that one task is working on.

    Args:
        sender: tells the time.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._held: dict[QueueMessage, tuple[Running, float]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._pause = 0.0

    def begins(self, message: QueueMessage, running: Running) -> None:
        """Keep ``message``, which is being worked on from now on."""
        lease = self._left(message)
        self._held[message] = running, lease
        pause = min(max(lease / LOOKS_PER_LEASE, LOOK_SECONDS_MIN), YOUNG_SECONDS)
        if self._looking is None or pause < self._pause:
            self.close()
            self._pause = pause
            self._looking = asyncio.ensure_future(self._look())

    def ends(self, message: QueueMessage) -> None:
        """Stop keeping ``message``."""
        self._held.pop(message, None)

    def close(self) -> None:
        """Stop looking, until another message begins."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            short = []
            for message, (running, lease) in self._held.items():
                running.keep_young()
                if self._left(message) < lease / 2:
                    short.append(self._extend(message, lease))
            if short:
                await asyncio.gather(*short, return_exceptions=True)

    async def _extend(self, message: QueueMessage, lease: float) -> None:
        try:
            await message.extend(lease)
        except LeaseLost:
            self.ends(message)  # the commit will raise it
        except Error:
            return  # there are more looks before the lease has passed

    def _left(self, message: QueueMessage) -> float:
        return message.held_until - self._sender.monotonic()


SETTINGS_SECONDS: Final = 1.0
"""The time for which the settings of a queue are used without asking again, in seconds."""

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function of a worker. A call runs the function; ``enqueue`` has a worker call it.

    Attributes:
        queue, kind: those of the messages that it is called with.
        options: how they are worked off.
    """

    def __init__(self, function: Callable[P, R], queue: str, kind: str, options: Options) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.queue = queue
        self.kind = kind
        self.options = options

    @property
    def name(self) -> str:
        """Return its name in the log."""
        return f"the task of queue {self.queue!r}, kind {self.kind!r}"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)

    def enqueue(self, tx: QueueSends[HandleT], payload: Any, **options: Any) -> HandleT:
        """Have a worker call the function, once ``tx`` has committed.

        Args:
            tx: a transaction, of either form.
            payload: the payload of the message.
            options: those of ``tx.enqueue``, except queue and kind.
        """
        return tx.enqueue(self.queue, payload, kind=self.kind, **options)

    def message(self, payload: Any, **options: Any) -> Enqueue:
        """Return a message that has a worker call the function, for ``tx.when_done``."""
        return Enqueue(self.queue, payload, kind=self.kind, **options)

    def is_last(self, message: QueueMessage) -> bool:
        """Return whether no attempt follows this one."""
        most = self.options.max_attempts
        return most is not None and message.epoch + 1 >= most


class TaskLoop:
    """The loop that brings a task its messages.

    Args:
        task: the task.
        workplace: what the loops of the run share.
        failures: where failures are told.
    """

    def __init__(self, task: Task[Any, Any], workplace: Workplace, failures: Failures) -> None:
        self.task = task
        self._caller = caller = workplace.caller
        self._failures = failures
        self._supervisor = workplace.supervisor
        self._stopping = workplace.stopping
        self._callee = Callee(task.function)
        self._known: QueueSettings | None = None
        self._asked_at = 0.0
        self._db: asynchronous.CoreDatabase = caller.db
        self._queue: Queue = self._db.queue(task.queue)
        concurrency = task.options.concurrency
        self._consumer = self._queue.consumer(kinds=(task.kind,), credit=concurrency)
        self._keeper = Keeper(self._db.sender)
        self._calls = Calls(
            self._db.sender.monotonic,
            concurrency,
            caller.lost,
            workplace.slots,
            task.options.timeout,
        )

    # --- claiming

    async def run(self) -> None:
        """Run until it is to stop; calls that run then go on (:meth:`finish`)."""
        try:
            while not self._stopping.is_set():
                await self._calls.slot()
                message = None
                try:
                    await self._caller.room(self._stopping)
                    if not self._stopping.is_set():
                        message = await self._next()
                finally:
                    if message is None:
                        self._calls.leave()
                if message is not None:
                    self._start(message)
        finally:
            await self._consumer.give_back()

    async def _next(self) -> QueueMessage | None:
        # Messages that were claimed together begin together: their transactions share a turn of the
        # store.
        if (message := self._consumer.at_hand()) is not None:
            return message
        asked = asyncio.ensure_future(self._consumer.next())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({asked, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                message = asked.result()
                if message is not None:  # no call has got it
                    await self._consumer.give_back_at_once(message)
            raise
        finally:
            stopping.cancel()
            if not asked.done():
                asked.cancel()
                with suppress(asyncio.CancelledError):
                    await asked
            elif not asked.cancelled():
                asked.exception()  # retrieve it, even if this was cancelled meanwhile

    async def run_ready(self) -> int:
        """Work off what is ready now; return how many messages there were."""
        done = 0
        while True:
            await self._calls.slot()
            message = await self._consumer.next(0)
            if message is None:
                self._calls.leave()
                await self.finish()
                return done
            done += 1
            self._start(message)

    def _start(self, message: QueueMessage) -> None:
        running = Running(self._db.sender.monotonic)
        self._keeper.begins(message, running)  # also while it waits for a slot
        ended = self._calls.start(
            running,
            functools.partial(self._handle, message),
            functools.partial(self._abandon, message),
        )
        ended.add_done_callback(self._ended)

    def _ended(self, ended: asyncio.Future[Any]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            self._supervisor.say(
                f"{self.task.queue} {type(error).__name__}", "a message of %s: %s: %s",
                self.task.queue, type(error).__name__, str(error),
            )  # fmt: skip

    async def finish(self) -> None:
        """Wait until everything that runs has ended."""
        await self._calls.finish()
        self._keeper.close()

    def cancel(self) -> None:
        """End what runs, as far as it can be ended; the messages are given back, uncounted."""
        self._calls.cancel()

    # --- one message

    async def _handle(self, message: QueueMessage, running: Running) -> None:
        try:
            await self._call(message, running)
        except asyncio.CancelledError:
            if not running.is_lost:
                await self._consumer.give_back_at_once(message)
            raise
        except Exception as error:
            if running.is_lost:
                return  # its outcome is stored already
            if running.is_stopped:
                await self._consumer.give_back_at_once(message)
            else:
                await self._failed(message, error)
        finally:
            self._keeper.ends(message)

    async def _call(self, message: QueueMessage, running: Running) -> None:
        keep_seconds = self.task.options.keep_result

        def finish(tx: QueueSends[Any], returned: Any) -> None:
            if not tx.queues.settles(message):
                if keep_seconds:
                    value = self._packed(returned, message)
                    tx.queues.keep_result(message, keep_seconds, value)
                tx.acknowledge(self.task.queue, message)

        await self._caller.call(self._callee, message, finish, running)
        message.settled()

    @staticmethod
    def _packed(returned: Any, message: QueueMessage) -> bytes | None:
        """Return what the function has returned, packed.

        Raises:
            ResultRefused: it cannot be packed, or is too large. Another attempt is useless.
        """
        try:
            return packed_result(returned, message.codec)
        except Exception as error:
            raise ResultRefused(told(error)) from None

    async def _abandon(self, message: QueueMessage, running: Running) -> None:
        """Store a failure, since the function goes on although it was cancelled."""
        self._keeper.ends(message)
        if running.is_stopped:
            await self._consumer.give_back_at_once(message)
        else:
            error = TimeoutError(f"{running.given_up}; it goes on although it was cancelled")
            await self._failed(message, error)

    async def _failed(self, message: QueueMessage, error: Exception) -> None:
        """Store how the attempt ended.

        If the store cannot be told, it finds out when the lease has passed.
        """
        outcome = outcome_of(error)
        dead, dies = outcome.dead or self.task.is_last(message), False
        try:
            settings = await self._settings()
            most = settings.max_attempts
            dies = dead or (most is not None and message.epoch + 1 >= most)
            await self._consumer.reject(
                message, outcome.delay, outcome.reason, dead=dead,
                with_result=self._kept_failure(message, error) if dies else None,
            )  # fmt: skip
        except LeaseLost as lost:
            self._supervisor.say(f"{self.task.queue} lost", "%s: %s", self.task.queue, str(lost))
            return
        except Error as other:
            self._supervisor.say(
                f"{self.task.queue} reject", "a message of %s could not be given back: %s",
                self.task.queue, str(other),
            )  # fmt: skip
            return
        name = f"message {shown(message.id)} of queue {self.task.queue!r}"
        revive = ""
        if dies and settings.dead_letter_queue:
            revive = f"it is in queue {settings.dead_letter_queue!r} now, which works on it"
        elif dies:
            revive = f"to revive it: {reviving_queue_message(self.task.queue, message.id)}"
        await self._failures.tell(Failure(message, name, message.epoch + 1, error, revive))

    def _kept_failure(self, message: QueueMessage, error: Exception) -> KeepResult | None:
        """Return the request to keep the failure of which a message dies, or `None`."""
        seconds = self.task.options.keep_result
        if not seconds:
            return None
        calls = None if isinstance(error, ResultRefused) else user_calls(error)
        failure = failure_of(error, text_of(error), calls)
        return KeepResult(self.task.queue, message.attempt(), seconds, failure=failure)

    async def _settings(self) -> QueueSettings:
        now = self._db.sender.monotonic()
        if self._known is None or now - self._asked_at > SETTINGS_SECONDS:
            self._known, self._asked_at = (await self._queue.info()).settings, now
        return self._known
