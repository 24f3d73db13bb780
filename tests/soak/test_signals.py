"""Signals of the soak: the store goes on after each of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from typing import Any

import pytest

from postroom import aio
from postroom.errors import CommitUnknown, Unavailable
from postroom.server.asyncio_driver import AsyncioDriver
from tests.soak import signals
from tests.soak.signals import Signals
from tests.soak.worker import Worker


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PAUSE_SECONDS", 0.0)


async def interrupt(folder: Path) -> int:
    async with await aio.open(folder / "store") as db:
        sender: Any = db._sender
        raising = Signals(sender.node, lambda: True)
        worker = Worker("signals", lambda _: raising.interrupt(worker, db), Random(1))
        await raising.interrupt(worker, db)
        assert worker.done == 1
        return raising.raised


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("part", signals.PARTS)
def test_a_store_goes_on_after_signals(
    tmp_path: Path, part: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "PARTS", (part,))
    monkeypatch.setattr(signals, "LARGE_CHANCE", float(large))
    assert asyncio.run(interrupt(tmp_path)) > 0


def test_a_store_that_is_stopped_by_a_signal_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(driver: Any) -> None:
        """Take a turn without putting handlers aside."""
        driver._turn_wanted = False
        try:
            node = driver.node
            node.finish(node.write(node.prepare()))
        except BaseException:
            driver._break_off()
            raise

    monkeypatch.setattr(signals, "PARTS", ("finish",))
    monkeypatch.setattr(AsyncioDriver, "_turn", broken)
    with pytest.raises((CommitUnknown, Unavailable)):
        asyncio.run(interrupt(tmp_path))
