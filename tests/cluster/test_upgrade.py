"""An upgrade from this version to the next one, node by node, with real processes of both.

The next version is a copy of this one that speaks one version more
(:mod:`tests.cluster.next_version`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import postroom
from postroom.errors import Error, VersionMismatch
from tests.cluster.harness import PROJECT, ClusterProcesses, NodeProcess, cluster, eventually
from tests.cluster.load import writing
from tests.cluster.next_version import make_next_version


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sources of the next version."""
    return make_next_version(tmp_path_factory.mktemp("next-version"))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Run three nodes of this version."""
    with cluster(tmp_path, 3) as processes:
        yield processes


def restart_as(node: NodeProcess, project: Path) -> None:
    assert node.stop() == 0
    node.project = project
    node.restart()


WRITE = """
import sys
import postroom

with postroom.connect(sys.argv[1], insecure=True) as db:
    db.put(sys.argv[2].encode(), b"value")
    assert db.get(sys.argv[2].encode()) == b"value"
print(postroom.__file__)
"""


def client_writes(project: Path, addresses: str, key: str) -> None:
    """Use the cluster with a client of the version in ``project``."""
    ran = subprocess.run(
        [sys.executable, "-c", WRITE, addresses, key],
        check=True, capture_output=True, text=True, timeout=60, cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
    )  # fmt: skip
    assert ran.stdout.startswith(str(project))


def test_a_cluster_is_upgraded_while_clients_of_both_versions_write(
    three: ClusterProcesses, next_version: Path
) -> None:
    with three.connect(timeout=20.0) as db, writing(db) as load:
        load.goes_on()
        client_writes(next_version, three.addresses, "before")
        for node in three.nodes:  # the leader is among them
            restart_as(node, next_version)
            load.goes_on()
            client_writes(next_version, three.addresses, f"upgraded {node.number}")
        assert db.get(b"upgraded 3") == b"value"


def test_a_mixed_cluster_survives_the_loss_of_any_node(
    three: ClusterProcesses, next_version: Path
) -> None:
    restart_as(three.nodes[0], next_version)
    with three.connect(timeout=20.0) as db, writing(db) as load:
        for node in three.nodes:
            load.goes_on()
            node.kill()
            load.goes_on()
            node.restart()
        client_writes(next_version, three.addresses, "after")


def eventually_vote(processes: ClusterProcesses, voters: set[int]) -> None:
    def vote() -> bool:
        """Look whether exactly these nodes have a vote."""
        try:
            return processes.voters() == voters
        except Error:
            return False

    eventually(vote)


def test_nodes_of_the_next_version_join_and_the_first_node_follows(
    tmp_path: Path, next_version: Path
) -> None:
    with cluster(tmp_path, 1) as processes:
        processes.project = next_version
        processes.join()
        processes.join()
        with processes.connect(timeout=20.0) as db:
            db.put(b"key", b"value")
            eventually_vote(processes, {1, 2, 3})
            restart_as(processes.nodes[0], next_version)
            client_writes(PROJECT, processes.addresses, "older")
            assert db.get(b"older") == b"value"


def test_an_entry_of_the_next_version_waits_until_all_nodes_can_read_it(
    tmp_path: Path, next_version: Path
) -> None:
    """The leader is of the next version, whose membership entries this version cannot read."""
    with cluster(tmp_path, 0) as processes:
        processes.project = next_version
        processes.form(1)
        (leader,) = processes.nodes
        processes.project = PROJECT
        older = processes.join(wait=False)
        leader.wait_line(lambda line: "Promote" in line and "superseded" in line)
        assert processes.voters() == {1}
        restart_as(older, next_version)
        eventually_vote(processes, {1, 2})


def test_a_client_goes_on_over_the_upgrade_of_the_only_node(
    tmp_path: Path, next_version: Path
) -> None:
    with cluster(tmp_path, 1) as processes:
        (node,) = processes.nodes
        with processes.connect(timeout=20.0) as db, writing(db) as load:
            load.goes_on()
            restart_as(node, next_version)
            load.goes_on()


OPEN = """
import sys
import postroom

with postroom.open(sys.argv[1]) as db:
    assert db.get(b"key") == b"value"
    db.put(b"next", b"value")
"""


def test_a_folder_that_was_upgraded_is_refused_by_this_version(
    tmp_path: Path, next_version: Path
) -> None:
    folder = tmp_path / "store"
    with postroom.open(folder) as db:
        db.put(b"key", b"value")
    opens = [sys.executable, "-c", OPEN, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(next_version)}
    for _ in range(2):
        subprocess.run(opens, check=True, timeout=60, cwd=next_version, env=environment)
        with pytest.raises(VersionMismatch, match=r"format 2, .* reads format 1; nothing was"):
            postroom.open(folder)
