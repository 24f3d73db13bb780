"""A store that is broken on purpose is found out by a few seeds.

The mutations that are rarer to be seen are tried by ``make mutations``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.sim.cluster import mutations
from tests.sim.cluster.mutations import MUTATIONS, Mutation
from tests.sim.runs import CLUSTER

CLUSTER_SEEDS = 40
CLUSTER_EVENTS = 10_000

QUICK = (
    "lease_not_waited_for",
    "sends_everything_early",
    "cuts_blindly",
    "commits_without_majority",
    "never_syncs",
    "commits_twice",
    "reads_not_checked",
    "peek_ignores_later_reaps",
    "peek_shows_later_messages",
    "claims_nobody",
    "free_mark_stays",
    "outbox_head_runs_ahead",
    "buries_nothing",
    "collects_heads",
    "feed_forgets",
    "locks_everybody",
    "collector_ends",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What breaks logs that it does."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", QUICK)
def test_a_broken_store_is_found_out(name: str) -> None:
    (mutation,) = (each for each in MUTATIONS if each.name == name)
    length = 0
    if mutation.kind == CLUSTER:
        mutation, length = mutation._replace(seeds=CLUSTER_SEEDS), CLUSTER_EVENTS
    assert mutations.first_failure(mutation, length) is not None


def test_the_names_of_mutations_are_their_own() -> None:
    assert len({each.name for each in MUTATIONS}) == len(MUTATIONS)
    assert all(isinstance(each, Mutation) and each.seeds <= 300 for each in MUTATIONS)
