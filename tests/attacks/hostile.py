"""An attacker who is let in: authorised, with sound frames, whose contents are hostile.

A :class:`Target` is a node on a hand-driven store, with sessions. It counts how many steps (keys
visited, keys got) the longest turn has taken, and how much memory was asked for.
Afterwards :meth:`Target.check_alive` looks after everything: services, counters, queues, the disk.
"""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from postroom import limits
from postroom.protocol import frames
from postroom.protocol.failures import Failure
from postroom.ranges.requests import CommitTransaction, Get, Put
from postroom.server.cluster.admission import NodeLimits
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.client_names import secret_of
from tests.sim import checkers
from tests.sim.service_rules import check_services

TURN_STEPS = 4 * limits.TURN_STEPS_MAX
"""The most steps of a turn: reads, one long read, one evaluation, and what goes along."""


class Attacker:
    """The other end of a session, by hand."""

    def __init__(self, target: Target, name: bytes, peer: str = "ipv4:10.0.0.1:999") -> None:
        self.target = target
        self.session = target.sessions.open(peer, lambda: None)
        self.answers: dict[int, Any] = {}
        self.failures: dict[int, Failure] = {}
        self.goodbye: Failure | None = None
        self._numbers = 0
        self._clock = 0
        self.say(0, frames.PROTOCOL_VERSION, secret_of(name), 1)
        target.until(lambda: bool(self.session.client) or self.session.ended)
        self.read()

    def say(self, *message: Any) -> None:
        frame = frames.encode(message)
        with self.target.counting():
            self.session.received(frame)

    def ask(self, *requests: Any) -> int:
        """Send requests in one frame, and return the number of the last one."""
        first = self._numbers + 1
        self._numbers += len(requests)
        self.say(1, self._clock, list(enumerate(requests, first)), [], False)
        return self._numbers

    def read(self) -> int:
        """Take the frames that have come, and return how many."""
        taken = 0
        while True:
            with self.target.counting():
                frame = self.session.take()
            if frame is None:
                return taken
            taken += 1
            assert len(frame) <= frames.FRAME_BYTES_MAX
            message = frames.from_node(frame)
            if isinstance(message, frames.Goodbye):
                self.goodbye = message.failure
            elif isinstance(message, frames.Answers):
                self._clock = max(self._clock, message.clock)
                for answer in message.answers:
                    if answer.failure is not None:
                        self.failures[answer.number] = answer.failure
                    else:
                        self.answers[answer.number] = msgspec.msgpack.decode(answer.result)
            else:
                self._clock = max(self._clock, message.clock)

    def result(self, request: Any) -> Any:
        """Ask one thing, and wait for its answer."""
        number = self.ask(request)
        self.target.until(lambda: self.read() >= 0 and self.has(number))
        assert number not in self.failures, self.failures[number]
        return self.answers[number]

    def failure(self, request: Any) -> Failure:
        """Return the failure of a request that is to be refused."""
        number = self.ask(request)
        self.target.until(lambda: self.read() >= 0 and self.has(number))
        return self.failures[number]

    def has(self, number: int) -> bool:
        return number in self.answers or number in self.failures or self.goodbye is not None

    def transaction_id(self, number: int) -> bytes:
        """Return an id of the attacker's own: it may not touch those of others."""
        return self.session.client + number.to_bytes(8, "big")

    def commit(self, *writes: Any, **fields: Any) -> CommitTransaction[Any]:
        self._numbers += 1
        began = self.target.store.node.clock.reading()
        id_ = self.transaction_id(self._numbers)
        reads, spans = fields.get("reads", []), fields.get("spans", [])
        at = fields.get("at", 0)
        return CommitTransaction(id_, began, 60.0, at, b"k", reads, spans, list(writes))


class Target:
    """A node on a hand-driven store, with sessions, whose steps and memory are counted."""

    def __init__(self, **options: Any) -> None:
        self.store = Store(**options)
        self.sessions = Sessions(self.store.node, NodeLimits())
        self.longest = 0
        self.turns = 0
        self._counting = False
        node = self.store.node
        prepare = node.prepare

        def counted() -> Any:
            self.turns += 1
            with self.counting():
                return prepare()

        node.prepare = counted  # type: ignore[method-assign]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the work of the block as one stretch, in which the node does nothing else."""
        if self._counting:
            yield
            return
        self._counting, before = True, self._steps()
        try:
            yield
        finally:
            self._counting = False
            self.longest = max(self.longest, self._steps() - before)

    def _steps(self) -> int:
        engine = self.store.engine
        return engine.steps + engine.gets

    def turn(self) -> None:
        """Run one turn, if one is wanted."""
        self.store.node.turn()

    def until(self, holds: Callable[[], bool], turns_max: int = 100_000) -> None:
        """Take turns until ``holds``."""
        for _ in range(turns_max):
            if holds():
                return
            self.turn()
        raise AssertionError("it never comes to that")

    def settle(self) -> None:
        self.store.driver.settle()

    def fill(self, count: int, prefix: bytes = b"key/", value: bytes = b"v") -> None:
        """Write so many keys, by an ordinary client, which is not counted."""
        longest = self.longest
        for first in range(0, count, 5000):
            with self.store.db.begin() as tx:
                for number in range(first, min(first + 5000, count)):
                    tx.put(prefix + b"%08d" % number, value)
        self.longest = longest

    def check_turns(self) -> None:
        assert self.longest <= TURN_STEPS, f"a turn took {self.longest} steps"

    def check_disk(self) -> None:
        """Check that the stored data is consistent."""
        checkers.check(self.store.engine.inner.disk.content)  # type: ignore[attr-defined]

    def check_alive(self) -> None:
        """Check services, queues and counters, and that others are served."""
        for session in list(self.sessions._open.values()):
            session.close()
        self.settle()
        self.store.db.drain()
        check_services(self.store.node.describe())
        replica = self.store.node.root.replica
        assert not replica.clients
        assert not replica.upkeep
        assert not replica.evaluator.is_behind
        assert not replica.reads.long
        assert not replica.reads.without_lease
        assert not replica.reads.blocked
        assert not any(replica.waiting_for.values())
        admission = self.sessions.admission
        assert (admission.requests, admission.bytes, admission.unread_bytes) == (0, 0, 0)
        assert not self.sessions._with_backlog
        assert self.sessions.large_frames.bytes == 0
        self.store.counters()
        self.check_disk()
        honest = Attacker(self, b"honest", "ipv4:10.0.0.9:1")
        honest.result(honest.commit(Put(b"honest", b"served")))
        assert honest.result(Get(b"honest"))[0] == b"served"
        honest.session.close()


def open_descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def has_descriptors(most: int) -> bool:
    """Return whether this process comes to have at most ``most`` descriptors open.

    A client that another test has left may be calling just now.
    """
    for _ in range(1000):
        if open_descriptors() <= most:
            return True
        threading.Event().wait(0.01)
    return False


@contextmanager
def memory_below(bytes_max: int, stored: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Check that the block asks for at most so much memory at a time.

    Stored data does not count: the disk of these tests is memory.
    """
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0] - stored()
        tracemalloc.reset_peak()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    peak -= stored()
    assert peak - before <= bytes_max, f"{(peak - before) / 2**20:.1f} MiB"
