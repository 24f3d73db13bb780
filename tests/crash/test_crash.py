"""``kill -9`` under load, again and again: nothing acknowledged is lost, nothing is half done.

The short form of ``python -m tests.crash``; with ``POSTROOM_CRASH_LONG`` set (``make crash``) the
long one.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

import pytest

from postroom.kv.engine_folder import EngineName
from tests.crash.lives import Lives
from tests.kv.on_disk import INSTALLED

SECONDS_MAX = 100.0
KILLS = 150 if os.environ.get("POSTROOM_CRASH_LONG") else 5


@pytest.mark.parametrize("engine", INSTALLED)
@pytest.mark.parametrize("mode", ["asyncio", "threads"])
def test_kill(tmp_path: Path, mode: str, engine: EngineName) -> None:
    lives = Lives(tmp_path / "store", Random(mode))
    lives.set_up(engine)
    for _ in range(KILLS):
        lives.live_and_die(mode)
        lives.check()
    while not lives.acknowledged:  # a slow device leaves them no time: they live longer
        lives.alive_seconds *= 2
        assert lives.alive_seconds < SECONDS_MAX, "nothing is ever acknowledged"
        lives.live_and_die(mode)
        lives.check()
