"""A local cluster's folder: which ports it has, who holds it, and what is refused untouched."""

from __future__ import annotations

import contextlib
import os
import random  # noqa: TID251 - an instance is made, to be passed in
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroom.errors import AccessDenied, Error, Invalid, StoreLocked
from postroom.kv.opening import open_engine
from postroom.server.local_cluster import HOST, LocalCluster, LocalFolder, LocalNode, lock
from postroom.server.opening import open_store
from tests.cluster.harness import eventually


def ports(path: Path, nodes: int | None = None, base_port: int | None = None) -> list[int]:
    with LocalFolder(path, nodes, base_port) as folder:
        return folder.ports


def free_row(count: int) -> int:
    """Return the first of so many free ports in a row.

    Another process of these tests, which asks at the same moment, looks elsewhere.
    """
    begin = os.getpid() * 100 % 10_000
    for number in range(0, 10_000 - count, count):
        first = 20_000 + (begin + number) % (10_000 - count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind((HOST, port))
            return first
    raise AssertionError("no ports")


@contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.create_server((HOST, port)):
        yield


def found(node: Path) -> None:
    """Change the folder as if the node had become one of a cluster."""
    engine = open_engine(node)
    open_store(engine, random.Random(1), 1)
    engine.close()


def test_the_ports_stay(tmp_path: Path) -> None:
    first = free_row(2)
    assert ports(tmp_path / "a", 2, first) == [first, first + 1]
    assert ports(tmp_path / "a") == [first, first + 1]
    assert len(set(ports(tmp_path / "b"))) == 3


def test_others_can_be_asked_for_until_there_is_a_cluster(tmp_path: Path) -> None:
    first = free_row(3)
    assert ports(tmp_path, 2, first) == [first, first + 1]
    open_engine(tmp_path / "node-1").close()  # it started, but never found the others
    assert ports(tmp_path, 2, first + 1) == [first + 1, first + 2] == ports(tmp_path)
    found(tmp_path / "node-2")
    with pytest.raises(Invalid, match=r"has 2 nodes, .*nothing was changed.*--nodes 2, or"):
        ports(tmp_path, 3)
    with pytest.raises(Invalid, match=f"with --nodes 2 --base-port {first + 1}, or"):
        ports(tmp_path, 2, first)
    assert ports(tmp_path, 2, first + 1) == [first + 1, first + 2]


def test_ports_of_others_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    first = free_row(3)
    with taken(first + 1):
        with pytest.raises(Error, match=f"port {first + 1} is taken.*another --base-port"):
            ports(tmp_path / "new", 3, first)
        assert not (tmp_path / "new").exists()
    assert ports(tmp_path / "old", 3, first)
    with taken(first + 2), pytest.raises(Error, match=f"port {first + 2} is taken.*another --path"):
        ports(tmp_path / "old")
    assert ports(tmp_path / "old") == [first, first + 1, first + 2]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with LocalFolder(tmp_path):
        with pytest.raises(StoreLocked, match=r"runs already.*nothing was changed"):
            LocalFolder(tmp_path)
        with pytest.raises(StoreLocked, match="runs already"):
            lock(tmp_path)
    lock(tmp_path).release()


@pytest.mark.parametrize("content", ["", "x\n", "7401\n7401\n", "7401\n99999\n", "7401\n\xff"])
def test_a_broken_list_of_ports_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "ports"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(Invalid, match=f"{file} is broken.*nothing was changed"):
        LocalFolder(tmp_path)
    assert file.read_bytes() == content.encode("latin-1")


def test_a_start_that_was_cut_short_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "owner").touch()
    (tmp_path / "ports.new").write_text("74")
    chosen = ports(tmp_path)
    assert len(chosen) == 3
    assert ports(tmp_path) == chosen


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(Invalid, match="not empty"):
        LocalFolder(tmp_path)
    for path in (tmp_path / "mine", tmp_path / "mine" / "below"):
        with pytest.raises(AccessDenied, match="Not a directory; nothing was changed"):
            LocalFolder(path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_a_node_serves_when_its_own_process_says_so(tmp_path: Path) -> None:
    log = tmp_path / "node-1.log"
    log.write_text("waiting\n")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        node = LocalNode(1, "127.0.0.1:7401", log, process)
        assert not node.serves
        log.write_text("waiting\nready 127.0.0.1:7401\n")
        assert node.serves
        process.kill()
        process.wait()
        assert not node.serves
    assert node.last_line() == "ready 127.0.0.1:7401"


def test_a_node_that_is_started_again_serves_when_it_says_so_again(tmp_path: Path) -> None:
    with LocalFolder(tmp_path, 1) as folder:
        running = LocalCluster(folder)
        try:
            (node,) = running.nodes
            eventually(lambda: node.serves)
            running.kill(node)
            before = node.log.stat().st_size
            running.start_again(node)
            serves, said_since = node.serves, node.log.read_bytes()[before:]
            assert b"ready" in said_since or not serves  # it may have been quick
            eventually(lambda: node.serves)
        finally:
            running.stop()
