"""Mutations, which break promises on purpose, to see that the simulation finds each of them.

``python -m tests.sim.cluster.mutations`` (``make mutations``) runs seeds under each mutation until
one fails, and says which one it was, and what told. Each states within how many seeds it has to be
seen, and perhaps a known seed, which is tried first. One that is not seen means that a fault, a
workload or a checker is missing. Each replaces one function of the product while it is in force.

Mutations that need a cluster (elections, replication, leases, snapshots) are looked for in
simulated clusters. Those of a single leaseholder (messages, garbage, the feed, locks, protections)
are looked for in simulated embedded stores, which are quicker. Those of splits, of messages between
ranges, and of transactions over them are looked for in stores of several ranges. Those that need
several rare things one after the other have a schedule (:mod:`.schedules`,
:mod:`.range_schedules`), whose seeds vary only the delays.

The product goes on, and the function that a mutation replaces may be called otherwise one day. The
mutation breaks nothing then, or everything at once; ``OutOfDate`` says so, and it does not count.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import pytest

from postroom.server.assembly import GENERAL_ONLY
from tests.server.test_node_claims_at_random import claims_at_random
from tests.sim.cluster import long_checks, range_schedules, schedules, watch_schedules
from tests.sim.cluster.broken import (
    Patch,
    attempts,
    clocks,
    consensus,
    disks,
    handing_over,
    messages,
    queues,
    shares,
    spanning,
    upkeep,
    watches,
)
from tests.sim.cluster.schedules import Schedule
from tests.sim.runs import (
    CLUSTER,
    EMBEDDED,
    EMBEDDED_RANGES,
    LENGTHS,
    RANGES,
    SIMULATIONS,
)

SCHEDULE: Final = "schedule"


class Mutation(NamedTuple):
    """A way to break the product, and where it has to be seen.

    It names a number of seeds, and the kind of simulation or the schedule.

    Attributes:
        known: a seed that has failed.
    """

    breaks: Callable[[], Patch]
    seeds: int
    kind: str = CLUSTER
    schedule: Schedule | None = None
    known: int = 0

    @property
    def name(self) -> str:
        """Return the name of the mutation."""
        return self.breaks.__name__

    def tried(self) -> Iterable[int]:
        """Return the seeds in the order in which they are tried: the known one first."""
        return dict.fromkeys([self.known, *range(self.seeds)])


MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(consensus.lease_margin_off, 300),
    Mutation(consensus.lease_not_waited_for, 300, known=6),
    Mutation(consensus.lease_never_ends, 300),
    Mutation(consensus.lease_starts_too_early, 300),
    Mutation(consensus.lease_not_checked, 1, SCHEDULE, schedules.proposal_of_a_former_lease),
    Mutation(consensus.vote_not_stored, 300),
    Mutation(
        consensus.later_vote_not_stored,
        1,
        SCHEDULE,
        schedules.vote_in_a_term_that_was_entered_before,
    ),
    Mutation(consensus.votes_for_anybody, 300),
    Mutation(consensus.sends_everything_early, 300),
    Mutation(consensus.cuts_blindly, 300, known=7),
    Mutation(consensus.commits_earlier_terms, 1, SCHEDULE, schedules.entry_of_an_earlier_term),
    Mutation(consensus.commits_without_majority, 300),
    Mutation(consensus.never_syncs, 300),
    Mutation(consensus.commits_twice, 300, known=3),
    Mutation(consensus.reads_not_checked, 300, known=2),
    Mutation(consensus.snapshot_lies, 300),
    Mutation(consensus.leads_unanswered, 1, SCHEDULE, schedules.leader_that_hears_nobody),
    Mutation(consensus.waits_for_the_silent, 1, SCHEDULE, schedules.leader_that_stands_still),
    Mutation(
        disks.full_disk_stops_the_store, 1, SCHEDULE, schedules.disks_that_fill_at_the_same_time
    ),
    Mutation(disks.nobody_frees_room, 1, SCHEDULE, schedules.disks_that_fill_at_the_same_time),
    Mutation(shares.shares_go_by_client, 1, SCHEDULE, schedules.program_with_many_sessions),
    Mutation(disks.full_for_ever, 1, SCHEDULE, schedules.disks_that_fill_at_the_same_time),
    Mutation(messages.peek_ignores_later_reaps, 100, EMBEDDED, known=10),
    Mutation(messages.peek_shows_later_messages, 100, EMBEDDED, known=4),
    Mutation(messages.peek_leaves_out_the_last, 100, EMBEDDED),
    Mutation(messages.claims_nobody, 100, EMBEDDED),
    Mutation(messages.claims_for_ever, 100, EMBEDDED),
    Mutation(messages.free_mark_stays, 100, EMBEDDED, known=2),
    Mutation(messages.reaps_what_is_gone, 100, EMBEDDED),
    Mutation(messages.index_forgets_the_first, 100, EMBEDDED),
    Mutation(messages.delivers_twice, 100, EMBEDDED),
    Mutation(messages.outbox_head_runs_ahead, 100, EMBEDDED, known=57),
    Mutation(messages.adds_up_across, 100, EMBEDDED),
    Mutation(messages.one_dies_all_die, 100, EMBEDDED),
    Mutation(messages.buries_nothing, 100, EMBEDDED, known=9),
    Mutation(attempts.attempts_are_forgotten, 100, EMBEDDED),
    Mutation(attempts.postponed_comes_at_once, 100, EMBEDDED, known=4),
    Mutation(attempts.lost_attempts_kill_nobody, 100, EMBEDDED),
    Mutation(attempts.holds_up_nobody, 100, EMBEDDED, known=15),
    Mutation(
        upkeep.collection_ignores_protections,
        1,
        SCHEDULE,
        schedules.snapshot_that_outlasts_its_garbage,
    ),
    Mutation(upkeep.collects_too_early, 100, EMBEDDED),
    Mutation(upkeep.collection_is_not_told, 100, EMBEDDED),
    Mutation(upkeep.collects_heads, 100, EMBEDDED),
    Mutation(upkeep.garbage_is_not_listed, 100, EMBEDDED),
    Mutation(upkeep.feed_forgets, 100, EMBEDDED, known=3),
    Mutation(upkeep.watches_are_not_found, 100, EMBEDDED),
    Mutation(upkeep.long_checks_hear_nothing, 1, SCHEDULE, long_checks.write_beside_a_long_check),
    Mutation(upkeep.feed_promises_too_much, 100, EMBEDDED),
    Mutation(upkeep.feed_begins_late, 100, EMBEDDED),
    Mutation(upkeep.locks_everybody, 100, EMBEDDED),
    Mutation(upkeep.writers_wait_for_no_lock, 100, EMBEDDED),
    Mutation(upkeep.wakes_nobody, 100),
    Mutation(upkeep.nobody_reads_on, 100),
    Mutation(upkeep.collector_ends, 100, EMBEDDED),
    Mutation(clocks.timestamps_stand, 300, EMBEDDED, known=113),
    Mutation(queues.acknowledges_whoever_asks, 1, SCHEDULE, schedules.attempt_that_was_overtaken),
    Mutation(queues.leases_run_out_early, 300, EMBEDDED),
    Mutation(queues.fires_before_its_time, 100, EMBEDDED),
    Mutation(queues.concurrency_is_not_kept, 100, EMBEDDED),
    Mutation(queues.groups_are_not_ordered, 100, EMBEDDED),
    Mutation(queues.kinds_are_ignored, 100, EMBEDDED),
    Mutation(queues.expiry_leaves_the_lease, 100, EMBEDDED),
    Mutation(queues.copies_are_not_kept_up, 100, EMBEDDED_RANGES, known=1),
    Mutation(queues.ids_are_unique_in_a_range_alone, 100, EMBEDDED_RANGES, known=10),
    Mutation(queues.services_take_what_is_prepared, 100, EMBEDDED_RANGES, known=82),
    Mutation(queues.what_is_given_back_counts, 100, EMBEDDED_RANGES, known=1),
    Mutation(queues.pointers_outlive_their_messages, 100, EMBEDDED_RANGES, known=10),
    Mutation(queues.both_halves_keep_all_slots, 100, EMBEDDED_RANGES),
    Mutation(queues.slots_that_go_back_stay, 100, EMBEDDED_RANGES),
    Mutation(queues.grants_leave_the_pool_full, 100, EMBEDDED_RANGES),
    Mutation(queues.answered_claims_wait_on, 20, SCHEDULE, claims_at_random),
    Mutation(queues.cancelled_claims_keep_their_messages, 100, SCHEDULE, claims_at_random, known=1),
    Mutation(
        queues.claims_wait_for_the_ranges_of_their_beginning,
        100,
        SCHEDULE,
        claims_at_random,
        known=19,
    ),
    Mutation(queues.claims_of_lost_leases_wait_on, 100, SCHEDULE, claims_at_random, known=2),
    Mutation(
        spanning.no_record_of_what_was_only_read,
        1,
        SCHEDULE,
        range_schedules.write_skew_of_two_transactions,
    ),
    Mutation(
        spanning.record_goes_below_the_commit,
        1,
        SCHEDULE,
        range_schedules.write_below_a_commit_that_has_read_the_key,
    ),
    Mutation(spanning.any_ballot_is_resolved, 1, SCHEDULE, range_schedules.word_of_an_earlier_run),
    Mutation(spanning.run_that_is_over_commits, 1, SCHEDULE, range_schedules.run_that_was_given_up),
    Mutation(spanning.readers_wait_for_no_intent, 100, EMBEDDED_RANGES, known=212),
    Mutation(spanning.commits_wait_for_no_intent, 100, EMBEDDED_RANGES, known=3),
    Mutation(spanning.push_moves_no_clock, 1, SCHEDULE, range_schedules.commit_above_a_reader),
    Mutation(
        spanning.timestamp_never_moves_up,
        1,
        SCHEDULE,
        range_schedules.read_of_what_was_acknowledged_elsewhere,
    ),
    Mutation(
        spanning.timestamp_moves_without_a_check,
        1,
        SCHEDULE,
        range_schedules.write_between_two_reads,
    ),
    Mutation(spanning.ranges_hear_of_no_commit, 300, EMBEDDED_RANGES, known=311),
    Mutation(
        watches.farthest_range_tells_for_all,
        20,
        SCHEDULE,
        watch_schedules.answers_that_are_complete_up_to_different_timestamps,
    ),
    Mutation(
        watches.changes_stay_that_come_again,
        20,
        SCHEDULE,
        watch_schedules.answers_that_are_complete_up_to_different_timestamps,
    ),
    Mutation(
        watches.commits_under_way_are_passed_by,
        1,
        SCHEDULE,
        watch_schedules.commit_that_is_under_way_below_a_change_elsewhere,
    ),
    Mutation(
        watches.prepared_writes_are_passed_by,
        1,
        SCHEDULE,
        watch_schedules.commit_that_is_resolved_after_a_later_one,
    ),
    Mutation(
        watches.resolved_writes_are_in_no_order,
        1,
        SCHEDULE,
        watch_schedules.commit_that_is_resolved_after_a_later_one,
    ),
    Mutation(handing_over.no_marks, 100, EMBEDDED_RANGES),
    Mutation(
        handing_over.marks_are_forgotten_at_a_split,
        1,
        SCHEDULE,
        range_schedules.batch_that_is_sent_again_after_a_split,
    ),
    Mutation(
        handing_over.batch_marks_the_whole_range,
        1,
        SCHEDULE,
        range_schedules.batch_for_a_part_of_a_range,
    ),
    Mutation(handing_over.batch_leaves_out_the_first, 100, EMBEDDED_RANGES, known=10),
    Mutation(handing_over.positions_step_back, 100, EMBEDDED_RANGES, known=10),
    Mutation(handing_over.entries_leave_when_sent, 100, EMBEDDED_RANGES, known=10),
    Mutation(handing_over.ranges_answer_for_any_key, 100, EMBEDDED_RANGES, known=3),
    Mutation(
        handing_over.snapshots_overlap,
        1,
        SCHEDULE,
        range_schedules.snapshot_of_a_right_half_before_its_split,
    ),
    Mutation(handing_over.empty_replicas_store_no_vote, 300, RANGES),
)


@contextmanager
def in_force(mutation: Callable[[], Patch]) -> Iterator[None]:
    """Break the product while the block runs, in the general way of proposals.

    Else the comparison with the usual way would find each mutation before the checkers do.
    """
    where, name, replacement = mutation()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, replacement)
        patch.setenv(GENERAL_ONLY, "1")
        yield


class OutOfDate(Exception):
    """A mutation does not fit the product any more."""


def check_fits(mutation: Mutation) -> None:
    """Check that the replaced function is there, and is called as the replacement expects.

    Raises:
        OutOfDate: it is not.
    """
    where, name, replacement = mutation.breaks()
    original = vars(where).get(name)
    if original is None:
        raise OutOfDate(f"{mutation.name}: {where.__name__} has no {name} of its own")
    if not (inspect.isfunction(original) and inspect.isfunction(replacement)):
        return
    parameters = inspect.signature(original).parameters.values()
    given = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]
    named = {each.name: each for each in parameters if each.kind is each.KEYWORD_ONLY}
    try:
        inspect.signature(replacement).bind(*given, **named)
    except TypeError as error:
        raise OutOfDate(f"{mutation.name}: {name} is called otherwise: {error}") from error


_SLIPS: Final = (AttributeError, LookupError, NameError, TypeError, ValueError)


def _require_honest(mutation: Mutation, seed: int, error: Exception) -> None:
    """Refuse a finding that comes from a mutation that cannot be carried out."""
    told = any(each.__name__ in str(error) for each in _SLIPS)  # a service may have died of it
    if told or isinstance(error, _SLIPS):
        raise OutOfDate(f"{mutation.name}, seed {seed}: {error!r}") from error


def first_failure(mutation: Mutation, length: int = 0) -> tuple[int, Exception] | None:
    """Return the first seed that fails under a mutation, and the error.

    Args:
        mutation: with the number of seeds.
        length: of each run; that of its kind if not given.

    Raises:
        OutOfDate: it does not fit the product any more.
    """
    check_fits(mutation)
    with in_force(mutation.breaks):
        for seed in mutation.tried():
            try:
                _run(mutation, seed, length)
            except Exception as error:
                _require_honest(mutation, seed, error)
                return seed, error
    return None


def _run(mutation: Mutation, seed: int, length: int) -> None:
    if mutation.schedule is not None:
        mutation.schedule(seed)
    else:
        SIMULATIONS[mutation.kind](seed, length or LENGTHS[mutation.kind]).run()


def main() -> int:
    """Try the mutations that the command line names, or all; return 1 if one is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutations (default: all)")
    parser.add_argument("--runs", type=int, help="seeds for each, instead of those that it states")
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    not_found = []
    for mutation in MUTATIONS:
        if wanted.names and mutation.name not in wanted.names:
            continue
        began = time.monotonic()
        is_found, told = _try(mutation._replace(seeds=wanted.runs or mutation.seeds))
        if not is_found:
            not_found.append(mutation.name)
        told = f"{mutation.name} ({mutation.kind}, {mutation.seeds} seeds): {told}"
        print(f"{told} ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201
    print(f"not found: {' '.join(not_found) or 'none'}")  # noqa: T201
    return 1 if not_found else 0


def _try(mutation: Mutation) -> tuple[bool, str]:
    """Return whether a mutation is found, and a text that says by what."""
    try:
        found = first_failure(mutation)
    except OutOfDate as error:
        return False, f"OUT OF DATE: {error}"
    return found is not None, (
        "NOT FOUND" if found is None else f"seed {found[0]}: {str(found[1])[:160]!r}"
    )


if __name__ == "__main__":
    sys.exit(main())
