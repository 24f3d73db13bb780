"""The Spark session of the benchmarks, and how its processes are looked at."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import postroom

ROWS_PER_TRANSACTION = 5000


def session() -> Any:
    """As in the documentation, without a user interface."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after what it must find set

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.driver.memory", "1g").getOrCreate()


def fill(folder: Path, rows: int) -> None:
    """Small rows: keys of 12 bytes, values of about as many."""
    with postroom.open(folder, durability="none") as db:
        for start in range(0, rows, ROWS_PER_TRANSACTION):
            with db.begin() as tx:
                for number in range(start, min(start + ROWS_PER_TRANSACTION, rows)):
                    tx.put(b"user/%07d" % number, b"value %d" % number)


def processes() -> dict[int, str]:
    """All processes that this one has started, and those have: which of Spark's it is."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            commands[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(folder.name)] = int(stat[1])
    found: dict[int, str] = {}
    while True:
        more = {
            pid: "JVM" if b"java" in commands[pid] else "Python of Spark"
            for pid, parent in parents.items()
            if pid not in found and (parent == os.getpid() or parent in found)
        }
        if not more:
            return found
        found |= more


def processor_seconds() -> dict[str, float]:
    """What each side has taken so far, what it has waited for included."""
    tick = os.sysconf("SC_CLK_TCK")
    seconds = {"node": time.process_time(), "JVM": 0.0, "Python of Spark": 0.0}
    for pid, kind in processes().items():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        seconds[kind] += sum(map(int, stat[11:15])) / tick
    return seconds


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had at a time."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def own_bytes(pid: int) -> int:
    """The memory that is a process's own, now: without files that are mapped."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024
