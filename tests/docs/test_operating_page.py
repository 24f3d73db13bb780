"""The commands of the page about operating run as they stand, up to a replaced node."""

from __future__ import annotations

import os
import random  # noqa: TID251 - for free ports
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()
COMMANDS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
PORTS = ("01", "02", "03", "11", "12", "13")
"""The last digits of the ports of the page."""
WALK_SECONDS = 200.0

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "openssl"))), reason="needs bash, curl and OpenSSL"
)


def free_ports() -> str:
    """Return the first three digits of ports of which those that the page uses are free."""
    while True:
        beginning = str(random.randrange(103, 327))
        try:
            with ExitStack() as stack:
                for port in PORTS:
                    stack.enter_context(socket.create_server(("127.0.0.1", int(beginning + port))))
        except OSError:
            continue
        return beginning


def ended(script: str, folder: Path) -> int:
    """Run a script in a folder, end all that it has started, and return its exit code."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    with (folder / "told").open("wb") as told, (folder / "errors").open("wb") as errors:
        shell = subprocess.Popen(
            ["bash", "-e", "-u", "-c", script], cwd=folder, stdout=told, stderr=errors,
            start_new_session=True, env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            return shell.wait(WALK_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


def test_the_commands_lead_to_three_nodes_a_backup_a_renewed_certificate_and_a_replaced_node(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "postroom"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m postroom "$@"\n')
    program.chmod(0o755)
    script = "\n".join(COMMANDS).replace("127.0.0.1:74", f"127.0.0.1:{free_ports()}")
    code = ended(script, tmp_path)
    told = (tmp_path / "told").read_text()
    logs = [each.read_text() for each in sorted(tmp_path.glob("node-*.log"))]
    assert code == 0, "\n".join([told, (tmp_path / "errors").read_text(), *logs])
    assert told.splitlines()[-2:] == ["nothing is wrong", "hello"]
    assert "postroom_up 1.0" in told.splitlines()
    assert told.splitlines().count("hello") == 2, "the restored store has it, too"
    for number in (1, 2, 3):
        assert re.search(rf"^ {number} +127\S+ +(leader|follower)", told, re.MULTILINE)
    secrets = [tmp_path / "tokens", *tmp_path.glob("*.key")]
    assert len(secrets) == 6
    assert [path.name for path in secrets if path.stat().st_mode & 0o077] == []
    assert re.fullmatch(r"\S+\nadmin \S+\n", (tmp_path / "tokens").read_text())
