"""A cluster on this machine, for trying: nodes as processes, on ports of the loopback device.

Nodes that die stay dead until the user starts them again: its purpose is to show what the others do
then. But no node outlives the process that started it, however that ends. The nodes read from a
pipe, the *lifeline*, whose other end only that process holds. Nothing is ever written to it. When
that process ends, the system lets the nodes read the pipe's end, and they stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.server.local_folder import HOST, LocalFolder

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
