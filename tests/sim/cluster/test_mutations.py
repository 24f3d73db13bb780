"""A store that is broken on purpose is found out by a few seeds.

The mutations that are rarer to be seen are tried by ``make mutations``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from postroom.messaging import inbox
from postroom.messaging.claims import Claims
from postroom.messaging.outbox import Outbox
from tests.sim.cluster import mutations
from tests.sim.cluster.mutations import MUTATIONS, Mutation
from tests.sim.runs import CLUSTER, EMBEDDED

CLUSTER_SEEDS = 40
CLUSTER_EVENTS = 10_000

QUICK = (
    "lease_not_waited_for",
    "lease_not_checked",
    "vote_not_stored",
    "later_vote_not_stored",
    "commits_earlier_terms",
    "acknowledges_whoever_asks",
    "ids_are_unique_in_a_range_alone",
    "services_take_what_is_prepared",
    "what_is_given_back_counts",
    "pointers_outlive_their_messages",
    "answered_claims_wait_on",
    "cancelled_claims_keep_their_messages",
    "claims_wait_for_the_ranges_of_their_beginning",
    "claims_of_lost_leases_wait_on",
    "leads_unanswered",
    "waits_for_the_silent",
    "full_disk_stops_the_store",
    "nobody_frees_room",
    "full_for_ever",
    "shares_go_by_client",
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
    "postponed_comes_at_once",
    "holds_up_nobody",
    "collection_ignores_protections",
    "collects_heads",
    "feed_forgets",
    "watches_are_not_found",
    "long_checks_hear_nothing",
    "locks_everybody",
    "collector_ends",
    "commits_wait_for_no_intent",
    "no_record_of_what_was_only_read",
    "record_goes_below_the_commit",
    "push_moves_no_clock",
    "run_that_is_over_commits",
    "any_ballot_is_resolved",
    "timestamp_never_moves_up",
    "timestamp_moves_without_a_check",
    "no_marks",
    "batch_leaves_out_the_first",
    "ranges_answer_for_any_key",
    "positions_step_back",
    "entries_leave_when_sent",
    "readers_wait_for_no_intent",
    "ranges_hear_of_no_commit",
    "batch_marks_the_whole_range",
    "marks_are_forgotten_at_a_split",
    "snapshots_overlap",
    "farthest_range_tells_for_all",
    "changes_stay_that_come_again",
    "commits_under_way_are_passed_by",
    "prepared_writes_are_passed_by",
    "resolved_writes_are_in_no_order",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the logs of broken things."""
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


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_each_mutation_replaces_an_existing_function(mutation: Mutation) -> None:
    mutations.check_fits(mutation)
    where, name, _ = mutation.breaks()
    original = getattr(where, name)
    with mutations.in_force(mutation.breaks):
        assert getattr(where, name) != original
    assert getattr(where, name) == original


def test_a_mutation_of_what_is_gone_is_noticed() -> None:
    gone = Mutation(lambda: (inbox, "_gone", None), 1)
    with pytest.raises(mutations.OutOfDate, match="has no _gone"):
        mutations.first_failure(gone)


def test_a_mutation_of_what_is_called_otherwise_is_noticed() -> None:
    otherwise = Mutation(lambda: (Claims, "release", lambda self: []), 1)
    with pytest.raises(mutations.OutOfDate, match="called otherwise"):
        mutations.first_failure(otherwise)


def test_a_mutation_that_cannot_be_carried_out_is_not_found() -> None:
    def slips(self: Outbox, *_: object) -> None:
        self.gone()  # type: ignore[attr-defined]

    broken = Mutation(lambda: (Outbox, "store", slips), 20, EMBEDDED)
    with pytest.raises(mutations.OutOfDate, match="gone"):
        mutations.first_failure(broken)
