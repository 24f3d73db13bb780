"""Random workloads and faults, one seed a run: a short ``make sim RUNS=n``.

A failing seed repeats with the command that it prints.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.sim.runs import (
    CLUSTER,
    EMBEDDED,
    EMBEDDED_RANGES,
    LENGTHS,
    RANGES,
    SIMULATIONS,
    run_seed,
)

NUMBERS = {CLUSTER: 40, EMBEDDED: 34, RANGES: 12, EMBEDDED_RANGES: 24}
SEEDS = [(kind, seed) for kind, number in NUMBERS.items() for seed in range(number)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the logs of broken things."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def digest(kind: str, seed: int, length: int) -> str:
    return SIMULATIONS[kind](seed, length).run().digest


@pytest.mark.parametrize(("kind", "seed"), SEEDS)
def test_a_seed(kind: str, seed: int) -> None:
    run = run_seed(kind, seed, LENGTHS[kind])
    assert run.passed, run.told


@pytest.mark.parametrize(
    ("kind", "seed"), [(CLUSTER, 12), (EMBEDDED, 7), (RANGES, 2), (EMBEDDED_RANGES, 7)]
)
def test_one_seed_gives_one_history(kind: str, seed: int) -> None:
    assert digest(kind, seed, 2000) == digest(kind, seed, 2000)


@pytest.mark.parametrize(("kind", "seeds"), [(CLUSTER, (13, 16)), (EMBEDDED, (7, 8))])
def test_two_seeds_give_two_histories(kind: str, seeds: tuple[int, int]) -> None:
    first, second = seeds
    assert digest(kind, first, 500) != digest(kind, second, 500)


@pytest.mark.parametrize(
    ("kind", "seed", "length", "options"),
    [
        (CLUSTER, 11, 3000, []),
        (EMBEDDED, 6, 800, ["--embedded"]),
        (RANGES, 6, 2000, ["--ranges"]),
        (EMBEDDED_RANGES, 30103, 300, ["--embedded", "--ranges"]),
    ],
)
def test_another_process_repeats_it(kind: str, seed: int, length: int, options: list[str]) -> None:
    """It does so whatever Python makes of the hashes of strings there."""
    command = [sys.executable, "-m", "tests.sim", "--seed", str(seed), "--steps", str(length)]
    digests = {digest(kind, seed, length)}
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [*command, *options],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        digests.update(re.findall(r"[0-9a-f]{32}", told))
    assert len(digests) == 1
