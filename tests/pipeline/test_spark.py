"""The source in a real session: what only Spark can show."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

import postroom
from postroom import pipeline
from postroom.errors import Invalid
from postroom.pipeline import starts_with
from postroom.pipeline.workarounds import Adviser, check_python
from tests.cluster.harness import eventually

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return a folder with a store that no process has open."""
    with postroom.open(tmp_path / "shop") as db:
        with db.begin() as tx:
            for number in range(3000):
                tx.put(b"user/%04d" % number, b'{"n": %d}' % number)
            tx.put(b"other", b"{}")
            tx.enqueue_message(b"user/0001", b"hello")
        db.create_queue("q")
        with db.begin() as tx:
            tx.enqueue("q", b"work", id="1")
    return str(tmp_path / "shop")


def load(spark: Any, **options: object) -> Any:
    reader = spark.read.format("postroom")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_a_folder_is_read_by_tasks_of_other_processes(spark: Any, folder: str) -> None:
    data = load(spark, path=folder)
    assert data.count() == 3001
    assert data.where(F.col("key") == b"user/0042").collect()[0].value == b'{"n": 42}'
    assert data.where(F.col("key").isin([b"other", b"none"])).count() == 1
    assert data.where(starts_with("key", b"user/00")).count() == 100
    assert data.where((F.col("key") > b"user/2990") & (F.col("time") > "2020-01-01")).count() == 9
    narrow = spark.read.format("postroom").option("path", folder).schema("key string").load()
    assert narrow.where("key = 'other'").count() == 1
    assert [row.id for row in load(spark, path=folder, table="queue").collect()] == [b"1"]
    assert load(spark, path=folder, table="inbox").first().value == b"hello"


def test_filters_are_pushed_down(spark: Any, folder: str) -> None:
    """The scan itself gives nothing else: Spark's metrics of what came out of it."""
    one = load(spark, path=folder).where(F.col("key") == b"other")
    scans = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(
        one._jdf.queryExecution().executedPlan().collectLeaves()
    )
    assert len(one.collect()) == 1
    outputs = [each.metrics().get("numOutputRows").get().value() for each in scans]
    assert outputs == [1]


def test_values_are_decoded_by_a_schema(spark: Any, folder: str) -> None:
    reader = spark.read.format("postroom").option("path", folder).option("format", "json")
    data = reader.schema("key binary, value struct<n: bigint>").load()
    assert data.agg(F.sum("value.n")).first()[0] == sum(range(3000))


def test_one_data_frame_has_one_timestamp(spark: Any, served: str, db: postroom.Database) -> None:
    """Both sides of a union, and both sides of a join, are read by plans of their own."""
    db.put(b"a", b"1")
    data = load(spark, connect=served, insecure=True)
    assert data.count() == 1
    db.put(b"a", b"2")
    db.put(b"b", b"2")
    both = data.select("value").union(data.where("key is not null").select("value"))
    assert sorted(row.value for row in both.collect()) == [b"1", b"1"]
    assert load(spark, connect=served, insecure=True).count() == 2


@pytest.fixture
def query_of(spark: Any, tmp_path: Path) -> Iterator[Any]:
    """Yield a starter of queries, each on the same checkpoint and table of files."""
    started: list[Any] = []

    def start(served: str, **options: object) -> Any:
        reader = spark.readStream.format("postroom").option("connect", served)
        reader = reader.option("insecure", True).option("table", "changes")
        for name, value in options.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.append(writer.start(str(tmp_path / "table")))
        return started[-1]

    yield start
    for query in started:
        query.stop()


def test_a_stream_reads_each_change_once_over_restarts(
    spark: Any, served: str, db: postroom.Database, query_of: Any, tmp_path: Path
) -> None:
    for number in range(20):
        db.put(b"a", b"%d" % number)
    for more in range(2):
        query = query_of(served, start="earliest", max_rows=6)
        assert query.awaitTermination(240), query.lastProgress
        table = spark.read.parquet(str(tmp_path / "table"))
        found = [row.value for row in table.orderBy("timestamp").collect()]
        assert found == [b"%d" % number for number in range(20 + 5 * more)]
        for number in range(20, 25):
            db.put(b"a", b"%d" % number)


def test_mistakes_are_told_in_words(spark: Any, folder: str) -> None:
    with pytest.raises(Exception, match="there is no option 'tabel'"):
        load(spark, path=folder, tabel="data")
    with pytest.raises(Exception, match="no store"):
        load(spark, path=folder + "x")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        with pytest.raises(Exception, match=r"filterPushdown\.enabled"):
            load(spark, path=folder).count()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_table_and_a_view_of_it_read_the_newest_state_at_each_query(
    spark: Any, served: str, db: postroom.Database
) -> None:
    db.put(b"a", b"1")
    reached = f"connect '{served}', insecure 'true'"
    spark.sql(f"create table shop using postroom options ({reached}, table 'data')")
    spark.sql("create view newest as select * from shop")
    spark.sql(f"create table typed (key string) using postroom options ({reached})")
    try:
        assert [row.key for row in spark.sql("select * from newest").collect()] == [b"a"]
        db.put(b"b", b"2")
        for name in ("shop", "newest"):
            query = f"select cast(value as string) v from {name} where key = X'62'"
            assert [row.v for row in spark.sql(query).collect()] == ["2"]
        few = spark.sql("select key from shop with (prefix 'b')").collect()
        assert [row.key for row in few] == [b"b"]
        with pytest.raises(Exception, match=r"SELECT \.\.\. FROM t WITH"):
            spark.sql("select * from typed").collect()
        typed = spark.sql(f"select * from typed with ({reached})").collect()
        assert sorted(row.key for row in typed) == ["a", "b"]
    finally:
        spark.sql("drop view newest")
        spark.sql("drop table shop")
        spark.sql("drop table typed")


