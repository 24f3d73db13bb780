"""Findings of an audit in tables: in Spark, without a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom.pipeline.jobs.audit_facts import compared, facts, prefixes
from postroom.pipeline.tables import schema_of
from postroom.ranges import accounting


def tables(spark: Any, **rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make tables of rows that tell only what matters."""
    found = {}
    for name in ("counters", "inbox_index", "places", "beside"):
        schema = schema_of(name)
        whole = [tuple(row.get(field.name) for field in schema) for row in rows.get(name, ())]
        found[name] = spark.createDataFrame(whole, schema)
    return found


def test_prefixes_are_those_that_the_store_adds_to(spark: Any) -> None:
    keys = [b"a", b"a/b", b"a/bc/d", b"//x//y", b"\xff/\x00\x01/z", b"/a", "é/ü".encode()]
    frame = spark.createDataFrame([(key,) for key in keys], "key binary")
    found = frame.select("key", prefixes(F.col("key")).alias("prefixes")).collect()
    assert {bytes(row.key): [bytes(each) for each in row.prefixes] for row in found} == {
        key: accounting.prefixes(key) for key in keys
    }


def test_several_ranges_are_compared_each_and_in_total(spark: Any) -> None:
    """Two errors that make up for each other are found, too."""
    claimed = {(1, "enqueued"): 5, (1, "executed"): 4, (2, "enqueued"): 7, (2, "executed"): 8}
    counters = [
        {"range": range_id, "queue": "", "number": 0, "counter": counter, "value": value}
        for (range_id, counter), value in claimed.items()
    ]
    groups = compared(facts(spark, tables(spark, counters=counters), [], 2))
    found = groups.where("check = 'conservation'").collect()
    assert {(row.place, int(row.claimed), int(row.counted), row.wrong) for row in found} == {
        (1, 5, 4, True), (2, 7, 8, True), (0, 12, 12, False)
    }  # fmt: skip


def test_the_remains_of_a_dropped_queue_do_not_count(spark: Any) -> None:
    body = {"range": 1, "what": "body", "key": b"k", "kind": "", "id": b"1", "seq": b"s"}
    beside = [{**body, "number": number} for number in (3, 4)]
    every = tables(spark, beside=beside)
    found = compared(facts(spark, every, [3], 1)).where("check = 'queue.message'")
    assert [row.place for row in found.collect()] == [4]


def test_an_end_may_outlive_its_message_and_nothing_else_may(spark: Any) -> None:
    """The id of a message that has ended may be in use again; then its record is another's."""
    place = {"range": 1, "queue": "q", "number": 1, "key": b"k", "kind": "", "group": ""}
    parts = ("done", "cancelled", "moved", "archived", "dead", "ready")
    places = [{**place, "part": part, "id": part.encode(), "seq": b"s"} for part in parts]
    groups = compared(facts(spark, tables(spark, places=places), [], 1))
    wrong = groups.where("check = 'queue.message' AND wrong").collect()
    assert {bytes(row.id) for row in wrong} == {b"archived", b"dead", b"ready"}
