"""Trouble of the machine: the store bears it, and is as before afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from typing import Any

import pytest

from postroom import aio
from tests.soak import trouble
from tests.soak.trouble import Trouble
from tests.soak.worker import Worker


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(trouble, "WRONG_SECONDS", 0.3)


@pytest.mark.parametrize("free", trouble.FREE_BYTES)
def test_a_full_device_is_borne(tmp_path: Path, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "FREE_BYTES", (free,))

    async def fill() -> None:
        async with await aio.open(tmp_path / "store") as db:
            sender: Any = db._sender
            troubled = Trouble(sender.node, lambda: True)
            worker = Worker("full device", lambda _: troubled.fill_device(worker, db), Random(1))
            for _ in range(2):
                await troubled.fill_device(worker, db)
                await db.put(b"key", b"there is room again")
            assert worker.done == 2
            assert sender.node.engine.state.free_bytes() > 0

    asyncio.run(fill())


@pytest.mark.parametrize("jump", trouble.JUMPS_SECONDS)
def test_a_wrong_clock_is_borne(tmp_path: Path, jump: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "JUMPS_SECONDS", (jump,))

    async def jump_and_wait() -> None:
        async with await aio.open(tmp_path / "store") as db:
            sender: Any = db._sender
            troubled = Trouble(sender.node, lambda: True)
            worker = Worker("wrong clock", troubled.set_clock, Random(1))
            await troubled.set_clock(worker)
            async with db.begin() as tx:
                tx.enqueue_message(b"inbox", b"soon", deliver_at=0.1)
            async with db.begin() as tx:
                (message,) = await tx.reap_queue(b"inbox", 1, wait=5.0)
            assert message.value == b"soon"

    asyncio.run(jump_and_wait())