def test_a_table_of_a_folder_is_read_where_it_is(spark: Any, folder: str) -> None:
    spark.sql(f"create table folder using postroom options (path '{folder}', table 'inbox')")
    try:
        assert spark.sql("select count(*) as n from folder").collect()[0].n == 1
    finally:
        spark.sql("drop table folder")


def test_a_moment_is_a_timestamp_or_text_in_iso_8601(
    spark: Any, served: str, db: postroom.Database
) -> None:
    db.put(b"a", b"1")
    before = db.now().datetime + timedelta(milliseconds=1)
    eventually_later(db, before)
    db.put(b"b", b"2")
    for at in (before, before.isoformat(), before.astimezone(BERLIN)):
        frame = load(spark, connect=served, insecure="true", at=at)
        assert b"b" not in [row.key for row in frame.collect()]
    with pytest.raises(Exception, match="has no time zone"):
        load(spark, connect=served, insecure="true", at="2026-11-23T12:00:00")


def test_spark_tells_an_error_of_postroom_without_a_traceback(
    spark: Any, served: str, db: postroom.Database
) -> None:
    db.put(b"a", b"no json")
    with pytest.raises(Exception, match="there is no option 'other'") as planned:
        load(spark, connect=served, insecure="true", other="1")
    reader = spark.read.format("postroom").options(connect=served, insecure="true", format="json")
    with pytest.raises(Exception, match=r"is no JSON; give .*mode=permissive") as read:
        reader.schema("key string, value struct<a: int>").load().collect()
    assert not any("Traceback" in str(each.value) for each in (planned, read))


def eventually_later(db: postroom.Database, moment: datetime) -> None:
    while db.now().datetime <= moment:
        db.put(b"clock", b"")
        db.delete(b"clock")


def test_the_store_keeps_the_position_of_a_stream_that_has_a_name(
    served: str, db: postroom.Database, query_of: Any
) -> None:
    before = db.now()
    for number in range(3):
        db.put(b"a", b"%d" % number)
    assert query_of(served, start="earliest", name="orders").awaitTermination(240)
    (found,) = db.status().positions
    assert found.name == "orders"
    assert found.position > before
    db.put(b"a", b"more")
    assert query_of(served, name="orders", protect_for=0).awaitTermination(240)
    assert not db.status().positions


def test_progress_tells_how_far_a_stream_is_behind(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    for number in range(7):
        db.put(b"k%d" % number, b"v")
    stream = spark.readStream.format("postroom").options(
        connect=served, insecure="true", table="changes", start="earliest", max_rows="5"
    )
    query = (
        stream.load().writeStream.format("memory").queryName("behind")
        .option("checkpointLocation", str(tmp_path)).start()
    )  # fmt: skip
    try:
        query.processAllAvailable()
        sources = [source for each in query.recentProgress for source in each["sources"]]
        ends = [json.loads(source["endOffset"]) for source in sources if source["endOffset"]]
        assert ends[0]["rows_behind"] == 2
        assert ends[0]["seconds_behind"] > 0
        assert (ends[-1]["rows_behind"], ends[-1]["seconds_behind"]) == (0, 0)
    finally:
        query.stop()


def test_an_output_mode_that_spark_refuses_is_answered_with_the_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = "requirement failed: postroom does not support Update mode."
    Adviser().onQueryTerminated(SimpleNamespace(exception=refused))
    assert "foreachBatch" in caplog.text
    caplog.clear()
    for other in (None, "something else"):
        Adviser().onQueryTerminated(SimpleNamespace(exception=other))
    assert caplog.text == ""


def test_a_python_without_postroom_is_named_with_the_variable_that_helps(tmp_path: Path) -> None:
    check_python(sys.executable)
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    with pytest.raises(Invalid, match=r"has no Postroom.*PYSPARK_PYTHON="):
        check_python(str(other))
    other.write_text("#!/bin/sh\necho 0.0.1\n")
    with pytest.raises(Invalid, match=r"has Postroom 0\.0\.1"):
        check_python(str(other))
    with pytest.raises(Invalid, match="not found"):
        check_python(str(tmp_path / "none"))


def test_registering_checks_the_python_that_tasks_are_started_with() -> None:
    context = SimpleNamespace(applicationId="another", pythonExec="/no/such/python")
    session: Any = SimpleNamespace(conf={pipeline.PUSHDOWN: "true"}, sparkContext=context)
    with pytest.raises(Invalid, match=r"/no/such/python.*PYSPARK_PYTHON="):
        pipeline.register(session)


def test_the_way_out_is_logged_when_spark_ends_a_query_for_its_output_mode(
    spark: Any, served: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted = spark.readStream.format("rate").load().groupBy("value").count()
    rows = counted.selectExpr("cast(value as string) as key", "count as by")
    writer = rows.writeStream.format("postroom").outputMode("update")
    with pytest.raises(Exception, match="does not support"):
        writer.options(
            connect=served, insecure="true", mode="increment", checkpointLocation=str(tmp_path)
        ).start().awaitTermination(120)
    eventually(lambda: "foreachBatch" in caplog.text)
