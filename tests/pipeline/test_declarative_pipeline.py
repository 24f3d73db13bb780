"""The example of a declarative pipeline: its definitions, and all of it with Spark Connect."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest

import postroom

FOLDER = Path(__file__).parents[2] / "examples" / "airport_pipeline"
NEEDED = ("grpc_status", "yaml", "zstandard")


class Registry:
    """A registry that takes down what definitions define."""

    def __init__(self) -> None:
        self.flows: dict[str, Any] = {}

    def register_output(self, output: Any) -> None:
        assert output.comment

    def register_flow(self, flow: Any) -> None:
        self.flows[flow.target] = flow.func


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def flows(spark: Any, served: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yield the flows that the example defines, by target."""
    from pyspark.pipelines.graph_element_registry import (  # noqa: PLC0415 - needs the extra
        graph_element_registration_context,
    )

    monkeypatch.setenv("POSTROOM_CONNECT", served)
    registry: Any = Registry()
    with graph_element_registration_context(registry):
        load(FOLDER / "transformations" / "airports.py")
    yield registry.flows
    spark.sql("DROP VIEW IF EXISTS departures")


def check(rows: list[dict[str, Any]]) -> None:
    rows.sort(key=lambda row: row["airport"])
    found = [
        (row["airport"], row["departures"], row["carriers"], row["average_delay"]) for row in rows
    ]
    assert found == [("JFK", 2, 2, 8.0), ("LGA", 1, 1, 30.0)]
    assert all(row["last_change"] is not None for row in rows)


def test_definitions_make_statistics_of_changes(
    spark: Any, flows: dict[str, Any], served: str
) -> None:
    """They are run as tables, not as a stream, which takes longer and has tests of its own."""
    load(FOLDER / "departures.py").main(served)
    assert set(flows) == {"departures", "airports"}
    stream = flows["departures"]()
    assert stream.isStreaming
    departure = "struct<airport: string, carrier: string, delay: int>"
    changes = (
        spark.read.format("postroom")
        .options(connect=served, insecure="true", table="changes", prefix="departure/")
        .option("format", "json")
        .schema(f"key string, value {departure}, deleted boolean, timestamp bigint, time timestamp")
        .load()
        .select("key", "value.*", "deleted", "timestamp", "time")
    )
    assert changes.schema == stream.schema
    changes.createOrReplaceTempView("departures")
    check([row.asDict() for row in flows["airports"]().collect()])


def test_reports_of_profilers_that_counted_nothing_are_dropped() -> None:
    from pyspark import accumulators  # noqa: PLC0415 - needs the extra

    from postroom.pipeline import workarounds  # noqa: PLC0415 - needs the extra

    ids = accumulators.SpecialAccumulatorIds  # if this fails, Spark has other names now
    registry = accumulators._accumulatorRegistry
    before = dict(registry)
    try:
        registry[ids.SQL_UDF_PROFIER] = SimpleNamespace(_value={})
        registry[ids.SQL_UDF_PROFIER_V2] = SimpleNamespace(_value={"counted": 1})
        workarounds.drop_empty_reports()
        assert ids.SQL_UDF_PROFIER not in registry
        assert registry.pop(ids.SQL_UDF_PROFIER_V2)._value == {"counted": 1}
    finally:
        registry.clear()
        registry.update(before)


@pytest.mark.skipif(
    not os.environ.get("POSTROOM_PIPELINES"), reason="takes minutes: make pipelines runs it"
)
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, NEEDED)), reason="needs the extra [pipelines]"
)
@pytest.mark.timeout(1800)
def test_spark_pipelines_runs_it(db: postroom.Database, served: str, tmp_path: Path) -> None:
    import pyspark  # noqa: PLC0415 - needs the extra

    from postroom.pipeline.sessions import java_home  # noqa: PLC0415 - needs the extra

    project = tmp_path / "project"
    shutil.copytree(FOLDER, project, ignore=shutil.ignore_patterns("__pycache__"))
    spec = project / "spark-pipeline.yml"
    storage = f"file://{tmp_path}/storage"
    spec.write_text(spec.read_text().replace("file:///var/tmp/airport-pipeline", storage))
    home = Path(pyspark.__file__).parent
    java = java_home(tmp_path / "java")
    environment = os.environ | {
        "POSTROOM_CONNECT": served,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(FOLDER.parents[1]),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    if java is not None:
        environment["JAVA_HOME"] = java
    with db.hold():  # it begins when it begins, on a busy machine
        load(project / "departures.py").main(served)
        done = subprocess.run(
            [str(home / "bin" / "spark-pipelines"), "run", "--spec", str(spec)], check=False,
            capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=1700,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables = tmp_path / "spark-warehouse"
    check(pyarrow.parquet.read_table(tables / "airports").to_pylist())
    assert pyarrow.parquet.read_table(tables / "departures").num_rows == 6
