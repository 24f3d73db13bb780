"""The command of the simulator: ``python -m tests.sim --seed 7``, or ``... --runs 1000``.

A cluster, if not told otherwise; ``--embedded``: a store of one node, in its own process. With
``--ranges`` either of them has several ranges, which split while things break.
"""

from __future__ import annotations

import argparse
import logging
import sys

from tests.sim.runs import KINDS, LENGTHS, Summary, run_many


def main() -> int:
    """Run what the command line asks for; return 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds (default: 1)")
    parser.add_argument("--embedded", action="store_true", help="one node instead of a cluster")
    parser.add_argument("--ranges", action="store_true", help="several ranges, which split")
    parser.add_argument("--steps", type=int, help="how long the phase of faults lasts")
    parser.add_argument("--processes", type=int, help="how many at once (default: all cores)")
    parser.add_argument("--quiet", action="store_true", help="print only failures and the end")
    wanted = parser.parse_args()
    kind = KINDS[wanted.embedded, wanted.ranges]
    logging.disable(logging.CRITICAL if wanted.runs > 1 else logging.NOTSET)
    seeds = range(wanted.seed, wanted.seed + wanted.runs)
    summary = Summary()
    for run in run_many(kind, seeds, wanted.steps or LENGTHS[kind], wanted.processes):
        summary.add(run)
        if not (run.passed and wanted.quiet):
            print(run.told, flush=True)  # noqa: T201
    print(summary)  # noqa: T201
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
