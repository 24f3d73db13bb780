"""The embedded store under random workloads and faults, one seed a run.

A failing seed repeats with ``make sim SEED=n ARGS=--embedded``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.sim.runs import EMBEDDED, repeat
from tests.sim.simulation import STEPS, Simulation

SEEDS = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed(seed: int) -> None:
    try:
        Simulation(seed).run()
    except Exception as error:
        error.add_note(f"repeat it with: {repeat(EMBEDDED, seed, STEPS)}")
        raise


def test_one_seed_gives_one_history() -> None:
    assert Simulation(7).run().digest == Simulation(7).run().digest


def test_two_seeds_give_two_histories() -> None:
    assert Simulation(7).run().digest != Simulation(8).run().digest


def test_another_process_repeats_it() -> None:
    """Whatever Python makes of the hashes of strings there."""
    digests = {Simulation(6, steps=800).run().digest}
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-m", "tests.sim", "--embedded", "--seed", "6", "--steps", "800"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        digests.update(re.findall(r"[0-9a-f]{32}", told))
    assert len(digests) == 1
