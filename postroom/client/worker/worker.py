"""A worker, in its asyncio form: the tasks of one process, and how they are run.

States of a run: *running* until it is told to stop; then *stopping*: nothing more is claimed, what
was claimed ahead is given back, what runs is finished; told once more, it cancels what runs.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Generic, ParamSpec, TypeVar

from postroom.client import arguments
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.queues import arguments as checks
from postroom.client.worker.calling import Caller, Function, check_function
from postroom.client.worker.inboxes import ATTEMPTS_MAX_DEFAULT, InboxLoop, InboxTask
from postroom.client.worker.supervision import Supervisor
from postroom.client.worker.tasks import Task, TaskLoop
from postroom.errors import Invalid

P = ParamSpec("P")
R = TypeVar("R")
DatabaseT = TypeVar("DatabaseT")

CONCURRENCY_DEFAULT: Final = 8
BRIDGED_PATIENCE_SECONDS: Final = 1.0
"""How long one claim waits that cannot be cancelled."""


class Tasks(Generic[DatabaseT]):
    """What a worker of either form knows: its tasks.

    Args:
        db: whose messages it works on; ``None``: it is told later (:meth:`bind`).
    """

    def __init__(self, db: DatabaseT | None = None) -> None:
        self._db = db
        self._tasks: dict[tuple[str, str], Task[Any, Any]] = {}
        self._inboxes: list[InboxTask] = []

    def bind(self, db: DatabaseT) -> None:
        """``db`` is the one whose messages it works on."""
        self._db = db

    @property
    def db(self) -> DatabaseT:
        """The database that it was given.

        Raises:
            Invalid: there is none yet.
        """
        if self._db is None:
            raise Invalid(
                "the worker has no database: make it with one, Worker(db), call bind(db), or start "
                "it with 'postroom worker' and --path or --connect"
            )
        return self._db

    @property
    def has_tasks(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._tasks or self._inboxes)

    @property
    def queues(self) -> list[str]:
        """The queues that its tasks are for."""
        return list(dict.fromkeys(queue for queue, _ in self._tasks))

    def task(
        self,
        queue: str,
        kind: str = "",
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        max_attempts: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Makes a function ``f(message, tx)``, or a coroutine function, a task.

        What it writes and sends by ``tx``, and the acknowledgement, commit together. If it raises
        something, nothing of it happened: ``Reject(delay=...)`` has the message fired again,
        ``Discard(reason)`` never again, any other exception by the queue's back-off; its type and
        text become the message's ``last_error``. Functions that are no coroutine functions run in
        threads. While it runs its lease is extended.

        Args:
            queue: its name.
            kind: the function gets messages of this kind, and no others.
            concurrency: how many at a time, by this worker.
            max_attempts: a message that failed so often is dead; ``None``: what the queue says.
        """
        name, of_kind = checks.queue_name(queue), checks.kind(kind)
        arguments.count(concurrency, "concurrency")
        if max_attempts is not None:
            arguments.count(max_attempts, "max_attempts")
        if (name, of_kind) in self._tasks:
            raise ValueError(f"this worker has a task for queue {name!r}, kind {of_kind!r} already")

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            check_function(function)
            made = Task(function, name, of_kind, concurrency, max_attempts)
            self._tasks[name, of_kind] = made
            return made

        return decorate

    def inbox(
        self,
        prefix: bytes = b"",
        *,
        batch: int | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        max_attempts: int | None = ATTEMPTS_MAX_DEFAULT,
        hold: bool = False,
    ) -> Callable[[Function], InboxTask]:
        """Makes a function ``f(message, tx)``, or a coroutine function, work off inboxes.

        Keys that have mail are shared out among the workers, one worker a key at a time; the
        messages of a key come in their order. What the function writes and sends, and that the
        messages are consumed, commits together. If it raises something they come again later:
        ``Reject(delay=...)`` says when, ``Discard(reason)`` never, and any other exception after a
        second, doubled with each attempt, five minutes at most; its type and text become their
        ``last_error``. An attempt at which the worker is killed counts as well.

        Args:
            prefix: of the keys.
            batch: the function gets a list of up to so many messages of one key; ``None``: one
                message at a time.
            concurrency: how many keys at a time, by this worker.
            max_attempts: a message that failed so often is a dead letter; ``None``: none ever is.
            hold: the messages behind one that has failed wait until it comes again, so that their
                order is kept. Otherwise they pass it.
        """
        of_keys = arguments.key(prefix)
        if batch is not None:
            arguments.count(batch, "batch")
        arguments.count(concurrency, "concurrency")
        if max_attempts is not None:
            arguments.count(max_attempts, "max_attempts")

        def decorate(function: Function) -> InboxTask:
            check_function(function)
            made = InboxTask(function, of_keys, batch, concurrency, max_attempts, bool(hold))
            self._inboxes.append(made)
            return made

        return decorate

    def chosen(
        self, queues: Collection[str] | None
    ) -> tuple[list[Task[Any, Any]], list[InboxTask]]:
        """The tasks to run: of all queues and inboxes; or of these queues alone."""
        if queues is None:
            return list(self._tasks.values()), self._inboxes
        unknown = set(queues) - set(self.queues)
        if unknown:
            raise Invalid(f"no task of this worker is for the queue {min(unknown)!r}")
        return [task for task in self._tasks.values() if task.queue in queues], []


