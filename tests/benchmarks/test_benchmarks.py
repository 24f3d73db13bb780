"""The benchmarks run, and say what they should. How fast is no test's business."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


MEMORY = Path("/dev/shm")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In memory, where there is such a folder: how quickly a device syncs is no test's business."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = dict(os.environ)
    if os.access(MEMORY, os.W_OK):
        environment["TMPDIR"] = str(MEMORY)
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )


def test_all_of_them_run_and_write_what_they_measured(tmp_path: Path) -> None:
    done = run("--quick", "--json", str(tmp_path / "results.json"))
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "results.json").read_text())
    listed = run("--list").stdout.splitlines()
    assert len(written["results"]) >= 20
    assert all(any(line.startswith(row["name"]) for line in listed) for row in written["results"])
    for row in written["results"]:
        assert row["min"] <= row["median"] <= row["max"], row
        assert row["max"] > 0 or row["unit"] == "ms", row
        assert row["name"] in done.stdout


def test_a_benchmark_that_fails_says_so() -> None:
    done = run("--child", "no such benchmark")
    assert done.returncode != 0


def test_nothing_chosen_is_an_error() -> None:
    assert run("--only", "no such benchmark").returncode == 1
