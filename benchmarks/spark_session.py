"""The Spark session of the benchmarks, and the observation of its processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import postroom

ROWS_PER_TRANSACTION = 5000


def session() -> Any:
    """Return a session as in the documentation, without a user interface."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after what it must find set

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.driver.memory", "1g").getOrCreate()


def fill(folder: Path, rows: int) -> None:
    """Fill a store with small rows: keys of 12 bytes, values of about as many."""
    with postroom.open(folder, durability="none") as db:
        for start in range(0, rows, ROWS_PER_TRANSACTION):
            with db.begin() as tx:
                for number in range(start, min(start + ROWS_PER_TRANSACTION, rows)):
                    tx.put(b"user/%07d" % number, b"value %d" % number)


def processes() -> dict[int, str]:
    """Return the processes that this one and its children have started, with their names."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            commands[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:  # the process has ended meanwhile
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
    """Return the processor time that each side has taken so far.

    It includes that of processes that have ended.
    """
    tick = os.sysconf("SC_CLK_TCK")
    seconds = {"node": time.process_time(), "JVM": 0.0, "Python of Spark": 0.0}
    for pid, kind in processes().items():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended meanwhile
            continue
        seconds[kind] += sum(map(int, stat[11:15])) / tick
    return seconds


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had at a time."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def own_bytes(pid: int) -> int:
    """Return the memory that is a process's own now, without mapped files."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024
