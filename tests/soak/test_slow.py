"""Slow readers at a node: it keeps little for them, and serves others meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from random import Random  # noqa: TID251 - seeded

import pytest

import postroom
from postroom.server.cluster.admission import NodeLimits
from tests.remote.servers import Server
from tests.soak import slow
from tests.soak.slow import SlowReaders
from tests.soak.worker import Worker

UNREAD_BYTES_MAX = 2 * 1024 * 1024
VALUE_BYTES = 1024 * 1024
SERVED = 10
"""The least number of times that others are served meanwhile."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(limits=NodeLimits(unread_bytes_max=UNREAD_BYTES_MAX)) as server:
        with postroom.connect(server.address, insecure=True) as db:
            for number in range(4):
                db.put(b"soak/large/%d" % number, bytes(VALUE_BYTES))
        yield server


@pytest.mark.parametrize("name", ["trickle", "stall", "read_nothing"])
def test_slow_readers_are_slow_and_others_are_served(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("TRICKLE_SECONDS", "STALL_SECONDS", "MUTE_SECONDS"):
        monkeypatch.setattr(slow, seconds, 1.0)
    most, is_held, served, done = 0, False, 0, threading.Event()

    class Clock:
        """A clock for the reader, which stands still until others were served."""

        def __init__(self) -> None:
            self._began: float | None = None

        def monotonic(self) -> float:
            if self._began is None and served > SERVED:
                self._began = time.monotonic()
            return 0.0 if self._began is None else time.monotonic() - self._began

    monkeypatch.setattr(slow, "time", Clock())

    async def read() -> Worker:
        readers = SlowReaders([server.address], lambda: True)
        loop: Callable[[Worker], Awaitable[None]] = getattr(readers, name)
        worker = Worker(name, loop, Random(1))
        try:
            await loop(worker)
        finally:
            done.set()
        return worker

    with postroom.connect(server.address, insecure=True) as db:
        reading = threading.Thread(target=lambda: workers.append(asyncio.run(read())))
        workers: list[Worker] = []
        reading.start()
        while not done.is_set():
            db.put(b"other", b"%d" % served)
            assert db.get(b"other") == b"%d" % served
            served += 1
            most = max(most, server.sessions.admission.unread_bytes)
            sessions = list(server.sessions._open.values())
            is_held = is_held or any(session._intake for session in sessions)
        reading.join()
    assert [worker.done > 0 for worker in workers] == [True]
    assert served > SERVED
    assert is_held, "what it does not take is not made"
    assert most <= UNREAD_BYTES_MAX + 2 * VALUE_BYTES
