"""``postroom pipeline run audit``, its job replaced: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import postroom

if find_spec("pyspark") is None:
    pytest.skip("the extra [spark] is not installed", allow_module_level=True)

from postroom.cli.application import app
from postroom.cli.spark import Spark
from postroom.pipeline import jobs
from postroom.pipeline.jobs.audit import AuditResult, CountDifference, Finding

WRONG = CountDifference("accounting", "", b"a\xff", "n", 2, 1)
EXACT = AuditResult(7, (Finding("conservation", 1, 0), Finding("accounting", 5, 0)))
DIFFERENT = AuditResult(7, (Finding("accounting", 1234, 12, (WRONG,)),))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    @contextmanager
    def session(*_: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(Spark, "session", session)
    with postroom.open(tmp_path / "shop"):
        pass
    return str(tmp_path / "shop")


def run(store: str, result: AuditResult, monkeypatch: pytest.MonkeyPatch, *more: str) -> Any:
    given: list[Any] = []

    def audit(spark: Any, options: Any, *, progress: Any) -> AuditResult:
        given.append(options)
        return result

    monkeypatch.setattr(jobs, "audit", audit)
    ended = CliRunner().invoke(app, ["pipeline", "run", "audit", "--path", store, *more])
    assert given == [{"path": store}]
    return ended


def test_an_exact_store_ends_with_0(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(store, EXACT, monkeypatch)
    assert ended.exit_code == 0, ended.output
    assert "6 values compared, 0 differ." in ended.output
    assert "sums of metrics of every prefix" in ended.output


def test_differences_are_named_and_end_with_1(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(store, DIFFERENT, monkeypatch)
    assert ended.exit_code == 1
    assert r"accounting ('a\xff', n): claimed 2, counted 1" in ended.output
    assert "accounting: 11 more" in ended.output
    assert "1,234 values compared, 12 differ." in ended.output


def test_json_tells_all(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(store, DIFFERENT, monkeypatch, "--json")
    assert ended.exit_code == 1
    assert json.loads(ended.stdout) == {
        "at": 7, "compared": 1234, "differences": 12,
        "findings": [{
            "counter": "accounting", "compared": 1234, "differences": 12,
            "examples": [{
                "counter": "accounting", "where": "", "key": {"hex": "61ff"}, "item": "n",
                "claimed": 2, "counted": 1,
            }],
        }],
    }  # fmt: skip
