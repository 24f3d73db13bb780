"""The commands of the jobs about history, as far as they need no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import postroom
from postroom.cli.application import app


@pytest.mark.parametrize("job", ["archive", "report"])
def test_a_store_that_is_not_there_is_said_before_spark_is_started(
    job: str, tmp_path: Path
) -> None:
    run = ["pipeline", "run", job]
    shown = CliRunner().invoke(app, [*run, "--help"])
    assert shown.exit_code == 0
    assert "--to" in shown.output
    given = ["--path", str(tmp_path / "nothing"), "--to", str(tmp_path / "to")]
    refused = CliRunner().invoke(app, [*run, *given])
    assert refused.exit_code == 1
    assert not (tmp_path / "to").exists()
    assert CliRunner().invoke(app, [*run, "--path", str(tmp_path)]).exit_code == 2


def test_a_spark_that_does_not_start_is_told_in_one_line(tmp_path: Path) -> None:
    postroom.open(tmp_path / "store").close()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "postroom",
            "pipeline",
            "run",
            "audit",
            "--path",
            tmp_path / "store",
        ],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Spark did not start, and nothing was done" in done.stderr.splitlines()[-1]
