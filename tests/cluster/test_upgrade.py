"""From the first release to this version, node by node, with real processes of both.

The first release is taken out of this repository's history. Where that is not there (a source
archive, a shallow clone) the tests say so and are skipped; what nodes of the first release speak is
covered without it by the parametrized tests of :mod:`tests.server.cluster.test_peers` and
:mod:`tests.remote.test_connect`, which run the same gRPC services alone.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.errors import Error
from tests.cluster.harness import PROJECT, ClusterProcesses, NodeProcess, cluster, eventually
from tests.cluster.load import writing

FIRST_RELEASE = "924af30"


@pytest.fixture(scope="module")
def first_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with its sources."""
    command = ["git", "-C", str(PROJECT), "archive", FIRST_RELEASE, "postroom", "tests"]
    try:
        made = subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode().strip() or str(error)
        pytest.skip(f"the first release, {FIRST_RELEASE}, is not in this repository: {said}")
    folder = tmp_path_factory.mktemp("first-release")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def three(tmp_path: Path, first_release: Path) -> Iterator[ClusterProcesses]:
    """Nodes of the first release."""
    with cluster(tmp_path, 0) as processes:
        processes.project = first_release
        processes.form(3)
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


def old_client_writes(first_release: Path, addresses: str, key: str) -> None:
    """A client of the first release uses the cluster."""
    ran = subprocess.run(
        [sys.executable, "-c", WRITE, addresses, key],
        check=True, capture_output=True, text=True, timeout=60, cwd=first_release,
        env={**os.environ, "PYTHONPATH": str(first_release)},
    )  # fmt: skip
    assert ran.stdout.startswith(str(first_release))


def streams_of(node: NodeProcess) -> dict[str, bool]:
    """To which nodes it has connected, and whether the newest stream is native."""
    lines = [line for line in node.lines if "connected to node" in line]
    return {line.split(" at ")[1].split(",")[0]: "gRPC" not in line for line in lines}


def test_a_rolling_upgrade(three: ClusterProcesses, first_release: Path) -> None:
    """A client of each version writes all the while; nothing is lost, nothing is doubled."""
    with three.connect(timeout=20.0) as db, writing(db) as load:
        load.goes_on()
        old_client_writes(first_release, three.addresses, "before")
        for node in three.nodes:  # the leader is among them
            restart_as(node, PROJECT)
            load.goes_on()
            old_client_writes(first_release, three.addresses, f"upgraded {node.number}")

        def all_native() -> bool:
            """all streams between nodes are native"""
            told = [streams_of(node) for node in three.nodes]
            return all(len(each) == 2 and all(each.values()) for each in told)

        eventually(all_native)
        assert "over gRPC" in "".join(three.nodes[0].lines), "to nodes that were not upgraded yet"
        assert db.get(b"upgraded 3") == b"value"


def test_a_mixed_cluster_bears_the_loss_of_any_node(
    three: ClusterProcesses, first_release: Path
) -> None:
    restart_as(three.nodes[0], PROJECT)
    with three.connect(timeout=20.0) as db, writing(db) as load:
        for node in three.nodes:
            load.goes_on()
            node.kill()
            load.goes_on()
            node.restart()
        old_client_writes(first_release, three.addresses, "after")


def test_a_new_node_joins_old_ones_and_old_ones_join_new(
    tmp_path: Path, first_release: Path
) -> None:
    with cluster(tmp_path, 0) as processes:
        processes.project = first_release
        processes.form(1)
        processes.project = PROJECT
        processes.join()
        processes.project = first_release
        processes.join()
        with processes.connect(timeout=20.0) as db:
            db.put(b"key", b"value")

            def all_vote() -> bool:
                """all three have a vote"""
                try:
                    return processes.voters() == {1, 2, 3}
                except Error:
                    return False

            eventually(all_vote)
            old_client_writes(first_release, processes.addresses, "old")
            assert db.get(b"old") == b"value"


def test_a_new_client_goes_on_over_the_upgrade_of_the_only_node(
    tmp_path: Path, first_release: Path
) -> None:
    with cluster(tmp_path, 0) as processes:
        processes.project = first_release
        processes.form(1)
        (node,) = processes.nodes
        with processes.connect(timeout=20.0) as db, writing(db) as load:
            load.goes_on()
            restart_as(node, PROJECT)
            load.goes_on()
