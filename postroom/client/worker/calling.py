"""Calls of a task's function, in a transaction, whichever form it and the database have.

==================  ==============================  ===============================================
database            ``async def f``                 ``def f``
==================  ==============================  ===============================================
asyncio             on the loop                     in a thread; its transaction lives on the loop
synchronous         on the worker's loop            in a thread, with a transaction of that thread's
==================  ==============================  ===============================================

Like ``run``, this calls the function again if its transaction was in conflict with another one. A
function that has read nothing yet has any time that it needs: the time of its transaction begins
with its first read. Do long work first, and read and write after it.

A coroutine function cannot always be recognised: a plain decorator around one hides it. The result
of a call tells, too. A function that was called in a thread and has returned an awaitable has not
run. Its transaction is rolled back, and it is called again on the loop, in the asyncio forms. In
the same way, a plain function that was called on the loop is called again in a thread. A function
that has returned anything else that still has to run has failed (:mod:`postroom.client.functions`).

However a function ends, only its call ends. ``SystemExit``, a ``CancelledError`` of something that
it has waited for, or a ``StopIteration`` would mean something else to the waiting caller than to
the function. They become the cause of a ``RuntimeError``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import CoroutineType
from typing import Any, Final, NamedTuple, TypeAlias

from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.bridge import LoopSender
from postroom.client.functions import (
    AT_REST,
    at_rest,
    completed,
    is_asynchronous,
    is_pending,
    name_of,
)
from postroom.client.queues.messages import AnyMessage, QueueMessage
from postroom.client.queues.sending import QueueSends
from postroom.client.queues.sync_queue import QueueMessage as MessageOfThreads
from postroom.client.transaction import Transaction
from postroom.client.values import Message
from postroom.client.worker.calls import Running, Threads
from postroom.client.worker.supervision import Supervisor, log
from postroom.counted import counted
from postroom.errors import CommitUnknown, Retryable

Function = Callable[[Any, Any], Any]
MakeContext: TypeAlias = Callable[
    [Sequence[QueueMessage | Message]], AbstractContextManager[object]
]
"""A function that returns a context for a call of a function with messages, and its commit."""

STUCK_SECONDS: Final = 60.0
ROOM_SECONDS: Final = 0.5
"""The pause between two looks of a worker that takes nothing more, in seconds."""


class _OtherForm(TypeError):
    """A function that has the other form than it was called in, and has not run."""


class Callee:
    """A function of a user, and the form in which it is called.

    Attributes:
        function: the user's function.
        is_asynchronous: whether it is called on the loop; else in a thread. A call may show that
            this is wrong.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_asynchronous = is_asynchronous(function)


def no_context(_: Sequence[QueueMessage | Message]) -> AbstractContextManager[object]:
    """Return the context of a call with nothing around it."""
    return nullcontext()


