"""Reading a store from Spark: ``python -m benchmarks.spark``; needs the extra ``[spark]`` and Java.

Apart from the other benchmarks, because a session takes longer to start than most of them to run.
Store and Spark share the machine's cores: ``local[2]``, a store in the driver's process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import postroom

ROWS_PER_TRANSACTION = 5000


def fill(folder: Path, rows: int) -> None:
    """Small rows: keys of 12 bytes, values of about as many."""
    with postroom.open(folder, durability="none") as db:
        for start in range(0, rows, ROWS_PER_TRANSACTION):
            with db.begin() as tx:
                for number in range(start, min(start + ROWS_PER_TRANSACTION, rows)):
                    tx.put(b"user/%07d" % number, b"value %d" % number)


def session() -> Any:
    """As in the documentation, without a user interface."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after what it must find set

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "ERROR")
    return builder.config("spark.driver.memory", "1g").getOrCreate()


def best_of(times: int, act: Callable[[], object]) -> tuple[float, float]:
    """The least and the middle time of a few, in seconds."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        took.append(time.perf_counter() - start)
    return min(took), sorted(took)[times // 2]


def main(arguments: list[str]) -> int:
    """Measures, and prints a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--part-bytes", type=int, default=8 * 1024 * 1024)
    chosen = parser.parse_args(arguments)
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    with tempfile.TemporaryDirectory(prefix="postroom-spark-") as name:
        folder = Path(name) / "store"
        fill(folder, chosen.rows)
        spark = session()
        pipeline.register(spark)
        reader = spark.read.format("postroom").option("path", str(folder))
        reader = reader.option("part_bytes", chosen.part_bytes)

        def read_all() -> None:
            reader.load().write.format("noop").mode("overwrite").save()

        def read_few() -> None:
            first = chosen.rows // 2
            data = reader.load()
            few = data.where(data.key >= b"user/%07d" % first)
            few = few.where(data.key < b"user/%07d" % (first + chosen.rows // 100))
            few.write.format("noop").mode("overwrite").save()

        read_all()
        read_few()
        everything, median = best_of(chosen.repeat, read_all)
        one_percent, median_few = best_of(chosen.repeat, read_few)
        rate, middle = chosen.rows / everything, chosen.rows / median
        print(f"read {chosen.rows:,} rows: best {rate:,.0f} rows/s, median {middle:,.0f} rows/s")
        print(
            f"read 1 % of them by keys: best {one_percent:.3f} s, median {median_few:.3f} s, "
            f"{everything / one_percent:.1f} times faster than all"
        )
        pipeline.close()
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
