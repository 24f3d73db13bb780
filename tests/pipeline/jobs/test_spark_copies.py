"""Load, export and restore with Spark, as functions and as commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import postroom
from postroom.cli import spark as spark_options
from postroom.cli.application import app
from postroom.pipeline import jobs
from tests.client.images import Workload, read


@pytest.fixture
def command(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a command in the one session.

    It returns the exit status, and what was printed.
    """

    @contextmanager
    def session(_: Any, __: str) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(spark_options.Spark, "session", session)

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["pipeline", "run", *arguments])
        return done.exit_code, done.output

    return run


def test_an_export_is_restored_by_commands(command: Any, spark: Any, tmp_path: Path) -> None:
    shop, copy, folder = (str(tmp_path / name) for name in ("shop", "copy", "export"))
    with postroom.open(shop) as db:
        work = Workload(db, 5, delays=(None, 3600.0))
        for _ in range(40):
            work.step()
        _, before = read(db)
    told: list[Any] = []
    done = jobs.export(spark, {"path": shop}, folder, progress=lambda *now: told.append(now))
    assert sum(done.rows.values()) == len(before)
    assert told[0][0] == "exporting parts"
    status, said = command("export", folder, "--path", shop, "--json")
    assert (status, json.loads(said)["done_before"]) == (0, True)
    status, said = command("restore", folder, "--path", copy)
    assert status == 0, said
    assert "restored: the store as of" in said
    status, said = command("restore", folder, "--path", copy, "--json")
    assert json.loads(said)["done_before"]
    status, said = command("restore", "--path", copy, "--abandon")
    assert (status, "nothing is being restored" in said) == (1, True)
    status, said = command("restore", folder, "--path", shop)
    assert (status, "not empty" in said) == (1, True)
    with jobs.job.database(spark, {"path": copy}) as db:
        assert read(db)[1] == before
