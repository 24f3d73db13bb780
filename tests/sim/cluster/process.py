"""A process with clients in it, and a node's end of their streams.

Both are shells around the real router and the real sessions. They move frames through the simulated
network.

::

    client ─▶ Process.send ─▶ Router ─▶ frames ══ Stream ══▶ SessionShell ─▶ Session ─▶ node

Frames are the bytes that would go over the wire. Both shells do what the asyncio ones do: they
write what there is after everything else that happens at the moment, and ring the router's alarm.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import TYPE_CHECKING, Any, Final

from postroom.client.routing.calls import RemoteCall
from postroom.client.routing.router import Router
from postroom.client.sender import TransactionIds, taken_back_by
from postroom.errors import Unavailable
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.contract import Role
from postroom.ranges.requests import Now
from postroom.server.cluster.access import WRITER, Access
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions
from tests.sim.agenda import Agenda
from tests.sim.checkers import Broken
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.network import CONNECT_SECONDS, End, Network
from tests.sim.sender import AwaitedAnswer, ClientSender
from tests.sim.tasks import Task

if TYPE_CHECKING:
    from tests.sim.cluster.cluster import Cluster

ADMINISTRATOR: Final = "administrator"
"""The name of the only process that may split ranges, and move their leases."""
SHELL_SECONDS: Final = 0.00002
"""The time between the first frame that there is to write and writing all that there are."""


class RemoteAnswer(AwaitedAnswer, RemoteCall):
    """A request on its way to a cluster, and its answer."""

    __slots__ = ("error", "result", "sender", "task")

    def __init__(self, sender: Process, request: Any, timeout_seconds: float | None) -> None:
        super().__init__(request, timeout_seconds)
        self.sender = sender
        self.result: Any = None
        self.error: BaseException | None = None
        self.task: Task | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Take the answer that has come."""
        self.done, self.result, self.error = True, result, error
        self.sender.answered(self)


