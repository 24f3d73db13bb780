"""A worker, in its asyncio form: the tasks of one process, and how they are run.

A run is *running* until it is told to stop. Then it is *stopping*: nothing more is claimed,
messages that were claimed ahead are given back, and calls that run are finished. If it is told to
stop once more, it cancels what runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final, Generic, ParamSpec, TypeVar

from postroom.client import arguments, functions
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.worker.calling import (
    Function,
    FunctionCaller,
    MakeContext,
    Workplace,
    no_context,
)
from postroom.client.worker.calls import Threads
from postroom.client.worker.failures import (
    TIMEOUT_SECONDS,
    FailureLog,
    Failures,
    Hook,
    Hooks,
    Options,
    check_hooks,
)
from postroom.client.worker.inboxes import InboxLoop, InboxTask
from postroom.client.worker.stop_signals import stopped_by_signals
from postroom.client.worker.supervision import Supervisor
from postroom.client.worker.tasks import Task, TaskLoop
from postroom.errors import Invalid
from postroom.limits import ATTEMPTS_MAX_DEFAULT, TRANSACTION_SECONDS_MAX

P = ParamSpec("P")
R = TypeVar("R")
DatabaseT = TypeVar("DatabaseT", bound=asynchronous.CoreDatabase | blocking.CoreDatabase)

CONCURRENCY_DEFAULT: Final = 8


class WorkerTasks(Generic[DatabaseT]):
    """The tasks of a worker of either form.

    Args:
        db: the database whose messages it works on; ``None``: given later (:meth:`bind`).
        on_failure: called with message, exception and number of the attempt when an attempt of any
            of its tasks has failed, after the hook of the task.
        on_dead: called in the same way when a message has died of it.

    Attributes:
        make_context: makes the context of each call of a function.
    """

    _kind: ClassVar[type[Any]]
    _takes: ClassVar[str]
    make_context: MakeContext

    def __init__(
        self,
        db: DatabaseT | None = None,
        *,
        on_failure: Hook | None = None,
        on_dead: Hook | None = None,
    ) -> None:
        check_hooks(on_failure=on_failure, on_dead=on_dead)
        self.hooks = Hooks(on_failure, on_dead)
        self.make_context = no_context
        self._wrap: Callable[[Any], Any] | None = None
        self.caller: FunctionCaller | None = None
        self._db: DatabaseT | None = None
        if db is not None:
            self.bind(db)
        self._tasks: dict[tuple[str, str], Task[Any, Any]] = {}
        self._inboxes: list[InboxTask] = []

    @property
    def lost_calls(self) -> int:
        """Return how many functions go on that were given up.

        Their time was over, and they could not be stopped.

        For layers on top.
        """
        return 0 if self.caller is None else self.caller.lost_calls

    def bind(self, db: DatabaseT) -> None:
        """Set the database whose messages it works on.

        Args:
            db: the database.

        Raises:
            TypeError: it is none, or of the other form.
        """
        if not isinstance(db, self._kind):
            raise TypeError(self._takes)
        self._db = db
        if self._wrap is not None:
            db.reach_through(self._wrap)

    def reach_through(self, wrap: Callable[[Any], Any]) -> None:
        """Have its database, also one that it is given later, send through ``wrap(sender)``.

        For layers on top, such as tracing.
        """
        self._wrap = wrap
        if self._db is not None:
            self._db.reach_through(wrap)

    @property
    def db(self) -> DatabaseT:
        """Return the database that it was given.

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
        """Return whether there is anything to do.

        For layers on top.
        """
        return bool(self._tasks or self._inboxes)

    @property
    def queues(self) -> list[str]:
        """Return the queues that its tasks are for.

        For layers on top.
        """
        return list(dict.fromkeys(queue for queue, _ in self._tasks))

    def task(  # noqa: PLR0913 - each argument is an option
        self,
        queue: str,
        kind: str = "",
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        max_attempts: int | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        keep_result: Any = 0,
        on_failure: Hook | None = None,
        on_dead: Hook | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Make a function ``f(message, tx)``, or a coroutine function, a task.

        The function's writes and sends by ``tx``, and the acknowledgement, commit together. If it
        raises something, nothing of it happened. ``Reject(delay=...)`` has the message fired again,
        ``Discard(reason)`` never again, any other exception by the queue's back-off. The type and
        text of the exception become the message's ``last_error``.

        Functions that are no coroutine functions run in threads. While the function runs, the lease
        of the message is extended. The worker alone ends the transaction and the message:
        ``tx.commit``, ``tx.rollback``, ``message.acknowledge`` and ``message.reject`` are refused.

        Args:
            queue: the name of the queue.
            kind: the function gets messages of this kind, and no others.
            concurrency: how many at a time, by this worker.
            max_attempts: a message is dead after this many failed attempts; ``None``: the queue's
                number.
            timeout: seconds that a call may take; one that takes longer has failed. ``None``: any
                number. A coroutine is cancelled. A thread cannot be stopped: it goes on, its calls
                of ``tx`` have no effect any more, and another thread takes its place.
            keep_result: seconds, or a ``timedelta``, for which the store keeps what a call returns,
                64 KiB at most, and the exception of which a message dies: for ``handle.result()``
                and ``q.result(id)``. 0: it is not kept. A result that cannot be packed, or is too
                large, makes the message a dead letter.
            on_failure: called with message, exception and number of the attempt when an attempt has
                failed. It may be a coroutine function, and cannot change the outcome.
            on_dead: called in the same way when the message has died of it.

        Returns:
            A decorator. The function stays callable, and gets the method ``enqueue(tx, payload,
            ...)``.

        Raises:
            TypeError: the function cannot be called with these arguments, or calls of it run
                nothing: it is a generator function, or a class.
            ValueError: the worker has a task for this queue and kind already.
        """
        name, of_kind = arguments.queue_name(queue), arguments.kind(kind)
        options = Options(
            concurrency, max_attempts, timeout, on_failure, on_dead, keep_result
        ).checked()
        if (name, of_kind) in self._tasks:
            raise ValueError(f"this worker has a task for queue {name!r}, kind {of_kind!r} already")

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            functions.check(function, "a task", "message", "tx")
            made = Task(function, name, of_kind, options)
            self._tasks[name, of_kind] = made
            return made

        return decorate

    def inbox(  # noqa: PLR0913 - each argument is an option
        self,
        prefix: bytes = b"",
        *,
        batch: int | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        max_attempts: int | None = ATTEMPTS_MAX_DEFAULT,
        hold: bool = False,
        timeout: float | None = TRANSACTION_SECONDS_MAX,
        on_failure: Hook | None = None,
        on_dead: Hook | None = None,
    ) -> Callable[[Function], InboxTask]:
        """Make a function ``f(message, tx)``, or a coroutine function, work off inboxes.

        Keys that have mail are shared out among the workers, one worker a key at a time; the
        messages of a key come in their order. The function's writes and sends commit together with
        the consumption of the messages.

        If it raises something the messages come again later. ``Reject(delay=...)`` says when,
        ``Discard(reason)`` never. After any other exception they come after a second, doubled with
        each attempt, five minutes at most. The type and text of the exception become their
        ``last_error``. An attempt at which the worker is killed counts as well.

        Args:
            prefix: the prefix of the keys.
            batch: the function gets a list of up to this many messages of one key; ``None``: one
                message at a time.
            concurrency: how many keys at a time, by this worker.
            max_attempts: a message is a dead letter after this many failed attempts; ``None``:
                never.
            hold: whether the messages behind one that has failed wait until it comes again, so that
                their order is kept. Otherwise they pass it.
            timeout: seconds that a call may take, see :meth:`task`. The transaction has taken the
                messages already, so its time is over after a minute in any case.
            on_failure: see :meth:`task`; called for each message of a batch.
            on_dead: see :meth:`task`; called for each message of a batch.

        Returns:
            A decorator.

        Raises:
            TypeError: see :meth:`task`.
        """
        of_keys = arguments.key(prefix)
        if batch is not None:
            arguments.count(batch, "batch")
        options = Options(concurrency, max_attempts, timeout, on_failure, on_dead).checked()

        def decorate(function: Function) -> InboxTask:
            functions.check(function, "a task", "message", "tx")
            made = InboxTask(function, of_keys, batch, bool(hold), options)
            self._inboxes.append(made)
            return made

        return decorate

    def chosen(
        self, queues: Collection[str] | None
    ) -> tuple[list[Task[Any, Any]], list[InboxTask]]:
        """Return the tasks to run: those of all queues and inboxes, or of these queues alone.

        For layers on top.

        Args:
            queues: the names of the queues; ``None``: all.
        """
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
        db_of_threads: the synchronous form, if the store was opened in it.
        chosen: the tasks.
        hooks: the worker's hooks.
        concurrency: how many messages and keys at a time altogether; ``None``: as many as the tasks
            allow.
        make_context: makes the context of each call of their functions.
    """

    def __init__(
        self,
        db: asynchronous.CoreDatabase,
        db_of_threads: blocking.CoreDatabase | None,
        chosen: tuple[list[Task[Any, Any]], list[InboxTask]],
        hooks: Hooks,
        concurrency: int | None,
        make_context: MakeContext,
    ) -> None:
        tasks, inboxes = chosen
        self._db = db
        self._stopping = asyncio.Event()
        self._supervisor = Supervisor(db.sender, self._stopping)
        most = sum(task.options.concurrency for task in tasks)
        most += sum(inbox.options.concurrency for inbox in inboxes)
        self._threads = Threads(max(min(most, concurrency or most), 1), "postroom-task")
        self._log = FailureLog(db.sender.monotonic)
        self.caller = caller = FunctionCaller(db, db_of_threads, self._threads, make_context)
        slots = None if concurrency is None else asyncio.Semaphore(concurrency)
        workplace = Workplace(caller, self._supervisor, self._stopping, slots)

        def failures(task: Task[Any, Any] | InboxTask) -> Failures:
            return Failures(task.name, caller, self._log, task.options, hooks)

        self._loops: list[TaskLoop | InboxLoop] = [
            *(TaskLoop(each, workplace, failures(each)) for each in tasks),
            *(InboxLoop(each, workplace, failures(each)) for each in inboxes),
        ]
        self._queues = {each.queue for each in tasks}

    def stop(self) -> None:
        """Begin nothing more; called again, cancel what runs."""
        if self._stopping.is_set():
            for loop in self._loops:
                loop.cancel()
        self._stopping.set()

    async def until_stopped(self, ready: Callable[[], Any] | None) -> None:
        """Work until it is told to stop, and has finished; call ``ready`` when it begins."""
        if ready is not None:
            functions.check(ready, "ready")
        try:
            await self._check_queues()
            if ready is not None:
                await functions.completed(ready(), ready)
            await asyncio.gather(
                *(self._supervisor.run(loop.task.name, loop.run) for loop in self._loops)
            )
            if self._loops:
                await self._stopping.wait()
        finally:
            self._stopping.set()
            await self._finish()

    async def until_idle(self) -> int:
        """Work off what is due now, and what becomes due by it; return how much there was."""
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
        self._log.close()
        self._threads.shutdown(cancel_futures=True)

    async def _check_queues(self) -> None:
        """Check that each queue is there. The right to work on them is enough for that."""
        for name in sorted(self._queues):
            try:
                await self._db.queue(name).info()
            except Invalid:
                raise Invalid(
                    f"there is no queue {name!r}, which a task of this worker is for: make it with "
                    "create_queue, or 'postroom queue create'"
                ) from None


class Worker(WorkerTasks[asynchronous.CoreDatabase]):
    """A set of functions that are called with messages of queues and inboxes, in the asyncio form.

    Args:
        db: the database whose messages it works on; ``None``: given later (:meth:`bind`).
        on_failure: called with message, exception and number of the attempt when an attempt of any
            of its tasks has failed, after the hook of the task.
        on_dead: called in the same way when a message has died of it.
    """

    _kind = asynchronous.CoreDatabase
    _takes = (
        "postroom.aio.Worker takes a database of postroom.aio.open() or postroom.aio.connect(); "
        "for one of postroom.open() or postroom.connect() there is postroom.Worker"
    )

    def __init__(
        self,
        db: asynchronous.CoreDatabase | None = None,
        *,
        on_failure: Hook | None = None,
        on_dead: Hook | None = None,
    ) -> None:
        super().__init__(db, on_failure=on_failure, on_dead=on_dead)
        self._run: Run | None = None

    async def run(
        self,
        *,
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        signals: bool = False,
        ready: Callable[[], Any] | None = None,
    ) -> None:
        """Work until :meth:`stop` is called; then finish what it has begun.

        It goes on whatever fails: a loop that has failed begins again after a pause. The log
        ``postroom.worker`` tells it.

        Args:
            queues: run only the tasks of these queues.
            concurrency: how many messages and keys at a time altogether.
            signals: whether SIGTERM and SIGINT stop it; the second one cancels what runs.
            ready: called, once, when its queues have been found, and before it takes messages. It
                may be a coroutine function.

        Raises:
            Invalid: a queue of its tasks does not exist.
            DatabaseClosed: the database was closed meanwhile.
        """
        run = self._begin(queues, concurrency)
        with stopped_by_signals(run.stop, run.caller.forget_lost, wanted=signals):
            await run.until_stopped(ready)

    async def run_until_idle(self, *, queues: Collection[str] | None = None) -> int:
        """Work off what is due, and what becomes due by it; return the number of messages.

        A batch of an inbox counts as one. Messages that are scheduled for later, back off, or are
        held back by a limit of their queue, are not due. A message that is rejected with
        ``delay=0`` is due again at once: a function that does this for ever needs ``max_attempts``,
        or this does not end.

        Args:
            queues: run only the tasks of these queues; ``None``: all tasks.

        Raises:
            Invalid: a queue of its tasks does not exist.
        """
        return await self._begin(queues, None).until_idle()

    def stop(self) -> None:
        """Begin nothing more; called again, cancel what runs."""
        if self._run is not None:
            self._run.stop()

    def _begin(self, queues: Collection[str] | None, concurrency: int | None) -> Run:
        if concurrency is not None:
            arguments.count(concurrency, "concurrency")
        chosen = self.chosen(queues)
        self._run = Run(self.db, None, chosen, self.hooks, concurrency, self.make_context)
        self.caller = self._run.caller
        return self._run
