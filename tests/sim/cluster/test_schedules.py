"""A sound store comes through every schedule; :mod:`.test_mutations` has those that do not."""

from __future__ import annotations

import pytest

from tests.sim.cluster import schedules
from tests.sim.cluster.schedules import Schedule


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.entry_of_an_earlier_term,
        schedules.vote_in_a_term_that_was_entered_before,
        schedules.proposal_of_a_former_lease,
    ],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("seed", range(5))
def test_a_sound_store_comes_through(schedule: Schedule, seed: int) -> None:
    schedule(seed)
