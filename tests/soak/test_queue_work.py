"""The work with queues in a soak: a client that pauses on purpose counts the pause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroom import aio
from tests.soak import queue_work
from tests.soak.queue_work import QueueWork


def test_the_auditor_counts_its_reading_and_its_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_work, "READ_SECONDS", 0.1)

    async def audit() -> int:
        async with await aio.open(tmp_path / "store") as db:

            async def connect() -> aio.Database:
                return db

            work = QueueWork(connect, lambda: True)
            (auditor,) = [each for each in await work.setup(db) if each.name == "auditor 0"]
            await work._audit(auditor)
            await work.finish()
            return auditor.done

    assert asyncio.run(audit()) == 2
