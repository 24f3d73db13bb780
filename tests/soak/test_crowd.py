"""A crowd at a node: others are served, and nothing is kept for those who have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - seeded

import pytest

import postroom
from tests.remote.servers import Server
from tests.soak import crowd
from tests.soak.crowd import Crowd
from tests.soak.worker import Worker


@pytest.mark.parametrize("name", ["flood", "program", "idle", "watch", "bulk", "glut"])
def test_a_crowd_gets_on_and_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in ("FLOOD_SECONDS", "PAUSE_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(crowd, seconds, 0.1)
    with Server() as server, postroom.connect(server.address, insecure=True) as db:

        async def come_three_times() -> Worker:
            people = Crowd([server.address], lambda: True)
            loop: Callable[[Worker], Awaitable[None]] = getattr(people, name)
            worker = Worker(name, loop, Random(1))
            for _ in range(3):
                await loop(worker)
            return worker

        assert asyncio.run(come_three_times()).done == 3
        for _ in range(1000):
            db.put(b"other", b"served")
            if len(server.sessions) == 1 and len(server.sessions.admission.clients) == 1:
                break
        assert dict(server.sessions.admission.clients) == {"127.0.0.1": 1}
        assert server.sessions.admission.requests <= 1
