"""A node in a process of its own, with few descriptors, and what it takes of the machine."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

import postroom
from tests.attacks import storm
from tests.cluster.places import Loopback
from tests.server.cluster.certificates import Authority

DESCRIPTORS = 1024
"""The number of descriptors of a node in these tests; the usual limit."""
FILES = 8
"""The descriptors that may be files: storage opens them as it likes."""
MEMORY_BYTES = 24 * 1024 * 1024
"""The growth of memory that a node may have."""

_log = logging.getLogger(__name__)

START = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from postroom.cli.main import main
sys.argv = ["postroom", "serve", "--data", {data!r}, "--listen", {at!r}, "--join", {at!r}]
sys.argv += {security!r}
main()
"""


class NodeProcess:
    """A node in a process of its own, and what that process takes.

    Attributes:
        address: where it listens.
        tls: what a client of it shows; ``None``: it speaks none.
    """

    def __init__(self, address: str, process: subprocess.Popen[bytes], tls: postroom.TLS | None):
        self.address = address
        self._process = psutil.Process(process.pid)
        self.tls = tls

    def connect(self) -> postroom.Database:
        """Connect as a client with all permissions."""
        return postroom.connect(self.address, tls=self.tls, insecure=self.tls is None, timeout=120)

    def descriptors(self) -> int:
        return self._process.num_fds()

    def memory_bytes(self) -> int:
        return self._process.memory_info().rss


@contextlib.contextmanager
def node_process(folder: Path, *, secure: bool) -> Iterator[NodeProcess]:
    """Run a node in a process, and close it in good order in the end."""
    address, tls, security = Loopback().address(1), None, ["--insecure"]
    if secure:
        authority = Authority(folder)
        files, mine = authority.node("localhost", address.split(":")[0]), authority.client()
        tls = postroom.TLS(ca=mine.ca, certificate=mine.certificate, key=mine.key)
        security = ["--tls-ca", str(files.ca), "--tls-certificate", str(files.certificate)]
        security += ["--tls-key", str(files.key)]
    code = START.format(
        data=str(folder / "a"), at=address, security=security, soft=256, hard=DESCRIPTORS
    )
    log = folder / "log"
    with log.open("w+") as written:
        process = subprocess.Popen([sys.executable, "-c", code], stderr=written)
        try:
            until(lambda: f"ready {address}" in log.read_text() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield NodeProcess(address, process, tls)
            assert process.poll() is None, log.read_text()
            process.terminate()
            assert process.wait(120) == 0, log.read_text()
            assert "Traceback" not in log.read_text()
        finally:
            process.kill()
            process.wait()


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never comes to that"
        threading.Event().wait(0.02)


def bear_a_storm(
    node: NodeProcess, attempts: int, commits: int, *, rehearsed: bool = False
) -> None:
    """Bear connection attempts while a client commits; afterwards all is as before.

    New clients come meanwhile.

    Args:
        node: whoever bears it.
        attempts, commits: how many, at least.
        rehearsed: after a small one, so that what is made once in memory has been made.
    """
    with node.connect() as db:
        db.put(b"before", b"storm")
        first = node.descriptors()
        if rehearsed:
            _storm(node, db, attempts=storm.BATCH * 5, commits=5)
            until(lambda: node.descriptors() <= first + FILES)
        memory = node.memory_bytes()
        said = _storm(node, db, attempts=attempts, commits=commits)
        until(lambda: node.descriptors() <= first + FILES)
        more = node.memory_bytes() - memory
        assert more <= MEMORY_BYTES, f"{more / 2**20:.1f} MiB more than before"
        _log.info("%s; %.1f MiB more", said, more / 2**20)


def _storm(node: NodeProcess, db: postroom.Database, *, attempts: int, commits: int) -> str:
    command = [sys.executable, storm.__file__, node.address, str(attempts)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout
        reached = threading.Event()

        def listen() -> None:
            if said.readline() == "reached\n":
                reached.set()

        try:
            assert said.readline() == "began\n"
            listener = threading.Thread(target=listen)
            listener.start()
            done = 0
            while done < commits or not reached.is_set():
                assert process.poll() is None
                db.put(b"during/%06d" % done, b"%d" % done)
                done += 1
            _another(node)
            process.stdin.close()  # it has gone on until here
            tried, connected, seconds = said.readline().split()
        finally:
            process.kill()
            process.wait()
            listener.join()
    assert int(tried) >= attempts
    assert [value for _, value in db.scan(b"during/", b"during0")][:done] == [
        b"%d" % number for number in range(done)
    ]
    db.delete_range(b"during/", b"during0")
    return (
        f"{tried} attempts in {seconds} s, {int(tried) / float(seconds):.0f} a second, "
        f"{connected} came through; {done} commits meanwhile"
    )


def _another(node: NodeProcess) -> None:
    """Let a client come during the storm: it may have to try again."""
    while True:
        try:
            with node.connect() as another:
                assert another.get(b"before") == b"storm"
                return
        except postroom.Unavailable:
            continue
