"""Clusters under random workloads and faults, one seed a run: a short ``make sim RUNS=n``.

A failing seed repeats with ``make sim SEED=n``.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.sim.cluster.simulation import EVENTS, ClusterSimulation
from tests.sim.runs import CLUSTER, run_seed

SEEDS = 100


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the logs of broken things."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed(seed: int) -> None:
    run = run_seed(CLUSTER, seed, EVENTS)
    assert run.passed, run.told


def test_one_seed_gives_one_history() -> None:
    assert ClusterSimulation(12, 2000).run().digest == ClusterSimulation(12, 2000).run().digest


def test_two_seeds_give_two_histories() -> None:
    assert ClusterSimulation(13, 500).run().digest != ClusterSimulation(16, 500).run().digest


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
