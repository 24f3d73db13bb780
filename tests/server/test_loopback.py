"""A folder that one process opens, and serves to others on this machine."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import postroom
from postroom.errors import Invalid, SnapshotTooOld, StoreLocked, Unavailable
from postroom.server import loopback
from postroom.server.loopback import LoopbackServer

HOLDER = """
import sys, postroom
with postroom.connect(sys.argv[1], insecure=True) as db:
    with db.hold(whole=True) as at:
        print(int(at), flush=True)
        sys.stdin.read()
"""


def left_of_servers(before: list[threading.Thread]) -> list[str]:
    """Return the names of newer threads that belong to servers.

    Threads of clients stay, and gRPC's do, which a client of this process may have begun to need.
    """
    return [
        each.name for each in threading.enumerate()
        if each not in before and each.name.startswith("postroom")
        and each.name != "postroom-client"
    ]  # fmt: skip


def is_held(db: postroom.Database, at: int) -> bool:
    """Return whether a timestamp is protected as a whole."""
    try:
        next(db.bulk.scan("accounting", at=at))
    except SnapshotTooOld:
        return False
    return True


def test_a_loopback_server_serves_its_folder_until_it_is_closed(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "s") as db:
        db.put(b"a", b"1")
    threads = threading.enumerate()
    server = LoopbackServer(tmp_path / "s")
    with postroom.connect(server.address, insecure=True) as db:
        assert db.get(b"a") == b"1"
        db.put(b"b", b"2")
        with pytest.raises(StoreLocked):
            postroom.open(tmp_path / "s")
        server.close()
        server.close()
    with postroom.open(tmp_path / "s") as db:
        assert db.get(b"b") == b"2"
    with pytest.raises(Unavailable):
        postroom.connect(server.address, insecure=True, timeout=0.2)
    assert left_of_servers(threads) == []


def test_a_folder_that_cannot_be_opened_is_refused_without_remains(tmp_path: Path) -> None:
    threads = threading.enumerate()
    with pytest.raises(Invalid):
        LoopbackServer(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with postroom.open(tmp_path / "s"), pytest.raises(StoreLocked):
        LoopbackServer(tmp_path / "s")
    assert left_of_servers(threads) == []


def test_the_holdings_of_a_killed_process_are_released(tmp_path: Path) -> None:
    server = LoopbackServer(tmp_path / "s", create=True)
    with (
        postroom.connect(server.address, insecure=True) as db,
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, server.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder,
    ):
        assert holder.stdout is not None
        at = int(holder.stdout.readline())
        assert [page.rows for page in db.bulk.scan("accounting", at=at)] == [0]
        holder.kill()
        deadline = time.monotonic() + 30
        while is_held(db, at):
            assert time.monotonic() < deadline
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="others have one address of loopback")
def test_a_loopback_server_has_an_address_of_its_own(tmp_path: Path) -> None:
    """A helper of Spark called on the port of Spark's own socket: "Java heap space"."""
    served = LoopbackServer(tmp_path / "store", create=True)
    with postroom.connect(served.address, insecure=True) as db:
        db.put(b"k", b"v")
    served.close()
    assert served.address.startswith("127.")
    assert not served.address.startswith("127.0.0.1:")


def test_the_common_loopback_address_is_taken_if_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loopback, "OWN_HOST", "192.0.2.1")
    assert loopback._host() == "127.0.0.1"
