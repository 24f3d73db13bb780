"""Simulated clients: coroutines that go on when what they wait for has come.

Every event goes into a digest: two runs that are alike have the same one. A :class:`Witness` sees
each request and its answer; it knows nothing of the workloads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any, Final, Protocol

from postroom.client.codec import resolve
from postroom.client.database import CoreDatabase
from postroom.client.values import Status
from postroom.kv.clock import Timestamp
from postroom.messaging.requests import ReadCounters
from tests.sim.agenda import Agenda
from tests.sim.digest import Digest
from tests.sim.sender import ClientSender, Killed

RESUME_SECONDS: Final = 0.00005


class Witness(Protocol):
    """An observer that sees what clients send and hear."""

    def sent(self, request: Any) -> None:
        """Note that a client sends ``request``."""

    def answered(self, request: Any, result: Any, error: BaseException | None) -> None:
        """Note that the client gets an answer."""

    def handed_out(self, timestamp: int) -> None:
        """Note that a client is told a timestamp."""


class Unobserved:
    """A witness that looks away."""

    def sent(self, request: Any) -> None: ...
    def answered(self, request: Any, result: Any, error: BaseException | None) -> None: ...
    def handed_out(self, timestamp: int) -> None: ...


class Task:
    """A client: a coroutine, and what became of it.

    Attributes:
        steps: how often it was resumed.
        awaited: what it only awaits.
    """

    def __init__(
        self, name: str, coroutine: Coroutine[Any, Any, Any], awaited: object = None
    ) -> None:
        self.name = name
        self.coroutine = coroutine
        self.awaited = awaited
        self.done = False
        self.result: Any = None
        self.waits_for: Any = None
        self.steps = 0


class Tasks:
    """The clients of a world, and the time in which they live.

    Attributes:
        agenda: the time that passes.
        tasks: the clients that have not ended.
        current: the client that was resumed last.
    """

    def __init__(self, randomness: Random) -> None:
        self.random = randomness
        self.agenda = Agenda()
        self.witness: Witness = Unobserved()
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self._senders: list[ClientSender] = []
        self._digest = Digest()

    def _resume_soon(self, task: Task) -> None:
        """Resume a task that can go on, at a moment that chance picks."""
        delay, steps = RESUME_SECONDS * self.random.random(), task.steps

        def resume() -> None:
            if task.steps == steps:  # else it was interrupted meanwhile
                self._resume(task)

        self.agenda.after(delay, resume)

    def _stop_waiting(self, task: Task) -> None:
        """Let nothing that a task waits for resume it."""
        if task.waits_for is not None:
            task.waits_for.task = None

    def _database_of(self, sender: Any, now: Callable[[], int]) -> CoreDatabase:
        """Return the database whose requests go through ``sender``."""
        self._senders.append(sender)

        async def status(_: Any) -> Status:
            counters = await sender.send(ReadCounters())
            return Status(":simulated:", 1, 0, 0, Timestamp(now()), 0, counters)

        async def close() -> None:
            return None

        return CoreDatabase(sender, resolve(None), status, close)

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> Task:
        """Begin a client."""
        return self._begin(Task(name, coroutine))

    def _begin(self, task: Task) -> Task:
        self.tasks.append(task)
        self._resume_soon(task)
        return task

    def spawn_awaiting(self, name: str, awaitable: Awaitable[Any]) -> Task:
        """Begin a client that only awaits ``awaitable``."""

        async def wait_for_it() -> Any:
            return await awaitable

        return self._begin(Task(name, wait_for_it(), awaitable))

    def kill(self, task: Task, database: CoreDatabase) -> None:
        """Let a client die where it stands: it sends nothing more, and releases nothing.

        Args:
            task: what it does.
            database: the one of its process, which dies with it.
        """
        sender = database._sender
        assert isinstance(sender, ClientSender)
        sender.die()
        self._stop_waiting(task)
        try:
            task.coroutine.throw(Killed())
        except (Killed, StopIteration):
            pass
        else:
            raise AssertionError(f"{task.name} goes on after it was killed")
        self._end(task)

    def interrupt(self, task: Task, error: BaseException) -> None:
        """Cancel what a client does: it goes on where it stands, with ``error``."""
        if not task.done:
            self._stop_waiting(task)
            self._resume(task, error)

    def abandon(self) -> None:
        """End the world: no task in it goes on."""
        for sender in self._senders:
            sender.is_dead = True
        for task in self.tasks:
            with suppress(Killed):
                task.coroutine.close()
            if isinstance(task.awaited, Coroutine):
                task.awaited.close()  # the task may not have begun

    def resume(self, waited_for: Any) -> None:
        """Resume a client whose wait is over."""
        waited_for.done = True
        if waited_for.task is not None:
            self._resume_soon(waited_for.task)
            waited_for.task = None

    def _resume(self, task: Task, error: BaseException | None = None) -> None:
        if task.done:
            return
        task.waits_for = None
        task.steps += 1
        self.current = task
        try:
            resumed = task.coroutine
            waits_for = resumed.send(None) if error is None else resumed.throw(error)
        except StopIteration as stop:
            task.result = stop.value
            self._end(task)
        else:
            if waits_for.done:
                self._resume_soon(task)
            else:
                waits_for.task = task
                task.waits_for = waits_for

    def _end(self, task: Task) -> None:
        task.done = True
        self.tasks.remove(task)

    def note(self, *event: Any) -> None:
        """Add an event that two equal runs have in common."""
        self._digest.note((self.agenda.now, event))
