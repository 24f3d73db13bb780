"""The command ``cluster``, and what its nodes have to do for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from postroom.cli import serve
from postroom.server.local_cluster import LocalFolder
from tests.cli.commands import (
    NOBODY,
    answers,
    failed_with,
    invoke,
    lines,
    records,
    remove,
    status_once,
)

STOP_SECONDS = 90.0


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command ``cluster``; yield it and its addresses, and remove it at the end."""
    command = [sys.executable, "-m", "postroom.cli.main", "cluster", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    children: set[psutil.Process] = set()
    try:
        ready = process.stdout.readline()
        children |= children_of(process)
        assert ready.startswith("ready: connect to "), ready
        yield process, ready.split()[3]
    finally:
        children |= children_of(process)
        try:
            process.terminate()
            process.wait(STOP_SECONDS)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            gone, alive = psutil.wait_procs(children, timeout=30)
            for each in alive:
                each.kill()
        assert not alive, gone


def children_of(process: subprocess.Popen[str]) -> set[psutil.Process]:
    if process.poll() is not None:
        return set()
    return set(psutil.Process(process.pid).children(recursive=True))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_local_cluster_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running("--nodes", "2") as (process, addresses):
        there = ("--connect", addresses, "--insecure")
        lines("put", "k", "v", *there)
        assert lines("get", "k", *there) == ["v"]
        assert len(list(tmp_path.glob("postroom-cluster-*"))) == 1
        process.send_signal(number)
        assert process.wait(STOP_SECONDS) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_local_cluster_that_is_killed_leaves_no_node_behind(tmp_path: Path) -> None:
    there = ("--path", str(tmp_path / "c"))
    with running(*there, "--nodes", "2") as (process, addresses):
        nodes = children_of(process)
        assert len(nodes) == 2
        lines("put", "k", "v", "--connect", addresses, "--insecure")
        process.kill()
        _, alive = psutil.wait_procs(nodes, timeout=STOP_SECONDS)
        assert not alive
    for log in (tmp_path / "c").glob("node-*.log"):
        assert "standard input has ended: the node stops" in log.read_text(), "in good order"
    with running(*there) as (_, same):
        assert lines("get", "k", "--connect", same, "--insecure") == ["v"]


def test_a_node_cannot_stop_with_an_input_that_is_no_pipe(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "postroom.cli.main", "serve", "--insecure",
        "--data", str(tmp_path / "d"), "--listen", NOBODY, "--join", NOBODY,
        "--stop-at-end-of-input",
    ]  # fmt: skip
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 2
    assert "needs a pipe" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_finds_the_shared_pipe_empty_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nodes of a local cluster read one pipe: the others find nothing, and must not wait."""
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    monkeypatch.setattr(serve, "STANDARD_INPUT", reads)
    try:
        serve._on_input(None, None)  # type: ignore[arg-type]  # neither is asked for anything
    finally:
        os.close(reads)
        os.close(writes)


def test_a_local_cluster_comes_back_and_tells_of_the_dead(tmp_path: Path) -> None:
    with running("--path", str(tmp_path / "c"), "--nodes", "3") as (_, addresses):
        lines("put", "k", "v", "--connect", addresses, "--insecure")
    with running("--path", str(tmp_path / "c")) as (process, same):
        assert same == addresses
        assert lines("get", "k", "--connect", same, "--insecure") == ["v"]
        victim = psutil.Process(process.pid).children()[-1]
        os.kill(victim.pid, signal.SIGKILL)
        assert process.stdout is not None
        told = process.stdout.readline()
        assert "has ended, killed by SIGKILL" in told
        assert lines("get", "k", "--connect", same, "--insecure") == ["v"]
    result = invoke("cluster", "--path", str(tmp_path / "c"), "--nodes", "5")
    assert failed_with(result, 1, "has 3 nodes")


def test_a_local_cluster_starts_again_without_a_node_that_was_removed(tmp_path: Path) -> None:
    there = ("--path", str(tmp_path / "c"))
    with running(*there, "--nodes", "3") as (process, addresses):
        lines("put", "k", "v", "--connect", addresses, "--insecure")
        *nodes, _ = records("status", "--connect", addresses, "--insecure")
        gone = next(n["node_id"] for n in nodes if n["address"] == addresses.split(",")[2])
        remove(gone, addresses)
        assert process.stdout is not None
        assert "node 3 at" in process.stdout.readline()
    with subprocess.Popen(
        [sys.executable, "-m", "postroom.cli.main", "cluster", *there],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as again:  # fmt: skip
        try:
            assert again.stdout is not None
            told = [again.stdout.readline(), again.stdout.readline()]
            assert "node 3 at" in told[0]
            assert told[1].startswith("ready: ")
            assert lines("get", "k", "--connect", addresses, "--insecure") == ["v"]
        finally:
            again.terminate()


def test_a_local_cluster_is_not_started_on_top_of_another(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with running("--path", str(path), "--nodes", "2") as (process, addresses):
        logs = [(log, log.stat().st_ino, log.read_text()) for log in path.glob("node-*.log")]
        assert len(logs) == 2
        result = invoke("cluster", "--path", str(path))
        assert failed_with(result, 1, "runs already", f"by process {process.pid};")
        port = addresses.rpartition(":")[2]
        other = ("--path", str(tmp_path / "other"), "--base-port", port)
        assert failed_with(invoke("cluster", *other), 1, f"port {port} is taken", "--base-port")
        assert not (tmp_path / "other").exists()
        for log, inode, told in logs:  # its node goes on writing what happens to it
            assert log.stat().st_ino == inode
            assert log.read_text().startswith(told)
            assert log.read_text().count("ready ") == told.count("ready ") == 1
        status_once(addresses, answers(True, True))


def test_a_local_cluster_stops_if_a_node_cannot_start(tmp_path: Path) -> None:
    damaged = tmp_path / "c" / "node-2"
    damaged.mkdir(parents=True)
    for name in ("owner", "000003.log"):
        (damaged / name).touch()
    with LocalFolder(tmp_path / "elsewhere") as folder:
        ports = folder.ports
    (tmp_path / "c" / "ports").write_text("\n".join(map(str, ports)))
    result = invoke("cluster", "--path", str(tmp_path / "c"))
    assert failed_with(
        result, 1, "node 2 at", "stopped before it was ready", "is damaged", "node-2.log"
    )
    assert result.stdout == ""


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("put", "k", "v"),
        ("demo",),
        ("serve", "--insecure", "--listen", NOBODY, "--join", NOBODY),
    ],
    ids=lambda command: command[0],
)
def test_the_folder_of_a_local_cluster_is_no_store(tmp_path: Path, command: tuple[str]) -> None:
    with LocalFolder(tmp_path / "c") as folder:
        (folder.path / "node-1.log").touch()
    before = {file.name for file in folder.path.iterdir()}
    option = "--data" if command[0] == "serve" else "--path"
    result = invoke(*command, option, str(folder.path))
    assert failed_with(result, 1, "folder of a local cluster", "--connect")
    assert {file.name for file in folder.path.iterdir()} == before


def test_help_says_that_a_temporary_cluster_is_gone() -> None:
    said = " ".join("".join(lines("cluster", "--help")).split())
    assert "Without --path, all data is gone when it ends." in said
