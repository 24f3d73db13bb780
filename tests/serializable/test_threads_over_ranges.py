"""Threads whose transactions read and append to lists in two and three ranges, judged afterwards.

A list is the value of a key, and each element is appended once. The judge
(:mod:`tests.sim.recorded.appends`) finds one order of all transactions that keeps real time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from postroom.errors import CommitUnknown, TransactionConflict
from tests.cluster.harness import cluster
from tests.sim.recorded.appends import check_appends
from tests.sim.recorded.operations import Outcome, Transaction

THREADS = 6
TRANSACTIONS = 60
LISTS = (b"a", b"b", b"n", b"o", b"x", b"y")
CUTS = (b"m", b"w")
SPLITS = (b"o", b"b", b"y")


class Clients:
    """Threads that run random transactions, and note what they were told."""

    def __init__(self, db: postroom.Database, lists: tuple[bytes, ...]) -> None:
        self.done: list[Transaction] = []
        self._db = db
        self._lists = lists
        self._failed: list[BaseException] = []

    def run(self, *splits: bytes) -> None:
        """Run all of them, while ranges split; raise what one of them has raised."""
        threads = [threading.Thread(target=self._work, args=(each,)) for each in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            for key in splits:
                self._db.split(key)
        finally:
            for thread in threads:
                thread.join()
        for error in self._failed:
            raise error

    def _work(self, number: int) -> None:
        random = Random(number)
        try:
            for each in range(TRANSACTIONS):
                self.done.append(self._transaction(random, b"%d.%d" % (number, each)))
        except BaseException as error:
            self._failed.append(error)

    def _transaction(self, random: Random, element: bytes) -> Transaction:
        """Read some lists, and append to some of them, perhaps to none."""
        read = random.sample(self._lists, random.randint(1, 3))
        appended = random.sample(read, random.randint(0, len(read)))
        actions: list[Any] = []
        begin = time.monotonic()
        outcome = Outcome.OK
        try:
            with self._db.begin() as tx:
                for key in read:
                    stored = tx.get(key) or b""
                    actions.append(("read", key, tuple(stored.split()) if stored else ()))
                    if key in appended:
                        actions.append(("append", key, element))
                        tx.put(key, stored + b" " + element)
        except TransactionConflict:
            outcome = Outcome.FAILED
        except CommitUnknown:
            outcome = Outcome.UNKNOWN
        return Transaction(str(element), actions, begin, time.monotonic(), outcome)


@contextmanager
def embedded(_: Path) -> Iterator[postroom.Database]:
    with postroom.open(":memory:") as db:
        yield db


@contextmanager
def three_nodes(folder: Path) -> Iterator[postroom.Database]:
    with cluster(folder) as nodes, nodes.connect() as db:
        yield db


@pytest.mark.parametrize("ranges", [2, 3])
@pytest.mark.parametrize("store", [embedded, three_nodes], ids=lambda each: each.__name__)
def test_transactions_over_ranges_are_serializable_and_keep_real_time(
    store: Any, ranges: int, tmp_path: Path
) -> None:
    with store(tmp_path) as db:
        for cut in CUTS[: ranges - 1]:
            db.split(cut)
        for number, each in enumerate(db.ranges() if store is three_nodes else ()):
            db.move_lease(each.id, number + 1)
        clients = Clients(db, LISTS)
        clients.run(*SPLITS)
        last = [("read", key, tuple((db.get(key) or b"").split())) for key in LISTS]
        end = time.monotonic()
        clients.done += [Transaction("last", [each], end, end) for each in last]
    committed = sum(each.outcome is Outcome.OK for each in clients.done)
    assert committed > TRANSACTIONS
    check_appends(clients.done)
