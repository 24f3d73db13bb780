"""Simulates the store: ``python -m tests.sim --seed 7`` or ``python -m tests.sim --runs 1000``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

from tests.sim.simulation import STEPS, Simulation


def main() -> int:
    """Runs what the command line asks for; 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds (default: 1)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run (default: {STEPS})")
    parser.add_argument("--quiet", action="store_true", help="print only failures and the end")
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL if wanted.runs > 1 else logging.NOTSET)
    began = time.monotonic()
    failed, commits, faults = [], Counter[str](), Counter[str]()
    for seed in range(wanted.seed, wanted.seed + wanted.runs):
        try:
            report = Simulation(seed, wanted.steps).run()
        except Exception:
            failed.append(seed)
            traceback.print_exc()
            print(f"seed {seed} failed; repeat it with: {repeat(seed, wanted.steps)}", flush=True)  # noqa: T201
        else:
            commits += report.commits
            faults += report.faults
            if not wanted.quiet:
                print(report, flush=True)  # noqa: T201
    seconds = time.monotonic() - began
    print(  # noqa: T201
        f"{wanted.runs} seeds in {seconds:.0f} s, {len(failed)} failed {failed or ''}; "
        f"commits: {dict(commits)}; faults: {dict(faults)}"
    )
    return 1 if failed else 0


def repeat(seed: int, steps: int = STEPS) -> str:
    """The command that repeats a run."""
    return f"python -m tests.sim --seed {seed}" + (f" --steps {steps}" if steps != STEPS else "")


if __name__ == "__main__":
    sys.exit(main())
