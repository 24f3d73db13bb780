"""A micro-batch of a stream of changes, beside one of Spark's own source ``rate``.

``python -m benchmarks.spark_streams``; needs ``[spark]`` and Java. Both streams have rows all the
time, go nowhere, and are timed by Spark itself (``triggerExecution``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.spark_session import processor_seconds, session

ROWS_PER_SECOND = 1000
WRITE_SECONDS = 0.02
PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


class Writer:
    """A writer that changes a store all the time."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._over.wait(WRITE_SECONDS):
            with self._db.begin() as tx:
                for _ in range(int(ROWS_PER_SECOND * WRITE_SECONDS)):
                    tx.put(b"user/%07d" % (number % 1000), b"%d" % number)
                    number += 1

    def close(self) -> None:
        """End the writer."""
        self._over.set()
        self._thread.join()


class Batches(NamedTuple):
    """The batches of a query.

    They have the milliseconds of each phase, and the processor time of a batch on each side.
    """

    milliseconds: list[dict[str, int]]
    processor: dict[str, float]


def batches(rows: Any, count: int, warm: int, folder: Path) -> Batches:
    """Run a query until it has had so many batches."""
    query = (
        rows.writeStream.format("noop").option("checkpointLocation", str(folder))
        .trigger(processingTime="0 seconds").start()
    )  # fmt: skip
    seen: dict[int, dict[str, int]] = {}
    before, of_warm = processor_seconds(), 0
    waiting = threading.Event()
    while len(seen) < warm + count and query.isActive:
        waiting.wait(0.05)
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                seen[progress["batchId"]] = progress["durationMs"]
        if len(seen) <= warm:
            before, of_warm = processor_seconds(), len(seen)
    after = processor_seconds()
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))
    query.stop()
    spent = {
        each: 1000 * (after[each] - before[each]) / max(len(seen) - of_warm, 1) for each in after
    }
    return Batches([seen[number] for number in sorted(seen)][warm:], spent)


def told(name: str, found: Batches) -> float:
    """Print a line, and return the middle time of a batch."""
    took = found.milliseconds
    phases = {each: median(batch.get(each, 0) for batch in took) for each in PHASES}
    whole = median(batch["triggerExecution"] for batch in took)
    parts = ", ".join(f"{each} {value:.0f}" for each, value in phases.items())
    spent = ", ".join(f"{each} {value:.0f}" for each, value in found.processor.items())
    print(
        f"micro-batch of {name}: median {whole:.0f} ms ({parts}); processor time in ms: {spent}",
        flush=True,
    )
    return whole


def measure(spark: Any, count: int, warm: int) -> None:
    """Print a line for each stream, and the difference."""
    import postroom  # noqa: PLC0415 - after the arguments are read
    from postroom import pipeline  # noqa: PLC0415 - needs the extra
    from postroom.server.loopback import LoopbackServer  # noqa: PLC0415 - as above

    pipeline.register(spark)
    with tempfile.TemporaryDirectory(prefix="postroom-spark-") as name:
        rate = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
        of_rate = told("rate", batches(rate, count, warm, Path(name) / "rate"))
        server = LoopbackServer(Path(name) / "store", create=True)
        with postroom.connect(server.address, insecure=True) as db:
            writer = Writer(db)
            try:
                reader = spark.readStream.format("postroom").option("table", "changes")
                reader = reader.option("connect", server.address).option("insecure", "true")
                ours = batches(reader.load(), count, warm, Path(name) / "changes")
                of_changes = told("changes", ours)
            finally:
                writer.close()
        server.close()
        print(f"a micro-batch of changes takes {of_changes - of_rate:.0f} ms more")


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_streams", description=__doc__)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--warm", type=int, default=15)
    chosen = parser.parse_args(arguments)
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    spark = session()
    measure(spark, chosen.batches, chosen.warm)
    pipeline.close()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
