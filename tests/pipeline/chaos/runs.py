"""One run of chaos: a store in processes, a Spark program, ``kill -9``, and a verdict.

::

    program ── works ──✕ a worker, an executor ── works ──✕ the driver
    program, with other partitions ── works ──✕ ...
    program, with others again ──────────────────────────▶ the end: each row exactly once

Kinds of deaths, their moments and the numbers of partitions are drawn from a seed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

from tests.cluster.harness import ClusterProcesses, cluster
from tests.pipeline.chaos.job_works import ALL_WORKS
from tests.pipeline.chaos.processes import Program
from tests.pipeline.chaos.works import Work

SILENT_SECONDS = 600.0
LOCAL = "local[2,4]"
CLUSTER = "local-cluster[2,1,512]"


class Run:
    """One run of Spark in chaos.

    Args:
        seed: of all that is drawn.
        folder: for everything.
        work: one of ``ALL_WORKS``.
        master: of Spark.
        nodes: of the store.
        rows: of the work.
        deaths: lives of the program that end with the death of the driver.
        strikes: who dies before that, in each life; none: drawn.
        splits: how often a range splits when a life begins, and after each strike.

    Attributes:
        log: what was done.
    """

    def __init__(
        self, seed: int, folder: Path, work: str, master: str = CLUSTER, *, nodes: int = 1,
        rows: int = 2000, deaths: int = 2, strikes: Sequence[str] = (), splits: int = 0,
    ) -> None:  # fmt: skip
        self.random = Random(f"{seed} {work}")
        self.log: list[str] = []
        self._folder = folder
        self._work = work
        self._master = master
        self._nodes = nodes
        self._rows = rows
        self._deaths = deaths
        self._strikes = strikes
        self._splits = splits
        self._partitions = 1
        self._waiting = threading.Event()

    def run(self) -> None:
        """Carry out the whole run.

        Raises:
            AssertionError: a row is missing, or there twice; or it does not come to an end.
        """
        with cluster(self._folder / "nodes", self._nodes) as processes, processes.connect() as db:
            work = ALL_WORKS[self._work](db, self._folder, self._rows)
            work.prepare()
            for _ in range(self._deaths):
                self._live(work, processes, dies=True)
                if not work.again:
                    break
            else:
                self._live(work, processes, dies=False)
            work.check()
            if work.stages:
                db.staging.sweep(0.0)  # late tasks of dead drivers have changed nothing
                work.check()
                assert db.staging.read().attempts == 0

    def _live(self, work: Work, processes: ClusterProcesses, *, dies: bool) -> None:
        self._partitions += self.random.choice([1, 2, 4])
        work.go_on()
        program = Program(
            self._folder, work.name, "--connect", processes.addresses, "--folder",
            str(self._folder), "--master", self._master, "--partitions", str(self._partitions),
            *work.arguments(),
        )  # fmt: skip
        self._split(work)
        work.steps = lambda: program.steps
        if work.steps_most:
            work.kill_after = self.random.randrange(work.steps_most) + 1
        self._note(f"a life with {self._partitions} partitions")
        try:
            if dies:
                self._strike(program, work, processes)
            elif work.endless:
                self._until(work, lambda: _holds(work), "it does not come to the end")
            else:
                self._until(work, lambda: not program.runs, "it does not end")
                assert program.wait() == 0, "it has failed"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{program.said()}") from error
        finally:
            program.bury()

    def _strike(self, program: Program, work: Work, processes: ClusterProcesses) -> None:
        """Kill workers, executors and leaders while the work is done, and then the driver."""
        for strike in self._strikes or self._drawn():
            if not self._is_in_the_middle(program, work):
                return
            if strike == "leader":
                self._kill_the_leader(work, processes)
            elif strike == "executor":
                self._note(f"dead: {program.kill_executor(self.random) or 'no executor'}")
            else:
                self._note(f"dead: {program.kill_worker(self.random) or 'no worker'}")
            work.go_on()
            self._split(work)
        if self._is_in_the_middle(program, work):
            after = f" after step {work.steps()}" if work.steps_most else ""
            self._note(f"dead: {program.kill_driver()}{after}")

    def _drawn(self) -> list[str]:
        kinds = ["worker", "worker", "executor", "leader"]
        return self.random.choices(kinds, k=self.random.randrange(3))

    def _is_in_the_middle(self, program: Program, work: Work) -> bool:
        """Wait until the work is in the middle; return false if it has ended."""
        self._until(
            work, lambda: not program.runs or (program.is_up and work.has_begun()),
            "it does not begin",
        )  # fmt: skip
        self._waiting.wait(self.random.uniform(0.0, work.moment_seconds))  # anywhere in the middle
        return program.runs

    def _split(self, work: Work) -> None:
        """Split ranges while the program plans or reads."""
        for _ in range(self._splits):
            starts = {each.start for each in work.db.ranges()}
            left = [key for key in work.cuts if key not in starts]
            if left:
                made = work.db.split(self.random.choice(left))
                self._note(f"range {made.id} begins at {made.start!r}")

    def _kill_the_leader(self, work: Work, processes: ClusterProcesses) -> None:
        node = processes.nodes[0] if self._nodes == 1 else processes.leader(work.db)
        node.kill()
        node.restart()
        self._note(f"dead, and back: {node}")

    def _until(self, work: Work, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait for a condition; while rows come, it may take its time."""
        progress, since = work.progress(), time.monotonic()
        while not holds():
            before, progress = progress, work.progress()
            since = since if progress == before else time.monotonic()
            late = time.monotonic() > since + SILENT_SECONDS
            assert not late, f"{otherwise}; there is no progress since {progress}"
            self._waiting.wait(0.2)

    def _note(self, what: str) -> None:
        self.log.append(f"{self._work}: {what}")


def _holds(work: Work) -> bool:
    with suppress(AssertionError):
        work.check()
        return True
    return False