class Run:
    """One run of a worker's tasks, on the running loop.

    Args:
        db: the asyncio form of the store.
        db_of_threads: the synchronous one, if the store was opened so.
        chosen: the tasks.
        concurrency: how many messages and keys at a time altogether; ``None``: as the tasks say.
    """

    def __init__(
        self,
        db: asynchronous.Database,
        db_of_threads: blocking.Database | None,
        chosen: tuple[list[Task[Any, Any]], list[InboxTask]],
        concurrency: int | None,
    ) -> None:
        tasks, inboxes = chosen
        self._db = db
        self._stopping = asyncio.Event()
        self._supervisor = Supervisor(db.sender, self._stopping)
        most = sum(task.concurrency for task in tasks)
        most += sum(inbox.concurrency for inbox in inboxes)
        self._threads = ThreadPoolExecutor(max(min(most, concurrency or most), 1), "postroom-task")
        caller = Caller(db, db_of_threads, self._threads)
        slots = None if concurrency is None else asyncio.Semaphore(concurrency)
        patience = None if db_of_threads is None else BRIDGED_PATIENCE_SECONDS
        common = (caller, self._supervisor, self._stopping, slots)
        self._loops: list[TaskLoop | InboxLoop] = [
            *(TaskLoop(each, *common, patience) for each in tasks),
            *(InboxLoop(each, *common) for each in inboxes),
        ]
        self._queues = {each.queue for each in tasks}

    def stop(self) -> None:
        """Once: nothing more is begun. Again: what runs is cancelled."""
        if self._stopping.is_set():
            for loop in self._loops:
                loop.cancel()
        self._stopping.set()

    async def until_stopped(self, ready: Callable[[], None] | None) -> None:
        """Works until it is told to stop, and has finished; ``ready`` is called when it begins."""
        try:
            await self._check_queues()
            if ready is not None:
                ready()
            await asyncio.gather(
                *(self._supervisor.run(_name(loop), loop.run) for loop in self._loops)
            )
            if self._loops:
                await self._stopping.wait()
        finally:
            self._stopping.set()
            await self._finish()

    async def until_idle(self) -> int:
        """Works off what is due now, and what becomes due by it; returns how much that was."""
        total = 0
        try:
            await self._check_queues()
            while True:
                await self._db.drain()
                done = 0
                for loop in self._loops:
                    done += await loop.run_ready()
                total += done
                if not done:
                    return total
        finally:
            self._stopping.set()
            await self._finish()

    async def _finish(self) -> None:
        for loop in self._loops:
            await loop.finish()
        self._threads.shutdown(wait=False)

    async def _check_queues(self) -> None:
        if self._queues:
            missing = self._queues - {each.name for each in await self._db.queues()}
            if missing:
                raise Invalid(
                    f"there is no queue {min(missing)!r}, which a task of this worker is for: make "
                    "it with create_queue, or 'postroom queue create'"
                )


def _name(loop: TaskLoop | InboxLoop) -> str:
    if isinstance(loop, TaskLoop):
        return f"the task of queue {loop.task.queue!r}, kind {loop.task.kind!r}"
    return f"the task of inboxes {loop.task.prefix!r}"


@contextmanager
def stopped_by_signals(run: Run, *, wanted: bool) -> Iterator[None]:
    """SIGTERM and SIGINT stop a run, if this is the main thread."""
    loop = asyncio.get_running_loop()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, run.stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class Worker(Tasks[asynchronous.Database]):
    """Functions that are called with messages of queues and inboxes, in the asyncio form.

    Args:
        db: whose messages it works on; ``None``: it is told later (:meth:`bind`).
    """

    def __init__(self, db: asynchronous.Database | None = None) -> None:
        super().__init__(db)
        self._run: Run | None = None

    async def run(
        self,
        *,
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        signals: bool = False,
        ready: Callable[[], None] | None = None,
    ) -> None:
        """Works until :meth:`stop` is called; then it finishes what it has begun.

        It goes on whatever fails: a loop of it that has failed begins again after a pause, and says
        so in the log ``postroom.worker``.

        Args:
            queues: only the tasks of these.
            concurrency: how many messages and keys at a time altogether.
            signals: SIGTERM and SIGINT stop it; the second one cancels what runs.
            ready: is called, once, when its queues have been found, and before it takes messages.

        Raises:
            Invalid: a queue of its tasks does not exist.
            DatabaseClosed: the database was closed meanwhile.
        """
        run = self._begin(queues, concurrency)
        with stopped_by_signals(run, wanted=signals):
            await run.until_stopped(ready)

    async def run_until_idle(self, *, queues: Collection[str] | None = None) -> int:
        """Works off what is due now, and what becomes due by it; returns how many messages, and
        batches of inboxes, that were. What is scheduled for later, backs off, or is held back by a
        limit of its queue, is not due. What is rejected with ``delay=0`` is due again at once: a
        function that does so for ever needs ``max_attempts``, or this does not end.
        """
        return await self._begin(queues, None).until_idle()

    def stop(self) -> None:
        """Nothing more is begun; called again, what runs is cancelled."""
        if self._run is not None:
            self._run.stop()

    def _begin(self, queues: Collection[str] | None, concurrency: int | None) -> Run:
        if concurrency is not None:
            arguments.count(concurrency, "concurrency")
        self._run = Run(self.db, None, self.chosen(queues), concurrency)
        return self._run


__all__ = ["Run", "Tasks", "Worker", "stopped_by_signals"]