class FunctionCaller:
    """The calls of functions for one run of a worker.

    Args:
        db: the asyncio form.
        db_of_threads: the synchronous form; ``None``: the store was opened in the asyncio form.
        threads: where functions run that are no coroutine functions. They see the context of the
            loop.
        make_context: makes the context of each call.

    Attributes:
        lost: coroutines that go on although they were cancelled.
    """

    def __init__(
        self,
        db: asynchronous.CoreDatabase,
        db_of_threads: blocking.CoreDatabase | None,
        threads: Threads,
        make_context: MakeContext,
    ) -> None:
        self.db = db
        self.lost: set[asyncio.Task[Any]] = set()
        self._db_of_threads = db_of_threads
        self._threads = threads
        self._make_context = make_context
        self._owner = asyncio.current_task()

    @property
    def lost_calls(self) -> int:
        """Return how many functions go on that were given up."""
        return len(self.lost) + self._threads.lost

    async def room(self, stopping: asyncio.Event) -> None:
        """Wait until fewer functions are lost than may run, or until the worker is to stop."""
        while self.lost_calls >= self._threads.most and not stopping.is_set():
            log.error(
                "%s on that had to be given up, as many as this worker may run: it takes "
                "nothing more until one of them returns; restart its process",
                counted(self.lost_calls, "function goes", "functions go"),
            )
            waiting = asyncio.ensure_future(stopping.wait())
            give_up = asyncio.get_running_loop().time() + STUCK_SECONDS
            while self.lost_calls >= self._threads.most and not waiting.done():
                left = give_up - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                await asyncio.wait({waiting}, timeout=min(left, ROOM_SECONDS))
            waiting.cancel()

    def lose(self, call: asyncio.Task[Any]) -> None:
        """Note a coroutine that goes on although it was cancelled."""
        self.lost.add(call)
        call.add_done_callback(self.lost.discard)

    def forget_lost(self) -> None:
        """Forget the coroutines that do not end: the loop ends, and must not wait for them."""
        for each in self.lost:
            asyncio._unregister_task(each)
            each._log_destroy_pending = False  # type: ignore[attr-defined]

    async def call_hook(self, hook: Callee, message: Any, error: Exception, attempt: int) -> None:
        """Call a function that is told of a failure.

        Raises:
            whatever it raises.
        """
        if not hook.is_asynchronous:
            given = self.message(hook, message) if isinstance(message, QueueMessage) else message
            future = self._threads.submit(_called, hook.function, given, error, attempt)
            try:
                await asyncio.wrap_future(future)
            except _OtherForm:
                hook.is_asynchronous = True
            except asyncio.CancelledError:
                self._threads.lose(future)
                raise
            else:
                return
        try:
            result = hook.function(message, error, attempt)
            await completed(result, hook.function, callables=True)
        except BaseException as raised:
            task = asyncio.current_task()
            if _is_interrupt(raised) or (task is not None and task.cancelling()):
                raise
            raise _as_failure(raised) from raised

    def message(self, callee: Callee, core: QueueMessage) -> AnyMessage:
        """Return a message in the form that goes with a function."""
        if callee.is_asynchronous:
            return core
        return MessageOfThreads(LoopSender(self.db.sender, asyncio.get_running_loop()), core)

    async def call(
        self,
        callee: Callee,
        message: QueueMessage,
        finish: Callable[[QueueSends[Any], Any], None],
        running: Running,
    ) -> None:
        """Call the function of a task with a message of a queue, and commit.

        Args:
            callee: the function.
            message: its first argument.
            finish: adds to the transaction what the worker does, given what was returned.
            running: the call.

        Raises:
            whatever the function and the commit raise; nothing was changed.
        """
        with self._make_context([message]):
            try:
                await self._call(callee, message, finish, running)
            except _OtherForm:
                callee.is_asynchronous = not callee.is_asynchronous
                await self._call(callee, message, finish, running)

    async def _call(
        self,
        callee: Callee,
        message: QueueMessage,
        finish: Callable[[QueueSends[Any], Any], None],
        running: Running,
    ) -> None:
        given, database = self.message(callee, message), self._db_of_threads
        if callee.is_asynchronous or database is None:

            async def try_on_loop(tx: Transaction) -> None:
                running.begins(tx)
                given.given_to_task(tx.id)
                tx.queues.near = message.stored.locator[0]
                finish(tx, await self._call_on_loop(callee, given, tx, running))

            await self.db.repeat(try_on_loop)
            return

        def one_try(tx: blocking.Transaction) -> None:
            running.begins(tx)
            given.given_to_task(tx.id)
            tx.queues.near = message.stored.locator[0]
            running.calling()
            returned = _called(callee.function, given, tx)
            running.returned()
            finish(tx, returned)

        try:
            await self._in_thread(running, database.run, one_try)
        finally:
            if running.given_up is not None:
                running.release()

    async def call_with(
        self,
        callee: Callee,
        take: Callable[[Transaction], Awaitable[Any]],
        failed: Callable[[Exception], Awaitable[None]],
        running: Running,
    ) -> None:
        """Call a function in a transaction of the loop with what ``take`` gets from it, and commit.

        If ``take`` returns ``None`` there is nothing to do. The commit consumes what it has taken.

        Args:
            callee: the function.
            take: gets its first argument.
            failed: called when the function has failed, while the transaction still holds what it
                has taken.
            running: the call.
        """

        async def one_try(tx: Transaction) -> None:
            entered.close()  # an earlier try has one
            running.begins(tx)
            given = await take(tx)
            if given is None:
                return
            entered.enter_context(self._make_context(given if isinstance(given, list) else [given]))
            try:
                await self._call_on_loop(callee, given, tx, running)
            except (Retryable, CommitUnknown, _OtherForm):
                raise
            except Exception as error:
                await failed(error)
                raise

        with ExitStack() as entered:
            try:
                await self.db.repeat(one_try)
            except _OtherForm:
                callee.is_asynchronous = not callee.is_asynchronous
                await self.db.repeat(one_try)

    async def _call_on_loop(
        self, callee: Callee, given: Any, tx: Transaction, running: Running
    ) -> Any:
        running.calling()
        if callee.is_asynchronous:
            running.is_in_function = True
            try:
                returned = await self._awaited(callee.function, given, tx, running)
            finally:
                running.is_in_function = False
        else:
            sender = LoopSender(self.db.sender, asyncio.get_running_loop())
            of_thread = blocking.Transaction(sender, tx)
            returned = await self._in_thread(running, _called, callee.function, given, of_thread)
        running.returned()
        return returned

    async def _awaited(self, function: Function, given: Any, tx: Any, running: Running) -> Any:
        try:
            result = function(given, tx)
            if type(result) is CoroutineType:  # the usual case
                result = await result
                if type(result) in AT_REST:
                    return result
            elif not is_pending(result):
                at_rest(result, function, callables=True)
                raise _OtherForm(
                    f"{name_of(function)} returns a coroutine in some calls and none in others: "
                    "make it a coroutine function"
                )
            return await completed(result, function, callables=True)
        except asyncio.CancelledError as error:
            if self._is_stopped(running):
                raise
            _uncancel()
            raise running.given_up or _as_failure(error) from error
        except Exception:
            raise
        except BaseException as error:
            if _is_interrupt(error):
                raise
            raise _as_failure(error) from error

    async def _in_thread(self, running: Running, function: Callable[..., Any], *given: Any) -> Any:
        future = self._threads.submit(contextvars.copy_context().run, function, *given)
        running.in_thread(future)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError as error:
            is_lost = running.lose_thread(self._threads)
            if self._is_stopped(running) or running.given_up is None:
                raise
            _uncancel()
            if not is_lost:
                raise running.given_up from error
            raise TimeoutError(
                f"{running.given_up}; its thread cannot be stopped, and is lost until its function "
                "returns"
            ) from error

    def _is_stopped(self, running: Running) -> bool:
        """Return whether a call was cancelled by the worker, or together with the worker."""
        owner = self._owner
        return running.is_stopped or (owner is not None and owner.cancelling() > 0)


