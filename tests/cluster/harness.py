"""Clusters of real processes for tests: started, killed, paused, wiped, and always cleaned up.

Nothing here sleeps for a guessed time. A node is ready when it says so on standard error, gone when
its process has ended, and leads when the others say so. A test that fails prints what the nodes
wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random  # noqa: TID251 - an instance is made, to be passed in
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import postroom
from postroom.client.remote.nodes import survey
from tests.cluster.disks import Disk, Folder, SmallDisk
from tests.cluster.places import Loopback, Place

T = TypeVar("T")

READY_SECONDS = 60.0
STOP_SECONDS = 60.0
INSECURE = ("--insecure",)
PROJECT = Path(__file__).parents[2]
LINES_TOLD = 200

running: list[ClusterProcesses] = []
"""All clusters there are just now."""


class NodeProcess:
    """One node: its folder, its address, and its process, if it runs.

    Attributes:
        project: where its sources are.
        lines: what it has written to standard error, in all its lives.
    """

    def __init__(
        self, number: int, disk: Disk, place: Place, join: str, options: tuple[str, ...]
    ) -> None:
        self.number = number
        self.disk = disk
        self.address = place.address(number)
        self.join = join
        self.lines: list[str] = []
        self.project = PROJECT
        self._place = place
        self._options = options
        self._clock = disk.folder.with_name(f"{disk.folder.name}-{number}.clock")
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._news = threading.Condition()
        self._life_began = 0
        self._silent = True

    def __repr__(self) -> str:
        return f"NodeProcess({self.number}, {self.address})"

    @property
    def pid(self) -> int:
        """Return the id of the process that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Return whether there is a process, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Return whether it has said, in this life, that it serves."""
        with self._news:
            return bool(self._found(_says_ready))

    # --- its life

    def start(self) -> None:
        """Begin; :meth:`wait_ready` waits until it serves."""
        assert not self.runs, f"{self} runs"
        if not self._clock.exists():
            self.set_clock(0.0)
        command = [
            sys.executable, "-m", "tests.cluster.launcher", str(self._clock), "serve",
            "--data", str(self.disk.folder), "--listen", self.address, "--join", self.join,
            "--split-load", "0", *self._options,
        ]  # fmt: skip
        self._life_began, self._silent = len(self.lines), False
        self._process = subprocess.Popen(
            self._place.command(self.number, command),
            stdin=subprocess.PIPE,  # it ends when this does
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(self.project)},
            cwd=self.project,
            process_group=0,  # Ctrl-C is the test's; what stands still dies with the test too
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until it serves."""
        self.wait_line(_says_ready, seconds)

    def wait_line(self, wanted: Callable[[str], bool], seconds: float = READY_SECONDS) -> str:
        """Wait until it writes such a line in this life of it, and return that line."""
        with self._news:
            self._news.wait_for(lambda: self._found(wanted) or self._silent, seconds)
            found = self._found(wanted)
        if not found:
            state = "has ended" if self._silent else "runs"
            raise AssertionError(f"{self} {state} and did not say it within {seconds} s")
        return found[0]

    def _found(self, wanted: Callable[[str], bool]) -> list[str]:
        return [line for line in self.lines[self._life_began :] if wanted(line)]

    def kill(self) -> None:
        """Kill it by SIGKILL, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Send SIGTERM, and wait until it is gone; return its exit code."""
        self._signal(signal.SIGTERM)
        return self.wait()

    def interrupt(self) -> None:
        """Send SIGTERM, without waiting."""
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: it stands still, its connections stay."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on by SIGCONT."""
        self._signal(signal.SIGCONT)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until the process has ended, and return its exit code."""
        assert self._process is not None
        code = self._process.wait(seconds)
        assert self._reader is not None
        self._reader.join(seconds)
        for pipe in (self._process.stdin, self._process.stderr):
            assert pipe is not None
            pipe.close()
        return code

    def restart(self) -> None:
        """Start again, and wait until it serves."""
        self.start()
        self.wait_ready()

    def wipe(self) -> None:
        """Lose the disk."""
        assert not self.runs, f"{self} runs"
        self.disk.wipe()

    def set_clock(self, ahead_seconds: float) -> None:
        """Set its wall clock wrong by so much, or right again with 0."""
        self._clock.parent.mkdir(parents=True, exist_ok=True)
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("d", ahead_seconds))

    def clean_up(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.kill()
        self.disk.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()


def _says_ready(line: str) -> bool:
    return line.startswith("ready ")


class ClusterProcesses:
    """A cluster of running nodes, and the way to reach them."""

    def __init__(
        self, folder: Path, place: Place, options: tuple[str, ...], disk_bytes: int | None
    ) -> None:
        self.nodes: list[NodeProcess] = []
        self.project = PROJECT
        self._folder = folder
        self.place = place
        self._options = options
        self._disk_bytes = disk_bytes

    @property
    def addresses(self) -> str:
        """Return the addresses of all nodes, as ``connect`` takes them."""
        return ",".join(node.address for node in self.nodes)

    def form(self, count: int) -> None:
        """Start the first nodes, all with the same list, and wait until they serve."""
        join = ",".join(self.place.address(number) for number in range(1, count + 1))
        for number in range(1, count + 1):
            self._add(number, join)
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_ready()

    def join(self, *, wait: bool = True) -> NodeProcess:
        """Start one more node, which knows the address of the first one that runs."""
        through = next(node for node in self.nodes if node.runs)
        node = self._add(len(self.nodes) + 1, through.address)
        node.start()
        if wait:
            node.wait_ready()
        return node

    def _add(self, number: int, join: str) -> NodeProcess:
        folder = self._folder / f"node-{number}"
        size = self._disk_bytes
        disk = Folder(folder) if size is None else SmallDisk(folder, size)
        node = NodeProcess(number, disk, self.place, join, self._options)
        node.project = self.project
        self.nodes.append(node)
        return node

    def connect(self, *nodes: NodeProcess, timeout: float = 60.0) -> postroom.Database:
        """Return a client of these nodes, or of all; on a busy machine nodes start slowly."""
        addresses = [node.address for node in nodes or self.nodes]
        return postroom.connect(addresses, insecure=True, timeout=timeout)

    def leader(self, db: postroom.Database) -> NodeProcess:
        """Return the leader; a node that has just given the lead away knows none for a moment."""

        def look() -> NodeProcess | None:
            """Look for the node that leads."""
            status = db.status()
            addresses = {each.address for each in status.nodes if each.node_id == status.leader}
            return next((node for node in self.nodes if node.address in addresses), None)

        leader = eventually(look)
        assert leader is not None
        return leader

    def followers(self, db: postroom.Database) -> list[NodeProcess]:
        """Return the other nodes that run."""
        leader = self.leader(db)
        return [node for node in self.nodes if node is not leader and node.runs]

    def voters(self) -> set[int]:
        """Return the nodes that run and tell that they have a vote."""
        addresses = [node.address for node in self.nodes if node.runs]
        randomness = random.Random(random.SystemRandom().randbytes(16))
        found = asyncio.run(survey(addresses, None, None, randomness))
        statuses = [report.status for report in found.nodes if report.status is not None]
        return {each.node_id for each in statuses if each.role in ("leader", "follower")}

    def logs(self) -> str:
        """Return what the nodes wrote, for the reader of a failure."""
        lines = []
        for node in self.nodes:
            lines.append(f"--- {node}, {'runs' if node.runs else 'does not run'}")
            lines += node.lines[-LINES_TOLD:]
        return "\n".join(lines)


@contextlib.contextmanager
def cluster(
    folder: Path,
    count: int = 3,
    *,
    place: Place | None = None,
    options: tuple[str, ...] = INSECURE,
    disk_bytes: int | None = None,
) -> Iterator[ClusterProcesses]:
    """Run a cluster of ``count`` nodes that serve; remove everything at the end.

    Args:
        folder: for their data.
        count: of first nodes; 0: form it yourself.
        place: where they live; it is closed as well.
        options: of ``postroom serve``.
        disk_bytes: give each node a small disk of its own, of this size.
    """
    there = Loopback() if place is None else place
    processes = ClusterProcesses(folder, there, options, disk_bytes)
    running.append(processes)
    try:
        if count:
            processes.form(count)
        yield processes
    except Exception:
        sys.stderr.write(processes.logs() + "\n")
        raise
    finally:
        running.remove(processes)
        for node in processes.nodes:
            node.clean_up()
        there.close()


def eventually(look: Callable[[], T], seconds: float = 60.0) -> T:
    """Return the answer of ``look`` once it is true; ask again every few milliseconds."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if found := look():
            return found
        waiting.wait(0.02)
    raise AssertionError(f"not within {seconds} s: {look.__doc__ or look}")
