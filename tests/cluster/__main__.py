"""Chaos for as long as you like: ``python -m tests.cluster --seed 7 --runs 20``.

Each seed is a cluster of its own, disturbed for a while and then judged. The acts of a
failed run, and what its nodes wrote, are printed, with the command that chooses its faults again.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster.chaos import STRIKES_SECONDS, Chaos, Report, repeat, told


def main() -> int:
    """Run what the command line asks for; return 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--runs", type=int, help="how many seeds (default: until time is up)")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no run after so many")
    parser.add_argument("--seconds", type=float, default=STRIKES_SECONDS, help="faults a run")
    parser.add_argument("--kinds", help="only these faults, with commas between them")
    parser.add_argument("--verbose", action="store_true", help="tell every fault")
    wanted = parser.parse_args()
    logging.getLogger("postroom").addHandler(logging.NullHandler())  # troubles are no news here
    summary, began = Summary(), time.monotonic()
    for seed in itertools.count(wanted.seed):
        late = wanted.runs is None and time.monotonic() - began > wanted.minutes * 60
        if late or seed - wanted.seed == wanted.runs:
            break
        kinds = None if wanted.kinds is None else wanted.kinds.split(",")
        summary.add(seed, run_seed(seed, wanted.seconds, kinds, verbose=wanted.verbose))
    print(summary)  # noqa: T201
    return 1 if summary.failed else 0


def run_seed(seed: int, seconds: float, kinds: list[str] | None, *, verbose: bool) -> Report | None:
    """Run one seed and print what it did; return ``None`` if it failed."""
    with TemporaryDirectory(prefix="postroom-chaos-") as folder:
        chaos = Chaos(seed, Path(folder), seconds, kinds)
        try:
            report = chaos.run()
        except Exception:
            print(*chaos.log, sep="\n")  # noqa: T201
            traceback.print_exc()
            print(f"seed {seed} failed; once more: {repeat(seed, seconds, kinds)}", flush=True)  # noqa: T201
            return None
    if verbose:
        print(*chaos.log, sep="\n")  # noqa: T201
    print(report, flush=True)  # noqa: T201
    return report


class Summary:
    """The results of many runs."""

    def __init__(self) -> None:
        self.failed: list[int] = []
        self._runs = 0
        self._began = time.monotonic()
        self._faults: Counter[str] = Counter()
        self._commits: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def add(self, seed: int, report: Report | None) -> None:
        """Add the report of one more run."""
        self._runs += 1
        if report is None:
            self.failed.append(seed)
            return
        self._faults.update(report.faults)
        self._commits.update(report.commits)
        self._seen.update(report.seen)

    def __str__(self) -> str:
        seconds = time.monotonic() - self._began
        failed = "".join(f" {seed}" for seed in self.failed)
        return "\n".join(
            [
                f"{self._runs} runs in {seconds:.0f} s, {len(self.failed)} failed{failed}",
                f"faults: {told(self._faults)}",
                f"commits: {told(self._commits)}",
                f"seen: {told(self._seen)}",
            ]
        )


if __name__ == "__main__":
    sys.exit(main())
