"""A program that uses a store from Spark, and is killed.

It does one piece of work (:data:`WORKS`), says ``up`` when its session is, and ends with 0 when all
is done. After its death it is started with another number of partitions, so that rows
are in other tasks than before. Rows come slowly, so that there is a middle in which it can die.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.pipeline.chaos.job_programs import JOBS
from tests.pipeline.sessions import start

BATCH_SECONDS = 0.05
"""The time that each batch of rows takes."""
BATCH_ROWS = 100
READ_PARTS = 8


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(BATCH_SECONDS)  # noqa: TID251 - as work that takes its time
        yield batch


class Work:
    """One kind of work of the program, with what the program was told."""

    def __init__(self, spark: Any, told: argparse.Namespace) -> None:
        self.spark = spark
        self.told = told

    @property
    def store(self) -> dict[str, str]:
        return {"connect": self.told.connect, "insecure": "true"}

    def reader(self, of: Any, **options: object) -> Any:
        reader = of.format("postroom").options(**self.store)
        return reader.options(**{name: str(value) for name, value in options.items()})

    def rows(self, prefix: str) -> Any:
        """Make rows with one key each, in as many tasks as it was told."""
        numbers = self.spark.range(0, self.told.rows, 1, 3).repartition(self.told.partitions)
        keys = numbers.selectExpr(f"concat('{prefix}', lpad(id, 7, '0')) as key")
        return keys.mapInArrow(slowly, keys.schema)

    def write(self, rows: Any, **options: str) -> None:
        writer = rows.write.format("postroom").options(**self.store, **options)
        writer.mode("append").save()

    # --- the works

    def read(self) -> None:
        """Read all of ``in/`` at a timestamp, into files."""
        parts = [
            self.reader(self.spark.read, at=self.told.at, prefix=f"in/{number}")
            .schema("key string, value string")
            .load()
            for number in range(READ_PARTS)
        ]
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.union(part)
        rows = rows.repartition(self.told.partitions).mapInArrow(slowly, rows.schema)
        rows.write.mode("overwrite").parquet(str(Path(self.told.folder) / "read"))

    def stream(self) -> None:
        """Count each change of ``in/`` under ``out/``, until the program is killed."""
        changes = self.reader(
            self.spark.readStream, table="changes", start=self.told.at, prefix="in/",
            max_rows=self.told.rows,
        )  # fmt: skip
        rows = changes.schema("key string, value string").load()
        rows = rows.selectExpr("concat('out/', value) as key").repartition(self.told.partitions)
        rows = rows.mapInArrow(slowly, rows.schema)
        writer = rows.writeStream.format("postroom").options(**self.store, mode="increment")
        folder = str(Path(self.told.folder) / "checkpoint")
        writer.option("checkpointLocation", folder).start().awaitTermination()

    def follow(self) -> None:
        """Write each change of ``in/`` into files, until the program is killed."""
        changes = self.reader(
            self.spark.readStream, table="changes", start=self.told.at, prefix="in/",
            max_rows=self.told.rows,
        )  # fmt: skip
        rows = changes.schema("key string, value string, timestamp bigint").load()
        rows = rows.repartition(self.told.partitions).mapInArrow(slowly, rows.schema)
        writer = rows.writeStream.format("parquet")
        writer.option("checkpointLocation", str(Path(self.told.folder) / "checkpoint"))
        writer.start(str(Path(self.told.folder) / "followed")).awaitTermination()

    def write_a_batch(self) -> None:
        """Count under ``w/``, as a batch that may be written again and again."""
        self.write(self.rows("w/"), mode="increment", query="batch", batch="0")

    def write_once(self) -> None:
        """Count under ``o/``, as a batch without a name, which cannot be written again."""
        self.write(self.rows("o/"), mode="increment")

    def load(self) -> None:
        """Load values under ``l/`` by a bulk load that can be resumed."""
        rows = self.rows("l/").repartitionByRange(self.told.partitions, "key")
        rows = rows.sortWithinPartitions("key").selectExpr("key", "key as value")
        rows = rows.mapInArrow(slowly, rows.schema)
        self.write(rows, mode="load", prefix="l/", load="chaos")


WORKS: dict[str, Callable[[Work], None]] = {
    "read": Work.read,
    "stream": Work.stream,
    "follow": Work.follow,
    "write": Work.write_a_batch,
    "once": Work.write_once,
    "load": Work.load,
    **JOBS,
}


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--connect", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--at", type=int, default=0)
    told = parser.parse_args()
    spark = start(Path(told.folder) / f"spark-{time.time_ns()}", told.master)
    from postroom import pipeline  # noqa: PLC0415 - after the session's environment is set

    pipeline.register(spark)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    # Adaptive execution changes the partitions of a sink for the same rows.
    spark.conf.set("spark.sql.adaptive.enabled", str(told.partitions % 2 == 1).lower())
    print("up", flush=True)  # noqa: T201
    WORKS[told.work](Work(spark, told))
    pipeline.close()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
