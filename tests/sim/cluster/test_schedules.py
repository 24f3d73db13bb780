"""A sound store comes through every schedule; :mod:`.test_mutations` has those that do not."""

from __future__ import annotations

import pytest

from tests.sim.cluster import long_checks, schedules
from tests.sim.cluster.schedules import Schedule

FEW_SECONDS = (
    schedules.entry_of_an_earlier_term,
    schedules.vote_in_a_term_that_was_entered_before,
    schedules.proposal_of_a_former_lease,
    schedules.attempt_that_was_overtaken,
    schedules.leader_that_hears_nobody,
    schedules.leader_that_stands_still,
    schedules.disks_that_fill_at_the_same_time,
    schedules.program_with_many_sessions,
    long_checks.write_beside_a_long_check,
)
SCHEDULES = [(each, seed) for each in FEW_SECONDS for seed in range(5)]
SCHEDULES.append((schedules.snapshot_that_outlasts_its_garbage, 0))


@pytest.mark.parametrize(
    ("schedule", "seed"), SCHEDULES, ids=[f"{each.__name__}-{seed}" for each, seed in SCHEDULES]
)
def test_a_sound_store_comes_through(schedule: Schedule, seed: int) -> None:
    schedule(seed)
