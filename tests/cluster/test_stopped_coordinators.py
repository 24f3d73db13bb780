"""A node stops while it coordinates transactions over two ranges: the others go on."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import postroom
from postroom.errors import CommitUnknown
from tests.cluster.harness import ClusterProcesses, NodeProcess, cluster

THREADS, KEYS = 4, 4
GONE_ON = 5
"""The transactions that have to commit while the node is stopped."""


def leader_of(nodes: ClusterProcesses, db: postroom.Database, key: bytes) -> NodeProcess:
    """Return the node that leads the range of a key."""
    (found,) = db.ranges(key, key + b"\x00")
    address = next(each.address for each in db.status().nodes if each.node_id == found.leader)
    return next(node for node in nodes.nodes if node.address == address)


def sums(db: postroom.Database) -> list[int]:
    return [
        sum(int.from_bytes(db.get(prefix + b"%d" % each) or b"", "big") for each in range(KEYS))
        for prefix in (b"a", b"z")
    ]


class Load:
    """Threads that increment a counter in each of two ranges, until the end of a block."""

    def __init__(self, nodes: ClusterProcesses) -> None:
        self._nodes = nodes
        self._is_over = threading.Event()
        self._done = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._work, args=(number,)) for number in range(THREADS)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        def once(tx: postroom.Transaction) -> None:
            for prefix in (b"a", b"z"):
                tx.increment(prefix + b"%d" % (number % KEYS), 1)

        with self._nodes.connect() as db:
            while not self._is_over.is_set():
                with contextlib.suppress(CommitUnknown):  # it counts in both ranges, or in none
                    db.run(once)
                    self._done.release()

    def goes_on(self) -> None:
        """Wait until some transactions have committed that have not yet."""
        while self._done.acquire(blocking=False):
            pass
        for _ in range(GONE_ON):
            assert self._done.acquire(timeout=60.0), "nothing commits"


def test_others_go_on_while_the_node_of_a_coordinator_is_stopped(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes, nodes.connect() as db:
        right = db.split(b"m")
        first, second = (each.node_id for each in db.status().nodes[:2])
        db.move_lease(1, first)
        db.move_lease(right.id, second)
        with Load(nodes) as load:
            load.goes_on()
            stopped = leader_of(nodes, db, b"a")
            stopped.pause()
            with nodes.connect(*[each for each in nodes.nodes if each is not stopped]) as other:
                for number in range(KEYS):  # it has prepared transactions for these keys
                    other.increment(b"z%d" % number, 0)
                    other.increment(b"a%d" % number, 0)
            load.goes_on()
            stopped.resume()
        left, right_sum = sums(db)
        assert left == right_sum > 0
