"""The folder of a local cluster: the ports of its nodes, and the process that runs it.

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
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from postroom.counted import counted
from postroom.errors import AccessDenied, Error, Invalid, StoreLocked
from postroom.kv.folder import OWNER_FILE, FolderLock, sync_folder
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
        Invalid: it holds something else, or another cluster than was asked for.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            f"{self.path} is not empty, and holds no cluster that was made here; nothing was "
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
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
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
        f"{file} is broken: it has to hold the ports of the nodes, one a line, and holds "
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
    sync_folder(path)


def _is_founded(path: Path, count: int) -> bool:
    """Return whether a node knows its cluster. Until then no node needs the old ports."""
    return any(_has_place(path / f"node-{number}") for number in range(1, count + 1))


def _has_place(folder: Path) -> bool:
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
