"""The processes of a Spark program: found, killed with ``kill -9``, and none of them left behind.

::

    program (Python) ── driver (JVM) ─┬─ executor (JVM) ── daemon (Python) ─┬─ worker
                                      └─ executor (JVM) ...                 └─ worker

With ``local[...]`` the driver is the only executor. Processes are found by what ``/proc`` tells.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from typing import NamedTuple

from tests.cluster.harness import PROJECT, eventually
from tests.pipeline.chaos.job_programs import STEP

LINES_TOLD = 60
STEP_LINE = f"\n{STEP} ".encode()
END_SECONDS = 60.0


class Found(NamedTuple):
    """A process."""

    pid: int
    parent: int
    command: str


def below(pid: int) -> list[Found]:
    """Return all that a process has started, and what these have, from the top."""
    everybody = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\x00", b" ").decode()
            everybody.append(Found(int(folder.name), int(stat[1]), command))
    found, parents = [], {pid}
    while parents:
        children = [each for each in everybody if each.parent in parents]
        found += children
        parents = {each.pid for each in children}
    return found


def is_executor(each: Found) -> bool:
    return "CoarseGrainedExecutorBackend" in each.command


class Program:
    """One life of ``tests.pipeline.chaos.program``.

    Args:
        folder: for what it says.
        arguments: of the program.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._said = folder / f"said-{os.urandom(4).hex()}"
        self._family: dict[int, Found] = {}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.chaos.program", *arguments],
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(PROJECT)}, cwd=PROJECT, process_group=0,
            )  # fmt: skip

    @property
    def runs(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    @property
    def is_up(self) -> bool:
        """Return whether its session is up."""
        return b"\nup\n" in b"\n" + self._said.read_bytes()

    @property
    def steps(self) -> int:
        """Return how many steps it has told."""
        return self._said.read_bytes().count(STEP_LINE)

    def said(self) -> str:
        """Return the last lines that the program has written."""
        return "\n".join(self._said.read_text(errors="replace").splitlines()[-LINES_TOLD:])

    def family(self) -> list[Found]:
        """Return its processes that live, those of which it is not the parent any more included."""
        for each in below(self._process.pid):
            self._family[each.pid] = each
        for pid in list(self._family):
            if not Path(f"/proc/{pid}").exists():
                del self._family[pid]
        return list(self._family.values())

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        code = self._process.wait(seconds)
        self.bury()
        return code

    # --- kill -9

    def kill_worker(self, random: Random) -> str:
        """Kill one of the Python processes that read or write rows."""
        family = self.family()
        daemons = [each.pid for each in family if "pyspark.daemon pyspark.worker" in each.command]
        daemons += [each.pid for each in family if "write_into_data_source" in each.command]
        workers = [each.pid for each in family if each.parent in daemons] or daemons
        return self._kill(random.choice(workers), "worker") if workers else ""

    def kill_executor(self, random: Random) -> str:
        """Kill one of the executors; none has a process of its own with ``local[...]``."""
        executors = [each.pid for each in self.family() if is_executor(each)]
        return self._kill(random.choice(executors), "executor") if executors else ""

    def kill_driver(self) -> str:
        """Kill the program and its JVM; executors notice by themselves, perhaps not at once."""
        for each in self.family():
            if each.parent == self._process.pid:
                self._kill(each.pid, "driver")
        self._process.kill()
        self._process.wait(END_SECONDS)
        return "driver"

    def bury(self) -> None:
        """End all processes of the program, whatever state it is in."""
        self.family()
        if self.runs:
            self.kill_driver()
        for each in self.family():
            self._kill(each.pid, "")
        eventually(lambda: not self.family(), END_SECONDS)

    def _kill(self, pid: int, what: str) -> str:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return what
