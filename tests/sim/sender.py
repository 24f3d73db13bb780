"""The sender port in simulation: what clients call, and what they wait for.

Client coroutines suspend by yielding what they wait for, and the world resumes them. There are two
senders: :class:`LocalProcess`, for clients beside an embedded store, and
:class:`tests.sim.cluster.process.Process`, whose requests go through a router and a network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import TYPE_CHECKING, Any, Self

from postroom.client.routing.local import CAME_BACK, send_returned
from postroom.client.sender import TransactionIds, taken_back_by
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.calls import Call
from postroom.ranges.requests import Unprotect
from postroom.ranges.whole_protections import ProtectWhole, ReleaseWhole

if TYPE_CHECKING:
    from tests.sim.cluster.embedded import EmbeddedStore
    from tests.sim.tasks import Task, Tasks


class Killed(BaseException):
    """The client dies. Whatever it tries to send in its last moments goes nowhere."""


class GaveUp(BaseException):
    """An exception that cancels what a client is doing, as ``asyncio.Task.cancel`` does."""


class AwaitedAnswer:
    """An answer that a client awaits.

    Attributes:
        sender: the sender of the request.
        done: whether it was answered.
        error: what the answer was, if it was an error; ``result`` otherwise.
        task: who waits for it.
    """

    __slots__ = ()
    sender: Any
    request: Any
    done: bool
    result: Any
    error: BaseException | None
    task: Task | None

    def __await__(self) -> Generator[Self, None, Any]:
        if not self.done:
            try:
                yield self
            except GaveUp:
                self.sender.give_up(self)
                raise
        if isinstance(self.error, CAME_BACK):
            sender: Any = self.sender
            return (yield from send_returned(sender, self, self.error).__await__())
        if self.error is not None:
            raise self.error
        return self.result


class Answer(AwaitedAnswer, Call):
    """A request to an embedded store, and its answer."""

    __slots__ = ("done", "error", "result", "sender", "sent_again", "task", "timeout_seconds")

    def __init__(
        self, sender: LocalProcess, request: Any, timeout_seconds: float | None = None
    ) -> None:
        super().__init__(request)
        self.sender = sender
        self.timeout_seconds = timeout_seconds
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.task: Task | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Take the answer that has come."""
        if self.done:
            raise AssertionError(f"{self.request} is answered twice")
        self.done, self.result, self.error = True, result, error
        self.sender.world.answered(self)


class FirstAnswer(Answer):
    """The first answer to one of several requests; no answer to the whole request."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Take the answer that has come."""
        self.done, self.result, self.error = True, result, error
        self.sender.world.first_answered(self)


class Pause:
    """A client lets time pass."""

    __slots__ = ("done", "task")

    def __init__(self) -> None:
        self.done = False
        self.task: Task | None = None

    def __await__(self) -> Generator[Pause, None, None]:
        if not self.done:
            yield self


class ClientSender:
    """The clock and the life of a process that has clients in it.

    Attributes:
        world: what the process lives in.
        is_dead: whether it was killed.
    """

    def __init__(self, world: Tasks, randomness: Random) -> None:
        self.world: Any = world
        self.random = randomness
        self.patience_seconds = 0.0
        self.range_of: Callable[[bytes], int] | None = None
        self.is_dead = False

    def die(self) -> None:
        """Kill the process."""
        self.is_dead = True

    def try_get(self, key: bytes) -> None:
        """Know no value: every one is asked for."""

    def sleep(self, seconds: float) -> Pause:
        """Let a time pass."""
        self._require_alive()
        pause = Pause()
        self.world.agenda.after(seconds, lambda: self.world.resume(pause))
        return pause

    async def cancelled_after(self, seconds: float, awaitable: Awaitable[Any]) -> Any:
        """Return the result of ``awaitable``; ``None`` if it was cancelled after a time."""
        task, over = self.world.current, list[None]()
        assert task is not None

        def ring() -> None:
            if not over and not self.is_dead:
                self.world.interrupt(task, GaveUp())

        self.world.agenda.after(seconds, ring)
        try:
            return await awaitable
        except GaveUp:
            return None
        finally:
            over.append(None)

    def _require_alive(self) -> None:
        if self.is_dead:
            raise Killed


class LocalProcess(ClientSender):
    """A :class:`postroom.client.sender.Sender` for clients beside an embedded store."""

    world: EmbeddedStore

    def __init__(self, world: EmbeddedStore, randomness: Random) -> None:
        super().__init__(world, randomness)
        self.protected: Counter[int] = Counter()
        self.wholes: Counter[int] = Counter()
        self.next_id = TransactionIds(randomness.randbytes(8))

    async def connect(self) -> None:
        """Do nothing: the store is here."""

    def send(self, request: Any, timeout_seconds: float | None = None) -> Answer:
        """Return the answer to ``request``, to be awaited once."""
        self._require_alive()
        if isinstance(request, Unprotect):
            self.protected[request.timestamp] -= 1
        elif isinstance(request, ProtectWhole):
            self.wholes[request.at] = 1
        elif isinstance(request, ReleaseWhole):
            self.wholes[request.at] = 0
        answer = Answer(self, request, timeout_seconds)
        self.world.send(answer)
        if timeout_seconds is not None and not answer.done:
            self.world.agenda.after(timeout_seconds, lambda: self._expire(answer))
        return answer

    def send_to_any(
        self, request: Any, narrowed: list[Any], timeout_seconds: float | None
    ) -> FirstAnswer:
        """Return the first answer to one of the parts of a request, to be awaited once."""
        self._require_alive()
        first = FirstAnswer(self, request, timeout_seconds)
        self.world.send_to_any(first, narrowed)
        if timeout_seconds is not None and not first.done:
            self.world.agenda.after(timeout_seconds, lambda: self._expire(first))
        return first

    @property
    def ranges(self) -> LocalProcess:
        """Return the ranges of the store."""
        return self

    @property
    def are_several(self) -> bool:
        """Return whether the store has several ranges."""
        node = self.world.machine.node
        return node is None or bool(node.replicas.known.are_several)

    def range_id(self, key: bytes) -> int:
        """Return the id of the range of a key; 0: it is not known."""
        node = self.world.machine.node
        replica = None if node is None else node.replicas.by_key(key)
        return 0 if replica is None else replica.range_id

    def span_of(self, key: bytes) -> tuple[bytes, bytes | None] | None:
        """Return the span of the range of a key; ``None``: it is not known, or all keys."""
        node = self.world.machine.node
        replica = None if node is None else node.replicas.by_key(key)
        if replica is None or replica.bounds.is_whole:
            return None
        return replica.bounds.start, replica.bounds.end

    def give_up(self, answer: Answer) -> None:
        """Give an answer up, as the drivers do."""
        if not self.world.withdraw(answer):
            request = taken_back_by(self, answer.request, answer.result)
            if request is not None:
                self.send(request)

    def now(self) -> int:
        """Return a timestamp of the node's."""
        self._require_alive()
        return self.world.now()

    def reading(self) -> int:
        """Return about now."""
        self._require_alive()
        return self.world.reading()

    def monotonic(self) -> float:
        """Return the seconds since the simulation began."""
        return self.world.agenda.now

    def _expire(self, answer: Answer) -> None:
        if not answer.done and self.world.withdraw(answer):
            answer.complete(None, DeadlineExceeded())
