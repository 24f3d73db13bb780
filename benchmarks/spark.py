"""All measures of Spark and a store: ``python -m benchmarks.spark``.

It needs the extra ``[spark]`` and Java. It stands apart from the other benchmarks: a session takes
longer to start than most of them to run. Store and Spark share the machine's cores: ``local[2]``, a
store in the driver's process. ``--only`` chooses: ``read``, ``write`` (also
``benchmarks.spark_writes``), ``stream`` (``benchmarks.spark_streams``), ``memory``
(``benchmarks.spark_memory``), ``export`` (``benchmarks.spark_copies``), ``ranges``
(``benchmarks.spark_ranges``, on three nodes).

A read of few rows is mostly Spark's own planning, which its JVM compiles only after dozens of
plans: it is warmed up (``--warm``). Two reads without our data are printed beside it. One is a job
without a source, the other a source in Python (``benchmarks.nothing``) that answers the same rows
from memory.

A busy machine stretches the time of the clock. The processor time of each side is therefore
printed: the node (with the driver's Python, which waits), the JVM, Spark's Python processes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import spark_copies, spark_memory, spark_ranges, spark_streams, spark_writes
from benchmarks.spark_session import fill, processor_seconds, session


def best_of(times: int, act: Callable[[], object]) -> tuple[float, float]:
    """Return the least and the middle time of a few calls, in seconds."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        took.append(time.perf_counter() - start)
    return min(took), sorted(took)[times // 2]


def measure_reads(spark: Any, rows: int, repeat: int, warm: int, part_bytes: int) -> None:
    """Print a line for each read, with its processor time."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as its users know it

    from benchmarks.nothing import NothingSource  # noqa: PLC0415 - needs the extra
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    spark.dataSource.register(NothingSource)
    first, end = (b"user/%07d" % each for each in (rows // 2, rows // 2 + rows // 100))

    def few_of(source: Any) -> Any:
        return source.load().where((F.col("key") >= F.lit(first)) & (F.col("key") < F.lit(end)))

    with tempfile.TemporaryDirectory(prefix="postroom-spark-") as name:
        folder = Path(name) / "store"
        fill(folder, rows)
        reader = spark.read.format("postroom").option("path", str(folder))
        reader = reader.option("part_bytes", part_bytes)

        def read_all() -> None:
            reader.load().write.format("noop").mode("overwrite").save()

        def read_few() -> None:
            few_of(reader).write.format("noop").mode("overwrite").save()

        def read_memory() -> None:
            few_of(memory).write.format("noop").mode("overwrite").save()

        def read_nothing() -> None:
            spark.range(0, 1, 1, 1).write.format("noop").mode("overwrite").save()

        few_rows = few_of(reader).count()
        memory = spark.read.format("nothing").option("first", rows // 2).option("rows", few_rows)
        read_all()
        for _ in range(warm):
            for each in (read_few, read_memory, read_nothing):
                each()
        before = processor_seconds()
        everything, median = best_of(repeat, read_all)
        spent = processor_seconds()
        one_percent, median_few = best_of(5 * repeat, read_few)
        floor, median_floor = best_of(5 * repeat, read_memory)
        nothing, median_nothing = best_of(5 * repeat, read_nothing)
        print(
            f"read {rows:,} rows: best {rows / everything:,.0f} rows/s, "
            f"median {rows / median:,.0f} rows/s"
        )
        seconds = {each: (spent[each] - before[each]) / repeat / rows * 1e6 for each in spent}
        told = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
        print(f"processor time of a million rows: {told}")
        print(
            f"read {few_rows:,} of them by keys: best {one_percent:.3f} s, median "
            f"{median_few:.3f} s, {everything / one_percent:.1f} times faster than all (medians: "
            f"{median / median_few:.1f}); so many rows from memory, by a source in Python: best "
            f"{floor:.3f} s, median {median_floor:.3f} s; a job of Spark's own that reads nothing: "
            f"best {nothing:.3f} s, median {median_nothing:.3f} s"
        )
        pipeline.close()  # closed before the folder goes


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--warm", type=int, default=40)
    parser.add_argument("--part-bytes", type=int, default=8 * 1024 * 1024)
    parser.add_argument("--only", default="read,write,stream,memory,export,ranges")
    chosen = parser.parse_args(arguments)
    only = chosen.only.split(",")
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    spark = session()
    if "read" in only:
        pipeline.register(spark)
        measure_reads(spark, chosen.rows, chosen.repeat, chosen.warm, chosen.part_bytes)
    if "write" in only:
        pipeline.register(spark)
        spark_writes.measure(spark, chosen.rows, min(chosen.repeat, 3))
    if "stream" in only:
        pipeline.register(spark)
        spark_streams.measure(spark, 8 * chosen.repeat, 15)
    if "memory" in only:
        pipeline.register(spark)
        spark_memory.measure(spark, chosen.rows)
    if "export" in only:
        pipeline.register(spark)
        spark_copies.measure(spark, chosen.rows, min(chosen.repeat, 3))
    if "ranges" in only:
        spark_ranges.measure(spark, chosen.rows, min(chosen.repeat, 3))
    pipeline.close()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
