"""A cluster that is broken on purpose is found out by a few seeds.

The mutations that are rarer to be seen are tried by ``python -m tests.sim.cluster.mutations``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.sim.cluster import mutations

SEEDS = 40


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What breaks logs that it does."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "mutation",
    [
        mutations.lease_not_waited_for,
        mutations.sends_everything_early,
        mutations.cuts_blindly,
        mutations.commits_without_majority,
        mutations.never_syncs,
        mutations.commits_twice,
        mutations.reads_not_checked,
    ],
)
def test_a_broken_cluster_is_found_out(mutation: Callable[[], mutations.Patch]) -> None:
    assert mutations.first_failure(mutation, range(SEEDS), 10_000) is not None
