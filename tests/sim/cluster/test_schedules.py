"""A sound store comes through every schedule; :mod:`.test_mutations` has those that do not."""

from __future__ import annotations

import pytest

from tests.sim.cluster import long_checks, range_schedules, schedules, watch_schedules
from tests.sim.cluster.schedules import Schedule

FEW_SECONDS = (
    schedules.entry_of_an_earlier_term,
    schedules.vote_in_a_term_that_was_entered_before,
    schedules.proposal_of_a_former_lease,
    schedules.attempt_that_was_overtaken,
    schedules.leader_that_hears_nobody,
    schedules.leader_that_stands_still,
    schedules.leader_that_cannot_hold_its_lease,
    schedules.disks_that_fill_at_the_same_time,
    schedules.program_with_many_sessions,
    long_checks.write_beside_a_long_check,
    range_schedules.write_skew_of_two_transactions,
    range_schedules.write_below_a_commit_that_has_read_the_key,
    range_schedules.commit_above_a_reader,
    range_schedules.run_that_was_given_up,
    range_schedules.word_of_an_earlier_run,
    range_schedules.read_of_what_was_acknowledged_elsewhere,
    range_schedules.write_between_two_reads,
    range_schedules.batch_for_a_part_of_a_range,
    range_schedules.batch_that_is_sent_again_after_a_split,
    range_schedules.snapshot_of_a_right_half_before_its_split,
    watch_schedules.answers_that_are_complete_up_to_different_timestamps,
    watch_schedules.commit_that_is_under_way_below_a_change_elsewhere,
    watch_schedules.commit_that_is_resolved_after_a_later_one,
)
SCHEDULES = [(each, seed) for each in FEW_SECONDS for seed in range(5)]
SCHEDULES.append((schedules.snapshot_that_outlasts_its_garbage, 0))


@pytest.mark.parametrize(
    ("schedule", "seed"), SCHEDULES, ids=[f"{each.__name__}-{seed}" for each, seed in SCHEDULES]
)
def test_a_sound_store_comes_through(schedule: Schedule, seed: int) -> None:
    schedule(seed)
