"""A worker on a synchronous database: it has an event loop of its own while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, TypeVar

from postroom.client import arguments
from postroom.client import sync as blocking
from postroom.client.worker.calls import Threads
from postroom.client.worker.failures import Hook
from postroom.client.worker.stop_signals import stopped_by_signals
from postroom.client.worker.worker import Run, WorkerTasks
from postroom.errors import Invalid
from postroom.limits import BRIDGING_THREADS_MAX

T = TypeVar("T")


class Worker(WorkerTasks[blocking.CoreDatabase]):
    """A set of functions that are called with messages of queues and inboxes.

    Args:
        db: the database whose messages it works on; ``None``: given later (:meth:`bind`).
        on_failure: called with message, exception and number of the attempt when an attempt of any
            of its tasks has failed, after the hook of the task.
        on_dead: called in the same way when a message has died of it.

    Examples:
        >>> _ = db.create_queue("emails")
        >>> worker = postroom.Worker(db)
        >>> @worker.task(queue="emails", kind="welcome", concurrency=16, max_attempts=8)
        ... def welcome(message, tx):
        ...     tx.put(b"welcomed/" + message.payload, b"yes")
        >>> with db.begin() as tx:
        ...     handle = welcome.enqueue(tx, b"ada")
        >>> worker.run_until_idle()
        1
        >>> db.get(b"welcomed/ada")
        b'yes'
    """

    _kind = blocking.CoreDatabase
    _takes = (
        "postroom.Worker takes a database of postroom.open() or postroom.connect(); for one of "
        "postroom.aio there is postroom.aio.Worker"
    )

    def __init__(
        self,
        db: blocking.CoreDatabase | None = None,
        *,
        on_failure: Hook | None = None,
        on_dead: Hook | None = None,
    ) -> None:
        super().__init__(db, on_failure=on_failure, on_dead=on_dead)
        self._stop: Callable[[], object] = lambda: None

    def run(
        self,
        *,
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        signals: bool = True,
        ready: Callable[[], Any] | None = None,
    ) -> None:
        """Work until it is told to stop, by :meth:`stop` or a signal.

        Then it finishes what it has begun, and gives back what it has claimed ahead. It goes on
        whatever fails: a loop that has failed begins again after a pause. The log
        ``postroom.worker`` tells it.

        Args:
            queues: run only the tasks of these queues.
            concurrency: how many messages and keys at a time altogether.
            signals: whether SIGTERM and SIGINT stop it, if this is the main thread; the second one
                cancels what runs.
            ready: called, once, when its queues have been found, and before it takes messages. It
                may be a coroutine function.

        Raises:
            Invalid: a queue of its tasks does not exist, or an event loop runs in this thread.
            DatabaseClosed: the database was closed meanwhile.
        """

        async def work(run: Run) -> None:
            with stopped_by_signals(run.stop, run.caller.forget_lost, wanted=signals):
                await run.until_stopped(ready)

        self._on_a_loop(work, queues, concurrency)

    def run_until_idle(self, *, queues: Collection[str] | None = None) -> int:
        """Work off what is due, and what becomes due by it; return the number of messages.

        A batch of an inbox counts as one. Messages that are scheduled for later, back off, or are
        held back by a limit of their queue, are not due. A message that is rejected with
        ``delay=0`` is due again at once: a function that does this for ever needs ``max_attempts``,
        or this does not end.

        Args:
            queues: run only the tasks of these queues; ``None``: all tasks.

        Raises:
            Invalid: a queue of its tasks does not exist, or an event loop runs in this thread.
        """
        return self._on_a_loop(Run.until_idle, queues, None)

    def stop(self) -> None:
        """Begin nothing more; called again, cancel what runs. Any thread may call it."""
        self._stop()

    def _on_a_loop(
        self,
        work: Callable[[Run], Awaitable[T]],
        queues: Collection[str] | None,
        concurrency: int | None,
    ) -> T:
        if concurrency is not None:
            arguments.count(concurrency, "concurrency")
        _check_that_no_loop_runs()
        chosen, database = self.chosen(queues), self.db
        threads = Threads(BRIDGING_THREADS_MAX, "postroom-bridge")

        async def run() -> Any:
            loop = asyncio.get_running_loop()
            made = Run(
                database.on_loop(threads), database, chosen, self.hooks, concurrency,
                self.make_context,
            )  # fmt: skip
            self.caller = made.caller
            self._stop = lambda: loop.call_soon_threadsafe(made.stop)
            try:
                return await work(made)
            finally:
                made.caller.forget_lost()

        try:
            result: T = asyncio.run(run())
            return result
        finally:
            self._stop = lambda: None
            threads.shutdown()


def _check_that_no_loop_runs() -> None:
    with suppress(RuntimeError):  # the usual case: none runs
        asyncio.get_running_loop()
        raise Invalid(
            "a postroom.Worker has an event loop of its own, and another one runs in this thread; "
            "nothing was done: use postroom.aio.Worker, or call asyncio.to_thread(worker.run)"
        )
