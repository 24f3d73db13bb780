"""``serve`` without ``--join``: a node of its own, which any number of processes use."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import postroom
from tests.cli.commands import failed_with, invoke, lines

WAIT_SECONDS = 60.0


@pytest.fixture
def address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def served(folder: Path, address: str, *options: str) -> Iterator[list[str]]:
    """Serve a folder; the list gets what the node has logged, at the end."""
    logged: list[str] = []
    command = [
        sys.executable, "-m", "postroom", "serve", "--insecure", "--data", str(folder),
        "--listen", address, *options,
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as node:
        try:
            assert node.stderr is not None
            while (line := node.stderr.readline()) and not line.startswith("ready"):
                pass
            assert line.strip() == f"ready {address}"
            yield logged
            node.send_signal(signal.SIGTERM)
            logged += node.communicate(timeout=WAIT_SECONDS)[1].splitlines()
            assert node.returncode == 0
        finally:
            node.kill()


def test_a_node_without_join_serves_alone_and_again(tmp_path: Path, address: str) -> None:
    folder = tmp_path / "data"
    node = ("--connect", address, "--insecure")
    for value, split_bytes in ((None, "2MiB"), (b"v", "8MiB")):
        with (
            served(folder, address, "--split-bytes", split_bytes),
            postroom.connect(address, insecure=True) as db,
        ):
            assert db.get(b"k") == value
            db.put(b"k", b"v")
            assert lines("get", "k", *node) == ["v"]
            assert lines("range", "configure", *node) == ["split bytes: 2,097,152"]
    with postroom.open(folder) as db:
        assert db.get(b"k") == b"v"


def test_a_new_cluster_splits_and_an_older_store_keeps_its_word(
    tmp_path: Path, address: str
) -> None:
    node = ("--connect", address, "--insecure")
    postroom.open(tmp_path / "older").close()

    def told() -> tuple[list[str], list[str]]:
        return tuple(
            lines("settings", "get", name, *node) for name in ("split-bytes", "split-load")
        )

    never = "--split-bytes", "0", "--split-load", "0"
    for folder, options, found in (
        ("new", (), (["536870912"], ["0.5"])),
        ("new", never, (["536870912"], ["0.5"])),
        ("never", never, (["0"], ["0"])),
        ("never", (), (["0"], ["0"])),
        ("older", (), (["0"], ["0"])),
        ("older", ("--split-load", "0.25"), (["0"], ["0.25"])),
    ):
        with served(tmp_path / folder, address, *options):
            assert told() == found


def test_a_node_without_join_serves_the_folder_of_an_application(
    tmp_path: Path, address: str
) -> None:
    with postroom.open(tmp_path / "data") as db:
        db.put(b"k", b"v")
    with served(tmp_path / "data", address), postroom.connect(address, insecure=True) as db:
        assert db.get(b"k") == b"v"


def test_a_node_makes_no_folder_if_another_program_has_its_address(
    tmp_path: Path, address: str
) -> None:
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        result = invoke(
            "serve", "--path", str(tmp_path / "data"), "--listen", address, "--insecure"
        )
    assert failed_with(result, 1, f"cannot listen at {address}", "Address already in use")
    assert not (tmp_path / "data").exists()


def test_a_folder_that_is_open_elsewhere_names_the_command_that_serves_it(
    tmp_path: Path, address: str
) -> None:
    folder = tmp_path / "data"
    with served(folder, address):
        with pytest.raises(postroom.StoreLocked) as told:
            postroom.open(folder)
        assert f"postroom serve --path {folder} --listen" in str(told.value)
        assert "postroom.connect(" in str(told.value)
        result = invoke("get", "k", "--path", str(folder))
        assert failed_with(result, 1, f"postroom serve --path {folder}", "--connect")


def test_a_node_logs_the_commits_that_are_slow(tmp_path: Path, address: str) -> None:
    with (
        served(tmp_path / "data", address, "--slow", "0") as logged,
        postroom.connect(address, insecure=True) as db,
    ):
        db.put(b"order/17", b"secret")
    (line,) = [each for each in logged if "postroom.slow" in each]
    assert "slow: commit at b'order/17' of transaction" in line
    assert line.endswith(" s for the sync")
    result = invoke("serve", "--path", str(tmp_path), "--listen", address, "--slow", "-1")
    assert failed_with(result, 2, "--slow")
