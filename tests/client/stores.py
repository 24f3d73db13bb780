"""Stores for tests: time is moved by hand, and what the engine does is counted.

A :class:`Store` is a node without threads and without a loop. Its :class:`HandDriver` runs a turn
whenever one is wanted; when a caller waits for something else, it moves the clock to the next
deadline. So a wait of a minute takes no time, and every run of a test is the same::

    caller waits ──▶ turns, until none is wanted ──▶ answered?  else: the clock moves on

:class:`Running` is a caller that need not be waited for: several of them take turns.
"""

from __future__ import annotations

import functools
import itertools
import math
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final, Generic, TypeVar

from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import Codec, resolve
from postroom.client.remote.calls import RemoteCall
from postroom.client.remote.router import Router
from postroom.client.sender import TransactionIds
from postroom.errors import Invalid, Unavailable
from postroom.kv import keys
from postroom.kv.engine import Engine, EngineFailed, EngineSnapshot, WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine, WriteFault
from postroom.messaging.counters import Counters
from postroom.messaging.requests import ReadCounters
from postroom.protocol.failures import DeadlineExceeded
from postroom.raft.transport import NoPeers
from postroom.ranges.calls import Call
from postroom.ranges.requests import Now
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions
from postroom.server.node import Node, NodeOptions

T = TypeVar("T")

CEILING_KEY: Final = keys.store_key("clock ceiling")
PATIENCE_SECONDS: Final = 10_000.0
"""Who waits longer than this, on the clock moved by hand, waits for ever."""


