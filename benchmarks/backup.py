"""Benchmarks of backups: their speed, and what they leave to clients that write meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import postroom
from benchmarks.harness import Measured, Settings, benchmark
from postroom.backup import restore

ENTRIES = 1_000_000
ENTRIES_A_TRANSACTION = 2000
VALUE = b"v" * 60
CLIENTS = 4


@contextmanager
def _filled(settings: Settings) -> Iterator[tuple[postroom.Database, int]]:
    """Yield a store with many small values, and their number."""
    entries = settings.size(ENTRIES)
    path = settings.folder / "store"
    with postroom.open(path, durability="none", engine=settings.engine) as db:
        for first in range(0, entries, ENTRIES_A_TRANSACTION):
            with db.begin() as tx:
                for number in range(first, min(first + ENTRIES_A_TRANSACTION, entries)):
                    tx.put(b"user/%012d" % number, VALUE)
        yield db, entries


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


@benchmark("backup of a million entries", "entries/s", 200_000)
def full_backup(settings: Settings) -> Measured:
    """Measure ``db.backup`` of a store that nobody else uses, and an increment after it."""
    folder = settings.folder
    with _filled(settings) as (db, entries):
        seconds = _seconds(lambda: db.backup(folder / "full"))
        db.put(b"user/new", VALUE)
        increment = _seconds(lambda: db.backup(folder / "one", since=folder / "full"))
    return Measured(entries / seconds, {"increment": round(entries / increment)})


@benchmark("restore of a million entries", "entries/s")
def restored(settings: Settings) -> Measured:
    """Measure the restore of a backup into a new folder."""
    folder = settings.folder
    with _filled(settings) as (db, entries):
        db.backup(folder / "full")
    with postroom.open(folder / "new", durability="none", engine=settings.engine) as db:
        seconds = _seconds(lambda: restore(db, folder / "full"))
    return Measured(entries / seconds)


@benchmark("puts beside a backup, of those without", "share", 0.8)
def beside_clients(settings: Settings) -> Measured:
    """Measure the puts of four threads while the store is backed up again and again."""
    folder, stop = settings.folder, threading.Event()
    with _filled(settings) as (db, _):
        alone = _puts(db, settings.seconds)
        backing = threading.Thread(target=_back_up, args=(db, folder / "full", stop))
        backing.start()
        beside = _puts(db, settings.seconds)
        stop.set()
        backing.join()
    return Measured(beside / alone, {"alone": round(alone), "beside": round(beside)})


def _back_up(db: postroom.Database, folder: Path, stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        db.backup(folder.with_name(f"{folder.name}-{number}"))
        number += 1


def _puts(db: postroom.Database, seconds: float) -> float:
    """Return how many puts a second some threads do."""
    done = [0] * CLIENTS
    until = time.perf_counter() + seconds

    def put(client: int) -> None:
        while time.perf_counter() < until:
            db.put(b"client/%d/%d" % (client, done[client] % 1000), VALUE)
            done[client] += 1

    threads = [threading.Thread(target=put, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds
