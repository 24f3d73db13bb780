"""A signal while a node starts ends it in good order."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

END_SECONDS = 60.0
SIGNALLED = """
import os, signal, sys
from postroom.cli import serve
from postroom.cli.application import app
from postroom.server.cluster import serving

number, moment = getattr(signal, sys.argv.pop()), sys.argv.pop()
build, check = serving.ServedNode.__init__, serve.check_no_local_cluster

def signal_once(at):
    if at == moment:
        os.kill(os.getpid(), number)

def built(self, *arguments):
    build(self, *arguments)
    signal_once("built")

def loaded(path):
    try:
        signal_once("loaded")
    except KeyboardInterrupt:
        pass  # as some imports of extensions do
    check(path)

serving.ServedNode.__init__ = built
serve.check_no_local_cluster = loaded
app()
"""


@pytest.mark.parametrize("moment", ["loaded", "built"])
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_signal_while_a_node_starts_ends_it_in_good_order(
    tmp_path: Path, signal: str, moment: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
    serve = ["serve", "--path", str(tmp_path / "store"), "--listen", listen, "--insecure"]
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALLED, *serve, moment, signal],
        capture_output=True, text=True, timeout=END_SECONDS, check=False,
    )  # fmt: skip
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0, ended.stderr
