"""Embedded stores that other programs use at a socket, while their application has them open."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

import postroom
import postroom.aio
from postroom.cli.application import app
from postroom.errors import AccessDenied, DatabaseClosed, Invalid, StoreLocked, Unavailable
from postroom.limits import SOCKET_PATH_BYTES_MAX

WAIT_SECONDS: Final = 30.0
_OPEN: Final = """
import sys, postroom
db = postroom.open(sys.argv[1], serve=sys.argv[2])
db.put(b"first", b"1")
print("open", flush=True)
for line in sys.stdin:
    print(db.increment(b"n"), flush=True)
"""
_USE: Final = """
import sys, postroom
with postroom.connect(sys.argv[1]) as db:
    db.put(b"theirs", db.get(b"ours"))
    for _ in range(100):
        db.increment(b"n")
    print(len(list(db.scan(b"", None))), flush=True)
"""
_FORK: Final = """
import os, sys, postroom
with postroom.open(sys.argv[1], serve="unix:") as db:
    child = os.fork()
    if not child:
        db.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with postroom.connect(f"unix:{sys.argv[1]}/socket") as far:
        far.put(b"a", b"1")
    print(db.get(b"a"))
"""
_CLAIM: Final = """
import sys, postroom
with postroom.connect(sys.argv[1]) as db:
    (message,) = db.queue("q").claim(wait=60)
    print(message.payload.decode(), flush=True)
    sys.stdin.read()
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def running(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = start(program, *arguments)
    try:
        with process:
            yield process
            process.kill()
    finally:
        process.kill()


def eventually(condition: Callable[[], Any]) -> None:
    give_up = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        threading.Event().wait(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_another_process_uses_the_store_beside_its_application(folder: Path) -> None:
    with postroom.open(folder, serve="unix:") as db:
        db.put(b"ours", b"1")
        with running(_USE, f"unix:{folder}/socket") as other:
            for _ in range(100):
                db.increment(b"n")
            assert line_of(other) == "3"
        assert db.get(b"theirs") == b"1"
        assert postroom.integer(db.get(b"n")) == 200


def test_an_asyncio_application_serves_on_its_loop(folder: Path) -> None:
    async def main() -> None:
        async with await postroom.aio.open(folder, serve="unix:") as db:
            await db.put(b"ours", b"1")
            with running(_USE, f"unix:{folder}/socket") as other:
                assert await asyncio.to_thread(line_of, other) == "3"
            assert await db.get(b"theirs") == b"1"
        assert not (folder / "socket").exists()

    asyncio.run(main())


def test_waits_of_others_are_answered_by_the_application(folder: Path) -> None:
    with postroom.open(folder, serve="unix:") as db:
        q = db.create_queue("q")
        with running(_CLAIM, f"unix:{folder}/socket") as other:
            eventually(lambda: q.stats().consumers == 1)
            with db.begin() as tx:
                tx.enqueue("q", b"pushed")
            assert line_of(other) == "pushed"
        eventually(lambda: q.stats().expired == 1)
        (again,) = q.claim(wait=WAIT_SECONDS)
        assert again.last_error == "the consumer has gone"


def test_only_the_owner_may_connect_and_nothing_is_left_at_the_end(folder: Path) -> None:
    with postroom.open(folder, serve="unix:"):
        for name in ("socket", "served"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert not {"socket", "served"} & {each.name for each in folder.iterdir()}
    with postroom.open(folder), pytest.raises(Unavailable, match="no such file"):
        postroom.connect(f"unix:{folder}/socket", connect_timeout=0.2)


@pytest.mark.parametrize("where", ["", "beside"])
def test_a_socket_of_a_killed_process_is_replaced(folder: Path, where: str) -> None:
    serve = f"unix:{folder.with_name(where)}" if where else "unix:"
    with running(_OPEN, str(folder), serve) as other:
        assert line_of(other) == "open"
        other.send_signal(signal.SIGKILL)
        other.wait(WAIT_SECONDS)
    address = serve if where else f"unix:{folder}/socket"
    with postroom.open(folder, serve=serve) as db:
        assert db.get(b"first") == b"1"
        with postroom.connect(address) as far:
            assert far.get(b"first") == b"1"


def test_the_remains_of_a_killed_server_are_not_believed(folder: Path) -> None:
    with running(_OPEN, str(folder), "unix:") as other:
        assert line_of(other) == "open"
        other.send_signal(signal.SIGKILL)
        other.wait(WAIT_SECONDS)
    assert (folder / "served").exists()
    holder = "import sys, postroom; db = postroom.open(sys.argv[1]); print('open'); input()"
    with running(
        holder.replace("print('open')", "print('open', flush=True)"), str(folder)
    ) as other:
        assert line_of(other) == "open"
        with pytest.raises(StoreLocked, match="serve='unix:'") as locked:
            postroom.open(folder)
    assert not locked.value.address


def test_a_socket_at_which_another_store_is_served_is_refused(folder: Path) -> None:
    serve = f"unix:{folder.with_name('shared')}"
    other = folder.with_name("other")
    with postroom.open(folder, serve=serve) as db:
        with pytest.raises(Invalid, match=r"another process listens at .*nothing was changed"):
            postroom.open(other, serve=serve)
        db.put(b"a", b"1")
        with postroom.connect(serve) as far:
            assert far.get(b"a") == b"1"
    with postroom.open(other) as db:
        assert db.get(b"a") is None


def test_a_socket_of_a_relative_path_is_found_from_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with postroom.open("store", serve="unix:near"), pytest.raises(StoreLocked) as locked:
        postroom.open(folder)
    assert locked.value.address == f"unix:{folder.parent}/near"


def test_a_file_that_is_no_socket_stays(folder: Path) -> None:
    file = folder.with_name("file")
    file.write_text("mine")
    with pytest.raises(Invalid, match="something else than a socket"):
        postroom.open(folder, serve=f"unix:{file}")
    assert file.read_text() == "mine"
    postroom.open(folder).close()


@pytest.mark.parametrize(
    ("serve", "error", "says"),
    [
        ("unix:/" + "x" * SOCKET_PATH_BYTES_MAX, Invalid, "108 bytes.*107; nothing was changed"),
        ("127.0.0.1:7400", ValueError, "postroom serve"),
        (True, TypeError, "not bool"),
        ("unix:/nowhere/at/all", Invalid, "make its folder"),
        ("unix:a\nb", ValueError, "is no socket"),
    ],
)
def test_an_impossible_socket_is_refused(
    folder: Path, serve: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        postroom.open(folder, serve=serve)
    with postroom.open(folder) as db:
        assert db.get(b"a") is None


def test_a_folder_whose_own_socket_has_too_long_a_path_says_so(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    with pytest.raises(Invalid, match="give a shorter one"):
        postroom.open(folder, serve="unix:")
    assert not folder.exists()
    serve = f"unix:{tmp_path}/s"
    with postroom.open(folder, serve=serve), postroom.connect(serve) as far:
        assert far.get(b"a") is None


def test_a_store_in_memory_needs_a_path_for_its_socket(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no folder for a socket"):
        postroom.open(":memory:", serve="unix:")
    serve = f"unix:{tmp_path}/s"
    with postroom.open(":memory:", serve=serve) as db, postroom.connect(serve) as far:
        far.put(b"a", b"1")
        assert db.get(b"a") == b"1"


@pytest.mark.parametrize("options", [{"tls": postroom.TLS(ca="ca.pem")}, {"token": "t"}])
def test_a_socket_takes_no_tls_and_no_token(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="takes no tls= and no token="):
        postroom.connect(f"unix:{folder}/socket", **options)


def test_the_command_line_finds_the_socket_of_a_held_folder(folder: Path) -> None:
    for serve in ("unix:", f"unix:{folder.with_name('beside')}"):
        with running(_OPEN, str(folder), serve) as other:
            assert line_of(other) == "open"
            shell = CliRunner()
            assert shell.invoke(app, ["get", "first", "--path", str(folder)]).stdout == "1\n"
            assert shell.invoke(app, ["put", "second", "2", "--path", str(folder)]).exit_code == 0
            assert "node id" in shell.invoke(app, ["status", "--path", str(folder)]).stdout
            with pytest.raises(StoreLocked, match=r"use postroom\.connect\('unix:"):
                postroom.open(folder)
    with postroom.open(folder) as db:
        assert db.get(b"second") == b"2"


def test_clients_are_told_when_the_application_closes_the_store(folder: Path) -> None:
    db = postroom.open(folder, serve="unix:")
    with postroom.connect(f"unix:{folder}/socket", timeout=1.0) as far:
        far.put(b"a", b"1")
        db.close()
        with pytest.raises(Unavailable):
            far.get(b"a")
    with pytest.raises(DatabaseClosed):
        db.get(b"a")
    db.close()


def test_a_thousand_connections_of_one_program_come_and_go(folder: Path) -> None:
    with postroom.open(folder, serve="unix:") as db:
        for _ in range(1000):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(f"{folder}/socket")
        db.put(b"a", b"1")
        with postroom.connect(f"unix:{folder}/socket") as far:
            assert far.get(b"a") == b"1"


def test_garbage_from_a_caller_changes_nothing(folder: Path) -> None:
    with postroom.open(folder, serve="unix:") as db:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, b"postroom/2\n"):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(f"{folder}/socket")
                caller.sendall(said)
        db.put(b"a", b"1")
        with postroom.connect(f"unix:{folder}/socket") as far:
            assert far.get(b"a") == b"1"


def test_a_request_of_many_turns_is_worked_off_though_no_timer_rings(folder: Path) -> None:
    with postroom.open(folder, serve="unix:") as db:
        with postroom.connect(f"unix:{folder}/socket", timeout=WAIT_SECONDS) as far:
            driver: Any = db.sender
            with driver.entered():
                driver.node.tasks.stop()
            with far.begin() as tx:
                for number in range(20_000):
                    tx.put(b"%d" % number, b"x" * 50)
        assert db.get(b"19999") == b"x" * 50


def test_a_forked_child_leaves_the_socket_to_its_parent(folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _FORK, str(folder)],
        capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
    )  # fmt: skip
    assert ran.stdout == "b'1'\n", ran.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may make files anywhere")
def test_a_folder_that_takes_no_socket_is_denied(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(AccessDenied, match="owner and permissions"):
        postroom.open(":memory:", serve=f"unix:{closed}/s")
