"""Spark in chaos, for as long as you like: ``python -m tests.pipeline.chaos --seed 7 --runs 20``.

Each seed is a store of processes, and a Spark program on two workers (``local-cluster``) for each
kind of work. Both are killed in the middle, and the work is judged in the end. The jobs are works
like others: ``--works archive,export,restore,load-files,index``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.pipeline.chaos.job_works import ALL_WORKS
from tests.pipeline.chaos.runs import CLUSTER, Run


def main() -> int:
    """Run what the command line asks for; return 1 if a run fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--runs", type=int, help="how many seeds (default: until time is up)")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no run after so many")
    parser.add_argument("--works", default=",".join(ALL_WORKS), help="with commas between them")
    parser.add_argument("--master", default=CLUSTER, help=f"of Spark (default: {CLUSTER})")
    parser.add_argument("--nodes", type=int, default=1, help="of the store (default: 1)")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--deaths", type=int, default=2, help="of the driver, in each run")
    parser.add_argument("--splits", type=int, default=0, help="of ranges, in each life and strike")
    told = parser.parse_args()
    began, failed = time.monotonic(), []
    for seed, work in _all_runs(told):
        late = told.runs is None and time.monotonic() - began > told.minutes * 60
        if late or seed - told.seed == told.runs:
            break
        if not run(seed, work, told):
            failed.append(f"{work} {seed}")
    print(f"failed: {', '.join(failed) or 'nothing'}", flush=True)  # noqa: T201
    return 1 if failed else 0


def _all_runs(told: argparse.Namespace) -> Iterator[tuple[int, str]]:
    for seed in itertools.count(told.seed):
        for work in told.works.split(","):
            yield seed, work


def run(seed: int, work: str, told: argparse.Namespace) -> bool:
    """Run one seed and print what it did; return whether all was right."""
    with TemporaryDirectory(prefix="postroom-chaos-") as folder:
        made = Run(
            seed, Path(folder), work, told.master, nodes=told.nodes, rows=told.rows,
            deaths=told.deaths, splits=told.splits,
        )  # fmt: skip
        began = time.monotonic()
        try:
            made.run()
        except Exception:
            traceback.print_exc()
            print(  # noqa: T201
                f"failed; once more: python -m tests.pipeline.chaos --seed {seed} --runs 1 "
                f"--works {work} --master '{told.master}' --nodes {told.nodes} "
                f"--rows {told.rows} --deaths {told.deaths} --splits {told.splits}",
                flush=True,
            )
            return False
        finally:
            print(f"seed {seed}, {time.monotonic() - began:.0f} s", *made.log, sep="\n  ")  # noqa: T201
    return True


if __name__ == "__main__":
    sys.exit(main())
