"""Clusters of real processes: what an operator does to them, and what may happen to them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import postroom
from postroom.errors import Error
from tests.cluster.harness import ClusterProcesses, NodeProcess, cluster, eventually
from tests.cluster.places import Namespaces, namespaces_work

FAILOVER_SECONDS = 5.0
"""Twice what is promised: two cores are shared by everything that runs here."""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster(tmp_path) as processes:
        yield processes


@contextmanager
def writing(db: postroom.Database) -> Iterator[Callable[[], int]]:
    """Increments a counter one after the other meanwhile, and ends with nothing lost or doubled."""
    done = threading.Event()
    acknowledged = itertools.count()
    written, failures = [0], []

    def write(tx: postroom.Transaction, number: int) -> None:
        tx.increment(b"counter")
        tx.enqueue_message(b"inbox", b"%d" % number)

    def run() -> None:
        try:
            while not done.is_set():
                db.run(write, next(acknowledged))
                written[0] += 1
        except Error as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: written[0]
    finally:
        done.set()
        thread.join()
    assert not failures
    assert postroom.integer(db.get(b"counter") or bytes(8)) == written[0]
    db.drain()
    arrived = [int(message.value) for message in db.peek(b"inbox", limit=1_000_000)]
    assert arrived == list(range(written[0]))


def goes_on(written: Callable[[], int], more: int = 20) -> None:
    """Waits until so many more writes were acknowledged."""
    wanted = written() + more
    eventually(lambda: written() >= wanted)


def test_three_nodes_form_a_cluster(three: ClusterProcesses) -> None:
    for node in three.nodes:
        with three.connect(node) as db:
            db.put(node.address.encode(), b"here")
    with three.connect() as db:
        assert len(list(db.scan(b"", b"\xff"))) == 3
        assert [node.node_id for node in db.status().nodes] == [1, 2, 3]


def test_writes_go_on_when_the_leader_is_killed(three: ClusterProcesses) -> None:
    with three.connect() as db, writing(db) as written:
        goes_on(written)
        leader = three.leader(db)
        leader.kill()
        goes_on(written)
        assert three.leader(db) is not leader
        leader.restart()
        goes_on(written)


def test_a_leader_that_stands_still_is_replaced(three: ClusterProcesses) -> None:
    with three.connect() as db, writing(db) as written:
        goes_on(written)
        leader = three.leader(db)
        leader.pause()
        goes_on(written)
        leader.resume()
        goes_on(written)


def test_a_node_that_is_told_to_stop_hands_over(three: ClusterProcesses) -> None:
    with three.connect() as db, writing(db) as written:
        goes_on(written)
        leader = three.leader(db)
        assert leader.stop() == 0
        goes_on(written)
        leader.restart()


def test_a_rolling_restart_loses_nothing(three: ClusterProcesses) -> None:
    with three.connect() as db, writing(db) as written:
        for node in three.nodes:
            goes_on(written)
            assert node.stop() == 0
            node.restart()
        goes_on(written)


def test_all_nodes_restart(three: ClusterProcesses) -> None:
    with three.connect() as db:
        db.put(b"key", b"value")
    for node in three.nodes:
        node.kill()
    for node in three.nodes:
        node.start()
    for node in three.nodes:
        node.wait_ready()
    with three.connect() as db:
        assert db.get(b"key") == b"value"


def test_a_minority_does_not_write(three: ClusterProcesses) -> None:
    with three.connect() as db:
        db.put(b"key", b"value")
    for node in three.nodes[1:]:
        node.kill()
    with (
        pytest.raises(Error, match=r"."),
        three.connect(three.nodes[0], timeout=1.0) as db,
    ):
        db.put(b"key", b"other")
    three.nodes[1].restart()
    with three.connect() as db:
        assert db.get(b"key") in (b"value", b"other")


def voters(db: postroom.Database) -> set[int]:
    """The nodes that are there to stay and have all that the leader has."""
    return {
        node.node_id
        for node in db.status().nodes
        if not node.retired and node.entries_behind is not None and node.entries_behind < 100
    }


def test_a_fourth_node_joins(three: ClusterProcesses) -> None:
    with three.connect() as db, writing(db) as written:
        goes_on(written)
        three.join()
        goes_on(written)
        eventually(lambda: voters(db) == {1, 2, 3, 4})
        goes_on(written)


def test_a_wiped_node_comes_back_as_a_new_one(three: ClusterProcesses) -> None:
    with three.connect() as db, writing(db) as written:
        goes_on(written)
        lost = three.followers(db)[0]
        lost_id = next(n.node_id for n in db.status().nodes if n.address == lost.address)
        lost.kill()
        lost.wipe()
        lost.restart()
        eventually(lambda: voters(db) == {1, 2, 3, 4} - {lost_id})
        goes_on(written)


def test_the_first_node_of_the_list_comes_back_wiped(three: ClusterProcesses) -> None:
    """It could found a cluster of its own, if it did not ask first."""
    with three.connect() as db, writing(db) as written:
        goes_on(written)
        first = min(three.nodes, key=lambda node: node.address)
        first.kill()
        first.wipe()
        first.restart()
        eventually(lambda: len(voters(db)) == 3)
        assert max(voters(db)) == 4
        goes_on(written)


def test_a_node_moves_to_another_address(three: ClusterProcesses, tmp_path: Path) -> None:
    with three.connect() as db, writing(db) as written:
        goes_on(written)
        mover = three.followers(db)[0]
        node_id = next(n.node_id for n in db.status().nodes if n.address == mover.address)
        assert mover.stop() == 0
        mover.address = three.place.address(9)
        mover.restart()
        eventually(lambda: (node_id, mover.address) in [n[:2] for n in db.status().nodes])
        eventually(lambda: voters(db) == {1, 2, 3})
        goes_on(written)


def test_a_node_of_another_cluster_is_refused(three: ClusterProcesses, tmp_path: Path) -> None:
    with cluster(tmp_path / "other", 1) as other:
        stranger = other.nodes[0]
        with other.connect() as db:
            db.put(b"key", b"other")
        stranger.kill()
        three.nodes[2].kill()
        moved = NodeProcess(3, stranger.disk, three.place, three.addresses, ("--insecure",))
        three.nodes.append(moved)
        moved.start()
        eventually(lambda: any("another cluster" in line for n in three.nodes for line in n.lines))
    moved.kill()
    three.nodes[2].restart()
    with three.connect() as db:
        assert db.get(b"key") is None


@pytest.mark.skipif(not namespaces_work(), reason="needs root, iproute2 and network namespaces")
def test_a_leader_that_is_cut_off_is_replaced(tmp_path: Path) -> None:
    place = Namespaces(3)
    with (
        cluster(tmp_path, place=place) as processes,
        processes.connect() as db,
        writing(db) as written,
    ):
        goes_on(written)
        leader = processes.leader(db)
        place.isolate(leader.number)
        goes_on(written)
        place.heal()
        goes_on(written)


@pytest.mark.skipif(not namespaces_work(), reason="needs root, iproute2 and network namespaces")
def test_two_nodes_that_do_not_hear_each_other_disturb_nobody(tmp_path: Path) -> None:
    place = Namespaces(3)
    with (
        cluster(tmp_path, place=place) as processes,
        processes.connect() as db,
        writing(db) as written,
    ):
        goes_on(written)
        leader = processes.leader(db)
        follower = processes.followers(db)[0]
        place.cut(leader.number, follower.number)
        goes_on(written, more=100)
        place.heal()
        eventually(lambda: voters(db) == {1, 2, 3})
        goes_on(written)