def _called(function: Callable[..., Any], *given: Any) -> Any:
    try:
        result = function(*given)
        if is_pending(result):
            if hasattr(result, "close"):
                result.close()
            raise _OtherForm(
                f"{name_of(function)} returns a coroutine in some calls and none in others: make "
                "it a coroutine function"
            )
        return at_rest(result, function, callables=True)
    except (StopIteration, concurrent.futures.CancelledError) as error:
        raise _as_failure(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise _as_failure(error) from error


def _as_failure(error: BaseException) -> RuntimeError:
    try:
        text = str(error)
    except BaseException:  # the failure is told all the same
        text = ""
    return RuntimeError(f"its function has raised {type(error).__name__}{text and ': '}{text}")


def _uncancel() -> None:
    """Uncancel the running task: it was cancelled only to end the function, which has ended."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _is_interrupt(error: BaseException) -> bool:
    """Return whether an error may come from a signal without a handler, not from the function."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


class Workplace(NamedTuple):
    """The objects that the loops of one run of a worker share.

    Attributes:
        caller: calls functions.
        supervisor: runs loops, and logs their trouble.
        stopping: set when the loops are to stop.
        slots: the slots of the worker; ``None``: it has as many as its tasks.
    """

    caller: FunctionCaller
    supervisor: Supervisor
    stopping: asyncio.Event
    slots: asyncio.Semaphore | None
