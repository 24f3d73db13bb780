"""Many runs by seeds, on all cores, and the sums of what has happened in them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.sim.both_ways import WaysDiffer
from tests.sim.cluster.ranges import EmbeddedRangesSimulation, RangesSimulation
from tests.sim.cluster.simulation import EVENTS, ClusterSimulation
from tests.sim.simulation import STEPS, EmbeddedSimulation

CLUSTER: Final = ClusterSimulation.kind
EMBEDDED: Final = EmbeddedSimulation.kind

RANGES: Final = "ranges"
EMBEDDED_RANGES: Final = "embedded ranges"

SIMULATIONS: Final = {
    CLUSTER: ClusterSimulation,
    EMBEDDED: EmbeddedSimulation,
    RANGES: RangesSimulation,
    EMBEDDED_RANGES: EmbeddedRangesSimulation,
}

KINDS: Final = {
    (False, False): CLUSTER,
    (True, False): EMBEDDED,
    (False, True): RANGES,
    (True, True): EMBEDDED_RANGES,
}
"""The kinds by whether the store is embedded, and whether it has several ranges."""
LENGTHS: Final = {CLUSTER: EVENTS, EMBEDDED: STEPS, RANGES: EVENTS, EMBEDDED_RANGES: STEPS}
"""The length of a run of each kind, in events."""


@dataclass
class Run:
    """The result of a seed.

    Attributes:
        told: a line about it, or what went wrong.
        counts: how often what has happened, by group.
    """

    seed: int
    passed: bool
    told: str
    counts: dict[str, Counter[str]] = field(default_factory=dict)


def run_seed(kind: str, seed: int, length: int) -> Run:
    """Run one seed; never raise ``Exception``."""
    try:
        report = SIMULATIONS[kind](seed, length).run()
        counts = {"faults": report.faults, "commits": report.commits, "seen": report.seen}
        return Run(seed, True, str(report), counts)
    except (Exception, WaysDiffer):
        return Run(
            seed,
            False,
            f"{traceback.format_exc()}seed {seed} failed; repeat it with: "
            f"{repeat(kind, seed, length)}",
        )


def repeat(kind: str, seed: int, length: int) -> str:
    """Return the command that repeats a run."""
    ((is_embedded, has_ranges),) = (each for each, name in KINDS.items() if name == kind)
    options = " --embedded" * is_embedded + " --ranges" * has_ranges
    if length != LENGTHS[kind]:
        options += f" --steps {length}"
    return f"make sim SEED={seed}" + (f' ARGS="{options.strip()}"' if options else "")


def run_many(
    kind: str, seeds: Iterable[int], length: int, processes: int | None = None
) -> Iterator[Run]:
    """Run all of ``seeds``, in their order.

    Args:
        processes: how many at once; as many as there are cores if not given.
    """
    jobs = [(kind, seed, length) for seed in seeds]
    processes = min(processes or os.cpu_count() or 1, len(jobs))
    if processes == 1:
        yield from (run_seed(*job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, initializer=_begin_quietly) as pool:
        yield from pool.imap(_run_job, jobs, chunksize=4)


def _begin_quietly() -> None:
    logging.disable(logging.CRITICAL)


def _run_job(job: tuple[str, int, int]) -> Run:
    return run_seed(*job)


class Summary:
    """The events of many runs."""

    def __init__(self) -> None:
        self.failed: list[int] = []
        self._runs = 0
        self._began = time.monotonic()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, run: Run) -> None:
        """Add one more run."""
        self._runs += 1
        if not run.passed:
            self.failed.append(run.seed)
        for group, counted in run.counts.items():
            self._counts.setdefault(group, Counter()).update(counted)

    def __str__(self) -> str:
        seconds = time.monotonic() - self._began
        lines = [f"{self._runs} seeds in {seconds:.0f} s, {len(self.failed)} failed"]
        if self.failed:
            lines[0] += f": {' '.join(map(str, self.failed))}"
        for group, counted in self._counts.items():
            told = ", ".join(f"{number} {name}" for name, number in sorted(counted.items()))
            lines.append(f"{group}: {told}")
        return "\n".join(lines)
