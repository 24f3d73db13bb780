"""Calling the function of a task, in a transaction, whichever form it and the database have.

==================  ==============================  ===============================================
database            ``async def f``                 ``def f``
==================  ==============================  ===============================================
asyncio             on the loop                     in a thread; its transaction lives on the loop
synchronous         on the worker's loop            in a thread, with a transaction of that thread's
==================  ==============================  ===============================================

As with ``run``, the function is called again if its transaction was in conflict with another one.
A function that has read nothing yet has all the time it likes: the time of its transaction begins
with its first read. So long work comes first, and reading and writing after it.

Some exceptions mean something else to whoever waits for a function than to the function itself: a
``CancelledError`` of something that it has waited for is no wish to end the worker, and a
``StopIteration`` cannot leave a thread. They become the cause of a ``RuntimeError``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction, signature
from typing import Any

from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.bridge import LoopSender
from postroom.client.queues.messages import AnyMessage, QueueMessage
from postroom.client.queues.sending import QueueSends
from postroom.client.queues.sync_queue import QueueMessage as MessageOfThreads
from postroom.client.transaction import Transaction
from postroom.errors import CommitUnknown, Retryable

Function = Callable[[Any, Any], Any]


def check_function(function: Function) -> None:
    """Each message would fail, and end as a dead letter, for a mistake that can be told now.

    Raises:
        TypeError: it cannot be called with a message and a transaction.
    """
    if not callable(function):
        raise TypeError(f"a task is a function f(message, tx), not {type(function).__name__}")
    try:
        parameters = signature(function)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return
    try:
        parameters.bind(None, None)
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        takes = ", ".join(parameters.parameters)
        raise TypeError(
            f"{name}({takes}) cannot be called as f(message, tx), so it is no task: {error}"
        ) from None


class Running:
    """A call that is under way; its transaction is kept young while it knows nothing."""

    def __init__(self) -> None:
        self._tx: QueueSends | None = None

    def begins(self, tx: QueueSends) -> None:
        """It has a new transaction."""
        self._tx = tx

    def keep_young(self) -> None:
        """Its transaction's time begins now, if it has read nothing."""
        if self._tx is not None:
            self._tx.keep_young()


class Caller:
    """See the module.

    Args:
        db: the asyncio form.
        db_of_threads: the synchronous form; ``None``: the store was opened in the other one.
        threads: where functions run that are no coroutine functions.
    """

    def __init__(
        self,
        db: asynchronous.Database,
        db_of_threads: blocking.Database | None,
        threads: ThreadPoolExecutor,
    ) -> None:
        self.db = db
        self._db_of_threads = db_of_threads
        self._threads = threads

    def message(self, function: Function, core: QueueMessage) -> AnyMessage:
        """A message in the form that goes with a function."""
        if iscoroutinefunction(function):
            return core
        return MessageOfThreads(LoopSender(self.db.sender, asyncio.get_running_loop()), core)

    async def call(
        self, function: Function, given: Any, finish: Callable[[QueueSends], None], running: Running
    ) -> None:
        """Calls ``function(given, tx)`` and commits.

        Args:
            function: of the task.
            given: its first argument.
            finish: what the worker adds to the transaction.
            running: learns of the transaction.

        Raises:
            whatever the function and the commit raise; nothing was changed.
        """
        database = self._db_of_threads
        if iscoroutinefunction(function) or database is None:

            async def attempt_on_loop(tx: Transaction) -> None:
                running.begins(tx)
                await self._call_on_loop(function, given, tx)
                finish(tx)

            await self.db.repeat(attempt_on_loop)
            return

        def attempt(tx: blocking.Transaction) -> None:
            running.begins(tx)
            function(given, tx)
            finish(tx)

        await self._in_thread(database.run, attempt)

    async def call_with(
        self,
        function: Function,
        take: Callable[[Transaction], Awaitable[Any]],
        failed: Callable[[Exception], Awaitable[None]],
    ) -> None:
        """The same with a transaction of the loop, from which ``take`` gets what the function is
        given; if that is ``None`` there is nothing to do. Its commit consumes that.

        Args:
            function: of the task.
            take: gets its first argument.
            failed: called when the function has failed, and while the transaction still holds what
                it has taken.
        """

        async def attempt(tx: Transaction) -> None:
            given = await take(tx)
            if given is None:
                return
            try:
                await self._call_on_loop(function, given, tx)
            except (Retryable, CommitUnknown):
                raise
            except Exception as error:
                await failed(error)
                raise

        await self.db.repeat(attempt)

    async def _call_on_loop(self, function: Function, given: Any, tx: Transaction) -> None:
        if iscoroutinefunction(function):
            try:
                await function(given, tx)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                raise _as_failure(error) from error
        else:
            sender = LoopSender(self.db.sender, asyncio.get_running_loop())
            await self._in_thread(function, given, blocking.Transaction(sender, tx))

    async def _in_thread(self, function: Callable[..., Any], *given: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, _called, function, *given)


def _called(function: Callable[..., Any], *given: Any) -> None:
    try:
        function(*given)
    except (StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError) as error:
        raise _as_failure(error) from error


def _as_failure(error: BaseException) -> RuntimeError:
    return RuntimeError(f"its function has raised {type(error).__name__}")


__all__ = ["Caller", "Function", "Running"]
