"""A command that plays histories of a queue: ``python -m tests.queue_model --minutes 10``."""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections.abc import Iterator
from random import Random  # noqa: TID251 - made from the seed
from typing import Final

from tests.queue_model.histories import History, small_steps
from tests.queue_model.reference import Wrong
from tests.queue_model.systems import Embedded, three_nodes

STEPS: Final = 60


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def play(seed: int, *, nodes: int = 1, steps: int = STEPS) -> int:
    """Play one history; return how many steps it has.

    Raises:
        Wrong: the store did something else than a queue does.
    """
    chance = Random(f"queue {seed}")
    with small_steps(chance):
        if nodes == 1:
            return History(Embedded(chance), chance).run(steps)
        with three_nodes(seed) as system:
            return History(system, chance).run(steps)


def _seeds(first: int, runs: int | None, seconds: float) -> Iterator[int]:
    end = time.monotonic() + seconds
    for seed in itertools.count(first):
        if (seed - first >= runs) if runs is not None else (time.monotonic() >= end):
            return
        yield seed


def main() -> int:
    """Return 1 if a history went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--go-on", action="store_true", help="Do not end at the first fault.")
    options = parser.parse_args()
    logging.getLogger("postroom").setLevel(logging.ERROR)  # messages die on purpose
    wrong = played = 0
    for seed in _seeds(options.seed, options.runs, 60 * options.minutes):
        played += 1
        try:
            play(seed, nodes=options.nodes)
        except Wrong as error:
            wrong += 1
            _tell(f"seed {seed}: {error}")
            _tell(f"  python -m tests.queue_model --seed {seed} --runs 1 --nodes {options.nodes}")
            if not options.go_on:
                break
    _tell(f"{played} histories on {options.nodes} nodes, {wrong} went wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
