"""A cluster on this machine, for trying: nodes as processes, on ports of the loopback device.

::

    folder/ports          the nodes' ports, one a line: the same when it is started again
    folder/node-1/        a node's data
    folder/node-1.log     what it wrote to standard error

Nodes that die stay dead until somebody asks for them: seeing what the others do then is what it is
for. But none outlives the process that started it, however that ends. The nodes read from a pipe,
the *lifeline*, whose other end only that process holds; nothing is ever written to it, and when
nobody holds it any more, the system lets them read its end, and they stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.errors import Error, Invalid

STOP_SECONDS: Final = 10.0
HOST: Final = "127.0.0.1"


def choose_ports(folder: Path, nodes: int | None, base_port: int | None) -> list[int]:
    """The ports of the nodes in ``folder``: those of last time, or new ones.

    Args:
        folder: of the cluster; it is made.
        nodes: how many; ``None``: as many as last time, or three.
        base_port: the first of a row of ports; ``None``: whichever are free.

    Raises:
        Invalid: that is not how it was made.
    """
    remembered = folder / "ports"
    if remembered.exists():
        ports = [int(line) for line in remembered.read_text().split()]
        if nodes not in {None, len(ports)} or base_port not in {None, ports[0]}:
            raise Invalid(
                f"the cluster in {folder} has {len(ports)} nodes, from port {ports[0]}; nothing "
                "was changed: start it without --nodes and --base-port, or give another folder"
            )
        return ports
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise Invalid(
            f"{folder} is not empty, and holds no cluster that was made here; nothing was changed: "
            "give another folder"
        )
    count = 3 if nodes is None else nodes
    ports = _free_ports(count) if base_port is None else list(range(base_port, base_port + count))
    remembered.write_text("".join(f"{port}\n" for port in ports))
    return ports


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(slots=True)
class LocalNode:
    """One node.

    Attributes:
        number: from 1, in the order of ports; not its id.
        address: where it serves.
        log: the file with what it wrote.
        process: while it has one.
        reported: whether its end has been told.
    """

    number: int
    address: str
    log: Path
    process: subprocess.Popen[bytes]
    reported: bool = False

    def how_it_ended(self) -> str:
        """For people."""
        code = self.process.returncode
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


class LocalCluster:
    """See the module. Its nodes run until :meth:`stop`, at most as long as this process.

    Args:
        folder: for everything.
        ports: one a node.
    """

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.addresses = tuple(f"{HOST}:{port}" for port in ports)
        self.nodes: list[LocalNode] = []
        self._folder = folder
        nodes_end, own_end = os.pipe()  # neither is inherited (PEP 446): no node holds the other
        self._nodes_end, self._lifeline = os.fdopen(nodes_end, "rb"), os.fdopen(own_end, "wb")
        try:
            for number, address in enumerate(self.addresses, 1):
                log = folder / f"node-{number}.log"
                log.unlink(missing_ok=True)
                process = self._start(number, address, log)
                self.nodes.append(LocalNode(number, address, log, process))
        except BaseException:
            self.stop()
            raise

    def _start(self, number: int, address: str, log: Path) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "postroom.server.command_line", "serve", "--insecure",
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
                start_new_session=True,  # Ctrl-C is for who started them, which stops them
            )

    def kill(self, node: LocalNode) -> None:
        """kill -9: as if the machine's plug was pulled, but for what the system has in memory."""
        node.process.kill()
        node.process.wait()

    def start_again(self, node: LocalNode) -> None:
        """A node that has ended runs again, on the same data."""
        node.process, node.reported = self._start(node.number, node.address, node.log), False

    def newly_dead(self) -> list[LocalNode]:
        """The nodes that have ended since this was asked last."""
        dead = [n for n in self.nodes if not n.reported and n.process.poll() is not None]
        for node in dead:
            node.reported = True
        return dead

    @property
    def running(self) -> list[LocalNode]:
        """The nodes that have not ended."""
        return [node for node in self.nodes if node.process.poll() is None]

    def stop(self) -> None:
        """End all of them: in good order if they can, else at once."""
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


def check_installed() -> None:
    """Make sure that nodes can be started.

    Raises:
        Error: what they need is missing.
    """
    from importlib.util import find_spec  # noqa: PLC0415 - used here only

    if find_spec("grpc") is None or find_spec("grpc_health") is None:
        raise Error('serving needs gRPC: pip install "postroom[server]"')
