"""Drivers by hand: a turn is run whenever one is wanted; if none is, the clock moves on.

When a caller waits for something else, the clock goes to the next deadline. A wait of a minute
takes no time then, and every run of a test is the same::

    caller waits ──▶ turns, until none is wanted ──▶ answered?  else: the clock moves on

:class:`Running` is a caller that need not be waited for: several of them take turns.
"""

from __future__ import annotations

import math
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Generator
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final, Generic, TypeVar

from postroom.client.routing.calls import RemoteCall
from postroom.client.routing.local import CAME_BACK, AnyParts, send_returned
from postroom.client.routing.router import Router
from postroom.client.sender import KnownRanges, TransactionIds
from postroom.errors import Invalid, Unavailable
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.calls import Call
from postroom.ranges.requests import Now
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions
from postroom.server.node import Node

T = TypeVar("T")


PATIENCE_SECONDS: Final = 10_000.0
"""The longest wait on the clock moved by hand: a longer one lasts for ever."""


class HandClock:
    """Both clocks, which stand still until they are moved."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.epoch_milliseconds = 1_700_000_000_000

    def wall_milliseconds(self) -> int:
        return self.epoch_milliseconds + round(self.seconds * 1000)

    def since_millisecond(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return self.seconds


class _Waiting(Call):
    """A request and its answer, or a pause: what a coroutine waits for."""

    __slots__ = (
        "_driver", "_error", "_result", "deadline", "done", "sent_again", "timeout_seconds",
    )  # fmt: skip

    def __init__(
        self,
        request: Any,
        deadline: float | None,
        driver: HandDriver | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        super().__init__(request)
        self._driver = driver
        self.timeout_seconds = timeout_seconds
        self.deadline = deadline
        self.done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        self.done = True
        self._result = result
        self._error = error

    def __await__(self) -> Generator[_Waiting, None, Any]:
        if not self.done:
            yield self
        if isinstance(self._error, CAME_BACK) and self._driver is not None:
            again = send_returned(self._driver, self, self._error)
            return (yield from again.__await__())
        if self._error is not None:
            raise self._error
        return self._result


class HandDriver:
    """A ``BlockingSender`` that alone drives its node. The node can be replaced: clients stay."""

    def __init__(self, clock: HandClock, random: Random) -> None:
        self.random = random
        self.next_id = TransactionIds(random.randbytes(8))
        self.closed = False
        self.patience_seconds = 0.0
        self.range_of: Callable[[bytes], int] | None = None
        self._clock = clock
        self._woken = False
        self._timed: list[_Waiting] = []
        self._running: list[Running[Any]] = []
        self.node: Node

    def attach(self, node: Node) -> None:
        """Drive ``node`` from now on."""
        self.node = node
        node.on_wake = self._on_wake
        node.start()
        self.settle()

    def _on_wake(self, _: bool) -> None:
        self._woken = True

    # --- a sender

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        if self.closed:
            raise Invalid("the database was closed; nothing was changed: open it again")
        deadline = None if timeout_seconds is None else self.monotonic() + timeout_seconds
        waiting = _Waiting(request, deadline, self, timeout_seconds)
        self.node.replicas.submit(waiting)
        if deadline is not None:
            self._timed.append(waiting)
        return waiting

    def send_to_any(
        self, request: Any, narrowed: list[Any], timeout_seconds: float | None
    ) -> Awaitable[Any]:
        deadline = None if timeout_seconds is None else self.monotonic() + timeout_seconds
        waiting = _Waiting(request, deadline, self, timeout_seconds)
        AnyParts(self.node.replicas.submit, self.node.replicas.cancel).ask(waiting, narrowed)
        if deadline is not None:
            self._timed.append(waiting)
        return waiting

    def try_get(self, key: bytes) -> None:
        """Return no answer at once, since everything is asked for."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        waiting = _Waiting(None, self.monotonic() + seconds)
        self._timed.append(waiting)
        return waiting

    @property
    def ranges(self) -> KnownRanges:
        return self.node.replicas.known

    def range_id(self, key: bytes) -> int:
        replica = self.node.replicas.by_key(key)
        return 0 if replica is None else replica.range_id

    def span_of(self, key: bytes) -> tuple[bytes, bytes | None] | None:
        replica = self.node.replicas.by_key(key)
        if replica is None or replica.bounds.is_whole:
            return None
        return replica.bounds.start, replica.bounds.end

    def now(self) -> int:
        return self.node.clock.read()

    def reading(self) -> int:
        return self.node.clock.reading()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def run(self, coroutine: Coroutine[Any, Any, T], waiter: Any = None) -> T:
        del waiter  # no other caller runs meanwhile
        running = self.start(coroutine)
        give_up = self.monotonic() + PATIENCE_SECONDS
        while not running.done:
            assert self.monotonic() < give_up, "it would wait for ever"
            self._pass_time()
        return running.result()

    async def close(self) -> None:
        if not self.closed:
            self.settle()
            self.closed = True
            self.node.close()

    # --- driving

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        """Run ``coroutine`` as far as it goes without the clock."""
        running = Running(coroutine)
        self._running.append(running)
        self.settle()
        return running

    def cancel(self, running: Running[Any]) -> None:
        """Give up the wait of a running call, as a cancelled task does."""
        waiting = running.waits_for
        if waiting is not None and not waiting.done:
            self.node.replicas.cancel(waiting)
        running.cancel()
        self.settle()

    def later(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run ``coroutine`` once what is going on now has settled."""
        self._running.append(Running(coroutine))

    def settle(self) -> None:
        """Take turns, and resume callers with answers, until nothing happens any more."""
        went_on = True
        while went_on or self._woken:
            self._woken = False
            if self.node.failed is None:
                self.node.turn()
            self._running = [each for each in self._running if not each.done]
            went_on = sum(each.go_on() for each in self._running) > 0

    def advance(self, seconds: float) -> None:
        """Let a time pass, with everything that happens meanwhile."""
        end = self.monotonic() + seconds
        while self.monotonic() < end:
            self._pass_time(end)

    def _pass_time(self, end: float | None = None) -> None:
        due = min(each for each in (end, *self._deadlines()) if each is not None)
        self._clock.seconds = max(due, self._clock.seconds + 0.001)
        for waiting in [
            each for each in self._timed if (each.deadline or 0) <= self._clock.seconds
        ]:
            self._timed.remove(waiting)
            self._expire(waiting)
        self.settle()

    def _deadlines(self) -> list[float | None]:
        return [self.node.next_deadline(), *(each.deadline for each in self._timed)]

    def _expire(self, waiting: _Waiting) -> None:
        if waiting.request is None:
            waiting.complete(None, None)
        elif not waiting.done and self.node.replicas.cancel(waiting):
            waiting.complete(None, DeadlineExceeded())


class _RemoteWaiting(RemoteCall):
    """The same for a request that the router carries: it also sees to its deadline."""

    __slots__ = ("_driver", "_error", "_result")

    def __init__(self, request: Any, timeout_seconds: float | None) -> None:
        super().__init__(request, timeout_seconds)
        self._driver = None
        self._result: Any = None
        self._error: BaseException | None = None

    complete = _Waiting.complete
    __await__ = _Waiting.__await__


class RemoteDriver(HandDriver):
    """The same through the router, frames and a session, which it moves from one to the other.

    Attributes:
        sessions: of the node.
        cut: whether frames are held up.
    """

    def __init__(self, clock: HandClock, random: Random) -> None:
        super().__init__(clock, random)
        self.router = Router(["node:7400"], _Port(self), clock.monotonic, Random(7))
        self.next_id = TransactionIds(self.router.client)
        self.range_of = self.router.range_of
        self.cut = False
        self._streams: dict[int, Session] = {}
        self._alarm = math.inf
        self.router.start()

    def attach(self, node: Node) -> None:
        """Drive ``node`` from now on. Streams to the one before end."""
        for number in list(self._streams):
            self._streams.pop(number).close()
            self.router.disconnected(number, Unavailable("the node has stopped"))
        self.sessions = Sessions(node)
        super().attach(node)

    # --- a sender

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        waiting = _RemoteWaiting(request, timeout_seconds)
        self.router.submit(waiting)
        return waiting

    @property
    def ranges(self) -> KnownRanges:
        return self.router.ranges

    def range_id(self, key: bytes) -> int:
        return self.router.range_of(key)

    def span_of(self, key: bytes) -> tuple[bytes, bytes | None] | None:
        return self.router.span_of(key)

    def now(self) -> Awaitable[int]:
        return self.send(Now())

    def try_get(self, key: bytes) -> None:
        """Return no answer at once, since everything is asked for."""

    def reading(self) -> int:
        return self.router.reading()

    async def close(self) -> None:
        if not self.closed:
            self.router.close()
        await super().close()

    # --- a port

    def open(self, link: int, address: str) -> None:
        self._streams[link] = self.sessions.open(address, lambda: None)

    def output(self, link: int) -> None:
        """Do nothing: output is looked for all the time."""

    def close_link(self, link: int) -> None:
        self._streams.pop(link).close()

    def alarm(self, when: float) -> None:
        self._alarm = when

    # --- driving

    def settle(self) -> None:
        self._carry()
        super().settle()
        while self._carry():
            super().settle()

    def _carry(self) -> bool:
        """Carry frames until there are none, and return whether there were any."""
        moved = False
        if self._alarm <= self.monotonic():
            self._alarm = math.inf
            self.router.tick()
            moved = True
        for link, session in [] if self.cut else list(self._streams.items()):
            while session.reading and (frame := self.router.take(link)) is not None:
                session.received(frame)
                moved = True
            while (frame := session.take()) is not None:
                self.router.received(link, frame)
                moved = True
        return moved

    def _deadlines(self) -> list[float | None]:
        return [*super()._deadlines(), None if self._alarm == math.inf else self._alarm]


class _Port:
    """The port of a driver, whose ``close`` is the sender's."""

    def __init__(self, driver: RemoteDriver) -> None:
        self.open, self.output, self.alarm = driver.open, driver.output, driver.alarm
        self.close = driver.close_link


class Running(Generic[T]):
    """A coroutine on its way."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.done = False
        self._coroutine = coroutine
        self._waiting: _Waiting | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._busy = False
        self.go_on()

    def go_on(self) -> bool:
        """Make a step, if possible; return whether it was."""
        if self.done or self._busy or (self._waiting is not None and not self._waiting.done):
            return False
        self._busy = True
        try:
            self._waiting = self._coroutine.send(None)
        except StopIteration as stop:
            self.done = True
            self._result = stop.value
        except BaseException as error:
            self.done = True
            self._error = error
        finally:
            self._busy = False
        return True

    @property
    def waits_for(self) -> _Waiting | None:
        return self._waiting

    def cancel(self) -> None:
        """Cancel the coroutine, which may still do something."""
        try:
            self._waiting = self._coroutine.throw(CancelledError())
        except StopIteration as stop:
            self.done, self._result = True, stop.value
        except BaseException as error:
            self.done, self._error = True, error

    def result(self) -> T:
        assert self.done, "it still waits"
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result
