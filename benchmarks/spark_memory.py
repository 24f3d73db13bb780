"""The memory of reads by the number of rows: ``python -m benchmarks.spark_memory``.

It needs ``[spark]`` and Java. Spark reads a node in a process of its own, first few rows, then ten
times as many. The peaks of the node, and of the largest of Spark's Python processes, are printed.
The node's own memory is printed, too: the engine maps its files. Pages read of them count as the
process's until the system needs the memory.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.spark_session import fill, own_bytes, peak_bytes, processes, session

TIMES = 10
_NODE = """
import sys
from postroom.server.loopback import LoopbackServer
server = LoopbackServer(sys.argv[1], create=False)
print(server.address, flush=True)
sys.stdin.read()
server.close()
"""


@contextlib.contextmanager
def node(folder: Path) -> Iterator[tuple[str, int]]:
    """Start a node that serves a folder; yield its address, and the id of its process."""
    with subprocess.Popen(
        [sys.executable, "-c", _NODE, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
        process.stdin.close()


def read(spark: Any, folder: Path) -> tuple[float, float, float]:
    """Read everything, and return memory in MiB.

    Returns:
        The peak of the node, its own memory, and the peak of Spark's Python.
    """
    with node(folder) as (address, pid):
        reader = spark.read.format("postroom").option("connect", address)
        reader = reader.option("insecure", "true").option("part_bytes", 1 << 20)
        for _ in range(2):
            reader.load().write.format("noop").mode("overwrite").save()
        of_spark = max(
            peak_bytes(each) for each, kind in processes().items() if kind != "JVM" and each != pid
        )
        return peak_bytes(pid) / 2**20, own_bytes(pid) / 2**20, of_spark / 2**20


def measure(spark: Any, rows: int) -> None:
    """Print a line for each size."""
    with tempfile.TemporaryDirectory(prefix="postroom-spark-") as name:
        for count in (rows // TIMES, rows):
            folder = Path(name) / str(count)
            fill(folder, count)
            of_node, own, of_spark = read(spark, folder)
            print(
                f"read {count:,} rows twice: peak of the node {of_node:.0f} MiB ({own:.0f} MiB its "
                f"own afterwards), of the largest Python process of Spark {of_spark:.0f} MiB"
            )


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    chosen = parser.parse_args(arguments)
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    spark = session()
    pipeline.register(spark)
    measure(spark, chosen.rows)
    pipeline.close()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
