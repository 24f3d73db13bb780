"""Nodes that are told to stop hand over and end in time, while clients write, wait, say nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import postroom
from tests.cluster.harness import ClusterProcesses, NodeProcess, cluster
from tests.cluster.load import Load, writing
from tests.cluster.test_cluster import HANDING_OVER_SECONDS, shortest_pause_seconds
from tests.deploy.test_kubernetes import POD

WRITERS = 4
GRACE_SECONDS = float(POD["terminationGracePeriodSeconds"])


def test_nodes_that_stop_hand_over_and_end_within_the_grace_period(tmp_path: Path) -> None:
    with cluster(tmp_path) as three, three.connect() as db, waiting_clients(three):

        def longest_pause() -> float:
            """Restart each node under load, and return the longest pause of a writer."""
            with contextlib.ExitStack() as stack:
                loads = [stack.enter_context(writing(db)) for _ in range(WRITERS)]
                for node in (three.leader(db), *three.nodes):
                    stop_in_time(node, loads)
            return max(load.longest_pause_seconds() for load in loads)

        assert shortest_pause_seconds(longest_pause, HANDING_OVER_SECONDS) < HANDING_OVER_SECONDS


def stop_in_time(node: NodeProcess, loads: list[Load]) -> None:
    for load in loads:
        load.goes_on()
    node.interrupt()
    assert node.wait(GRACE_SECONDS) == 0
    for load in loads:
        load.goes_on()
    node.restart()


@contextlib.contextmanager
def waiting_clients(three: ClusterProcesses) -> Iterator[None]:
    """Have a consumer that waits for an hour, and a caller of each node that says nothing."""
    with contextlib.ExitStack() as stack:
        for node in three.nodes:
            host, port = node.address.rsplit(":", 1)
            stack.enter_context(socket.create_connection((host, int(port))))
        db = stack.enter_context(three.connect())

        def wait() -> None:
            with contextlib.suppress(postroom.Error), db.begin() as tx:
                tx.reap_queue(b"empty", wait=3600)

        consumer = threading.Thread(target=wait)
        consumer.start()
        yield
        with db.begin() as tx:
            tx.enqueue_message(b"empty", b"over")
        consumer.join()
