"""The export of a store with many ranges, against one range: ``python -m benchmarks.spark``."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import postroom
from benchmarks.spark_session import fill

RANGES: Final = 32
GOAL: Final = 0.8


def measure(spark: Any, rows: int, repeat: int) -> None:
    """Print how many entries a second are exported from one range, and from many; by turns."""
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    with tempfile.TemporaryDirectory(prefix="postroom-spark-") as name:
        folder = Path(name)
        for ranges in (1, RANGES):
            store = folder / str(ranges)
            fill(store, rows)
            with postroom.open(store) as db:
                for number in range(1, ranges):
                    db.split(b"user/%07d" % (number * rows // ranges))
        took: dict[int, list[float]] = {1: [], RANGES: []}
        for turn in range(repeat + 1):  # the first one warms up
            for ranges, seconds in took.items():
                seconds.append(_export(spark, folder, ranges, turn))
        best = {ranges: min(seconds[1:]) for ranges, seconds in took.items()}
        print(
            f"export of {rows:,} entries: best {rows / best[1]:,.0f}/s of one range, "
            f"{rows / best[RANGES]:,.0f}/s of {RANGES} ranges: {best[1] / best[RANGES]:.2f} times "
            f"(goal {GOAL})"
        )
        pipeline.close()  # closed before the folder goes


def _export(spark: Any, folder: Path, ranges: int, turn: int) -> float:
    """Return the seconds that an export takes."""
    from postroom.pipeline import jobs  # noqa: PLC0415 - needs the extra

    begun = time.perf_counter()
    jobs.export(spark, {"path": str(folder / str(ranges))}, str(folder / f"{ranges} {turn}"))
    return time.perf_counter() - begun
