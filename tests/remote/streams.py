"""A client of three nodes in one process: its router, whose frames are carried by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator
from random import Random  # noqa: TID251 (seeded)
from typing import Any, TypeVar

from postroom.client.codec import resolve
from postroom.client.database import CoreDatabase
from postroom.client.routing.calls import RemoteCall
from postroom.client.routing.router import Router
from postroom.client.sender import TransactionIds
from postroom.ranges.contract import Role
from postroom.ranges.requests import CommitTransaction, Now, Put
from postroom.server.cluster.access import Access
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions
from tests.client.hand_driver import Running
from tests.remote.scripted_nodes import Asked
from tests.server.hosting import ThreeNodes

T = TypeVar("T")


class Streams:
    """The port of a router that talks to three nodes; frames are carried by hand."""

    def __init__(self, nodes: ThreeNodes, role: Role = Role.WRITE, seed: int = 3) -> None:
        self._access = Access(role)
        self.nodes = nodes
        self.sessions = {f"n:{each}": Sessions(node) for each, node in nodes.nodes.items()}
        self._open: dict[int, Session] = {}
        self._alarm = math.inf
        monotonic = nodes.clock.monotonic
        self.router = Router(list(self.sessions), self, monotonic, Random(seed))
        self.router.start()

    def open(self, link: int, address: str) -> None:
        self._open[link] = self.sessions[address].open("somebody", lambda: None, self._access)

    def output(self, link: int) -> None:
        """Do nothing: output is looked for all the time."""

    def close(self, link: int) -> None:
        self._open.pop(link).close()

    def alarm(self, when: float) -> None:
        self._alarm = min(self._alarm, when)

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        self.nodes.until(lambda: self._carry() or condition(), seconds)

    def pass_time(self, seconds: float) -> None:
        """Let a time pass in which the client gives signs of life."""
        self.nodes.pass_time(seconds, self._carry)

    def _carry(self) -> None:
        if self._alarm <= self.nodes.clock.seconds:
            self._alarm = math.inf
            self.router.tick()
        for link, session in list(self._open.items()):
            while link in self._open and (frame := self.router.take(link)) is not None:
                session.received(frame)
            while link in self._open and (frame := session.take()) is not None:
                self.received(link, frame)

    def received(self, link: int, frame: bytes) -> None:
        """Take a frame of a node."""
        self.router.received(link, frame)

    def ask(self, request: Any) -> Any:
        call = Asked(request)
        self.router.submit(call)
        self.until(lambda: call.answers)
        if call.error is not None:
            raise call.error
        return call.result

    def put(self, number: int, key: bytes, value: bytes) -> None:
        id_ = self.router.client + number.to_bytes(8, "big")
        began = self.router.reading()
        self.ask(CommitTransaction(id_, began, 60.0, 0, key, [], [], [Put(key, value)]))


class _Waiting(RemoteCall):
    """A request of a coroutine and its answer, or a pause until a time."""

    __slots__ = ("_error", "_result", "until")

    def __init__(self, request: Any, timeout_seconds: float | None = None) -> None:
        super().__init__(request, timeout_seconds)
        self._result: Any = None
        self._error: BaseException | None = None
        self.until = 0.0

    def complete(self, result: Any, error: BaseException | None) -> None:
        self.done = True
        self._result, self._error = result, error

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._result


class DatabaseOverStreams(Streams):
    """The sender of a database at three nodes.

    Attributes:
        db: the database.
    """

    def __init__(self, nodes: ThreeNodes, seed: int = 3) -> None:
        super().__init__(nodes, Role.ADMIN, seed)
        self.random = Random(5)
        self.patience_seconds = 0.0
        self.next_id = TransactionIds(self.router.client)
        self.ranges = self.router.ranges
        self.range_of = self.range_id = self.router.range_of
        self.span_of = self.router.span_of
        self.reading = self.router.reading
        self.monotonic = nodes.clock.monotonic
        self._pauses: list[_Waiting] = []
        sender: Any = self
        self.db = CoreDatabase(sender, resolve(None), _no_status, _never)
        self.ask(Now())

    def send(self, request: Any, timeout_seconds: float | None = None) -> _Waiting:
        waiting = _Waiting(request, timeout_seconds)
        self.router.submit(waiting)
        return waiting

    def now(self) -> _Waiting:
        return self.send(Now())

    def try_get(self, key: bytes) -> None:
        """Return no answer at once, since everything is asked for."""

    def sleep(self, seconds: float) -> _Waiting:
        pause = _Waiting(None)
        pause.until = self.monotonic() + seconds
        self._pauses.append(pause)
        return pause

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        """Run a coroutine as far as it goes without an answer."""
        return Running(coroutine)

    def finish(self, *running: Running[Any]) -> None:
        """Run coroutines to their ends."""
        self.until(lambda: self.go_on(*running))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine."""
        running = self.start(coroutine)
        self.finish(running)
        return running.result()

    def go_on(self, *running: Running[Any]) -> bool:
        """Run coroutines as far as they go with the answers of by now; return whether all ended."""
        self._carry()
        for pause in [each for each in self._pauses if each.until <= self.monotonic()]:
            self._pauses.remove(pause)
            pause.complete(None, None)
        for each in running:
            each.go_on()
        return all(each.done for each in running)


async def _no_status(_: Any) -> Any:
    raise NotImplementedError


async def _never() -> Any:
    raise NotImplementedError
