"""Tasks of queues: a function, and the loop that brings it messages.

::

    claimed ─▶ a slot is free ─▶ the function is called ─┬─ returned ─▶ acknowledged, with its
                  writes (its lease is extended meanwhile)      ├─ Reject ───▶ given back, with its
                                                         delay ├─ Discard ──▶ a dead letter
                                                         └─ any other ▶ given back, with the queue's
                                                                        back-off; dead after
                                                                        max_attempts
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar

from postroom.client import database as asynchronous
from postroom.client.queues.messages import EnqueueHandle, QueueMessage
from postroom.client.queues.queue import Queue
from postroom.client.queues.sending import Enqueue, QueueSends
from postroom.client.worker.calling import Caller, Running
from postroom.client.worker.keeping import Keeper
from postroom.client.worker.outcomes import Discard, Reject
from postroom.client.worker.supervision import Supervisor, told
from postroom.errors import Error, LeaseLost

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function of a worker. Called, it is the function; ``enqueue`` has it called by a worker.

    Attributes:
        queue, kind: of the messages that it is called with.
        concurrency: how many of them at a time, by one worker.
        max_attempts: after which a message is dead; ``None``: what the queue says.
    """

    def __init__(
        self,
        function: Callable[P, R],
        queue: str,
        kind: str,
        concurrency: int,
        max_attempts: int | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.queue = queue
        self.kind = kind
        self.concurrency = concurrency
        self.max_attempts = max_attempts

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, here and now."""
        return self.function(*args, **kwargs)

    def enqueue(self, tx: QueueSends, payload: Any, **options: Any) -> EnqueueHandle:
        """Has a worker call the function, once ``tx`` has committed.

        Args:
            tx: a transaction, of either form.
            payload: of the message.
            options: those of ``tx.enqueue``, but for queue and kind.
        """
        return tx.enqueue(self.queue, payload, kind=self.kind, **options)

    def message(self, payload: Any, **options: Any) -> Enqueue:
        """The same for ``tx.when_done``."""
        return Enqueue(self.queue, payload, kind=self.kind, **options)

    def is_last(self, message: QueueMessage) -> bool:
        """Whether no attempt follows this one."""
        return self.max_attempts is not None and message.epoch + 1 >= self.max_attempts


class TaskLoop:
    """Brings a task its messages.

    Args:
        task: which one.
        caller: calls it.
        supervisor: for what is to be said.
        stopping: set when it is to stop.
        slots: of the worker; ``None``: it has as many as its tasks.
        patience: seconds of one claim; ``None``: claims can be cancelled.
    """

    def __init__(
        self,
        task: Task[Any, Any],
        caller: Caller,
        supervisor: Supervisor,
        stopping: asyncio.Event,
        slots: asyncio.Semaphore | None,
        patience: float | None,
    ) -> None:
        self.task = task
        self._caller = caller
        self._supervisor = supervisor
        self._stopping = stopping
        self._slots = slots
        self._patience = patience
        self._own_slots = asyncio.Semaphore(task.concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._db: asynchronous.Database = caller.db
        self._queue: Queue = self._db.queue(task.queue)
        self._consumer = self._queue.consumer(kinds=(task.kind,), credit=task.concurrency)
        self._keeper = Keeper(self._db.sender, self._consumer)

    # --- claiming

    async def run(self) -> None:
        """Until it is to stop; what runs goes on (:meth:`finish`)."""
        try:
            while not self._stopping.is_set():
                await self._own_slots.acquire()
                message = None
                try:
                    if not self._stopping.is_set():
                        message = await self._next()
                finally:
                    if message is None:
                        self._own_slots.release()
                if message is not None:
                    self._start(message)
        finally:
            await self._consumer.give_back()

    async def _next(self) -> QueueMessage | None:
        # What was claimed together begins together: their transactions share a turn of the store.
        if (message := self._consumer.at_hand()) is not None:
            return message
        if self._patience is not None:
            return await self._consumer.next(self._patience)
        asked = asyncio.ensure_future(self._consumer.next())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({asked, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                message = asked.result()
                if message is not None:  # nobody has got it
                    await self._consumer.give_back_at_once(message)
            raise
        finally:
            stopping.cancel()
            if not asked.done():
                asked.cancel()
                with suppress(asyncio.CancelledError):
                    await asked
            elif not asked.cancelled():
                asked.exception()  # it is retrieved, also if this was cancelled meanwhile

    async def run_ready(self) -> int:
        """Works off what is ready now; returns how many messages that were."""
        done = 0
        while True:
            await self._own_slots.acquire()
            message = await self._consumer.next(0)
            if message is None:
                self._own_slots.release()
                await self.finish()
                return done
            done += 1
            self._start(message)

    def _start(self, message: QueueMessage) -> None:
        running = asyncio.ensure_future(self._handle(message))
        self._running.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._own_slots.release()
        if not running.cancelled() and (error := running.exception()) is not None:
            self._supervisor.say(
                f"{self.task.queue} {type(error).__name__}", "a message of %s: %s: %s",
                self.task.queue, type(error).__name__, str(error),
            )  # fmt: skip

    async def finish(self) -> None:
        """Until everything that runs has ended."""
        while self._running:
            await asyncio.wait(set(self._running))
        self._keeper.close()

    def cancel(self) -> None:
        """Ends what runs, as far as it can be ended; the messages are given back, uncounted."""
        for each in self._running:
            each.cancel()

    # --- one message

    async def _handle(self, message: QueueMessage) -> None:
        running = self._keeper.begins(message)
        try:
            async with self._slots or _Free():
                await self._call(message, running)
        except asyncio.CancelledError:
            await self._consumer.give_back_at_once(message)
            raise
        except LeaseLost as lost:
            self._supervisor.say(f"{self.task.queue} lost", "%s: %s", self.task.queue, str(lost))
            message.settled()
        except Reject as asked:
            await self._reject(message, asked.delay, asked.reason or "rejected by its function")
        except Discard as asked:
            await self._reject(message, None, asked.reason or "discarded", dead=True)
        except Exception as error:
            reason = told(error)
            self._supervisor.say(
                f"{self.task.queue} {type(error).__name__}",
                "message %s of %s has failed (attempt %d): %s",
                str(message.id), self.task.queue, message.epoch + 1, reason,
            )  # fmt: skip
            await self._reject(message, None, reason)
        finally:
            self._keeper.ends(message)

    async def _call(self, message: QueueMessage, running: Running) -> None:
        def finish(tx: QueueSends) -> None:
            if not tx.queues.settles(message):
                tx.acknowledge(self.task.queue, message)

        function = self.task.function
        given = self._caller.message(function, message)
        await self._caller.call(function, given, finish, running)
        message.settled()

    async def _reject(
        self, message: QueueMessage, delay: Any, reason: str, *, dead: bool = False
    ) -> None:
        """What cannot be told the store is known to it when the lease has passed."""
        dead = dead or self.task.is_last(message)
        try:
            await message.reject(delay, dead=dead, reason=reason)
        except LeaseLost:
            message.settled()
        except (TypeError, ValueError) as error:  # that is no delay
            if delay is None:
                raise
            await self._reject(message, None, f"{reason} ({error})", dead=dead)
        except Error as error:
            self._supervisor.say(
                f"{self.task.queue} reject", "a message of %s could not be given back: %s",
                self.task.queue, str(error),
            )  # fmt: skip


class _Free:
    """No bound."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


__all__ = ["Task", "TaskLoop"]
