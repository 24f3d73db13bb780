"""A cluster on this machine, for trying: nodes as processes on ports of the loopback device.

Nodes that die stay dead until the user starts them again: its purpose is to show what the others do
then. But no node outlives the process that started it, however that ends. The nodes read from a
pipe, the *lifeline*, whose other end only that process holds. Nothing is ever written to it. When
that process ends, the system lets the nodes read the pipe's end, and they stop.

::

    folder/owner          locked by the process that runs the cluster
    folder/ports          the nodes' ports, one a line: the same when it is started again
    folder/node-1/        a node's data
    folder/node-1.log     its standard error

A node whose port another process has cannot start, and the others would take that process for the
node, and join a cluster of strangers. All ports are therefore tried before anything is written. A
refusal changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random  # noqa: TID251 - a folder that is opened to be looked at
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from postroom.counted import counted
from postroom.errors import AccessDenied, Error, Invalid, StoreLocked
from postroom.kv.folder import OWNER_FILE, FolderLock, sync_path
from postroom.server.opening import open_storage, read_store

HOST: Final = "127.0.0.1"
NODES_DEFAULT: Final = 3
HIGHEST_PORT: Final = 65535
PORTS_FILE: Final = "ports"

_NEW_PORTS_FILE: Final = "ports.new"
_OURS_BEFORE_PORTS: Final = frozenset({OWNER_FILE, _NEW_PORTS_FILE})
"""The files that a start that was cut short may have left."""


class LocalFolder:
    """The folder of a local cluster; see the module.

    It is locked until the end of a ``with`` block; no other process gets it meanwhile.

    Args:
        path: the folder; it is made.
        nodes: how many; ``None``: as many as last time, or three.
        base_port: the first of a row of ports; ``None``: those of last time, or free ones.
        otherwise: advice for a user who wants other nodes than the folder has.

    Attributes:
        path: as given.
        ports: one a node.
        is_new: whether there was no cluster in it.

    Raises:
        Invalid: it contains something else, or another cluster than was asked for.
        StoreLocked: the cluster runs.
        AccessDenied: it cannot be made or read.
        Error: another process has one of the ports.
    """

    def __init__(
        self,
        path: Path,
        nodes: int | None = None,
        base_port: int | None = None,
        *,
        otherwise: str = "give another --path",
    ) -> None:
        self.path = path
        self._otherwise = otherwise
        try:
            self.is_new = self._look()
            if self.is_new:
                self.ports = _choose(nodes or NODES_DEFAULT, base_port)
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AccessDenied(
                f"the folder {path} cannot be made or read: {error.strerror}; nothing was changed: "
                "check its path, owner and permissions, or give another --path"
            ) from error
        self._lock = lock(path)
        try:
            if self.is_new:
                _remember(path, self.ports)
            else:
                self.ports = self._ports_again(nodes, base_port)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _look(self) -> bool:
        """Return whether the folder has to be made."""
        if not self.path.exists():
            return True
        names = {entry.name for entry in self.path.iterdir()}
        if PORTS_FILE in names:
            return False
        if names <= _OURS_BEFORE_PORTS:
            return True
        raise Invalid(
            f"{self.path} is not empty, and contains no cluster that was made here; nothing was "
            "changed: give another folder"
        )

    def _ports_again(self, nodes: int | None, base_port: int | None) -> list[int]:
        ports = _remembered(self.path)
        if nodes in {None, len(ports)} and base_port in {None, ports[0]}:
            _check_free(
                ports,
                "end that process (if this cluster was killed just now, its nodes are ending: try "
                f"again in a few seconds), or {self._otherwise}",
            )
            return ports
        if _is_founded(self.path, len(ports)):
            first = "" if base_port is None else f" --base-port {ports[0]}"
            raise Invalid(
                f"the cluster in {self.path} has {counted(len(ports), 'node')}, from port "
                f"{ports[0]}; nothing "
                f"was changed: start it with --nodes {len(ports)}{first}, or {self._otherwise}"
            )
        ports = _choose(nodes or len(ports), base_port)
        _remember(self.path, ports)
        return ports


def lock(path: Path) -> FolderLock:
    """Lock the folder at ``path``, for the process that runs its cluster.

    Raises:
        StoreLocked: the cluster runs.
    """
    try:
        return FolderLock(path)
    except StoreLocked:
        process = (path / OWNER_FILE).read_text().partition(" ")[0]
        raise StoreLocked(
            f"the cluster in {path} runs already, started by process {process or 'unknown'}; "
            "nothing was changed: connect to it, or end that process first"
        ) from None


def check_no_local_cluster(path: Path) -> None:
    """Check that ``path`` is not the folder of a local cluster, before a store is opened in it.

    Raises:
        Invalid: it is one.
    """
    found = False
    with contextlib.suppress(OSError):  # opening the store says more about it
        begun = (path / "node-1").exists() or (path / "node-1.log").exists()
        found = begun and (path / PORTS_FILE).is_file()
    if found:
        raise Invalid(
            f"{path} is the folder of a local cluster, not of one store; nothing was changed: "
            f"start it with 'postroom cluster --path {path}', and give --connect with the "
            "addresses that it prints"
        )


# --- ports ----------------------------------------------------------------------------------------


def _choose(count: int, base_port: int | None) -> list[int]:
    if base_port is None:
        return _free_ports(count)
    ports = list(range(base_port, base_port + count))
    _check_free(ports, "give another --base-port, or none, to have free ones chosen")
    return ports


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _check_free(ports: Iterable[int], otherwise: str) -> None:
    for port in ports:
        try:
            _try(port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            what = "is taken by another process" if taken else f"is of no use: {error.strerror}"
            raise Error(f"port {port} {what}; nothing was changed: {otherwise}") from error


def _try(port: int) -> None:
    with socket.socket() as probe:
        # The nodes do the same: connections of a cluster that has just ended are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


def _remembered(path: Path) -> list[int]:
    file = path / PORTS_FILE
    lines = file.read_text(errors="replace").split()
    ports = [int(line) for line in lines if line.isdecimal() and 0 < int(line) <= HIGHEST_PORT]
    if ports and len(set(ports)) == len(lines):
        return ports
    raise Invalid(
        f"{file} is broken: it has to contain the ports of the nodes, one a line, and contains "
        f"{' '.join(lines)[:80]!r}; nothing was changed: write them again (node-1.log and so on "
        "say on which port each node was ready), or give another folder"
    )


def _remember(path: Path, ports: Iterable[int]) -> None:
    """Write the ports to a new file and rename it, which a loss of power does not tear."""
    new = path / _NEW_PORTS_FILE
    with new.open("w") as file:
        file.writelines(f"{port}\n" for port in ports)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path / PORTS_FILE)
    sync_path(path)


def _is_founded(path: Path, count: int) -> bool:
    """Return whether a node knows its cluster. Until then no node needs the old ports."""
    return any(_is_node_folder(path / f"node-{number}") for number in range(1, count + 1))


def _is_node_folder(folder: Path) -> bool:
    if not (folder / "CURRENT").exists():
        return False
    try:
        engine = open_storage(folder, random.Random(), create=False)
    except Error:  # it is damaged or still open: there is something
        return True
    try:
        return read_store(engine) is not None
    except Error:
        return True
    finally:
        engine.close()


STOP_SECONDS: Final = 10.0
REMOVED: Final = "has been removed from the cluster"
"""The last words of a node that 'postroom remove-node' has removed, or that is started after it."""


@dataclass(slots=True)
class LocalNode:
    """A node of the cluster on this machine.

    Attributes:
        number: from 1, in the order of ports; not its id.
        address: the address at which it serves.
        log: the file with its output.
        process: its newest process.
        reported: whether its end has been reported.
        log_bytes_before: the length of its log when this process began.
    """

    number: int
    address: str
    log: Path
    process: subprocess.Popen[bytes]
    reported: bool = False
    log_bytes_before: int = 0

    def how_it_ended(self) -> str:
        """Return how the process ended, for people."""
        code = self.process.returncode
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

    @property
    def serves(self) -> bool:
        """Return whether its process lives, and has said that it serves.

        Another process could answer at the address.
        """
        said = self._lines(self.log_bytes_before)
        return self.process.poll() is None and f"ready {self.address}" in said

    @property
    def is_removed(self) -> bool:
        """Return whether it has ended because it has been removed from the cluster."""
        return self.process.poll() is not None and REMOVED in self.last_line()

    def last_line(self) -> str:
        """Return the last line of its log: the reason, if it could not start."""
        return (self._lines() or ["nothing"])[-1]

    def _lines(self, after_bytes: int = 0) -> list[str]:
        return self.log.read_bytes()[after_bytes:].decode(errors="replace").splitlines()


class LocalCluster:
    """The nodes on this machine; see the module.

    They run until :meth:`stop`, at most as long as this process.

    Args:
        folder: the folder of its data; held by the caller, for longer than this.
    """

    def __init__(self, folder: LocalFolder) -> None:
        self.addresses = tuple(f"{HOST}:{port}" for port in folder.ports)
        self.nodes: list[LocalNode] = []
        self._folder = folder.path
        nodes_end, own_end = os.pipe()  # neither is inherited (PEP 446): no node holds the other
        self._nodes_end, self._lifeline = os.fdopen(nodes_end, "rb"), os.fdopen(own_end, "wb")
        try:
            for number, address in enumerate(self.addresses, 1):
                log = self._folder / f"node-{number}.log"
                log.unlink(missing_ok=True)
                process = self._start(number, address, log)
                self.nodes.append(LocalNode(number, address, log, process))
        except BaseException:
            self.stop()
            raise

    def _start(self, number: int, address: str, log: Path) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "postroom.cli.main", "serve", "--insecure",
            "--data", str(self._folder / f"node-{number}"), "--listen", address,
            "--join", ",".join(self.addresses), "--stop-at-end-of-input",
        ]  # fmt: skip
        with log.open("ab") as writes:
            return subprocess.Popen(
                command,
                stdin=self._nodes_end,
                stdout=subprocess.DEVNULL,
                stderr=writes,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C goes to their parent, which stops them
            )

    def kill(self, node: LocalNode) -> None:
        """Kill a node with SIGKILL: only the system's memory survives, unlike a loss of power."""
        node.process.kill()
        node.process.wait()

    def start_again(self, node: LocalNode) -> None:
        """Start a node that has ended again, on the same data."""
        node.log_bytes_before = node.log.stat().st_size
        node.process, node.reported = self._start(node.number, node.address, node.log), False

    def newly_dead(self) -> list[LocalNode]:
        """Return the nodes that have ended since the last call."""
        dead = [n for n in self.nodes if not n.reported and n.process.poll() is not None]
        for node in dead:
            node.reported = True
        return dead

    @property
    def running(self) -> list[LocalNode]:
        """Return the nodes that have not ended."""
        return [node for node in self.nodes if node.process.poll() is None]

    def stop(self) -> None:
        """End all nodes: in good order if they can, else at once."""
        for node in self.running:
            node.process.send_signal(signal.SIGTERM)
        for node in self.nodes:
            try:
                node.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
        self._lifeline.close()
        self._nodes_end.close()
