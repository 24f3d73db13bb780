"""The sinks as Spark uses them, with the one session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.pipeline.sink_staging import StreamWriter
from postroom.pipeline.source import PostroomSource

STEPS = ("write", "staged", "commit", "published")


def test_a_data_frame_is_written(spark: Any, served: str, db: postroom.Database) -> None:
    rows = spark.range(0, 5000, numPartitions=3).selectExpr(
        "cast(concat('k', lpad(id, 5, '0')) as binary) as key", "cast(id as string) as value"
    )
    options = {"connect": served, "insecure": "true", "mode": "put"}
    rows.write.format("postroom").options(**options).mode("append").save()
    assert dict(db.scan()) == {b"k%05d" % n: b"%d" % n for n in range(5000)}
    staging = db.staging.read()
    assert (staging.jobs, staging.attempts) == (0, 0)
    bad = rows.selectExpr("key", "nullif(value, '4242') as value")
    with pytest.raises(Exception, match=r"row \d+ of partition \d+ cannot be written"):
        bad.write.format("postroom").options(**options).mode("append").save()
    with pytest.raises(Exception, match="added to, and not overwritten"):
        rows.write.format("postroom").options(**options).mode("overwrite").save()


def test_messages_with_headers_and_json(spark: Any, served: str, db: postroom.Database) -> None:
    db.create_queue("work")
    rows = spark.sql("""
        select 'message' as mode, 'a' as key, map('h', 'x') as headers, 1 as n
        union all select 'queue', 'b', null, 2
    """)
    options = {"connect": served, "insecure": "true", "queue": "work", "format": "json"}
    rows.write.format("postroom").options(**options).mode("append").save()
    (message,) = db.peek(b"a")
    assert (message.value, message.headers) == (b'{"n":1}', {"h": "x"})
    (sent,) = db.queue("work").messages()
    assert (sent.key, sent.payload) == (b"b", b'{"n":2}')


def test_a_data_frame_that_is_a_batch(spark: Any, served: str, db: postroom.Database) -> None:
    rows = spark.createDataFrame([("a",), ("b",)], "key string")
    writer = rows.repartition(2).write.format("postroom").mode("append")
    writer = writer.options(connect=served, insecure=True, mode="increment", query="totals")
    for batch in (1, 1, 2):
        writer.option("batch", batch).save()
    assert {key: postroom.integer(value) for key, value in db.scan()} == {b"a": 2, b"b": 2}


def test_a_bulk_load(spark: Any, served: str, db: postroom.Database) -> None:
    rows = spark.range(5000).selectExpr(
        "concat('p', lpad(id * 7 % 5000, 5, '0')) as key", "cast(id as string) as value"
    )
    options = {"connect": served, "insecure": "true", "mode": "load", "prefix": "p", "load": "l"}
    sorted_ = rows.repartitionByRange("key").sortWithinPartitions("key")
    for _ in range(2):
        sorted_.write.format("postroom").options(**options).mode("append").save()
    assert len(list(db.scan())) == 5000


def _failing(left: Path) -> type[PostroomSource]:
    """Return the source, with a stream writer that fails at each of the steps in ``left`` once."""

    def step(name: str) -> None:
        steps = left.read_text().split()
        if steps and steps[0] == name:
            left.write_text(" ".join(steps[1:]))
            raise RuntimeError(f"killed at {name}")

    class Failing(StreamWriter):
        def write(self, iterator: Any) -> Any:
            step("write")
            message = super().write(iterator)
            step("staged")
            return message

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
            step("commit")
            super().commit(messages, batchId)
            step("published")

    class FailingSource(PostroomSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            return Failing(writer._store, writer._options)

    return FailingSource


def test_a_stream_that_fails_at_each_step(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    """Each step of one batch fails in turn; the query starts again from its checkpoint."""
    for number in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        lines = "\n".join(f"{number}-{n}" for n in range(4))
        (tmp_path / "in" / f"{number}.txt").write_text(lines)
    left = tmp_path / "left"
    left.write_text(" ".join(STEPS))
    spark.dataSource.register(_failing(left))
    rows = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(tmp_path / "in"))
        .selectExpr("value as key")
    )
    failures = []
    for attempt in range(len(STEPS) + 1):
        shuffled = rows.repartition(1 + attempt % 2)  # partitions in another order each time
        query = (
            shuffled.writeStream.format("failing")
            .options(connect=served, insecure="true", mode="increment")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        failed = None
        try:
            query.awaitTermination()
        except Exception as error:  # its type depends on what is installed
            failed = str(error)
        failures.append(failed)
    assert ["killed at" in (failed or "") for failed in failures[:-1]] == [True] * len(STEPS)
    assert failures[-1] is None
    found = {key: postroom.integer(value) for key, value in db.scan()}
    assert found == {b"%d-%d" % (file, n): 1 for file in range(3) for n in range(4)}
