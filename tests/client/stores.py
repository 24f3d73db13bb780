"""Stores for tests: time is moved by hand, and what the engine does is counted.

A :class:`Store` is a node without threads and without a loop (:mod:`.hand_driver`), on an engine
that is watched (:mod:`.watched_engine`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine
from random import Random  # noqa: TID251 (seeded)
from typing import Any

from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import Codec, resolve
from postroom.kv.engine import Engine
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.messaging.requests import Counters, ReadCounters
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.node import Node
from tests.client.hand_driver import HandClock, HandDriver, RemoteDriver, Running, T
from tests.client.watched_engine import WatchedEngine, dump


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
        self.db = blocking.CoreDatabase(self.driver, self.core)
        self._start()

    def _client(self, codec: str | Codec | None) -> asynchronous.CoreDatabase:
        return asynchronous.CoreDatabase(
            self.driver, resolve(codec), self._no_status, self.driver.close
        )

    def with_codec(self, codec: str | Codec) -> blocking.CoreDatabase:
        """Return another client of the same store."""
        return blocking.CoreDatabase(self.driver, self._client(codec))

    @staticmethod
    async def _no_status(_: Any) -> Any:
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
        """Close and open the store, perhaps without services; clients and transactions live on."""
        self.node.close()
        self.clock.seconds += after_seconds
        self._start(services=services)

    def dead_reasons(self) -> list[str]:
        """Return the names of the errors of all dead letters."""
        return [letter.reason.partition(":")[0] for letter in self.db.dead_letters()]

    def kill(self) -> None:
        """End the store in the middle of things, and open it; transactions of clients live on."""
        self.engine.inner.close()
        self._start()

    def advance(self, seconds: float) -> None:
        """Let a time pass."""
        self.driver.advance(seconds)

    def counters(self) -> Counters:
        """Return the counters of all messages, checked."""

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
        """Return everything that is stored."""
        return dump(self.engine.inner)

    def writes_of(self, action: Callable[[], object]) -> int:
        """Return how many engine writes ``action`` takes."""
        before = self.engine.writes
        action()
        self.driver.settle()
        return self.engine.writes - before


class Between:
    """A driver that does something between the first and the second request of a kind.

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