class HandClock:
    """Both clocks, which stand still until they are moved."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.epoch_milliseconds = 1_700_000_000_000

    def wall_milliseconds(self) -> int:
        return self.epoch_milliseconds + round(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class WatchedEngine:
    """An engine that counts, and whose next write can be made to fail.

    Attributes:
        writes: batches that were written, empty ones not counted.
        keys_written: keys in them.
        steps: pairs that iterators have stepped over.
        fault: what becomes of the next write, but for one of the clock's ceiling alone; afterwards
            the engine has failed.
        before_write: called before each write.
        overlaps: writes that began while another one was under way, which the port forbids.
    """

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.writes = self.keys_written = self.syncs = self.gets = self.steps = 0
        self.fault: WriteFault | None = None
        self.before_write: Callable[[WriteSet], None] = lambda _: None
        self.overlaps = 0
        self._under_way = 0
        self._failed = False

    def get(self, key: bytes, /) -> bytes | None:
        self.gets += 1
        return self.inner.get(key)

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._counted(self.inner.iterate(lower, upper, reverse=reverse))

    def _counted(self, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for pair in pairs:
            self.steps += 1
            yield pair

    def write(self, writes: WriteSet, *, sync: bool) -> None:
        self.overlaps += self._under_way > 0
        self._under_way += 1
        try:
            self._write(writes, sync=sync)
        finally:
            self._under_way -= 1

    def _write(self, writes: WriteSet, *, sync: bool) -> None:
        self.before_write(writes)
        if self._failed:
            raise EngineFailed("it has failed before")
        self._failed = self.fault is not None and writes.keys() != {CEILING_KEY}
        if not self._failed or self.fault is WriteFault.THERE_WHOLE:
            self.inner.write(writes, sync=sync)
            self.writes += bool(writes)
            self.syncs += sync
            self.keys_written += len(writes)
        if self._failed:
            raise EngineFailed("a fault that the test asked for")

    def snapshot(self) -> EngineSnapshot:
        return self.inner.snapshot()

    def approximate_bytes(self, lower: bytes, upper: bytes) -> int:
        return self.inner.approximate_bytes(lower, upper)

    def disk_bytes(self) -> int:
        return self.inner.disk_bytes()

    def compact(self, lower: bytes, upper: bytes) -> None:
        self.inner.compact(lower, upper)

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def close(self) -> None:
        self.inner.close()


def dump(engine: Engine) -> dict[bytes, bytes]:
    """Everything that an engine holds."""
    return dict(engine.iterate(b"", b"\xff" * 9))


class _Waiting(Call):
    """A request and its answer, or a pause: what a coroutine waits for."""

    __slots__ = ("_error", "_result", "deadline", "done")

    def __init__(self, request: Any, deadline: float | None) -> None:
        super().__init__(request)
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
        waiting = _Waiting(request, deadline)
        self.node.submit(waiting)
        if deadline is not None:
            self._timed.append(waiting)
        return waiting

    def try_get(self, key: bytes) -> None:
        """Everything is asked for."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        waiting = _Waiting(None, self.monotonic() + seconds)
        self._timed.append(waiting)
        return waiting

    def now(self) -> int:
        return self.node.clock.read()

    def reading(self) -> int:
        return self.node.clock.reading()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
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
        """Whoever waits in ``running`` gives up, as a task that is cancelled does."""
        waiting = running.waits_for
        if waiting is not None and not waiting.done:
            self.node.replica.cancel(waiting)
        running.cancel()
        self.settle()

    def later(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run ``coroutine`` once what is going on now has settled."""
        self._running.append(Running(coroutine))

    def settle(self) -> None:
        """Turns, and whoever got an answer, until nothing happens any more."""
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
        elif not waiting.done and self.node.replica.cancel(waiting):
            waiting.complete(None, DeadlineExceeded())


class _RemoteWaiting(RemoteCall):
    """The same for a request that the router carries: it also sees to its deadline."""

    __slots__ = ("_error", "_result")

    def __init__(self, request: Any, timeout_seconds: float | None) -> None:
        super().__init__(request, timeout_seconds)
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

    def now(self) -> Awaitable[int]:
        return self.send(Now())

    def try_get(self, key: bytes) -> None:
        """Everything is asked for."""

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
        """Looked for all the time."""

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
        """Frames, until there are none; whether there were any."""
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
        """A step, if it can make one; whether it could."""
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
        """It is told so, and may still do something."""
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


class Store:
    """A node on an engine, and the client on it in both forms.

    Attributes:
        db: the synchronous form.
        core: the asyncio form, for :meth:`HandDriver.start`.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine] | None = None,
        *,
        codec: str | Codec | None = None,
        remote: bool = False,
        **options: Any,
    ) -> None:
        self._open_engine = open_engine or functools.partial(MemoryEngine, MemoryDisk())
        self._options = NodeOptions(**options)
        self._seeds = itertools.count()
        self.clock = HandClock()
        self.driver = (RemoteDriver if remote else HandDriver)(self.clock, self._random())
        self.core = self._client(codec)
        self.db = blocking.Database(self.driver, self.core)
        self._start()

    def _client(self, codec: str | Codec | None) -> asynchronous.Database:
        return asynchronous.Database(
            self.driver, resolve(codec), self._no_status, self.driver.close
        )

    def with_codec(self, codec: str | Codec) -> blocking.Database:
        """Another client of the same store."""
        return blocking.Database(self.driver, self._client(codec))

    @staticmethod
    async def _no_status() -> Any:
        raise NotImplementedError

    def _random(self) -> Random:
        return Random(next(self._seeds))

    def _start(self, *, services: bool = True) -> None:
        self.engine = WatchedEngine(self._open_engine())
        self.node = Node(self.engine, self.clock, self._random(), NoPeers(), self._options)
        if not services:
            self.node.tasks.stop()
        self.driver.attach(self.node)

    def restart(self, *, after_seconds: float = 0, services: bool = True) -> None:
        """Closed and opened again, perhaps without services; clients and transactions live on."""
        self.node.close()
        self.clock.seconds += after_seconds
        self._start(services=services)

    def dead_reasons(self) -> list[str]:
        """The names of the errors of all dead letters."""
        return [letter.reason.partition(":")[0] for letter in self.db.dead_letters()]

    def kill(self) -> None:
        """Ended in the middle of things and opened again; transactions of clients live on."""
        self.engine.inner.close()
        self._start()

    def advance(self, seconds: float) -> None:
        """Let a time pass."""
        self.driver.advance(seconds)

    def counters(self) -> Counters:
        """What became of all messages, checked."""

        async def ask() -> Counters:
            counters: Counters = await self.driver.send(ReadCounters())
            return counters

        counters = self.driver.run(ask())
        assert counters.conserved()
        return counters

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        """Begin something that may have to wait."""
        return self.driver.start(coroutine)

    def dump(self) -> dict[bytes, bytes]:
        """Everything that is stored."""
        return dump(self.engine.inner)

    def writes_of(self, action: Callable[[], object]) -> int:
        """How many engine writes ``action`` takes."""
        before = self.engine.writes
        action()
        self.driver.settle()
        return self.engine.writes - before


class Between:
    """Something happens between the first and the second request of a kind.

    Attributes:
        times: how many requests of the kind were sent.
    """

    def __init__(self, store: Store, kind: type, action: Callable[[], object]) -> None:
        self.times = 0
        self._kind = kind
        self._action = action
        self._send = store.driver.send
        store.driver.send = self  # type: ignore[method-assign]

    def __call__(self, request: Any, timeout_seconds: float | None = None) -> Any:
        if type(request) is self._kind:
            self.times += 1
            if self.times == 2:
                self._action()
        return self._send(request, timeout_seconds)
