"""Random transactions over several ranges are serializable; each broken rule is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from postroom.kv import keys, versions
from postroom.kv.clock import HybridLogicalClock
from postroom.ranges.calls import Call
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.lease import LeaseHolder
from postroom.ranges.local_reads import LocalReads
from postroom.ranges.requests import Get, Increment, Put
from postroom.ranges.transactions.coordinator import CommitRun
from postroom.ranges.transactions.intents import IntentTable, MeetsIntent
from postroom.ranges.transactions.one_range import check_reads
from postroom.ranges.transactions.prepared import Participation
from postroom.ranges.transactions.push import Pushes
from postroom.ranges.transactions.requests import Prepare, Prepared, Resolve
from tests.ranges.transactions.participant import SECOND, Participant, answer_of, transaction_id
from tests.ranges.transactions.several import Several
from tests.ranges.transactions.stories import CUTS, Rules, Steps, Story, Told, key_of

SEEDS = 60
SEEDS_MAX = 400


@pytest.fixture(autouse=True)
def clocks_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers move clocks by a day: there are no nodes to ask."""
    monkeypatch.setattr(HybridLogicalClock, "may_follow", lambda *_: True)


@pytest.mark.parametrize("tens", range(SEEDS // 10))
def test_random_transactions_are_serializable(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            Story(seed).play()
        except AssertionError as error:
            raise AssertionError(f"Story({seed}): {error}") from error


Mutation: TypeAlias = Callable[[pytest.MonkeyPatch], type[Rules]]

# --- mutations: each of them must be found


def no_record_of_what_was_only_read(patch: pytest.MonkeyPatch) -> type[Rules]:
    kept = Participation.prepare

    def prepare(self: Participation, ctx: Evaluation, request: Prepare[Any], **how: Any) -> Any:
        if request.writes:
            return kept(self, ctx, request, **how)
        self._intents.check_transaction(request)
        check_reads(ctx, request)
        return Prepared(ctx.timestamp, [])

    patch.setattr(Participation, "prepare", prepare)
    return Rules


def a_record_goes_below_the_commit(patch: pytest.MonkeyPatch) -> type[Rules]:
    kept = Participation.resolve

    def resolve(self: Participation, ctx: Evaluation, request: Resolve) -> Any:
        intent = self._intents.by_transaction.get(request.transaction_id)
        if intent is not None and not intent.written and intent.ballot == request.ballot:
            self._end(ctx, intent)
            return None
        return kept(self, ctx, request)

    patch.setattr(Participation, "resolve", resolve)
    return Rules


def resolved_beyond_the_end_of_the_lease(patch: pytest.MonkeyPatch) -> type[Rules]:
    patch.setattr(LeaseHolder, "wants_extension", lambda self, now: False)
    return Rules


def an_old_coordinator_commits_under_the_next_lease(patch: pytest.MonkeyPatch) -> type[Rules]:
    kept = Story._apply_late

    def apply_late(self: Story) -> None:
        self._late = [
            (range_id, _under(self.store.members[range_id - 1].replica.lease.sequence, command))
            for range_id, command in self._late
        ]
        kept(self)

    patch.setattr(Story, "_apply_late", apply_late)
    return Rules


def _under(sequence: int, command: bytes) -> bytes:
    _, *rest = msgspec.msgpack.decode(command)
    return msgspec.msgpack.encode([sequence, *rest])


def any_ballot_is_resolved(patch: pytest.MonkeyPatch) -> type[Rules]:
    kept = Participation.resolve

    def resolve(self: Participation, ctx: Evaluation, request: Resolve) -> Any:
        intent = self._intents.by_transaction.get(request.transaction_id)
        if intent is not None:
            timestamp = request.timestamp and max(request.timestamp, intent.timestamp)
            request = msgspec.structs.replace(request, ballot=intent.ballot, timestamp=timestamp)
        return kept(self, ctx, request)

    patch.setattr(Participation, "resolve", resolve)
    return Rules


def the_window_ends_at_first_contact(_: pytest.MonkeyPatch) -> type[Rules]:
    class FirstContact(Rules):
        looks_up_to_now = False

    return FirstContact


def the_timestamp_never_moves_up(_: pytest.MonkeyPatch) -> type[Rules]:
    class Stays(Rules):
        moves_up = False

    return Stays


def readers_do_not_wait_for_intents(patch: pytest.MonkeyPatch) -> type[Rules]:
    patch.setattr(IntentTable, "check_reader", lambda *_: None)
    return Rules


def commits_do_not_wait_for_intents(patch: pytest.MonkeyPatch) -> type[Rules]:
    patch.setattr(IntentTable, "check_transaction", lambda *_: None)
    return Rules


def a_read_of_the_newest_stays_at_its_arrival(patch: pytest.MonkeyPatch) -> type[Rules]:
    kept = LocalReads._look_for_intents

    def look(self: LocalReads, call: Call, now: int) -> None:
        try:
            kept(self, call, now)
        except MeetsIntent:
            request = call.request
            if getattr(request, request.read_at, None) == 0:
                call.request = msgspec.structs.replace(request, **{request.read_at: now})
            raise

    patch.setattr(LocalReads, "_look_for_intents", look)
    return Rules


def a_run_that_is_over_commits(patch: pytest.MonkeyPatch) -> type[Rules]:
    patch.setattr(CommitRun, "is_over", property(lambda _: False, lambda _, __: None))
    return Rules


def a_push_does_not_move_the_clock(patch: pytest.MonkeyPatch) -> type[Rules]:
    kept = Pushes.__init__

    def begin(self: Pushes, _: Any, monotonic: Any) -> None:
        kept(self, lambda __: None, monotonic)

    patch.setattr(Pushes, "__init__", begin)
    return Rules


# --- scripts for what random stories seldom meet


def read_twice_in_a_range(rules: type[Rules]) -> None:
    """Read in a range before and after a commit is resolved there, which was acknowledged before.

    The clock of its anchor is far ahead.
    """
    store = Several(*CUTS, ahead_seconds=(1000.0, 0.0, 10.0))
    asked = store.commit(Put(b"a", b"new"), Put(b"n", b"new"))
    for _ in range(3):
        store.step()
        store.deliver_requests(Prepare)
        store.deliver_answers()
    assert answer_of(asked), "it is acknowledged, and range 2 has not heard of it"
    reader, contacts = Told(transaction_id(), frozenset()), dict[int, int]()
    story = Story(0, rules)
    story.store = store
    for key in (b"x", b"o"):
        run(store, story._read(reader, key, contacts))
    store.settle()
    run(store, story._read(reader, b"n", contacts))
    assert reader.seen[b"n"] == b"new"


def run(store: Several, steps: Steps) -> None:
    """Carry out the requests of a client, one after the other."""
    try:
        request = next(steps)
        while True:
            asked = store.owner(key_of(request)).ask(request)
            if not asked.answers:
                store.settle()
            request = steps.send(answer_of(asked))
    except StopIteration:
        return


def resolve_twice_over_two_leases(_: type[Rules]) -> None:
    """Resolve far ahead, and prepare and resolve the same once more under the next lease."""
    store = Participant()
    id_ = transaction_id()
    preparation = store.preparation(id_, Increment(b"n"))
    store.result(preparation)
    ahead = store.clock.now() + 3600 * SECOND
    store.resolve(id_, ahead)
    store = store.taken_over()
    store.result(preparation)
    store.resolve(id_, ahead)
    number = versions.payload(store.engine.get(keys.head_key(b"n")))
    assert number == (1).to_bytes(8, "big")


def commit_above_a_reader(_: type[Rules]) -> None:
    """Let a reader go on whose clock is far ahead of that of the anchor, then commit."""
    store = Several(b"m")
    asked = store.commit(Put(b"a", b"new"), Put(b"n", b"new"))
    store.step()
    store.deliver_requests(Prepare)
    answers, store.network.answers = store.network.answers, []
    second = store.members[1]
    second.clock.pass_over(second.clock.now() + 3600 * SECOND)
    reader = second.ask(Get(b"n"))
    store.settle()
    store.network.answers = answers
    store.settle()
    assert answer_of(asked).timestamp > answer_of(reader).timestamp


def find_by_seeds(rules: type[Rules]) -> None:
    for seed in range(SEEDS_MAX):
        Story(seed, rules).play()


MUTATIONS: list[tuple[Mutation, Callable[[type[Rules]], None]]] = [
    (no_record_of_what_was_only_read, find_by_seeds),
    (a_record_goes_below_the_commit, find_by_seeds),
    (resolved_beyond_the_end_of_the_lease, resolve_twice_over_two_leases),
    (an_old_coordinator_commits_under_the_next_lease, find_by_seeds),
    (any_ballot_is_resolved, find_by_seeds),
    (the_window_ends_at_first_contact, read_twice_in_a_range),
    (the_timestamp_never_moves_up, find_by_seeds),
    (readers_do_not_wait_for_intents, find_by_seeds),
    (commits_do_not_wait_for_intents, find_by_seeds),
    (a_read_of_the_newest_stays_at_its_arrival, find_by_seeds),
    (a_run_that_is_over_commits, find_by_seeds),
    (a_push_does_not_move_the_clock, commit_above_a_reader),
]


@pytest.mark.parametrize(("mutation", "find"), MUTATIONS, ids=lambda each: each.__name__)
def test_a_broken_rule_is_found(
    mutation: Mutation, find: Callable[[type[Rules]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if find is not find_by_seeds:
        find(Rules)
    rules = mutation(monkeypatch)
    with pytest.raises(AssertionError):
        find(rules)