class Process(ClientSender):
    """A :class:`postroom.client.sender.Sender`, and the port of its router.

    Attributes:
        name: its place in the network.
    """

    def __init__(self, cluster: Cluster, name: str, randomness: Random) -> None:
        super().__init__(cluster, randomness)
        self.name = name
        self._cluster = cluster
        self._agenda: Agenda = cluster.agenda
        self._network: Network = cluster.network
        self._ends: dict[int, End] = {}
        self._alarm_at = math.inf
        self._rate = randomness.uniform(0.99, 1.01)
        addresses = randomness.sample(cluster.addresses, len(cluster.addresses))
        self.router = Router(addresses, self, self.monotonic, randomness)
        self.ranges = self.router.ranges
        self.range_of = self.range_id = self.router.range_of
        self.span_of = self.router.span_of
        self.next_id = TransactionIds(self.router.client)
        self.router.start()

    # --- calls of clients

    async def connect(self) -> None:
        """Ask until a leader answers, as ``postroom.connect`` does, however often that takes."""
        while not self.router.reading():
            with contextlib.suppress(Unavailable):
                await self.send(Now())

    def send(self, request: Any, timeout_seconds: float | None = None) -> RemoteAnswer:
        """Return the answer to ``request``, to be awaited once."""
        self._require_alive()
        answer = RemoteAnswer(self, request, timeout_seconds)
        self._cluster.witness.sent(request)
        self.router.submit(answer)
        return answer

    def answered(self, answer: RemoteAnswer) -> None:
        """Hand on an answer that has come; only :class:`RemoteAnswer` calls it."""
        result, error = answer.result, answer.error
        self._cluster.note("answer", self.name, result if error is None else type(error).__name__)
        if not self.is_dead and not isinstance(error, DeadlineExceeded):
            self._cluster.witness.answered(answer.request, result, error)
        self._cluster.resume(answer)

    def give_up(self, answer: RemoteAnswer) -> None:
        """Give up a wait for ``answer``, as the asyncio form does it."""
        self.router.cancel(answer)
        request = taken_back_by(self, answer.request, answer.result)
        if request is not None:
            self.send(request)

    def now(self) -> RemoteAnswer:
        """Return a timestamp of the store's."""
        return self.send(Now())

    def reading(self) -> int:
        """Return about now."""
        return self.router.reading()

    def monotonic(self) -> float:
        """Return the seconds by this process's clock."""
        return self._agenda.now * self._rate

    def die(self) -> None:
        """Kill the process: its streams break."""
        super().die()
        for end in self._ends.values():
            end.close()
        self._ends.clear()

    # --- the router's port

    def open(self, link: int, address: str) -> None:
        """Open a stream to ``address``."""
        self._soon(lambda: self._open(link, address))

    def _open(self, link: int, address: str) -> None:
        machine = self._cluster.at_address(address)
        if machine is None or machine.node is None:
            self._fail_to_open(link, self._network.delay(), "connection refused")
        elif self._network.is_stuck(self.name, machine.name):
            self._fail_to_open(link, CONNECT_SECONDS, "no answer")
        else:
            mine, theirs = self._network.open_stream(self.name, machine.name)
            self._ends[link] = mine
            mine.on_bytes = lambda data: self._received(link, mine, data)
            mine.on_broken = lambda: self._broken(link, mine)
            machine.accept(theirs)
            self._write(link)

    def _fail_to_open(self, link: int, seconds: float, why: str) -> None:
        error = Unavailable(why)
        self._soon(lambda: self.router.disconnected(link, error), seconds)

    def output(self, link: int) -> None:
        """Write soon, since there is something to write."""
        self._soon(lambda: self._write(link))

    def _write(self, link: int) -> None:
        end = self._ends.get(link)
        while end is not None and end.is_open and (frame := self.router.take(link)) is not None:
            end.send(frame)

    def close(self, link: int) -> None:
        """Close a stream that is not used any more."""
        end = self._ends.pop(link, None)
        if end is not None:
            self._soon(end.close)

    def alarm(self, when: float) -> None:
        """Call ``tick`` at ``when``, on this process's clock."""
        if when < self._alarm_at:
            self._alarm_at = when
            self._agenda.at(when / self._rate + 1e-6, lambda: self._ring(when))

    def _ring(self, when: float) -> None:
        if not self.is_dead and when == self._alarm_at:
            self._alarm_at = math.inf
            self.router.tick()

    def _received(self, link: int, end: End, data: bytes) -> None:
        if not self.is_dead and self._ends.get(link) is end:
            self.router.received(link, data)

    def _broken(self, link: int, end: End) -> None:
        if not self.is_dead and self._ends.get(link) is end:
            del self._ends[link]
            self.router.disconnected(link, Unavailable("the connection broke"))

    def _soon(self, act: Callable[[], object], seconds: float = SHELL_SECONDS) -> None:
        self._agenda.after(seconds, lambda: None if self.is_dead else act())


class SessionShell:
    """A node's end of a client's stream: it reads on only while the session does."""

    def __init__(self, sessions: Sessions, machine: Machine, end: End, agenda: Agenda) -> None:
        self._machine = machine
        self._end = end
        self._agenda = agenda
        self._unread: deque[bytes] = deque()
        self._is_told = False
        access = Access(Role.ADMIN) if end.peer == ADMINISTRATOR else WRITER
        self._session: Session = sessions.open(end.peer, self._on_output, access)

    def receive(self, data: bytes) -> None:
        """Take a frame from the client."""
        self._unread.append(data)
        self._read()

    def _read(self) -> None:
        unread, session = self._unread, self._session
        while unread and session.reading:
            session.received(unread.popleft())
        if unread and not session.ended:
            self._machine.held_up[self] = None
        else:
            self._machine.held_up.pop(self, None)

    def check(self) -> None:
        """Check that somebody will read on; it is asked while something is unread."""
        if self._session.reading and not self._is_told:
            raise Broken(f"nobody reads on from {self._end.peer}, and nobody was told to")

    def close(self) -> None:
        """End the session with its stream."""
        self._machine.held_up.pop(self, None)
        self._session.close()

    def _on_output(self) -> None:
        self._is_told = True
        life = self._machine.lives

        def write() -> None:
            if self._machine.node is not None and self._machine.lives == life:
                self._machine.act(self._write)

        self._agenda.after(SHELL_SECONDS, lambda: self._machine.when_awake(write))

    def _write(self) -> None:
        self._is_told = False
        while (frame := self._session.take()) is not None:
            self._end.send(frame)
        self._read()
        if self._session.ended:
            self._end.close()
