"""A pipeline from changing departures to statistics of airports, for `spark-pipelines`.

::

    store ── changes, each once ─▶ departures (every version of each) ─▶ airports (a line each)

`departures` is a streaming table: a run appends the changes since the run before. `airports` is
made anew of it: the newest version of each departure counts.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom import pipeline

CONNECT = os.environ.get("POSTROOM_CONNECT", "127.0.0.1:7401")
PREFIX = "departure/"
DEPARTURE = "struct<airport: string, carrier: string, delay: int>"

spark = SparkSession.active()
pipeline.register(spark)


@dp.table(comment="Every version of every departure")
def departures() -> DataFrame:
    return (
        spark.readStream.format("postroom")
        .options(connect=CONNECT, insecure="true", table="changes", start="earliest")
        .options(prefix=PREFIX, format="json")
        .schema(f"key string, value {DEPARTURE}, deleted boolean, timestamp bigint, time timestamp")
        .load()
        .select("key", "value.*", "deleted", "timestamp", "time")
    )


@dp.materialized_view(comment="What is known of each airport now")
def airports() -> DataFrame:
    newest = (
        spark.read.table("departures")
        .groupBy("key")
        .agg(F.max_by(F.struct("airport", "carrier", "delay", "deleted", "time"), "timestamp"))
        .toDF("key", "departure")
        .select("departure.*")
        .where("not deleted")
    )
    return newest.groupBy("airport").agg(
        F.count("*").alias("departures"),
        F.count_distinct("carrier").alias("carriers"),
        F.round(F.avg("delay"), 1).alias("average_delay"),
        F.max("time").alias("last_change"),
    )
