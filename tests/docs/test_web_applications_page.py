"""The commands and programs of the page about web applications, as separate processes."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import postroom.aio
from tests.gateway.processes import WAIT_SECONDS, free_address, running

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "web-applications.md").read_text()
PROGRAM = next(re.finditer(r"```python\n# shop/tasks.py\n(.*?)```", TEXT, re.DOTALL))[1]
COMMANDS = next(re.finditer(r"```sh\n(.*?)```", TEXT, re.DOTALL))[1].splitlines()


def test_the_commands_of_the_page_serve_a_store_and_do_the_tasks_of_its_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text(PROGRAM)
    address = free_address()
    serve, create, worker = (
        command.replace("127.0.0.1:7400", address).replace("/var/lib/postroom", "data").split()[1:]
        for command in COMMANDS
    )
    tasks: dict[str, Any] = {}
    exec(compile(PROGRAM, "shop/tasks.py", "exec"), tasks)

    async def order() -> object:
        """Take an order as a web process does, and wait for its invoice."""
        async with await postroom.aio.connect(address, insecure=True) as db:
            before = await db.now()
            await db.run(tasks["take_order"], b"7")
            async for _ in db.watch(b"invoice/7", after=before, timeout=WAIT_SECONDS):
                break
            return await db.get(b"invoice/7")

    with running(*serve):
        subprocess.run(
            [sys.executable, "-m", "postroom", *create], check=True, timeout=WAIT_SECONDS
        )
        with running(*worker):
            assert asyncio.run(order()) == b"..."


@pytest.mark.parametrize(("unit", "command"), [("postroom", 0), ("postroom-worker@", 2)])
def test_the_units_of_systemd_start_the_commands_of_the_page(unit: str, command: int) -> None:
    text = (ROOT / "deploy" / f"{unit}.service").read_text().replace("%S", "/var/lib")
    assert re.findall(r"^ExecStart=/opt/postroom/bin/(.*)", text, re.MULTILINE) == [
        COMMANDS[command]
    ]
