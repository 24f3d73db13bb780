"""A read of all rows of 32 ranges on three nodes, beside that of one range on the same nodes.

``python -m benchmarks.spark_ranges``; needs ``[spark]`` and Java. Nodes and Spark share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import postroom.aio
from benchmarks.cluster import connect, started_nodes
from benchmarks.spark_session import ROWS_PER_TRANSACTION, session

RANGES = 32
AT_ONCE = 4
PART_BYTES = 8 * 1024 * 1024


async def _fill(addresses: str, rows: int) -> None:
    """Fill a cluster with small rows: keys of 12 bytes, values of about as many."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def put(db: postroom.aio.Database, start: int) -> None:
        async with gate, db.begin() as tx:
            for number in range(start, min(start + ROWS_PER_TRANSACTION, rows)):
                tx.put(b"user/%07d" % number, b"value %d" % number)

    async with await connect(addresses) as db:
        starts = range(0, rows, ROWS_PER_TRANSACTION)
        await asyncio.gather(*(put(db, start) for start in starts))


async def _split(addresses: str, rows: int, ranges: int) -> None:
    """Make ranges of as many rows each, and have each node lead a third of them."""
    async with await connect(addresses) as db:
        for number in range(1, ranges):
            await db.split(b"user/%07d" % (rows * number // ranges))
        nodes = sorted(each.node_id for each in (await db.status()).nodes)
        for number, each in enumerate(await db.ranges()):
            await db.move_lease(each.id, nodes[number % len(nodes)])


def _seconds(spark: Any, addresses: str, rows: int, repeat: int) -> list[float]:
    """Return the times of reads of everything, after one that does not count."""
    reader = spark.read.format("postroom").options(connect=addresses, insecure="true")
    reader = reader.option("part_bytes", PART_BYTES)
    took = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        reader.load().write.format("noop").mode("overwrite").save()
        took.append(time.perf_counter() - began)
    found = reader.load().count()
    if found != rows:
        raise RuntimeError(f"Spark has read {found:,} rows instead of {rows:,}")
    return took[1:]


def measure(spark: Any, rows: int, repeat: int, ranges: int = RANGES) -> None:
    """Print a line for one range, and one for many."""
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    pipeline.register(spark)
    with (
        tempfile.TemporaryDirectory(prefix="postroom-spark-") as name,
        started_nodes(Path(name), 3) as nodes,
    ):
        asyncio.run(_fill(nodes.addresses, rows))
        for number in (1, ranges):
            if number > 1:
                asyncio.run(_split(nodes.addresses, rows, number))
            took = _seconds(spark, nodes.addresses, rows, repeat)
            print(
                f"read {rows:,} rows from 3 nodes, {number} range{'s' * (number > 1)}: "
                f"best {rows / min(took):,.0f} rows/s, median {rows / median(took):,.0f} rows/s",
                flush=True,
            )


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_ranges", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ranges", type=int, default=RANGES)
    chosen = parser.parse_args(arguments)
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    spark = session()
    measure(spark, chosen.rows, chosen.repeat, chosen.ranges)
    pipeline.close()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
