"""A world that is repeatable from one seed: time, a disk, a node, and clients that know nothing.

One step does one thing: it resumes a client that can go on, delivers a request that is on its way,
or takes the next part of a turn of the node, whichever chance picks. When nothing can happen now,
time passes until something can. All of it runs in one thread, so a run is a function of its seed.

::

    clients ──send──▶ on their way ──deliver──▶ host: node ── turn ──▶ disk
       ▲                                             │
       └──────────── resume ◀────── answers ◀────────┘

Every event goes into a digest: two runs that are alike have the same one. What a request says and
how it was answered is told to a :class:`Witness`, which knows nothing of the workloads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - made from the seed
from typing import Any, Final, TypeVar

from postroom.client.database import CoreDatabase
from postroom.errors import Unavailable
from postroom.ranges.requests import Protect, Unprotect
from postroom.server.node_options import NodeOptions
from tests.sim.clock import VirtualClock
from tests.sim.host import Host
from tests.sim.sender import Answer, SimulatedSender
from tests.sim.tasks import Task, Tasks

T = TypeVar("T")
STEPS_MAX: Final = 200_000
"""A run that takes longer has stopped getting anywhere."""


class World(Tasks):
    """See the module.

    Args:
        seed: everything that happens follows from it.
        options: of the node.
        reading_seconds: how long it takes to read the wall clock.
        in_parts: whether anything may happen between the parts of a turn.
    """

    def __init__(
        self,
        seed: int = 0,
        options: NodeOptions | None = None,
        *,
        reading_seconds: float = 0.0,
        in_parts: bool = True,
    ) -> None:
        super().__init__()
        self.random = Random(f"world {seed}")
        self.clock = VirtualClock(self.agenda, reading_seconds)
        self.turns_away = 0.0
        """How often a client hears at once that the node is down, instead of waiting for it."""
        self.host = Host(
            self.clock,
            Random(f"host {seed}"),
            options or NodeOptions(disk_reserve_bytes=0, poll_seconds=1.0),
        )
        self.heals = False
        """Whether a node that is down, or has failed, is opened again at once."""
        self.steps = 0
        self._seed = seed
        self._in_parts = in_parts
        self._ready: list[Task] = []
        self._on_their_way: list[Answer] = []

    # --- clients

    def database(self, process: str = "process") -> CoreDatabase:
        """Return the database that the clients of one process share."""
        sender = SimulatedSender(self, Random(f"{process} {self._seed}"))
        return self._database_of(sender, sender.now)

    def _resume_soon(self, task: Task) -> None:
        self._ready.append(task)

    def _stop_waiting(self, task: Task) -> None:
        if task in self._ready:
            self._ready.remove(task)
        super()._stop_waiting(task)

    def kill(self, task: Task, database: CoreDatabase) -> None:
        """Let a client die; what the store does for it ends."""
        super().kill(task, database)
        sender = database._sender
        assert isinstance(sender, SimulatedSender)
        self._take_back(sender)

    def _take_back(self, sender: SimulatedSender) -> None:
        """Take back the waits and protections of a dead client.

        A process with a store of its own dies as a whole, and in a cluster the session does this.
        """
        for answer in list(self.host.outstanding):
            if isinstance(answer, Answer) and answer.sender is sender:
                self.host.cancel(answer)
        for moment in (+sender.protected).elements():
            self._on_their_way.append(Answer(sender, Unprotect(moment)))

    def run(self, awaitable: Awaitable[T]) -> T:
        """Take steps until ``awaitable`` has ended."""

        task = self.spawn_awaiting("run", awaitable)
        self.run_until(lambda: task.done)
        result: T = task.result
        return result

    def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``call``, once the store is there to answer it."""

        async def call_until_it_answers() -> T:
            while True:
                try:
                    return await call()
                except Unavailable:
                    await pause.sleep(0.05)

        pause = SimulatedSender(self, self.random)
        return self.run(call_until_it_answers())

    # --- steps

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Take steps until ``condition`` holds."""
        for _ in range(STEPS_MAX):
            if condition():
                return
            while self.heals and not self.host.serves():
                self.host.reopen()
            self.step()
        raise AssertionError(f"nothing came of {STEPS_MAX} steps")

    def step(self) -> None:
        """One thing happens."""
        self.steps += 1
        chance = self.random.random
        now = self.agenda.now
        has_rung = self.agenda.carry_out_due()
        turn_due = self.host.due()
        may_turn = turn_due is not None and turn_due <= now
        may_deliver = bool(self._on_their_way) and self.host.node is not None
        if self._ready and (chance() < 0.5 or not (may_turn or may_deliver)):
            self._resume(_drawn(self._ready, self.random))
        elif may_deliver and (chance() < 0.6 or not may_turn):
            self._deliver(_drawn(self._on_their_way, self.random))
        elif may_turn:
            self._turn()
        else:
            self._wait(turn_due, has_rung=has_rung)
        self.clock.advance(chance() * 0.0001)

    def let_pass(self, seconds: float) -> None:
        """Take the steps of the next ``seconds``."""
        over: list[None] = []
        self.agenda.after(seconds, lambda: over.append(None))
        self.run_until(lambda: bool(over))

    def _turn(self) -> None:
        self.host.take_part()
        while not self._in_parts and self.host.node is not None and self.host.busy:
            self.host.take_part()

    def _wait(self, turn_due: float | None, *, has_rung: bool) -> None:
        """Nothing can happen now. A store that rests waits for nothing, not even for an alarm."""
        timer = self.agenda.next_moment()
        events = [each for each in (timer, turn_due) if each is not None]
        if events:
            self.clock.advance_to(min(events))
        elif self.host.serves() and not has_rung:
            raise AssertionError(f"nothing will ever happen: {self._who_waits()}")

    def _who_waits(self) -> str:
        waiting = [
            f"{task.name} for {getattr(task.waits_for, 'request', task.waits_for)}"
            for task in self.tasks
            if not task.done
        ]
        return "; ".join(waiting) or "no client is left"

    def _resume(self, task: Task, error: BaseException | None = None) -> None:
        self.note("resume", task.name)
        super()._resume(task, error)

    # --- what senders call

    def send(self, answer: Answer) -> None:
        """Send a request of a client."""
        self.witness.sent(answer.request)
        if self.host.node is None and self.random.random() < self.turns_away:
            answer.complete(None, Unavailable("the node is down", retry_after=0.01))
        else:
            self._on_their_way.append(answer)

    def _deliver(self, answer: Answer) -> None:
        self.note("deliver", type(answer.request).__name__)
        if not answer.cancelled:
            self.host.submit(answer)

    def withdraw(self, answer: Answer) -> bool:
        """Withdraw a request of a client; return false if it is too late."""
        if answer in self._on_their_way:
            self._on_their_way.remove(answer)
            return True
        return self.host.cancel(answer)

    def answered(self, answer: Answer) -> None:
        """Bring an answer to its client."""
        self.host.outstanding.pop(answer, None)
        result, error, sender = answer.result, answer.error, answer.sender
        self.note("answer", result if error is None else type(error).__name__)
        if isinstance(answer.request, Protect) and error is None:
            if sender.is_dead:
                self._on_their_way.append(Answer(sender, Unprotect(result)))
            sender.protected[result] += 1
        if not sender.is_dead:
            self.witness.answered(answer.request, result, error)
        self.resume(answer)

    def now(self) -> int:
        """Return a timestamp for a client."""
        timestamp = self.host.now()
        self.witness.handed_out(timestamp)
        return timestamp

    # --- the digest

    def digest(self) -> str:
        """Return a name for everything that has happened, and for what the disk holds."""
        return self._digest.name(self.host.disk.content.iterate(b"", b"\xff"))


def _drawn(waiting: list[Any], randomness: Random) -> Any:
    """One of ``waiting``, which is taken out of it."""
    index = int(randomness.random() * len(waiting))
    waiting[index], waiting[-1] = waiting[-1], waiting[index]
    return waiting.pop()
