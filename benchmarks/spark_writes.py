"""Writes to a store from Spark: ``python -m benchmarks.spark_writes``; needs ``[spark]`` and Java.

Store and Spark share the machine's cores: ``local[2]``, a store in the driver's process. Rows are
small: keys of 12 bytes, values of about as many.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.spark_session import session


def write(rows: Any, folder: Path, **options: str) -> float:
    """Write the rows into a new store, and return the seconds."""
    start = time.perf_counter()
    writer = rows.write.format("postroom").mode("append").option("path", str(folder))
    writer.options(**options).save()
    return time.perf_counter() - start


def measure(spark: Any, count: int, repeat: int) -> None:
    """Print a line for each mode."""
    import postroom  # noqa: PLC0415 - after the arguments are read
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    rows = spark.range(0, count, numPartitions=2).selectExpr(
        "cast(concat('user/', lpad(id, 7, '0')) as binary) as key",
        "cast(concat('value ', id) as binary) as value",
    )
    with tempfile.TemporaryDirectory(prefix="postroom-spark-") as name:
        modes: dict[str, dict[str, str]] = {"put": {}, "load": {"prefix": "user/"}}
        for mode, prefix in modes.items():
            took = []
            for number in range(repeat):
                folder = Path(name) / f"{mode}{number}"
                postroom.open(folder).close()
                few = rows.limit(10).selectExpr("concat('warm/', key) as key", "value")
                write(few, folder, mode="put")
                took.append(write(rows, folder, mode=mode, **prefix))
            best, middle = min(took), sorted(took)[len(took) // 2]
            print(
                f"mode={mode}, {count:,} rows: best {count / best:,.0f} rows/s, "
                f"median {count / middle:,.0f} rows/s"
            )
        pipeline.close()  # closed before the folders go


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_writes", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args(arguments)
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    spark = session()
    pipeline.register(spark)
    measure(spark, chosen.rows, chosen.repeat)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
