"""The source in a real session: what only Spark can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

import postroom
from postroom.pipeline import starts_with


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder with a store that nobody has open."""
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
    """Starts queries, each on the same checkpoint and table of files."""
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
