"""A worker on a synchronous database: it has an event loop of its own while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from postroom.client import arguments
from postroom.client import sync as blocking
from postroom.client.worker.worker import Run, Tasks, stopped_by_signals
from postroom.limits import BRIDGING_THREADS_MAX

T = TypeVar("T")


class Worker(Tasks[blocking.Database]):
    """Functions that are called with messages of queues and inboxes.

    ::

        worker = postroom.Worker(db)


        @worker.task(queue="emails", kind="welcome", concurrency=16, max_attempts=8)
        def welcome(message, tx):
            tx.put(b"welcomed/" + message.key, b"yes")


        worker.run()

    Args:
        db: whose messages it works on; ``None``: it is told later (:meth:`bind`).
    """

    def __init__(self, db: blocking.Database | None = None) -> None:
        super().__init__(db)
        self._stop: Callable[[], None] = lambda: None

    def run(
        self,
        *,
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        signals: bool = True,
        ready: Callable[[], None] | None = None,
    ) -> None:
        """Works until it is told to stop, by :meth:`stop` or a signal; then it finishes what it has
        begun, and gives back what it has claimed ahead.

        It goes on whatever fails: a loop of it that has failed begins again after a pause, and says
        so in the log ``postroom.worker``.

        Args:
            queues: only the tasks of these.
            concurrency: how many messages and keys at a time altogether.
            signals: SIGTERM and SIGINT stop it, if this is the main thread; the second one cancels
                what runs.
            ready: is called, once, when its queues have been found, and before it takes messages.

        Raises:
            Invalid: a queue of its tasks does not exist.
            DatabaseClosed: the database was closed meanwhile.
        """

        async def work(run: Run) -> None:
            with stopped_by_signals(run, wanted=signals):
                await run.until_stopped(ready)

        self._on_a_loop(work, queues, concurrency)

    def run_until_idle(self, *, queues: Collection[str] | None = None) -> int:
        """Works off what is due now, and what becomes due by it; returns how many messages, and
        batches of inboxes, that were. What is scheduled for later, backs off, or is held back by a
        limit of its queue, is not due. What is rejected with ``delay=0`` is due again at once: a
        function that does so for ever needs ``max_attempts``, or this does not end.
        """
        return self._on_a_loop(Run.until_idle, queues, None)

    def stop(self) -> None:
        """Nothing more is begun; called again, what runs is cancelled. Any thread may call it."""
        self._stop()

    def _on_a_loop(
        self,
        work: Callable[[Run], Awaitable[T]],
        queues: Collection[str] | None,
        concurrency: int | None,
    ) -> T:
        if concurrency is not None:
            arguments.count(concurrency, "concurrency")
        chosen, database = self.chosen(queues), self.db
        threads = ThreadPoolExecutor(BRIDGING_THREADS_MAX, "postroom-bridge")

        async def run() -> Any:
            loop = asyncio.get_running_loop()
            made = Run(database.on_loop(threads), database, chosen, concurrency)
            self._stop = lambda: _told(loop, made)
            return await work(made)

        try:
            result: T = asyncio.run(run())
            return result
        finally:
            self._stop = lambda: None
            threads.shutdown(wait=False)


def _told(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    loop.call_soon_threadsafe(run.stop)


__all__ = ["Worker"]
