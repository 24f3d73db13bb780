"""Clusters under random workloads and faults, one seed a run: a short ``make sim RUNS=n``.

A failing seed repeats with ``make sim SEED=n``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.sim.cluster.simulation import EVENTS, ClusterSimulation
from tests.sim.runs import CLUSTER, Summary, run_many

SEEDS = 100
BATCH = 5


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_seeds(first: int) -> None:
    summary, told = Summary(), []
    for run in run_many(CLUSTER, range(first, first + BATCH), EVENTS):
        summary.add(run)
        if not run.passed:
            told.append(run.told)
    assert not summary.failed, "\n".join([*told, str(summary)])


def test_one_seed_gives_one_history() -> None:
    assert ClusterSimulation(7, 2000).run().digest == ClusterSimulation(7, 2000).run().digest


def test_two_seeds_give_two_histories() -> None:
    assert ClusterSimulation(7, 500).run().digest != ClusterSimulation(8, 500).run().digest


def test_another_process_repeats_it() -> None:
    """Whatever Python makes of the hashes of strings there."""
    digests = {ClusterSimulation(11, 3000).run().digest}
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-m", "tests.sim", "--seed", "11", "--steps", "3000"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        digests.update(re.findall(r"[0-9a-f]{32}", told))
    assert len(digests) == 1
