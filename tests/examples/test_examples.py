"""Every example runs as a user runs it, and checks its own result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.remote.servers import Server

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def test_at_least_six_examples_exist() -> None:
    assert len(EXAMPLES) >= 6


def run(example: Path, folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    run(example, tmp_path)


def test_an_example_on_a_cluster(tmp_path: Path) -> None:
    with Server() as server:
        run(FOLDER / "remote_shop.py", tmp_path, server.address)
