"""Messages are enqueued and settled in transactions over several ranges, whoever dies when."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import LeaseLost, Unavailable
from postroom.messaging.queues.definition_requests import DropQueue
from postroom.messaging.queues.requests import (
    Acknowledge,
    CancelMessages,
    Extend,
    KeepResult,
    RejectMessages,
)
from postroom.ranges.held_answers import HELD_SECONDS
from postroom.ranges.requests import Get, Put
from postroom.ranges.transactions.requests import Ballot, Prepare
from tests.messaging.one_range import Asked
from tests.ranges.transactions.participant import (
    SECOND,
    Participant,
    answer_of,
    transaction_id,
)
from tests.ranges.transactions.queue_ranges import (
    Q,
    advance,
    attempt,
    claim,
    counted,
    create,
    message,
)
from tests.ranges.transactions.several import Several

A, B, C = b"a", b"n", b"x"
"""Keys of the three ranges."""


@pytest.fixture
def member() -> Participant:
    """Return a range with a queue, which takes part in transactions."""
    member = Participant()
    create(member, ack_wait=3.0, purge_after=5.0)
    return member


@pytest.fixture
def store() -> Several:
    """Return a store of three ranges, each with a part of a queue."""
    store = Several(b"m", b"w")
    for each in store.members:
        create(each, ack_wait=3.0)
    return store


# --- attempts that a prepared transaction ends


def held(member: Participant, home: bytes = b"k") -> Any:
    """Return the attempt at a new message."""
    member.commit(message(home), anchor=home)
    [found] = claim(member)
    return attempt(found)


@pytest.mark.parametrize("change", [Acknowledge, RejectMessages, CancelMessages])
def test_an_attempt_ends_when_the_transaction_has_committed(
    member: Participant, change: Any
) -> None:
    of = held(member)
    id_ = transaction_id()
    prepared = member.prepare(id_, change(Q, [of]))
    assert prepared.answers == [1]
    assert counted(member).leased == 1
    member.resolve(id_, prepared.timestamp + SECOND)
    assert counted(member).leased == 0


def test_an_attempt_goes_on_if_the_transaction_is_dead(member: Participant) -> None:
    of = held(member)
    id_ = transaction_id()
    member.prepare(id_, Acknowledge(Q, [of]))
    member.resolve(id_, 0)
    assert counted(member).leased == 1
    assert member.commit(Acknowledge(Q, [of])).answers == [1]


def test_a_lease_that_runs_out_before_the_commit_is_known_ends_nothing(
    member: Participant,
) -> None:
    of = held(member)
    id_ = transaction_id()
    prepared = member.prepare(id_, Acknowledge(Q, [of]))
    for _ in range(4):
        member.pass_time(2.0)
        advance(member)
    assert counted(member).expired == 0
    member.resolve(id_, prepared.timestamp + SECOND)
    assert counted(member).acknowledged == 1


def test_a_lease_that_has_run_out_ends_once_the_transaction_is_dead(member: Participant) -> None:
    of = held(member)
    id_ = transaction_id()
    member.prepare(id_, Acknowledge(Q, [of]))
    member.pass_time(4.0)
    advance(member)
    member.resolve(id_, 0)
    member.pass_time(2.0)
    advance(member)
    assert counted(member).expired == 1


def test_an_attempt_of_a_client_that_has_gone_is_given_back_after_the_transaction(
    member: Participant,
) -> None:
    of = held(member)
    id_ = transaction_id()
    member.prepare(id_, Acknowledge(Q, [of]))
    member.messaging.client_gone(b"a client")
    advance(member)
    assert counted(member).leased == 1
    manager = member.messaging.queues._directory.known(Q)
    assert manager.next_by_time() == member.monotonic() + 0.1
    member.resolve(id_, 0)
    member.pass_time(0.2)
    advance(member)
    assert counted(member).leased == 0
    assert not manager.to_give_back


def test_a_lease_that_is_lost_already_refuses_the_transaction(member: Participant) -> None:
    of = held(member)
    member.pass_time(4.0)
    advance(member)
    for write in (Acknowledge(Q, [of]), KeepResult(Q, of, 5.0), Extend(Q, [of], 5.0)):
        with pytest.raises(LeaseLost):
            member.prepare(transaction_id(), write)


def test_a_trial_sees_the_settlements_of_its_proposal(member: Participant) -> None:
    member.commit(message(b"k"), message(b"l"))
    of, _ = map(attempt, claim(member))
    member.group.holds = True
    under_way = member.ask(member.transaction(Put(b"p", b"")))
    acknowledged = member.ask(member.transaction(Acknowledge(Q, [of])))
    asked = member.ask(member.preparation(transaction_id(), Acknowledge(Q, [of])))
    member.group.holds = False
    member.settle()
    assert answer_of(under_way)
    assert answer_of(acknowledged).answers == [1]
    with pytest.raises(LeaseLost):
        answer_of(asked)


def test_two_prepared_transactions_that_end_an_attempt_come_one_after_the_other(
    member: Participant,
) -> None:
    of = held(member)
    first, second = transaction_id(), transaction_id()
    prepared = member.prepare(first, Acknowledge(Q, [of]))
    asked = member.ask(member.preparation(second, Acknowledge(Q, [of])))
    assert not asked.answers
    member.resolve(first, prepared.timestamp + SECOND)
    with pytest.raises(LeaseLost):
        answer_of(asked)


def test_a_result_is_kept_by_the_transaction_that_ends_the_attempt(member: Participant) -> None:
    of = held(member)
    id_ = transaction_id()
    prepared = member.prepare(id_, KeepResult(Q, of, 60.0, b"result"), Acknowledge(Q, [of]))
    assert counted(member).results == 0
    member.resolve(id_, prepared.timestamp + SECOND)
    assert counted(member).results == 1


def test_a_new_leaseholder_ends_the_attempt(member: Participant) -> None:
    of = held(member)
    id_ = transaction_id()
    prepared = member.prepare(id_, Acknowledge(Q, [of]))
    after = member.taken_over()
    advance(after)
    assert counted(after).leased == 1
    after.resolve(id_, prepared.timestamp + SECOND)
    assert counted(after).acknowledged == 1


def test_a_claim_does_not_wait_for_prepared_transactions(member: Participant) -> None:
    of = held(member)
    member.prepare(transaction_id(), Acknowledge(Q, [of]), Put(b"p", b""))
    member.commit(message(b"other"), anchor=b"other")
    assert [each.id for each in claim(member)] == [b"other"]


# --- messages that a prepared transaction enqueues


def test_a_prepared_message_is_there_once_its_transaction_has_committed(
    member: Participant,
) -> None:
    id_ = transaction_id()
    prepared = member.prepare(id_, message(b"k", b"payload"))
    assert prepared.answers == [None]
    assert counted(member).enqueued == 0
    member.resolve(id_, prepared.timestamp + SECOND)
    assert [each.payload for each in claim(member)] == [b"payload"]


def test_an_id_is_taken_from_the_preparation_on(member: Participant) -> None:
    first = transaction_id()
    prepared = member.prepare(first, message(b"k", b"1"))
    asked = member.ask(member.transaction(message(b"k", b"2"), anchor=b"k"))
    assert not asked.answers
    member.resolve(first, prepared.timestamp + SECOND)
    assert answer_of(asked).answers == ["ignored"]


def test_a_message_that_was_ignored_in_the_trial_is_not_enqueued(member: Participant) -> None:
    of = held(member, b"k")
    member.commit(Acknowledge(Q, [of]), anchor=b"k")
    id_ = transaction_id()
    prepared = member.prepare(id_, message(b"k"))
    assert prepared.answers == ["ignored"]
    member.pass_time(6.0)  # the earlier message is over now
    member.resolve(id_, prepared.timestamp + SECOND)
    assert counted(member).enqueued == 1


def test_messages_of_two_ranges_that_commit_at_one_timestamp_are_kept_apart(
    member: Participant,
) -> None:
    first, second = transaction_id(), transaction_id()
    at = member.prepare(first, message(b"k")).timestamp
    at = max(at, member.prepare(second, message(b"l")).timestamp) + SECOND
    member.resolve(first, at)
    member.resolve(second, at)
    assert sorted(each.id for each in claim(member)) == [b"k", b"l"]
    assert counted(member).leased == 2


def test_a_transaction_commits_though_its_queue_was_dropped_meanwhile(member: Participant) -> None:
    of = held(member)
    id_ = transaction_id()
    at = member.prepare(id_, Acknowledge(Q, [of]), message(b"l"), Put(b"v", b"1")).timestamp
    member.commit(DropQueue(Q))
    member.resolve(id_, at + SECOND)
    assert member.value(b"v") == b"1"
    assert member.records() == 0


def test_a_transaction_commits_though_its_queue_was_made_anew_meanwhile(
    member: Participant,
) -> None:
    of = held(member)
    id_ = transaction_id()
    at = member.prepare(id_, Acknowledge(Q, [of]), Put(b"v", b"1")).timestamp
    member.commit(DropQueue(Q))
    create(member)
    member.resolve(id_, at + SECOND)
    assert member.value(b"v") == b"1"
    assert counted(member).acknowledged == 0


def test_a_transaction_commits_though_a_record_of_its_queue_is_damaged_meanwhile(
    member: Participant, caplog: pytest.LogCaptureFixture
) -> None:
    id_ = transaction_id()
    at = member.prepare(id_, message(b"k", group="g"), Put(b"v", b"1")).timestamp
    manager = member.messaging.queues._directory.known(Q)
    member.engine.write({manager.layout.group_key("g"): b"\xc1"}, sync=True)
    after = member.taken_over()
    after.resolve(id_, at + SECOND)
    assert after.value(b"v") == b"1"
    assert after.records() == 0
    assert counted(after).enqueued == 0
    assert "is left out" in caplog.text


# --- whole transactions


def test_attempts_in_three_ranges_end_together_with_a_write(store: Several) -> None:
    attempts = [held(store.owner(key), key) for key in (A, B, C)]
    asked = store.commit(Put(A, b"done"), Acknowledge(Q, attempts))
    store.settle()
    assert answer_of(asked).answers == [None, 3]
    assert [counted(each).acknowledged for each in store.members] == [1, 1, 1]
    assert store.value(A) == b"done"


def decided(store: Several, *writes: Any) -> Asked:
    """Return a commit that is decided, of which the other ranges have not heard."""
    asked = store.commit(*writes)
    store.step()
    store.deliver_requests(Prepare)
    store.deliver_answers()
    store.step()
    return asked


def test_a_commit_that_settles_a_message_elsewhere_is_answered_when_it_is_settled(
    store: Several,
) -> None:
    asked = decided(store, Put(A, b"done"), Acknowledge(Q, [held(store.owner(B), B)]))
    assert not asked.answers
    assert counted(store.owner(B)).acknowledged == 0
    store.settle()
    assert answer_of(asked).answers == [None, 1]
    assert counted(store.owner(B)).acknowledged == 1


def test_a_commit_that_settles_a_message_in_its_own_range_waits_for_no_other_range(
    store: Several,
) -> None:
    asked = decided(store, Acknowledge(Q, [held(store.owner(A), A)]), Put(B, b"done"))
    assert answer_of(asked).answers == [1, None]


def test_a_commit_is_answered_though_another_range_does_not_carry_it_out(store: Several) -> None:
    asked = decided(store, Put(A, b"done"), Acknowledge(Q, [held(store.owner(B), B)]))
    store.network.packets.clear()
    store.owner(A).pass_time(HELD_SECONDS / 2)
    store.step()
    assert not asked.answers
    store.owner(A).pass_time(HELD_SECONDS)
    store.step()
    assert answer_of(asked).answers == [None, 1]


def test_a_commit_is_answered_when_its_leaseholder_serves_no_longer(store: Several) -> None:
    asked = decided(store, Put(A, b"done"), Acknowledge(Q, [held(store.owner(B), B)]))
    store.owner(A).replica.memory.end()
    assert answer_of(asked).answers == [None, 1]


def test_a_commit_that_is_applied_after_the_lease_is_answered_at_once(store: Several) -> None:
    """After that, news of other ranges comes to nobody."""
    held_answers = store.owner(A).replica.memory.held
    held_answers.close()
    asked = decided(store, Put(A, b"done"), Acknowledge(Q, [held(store.owner(B), B)]))
    assert answer_of(asked).answers == [None, 1]
    assert not held_answers


def test_an_attempt_that_is_lost_in_any_range_refuses_everything(store: Several) -> None:
    attempts = [held(store.owner(key), key) for key in (A, B)]
    store.owner(B).commit(Acknowledge(Q, attempts[1:]), anchor=B)
    for writes in (
        [Put(A, b"done"), Acknowledge(Q, attempts)],
        [Put(B, b"done"), Acknowledge(Q, attempts)],
        [Put(C, b"done"), Acknowledge(Q, attempts)],
    ):
        asked = store.commit(*writes, message(B + b"2"))
        store.settle()
        with pytest.raises(LeaseLost):
            answer_of(asked)
    store.settle()
    assert store.records() == 0
    assert [counted(each).acknowledged for each in store.members] == [0, 1, 0]
    assert counted(store.owner(B)).enqueued == 1


@pytest.mark.parametrize("dies", ["anchor", "participant"])
@pytest.mark.parametrize("is_decided", [False, True])
def test_an_acknowledgement_and_a_message_stand_or_fall_together_if_a_leader_dies(
    store: Several, dies: str, *, is_decided: bool
) -> None:
    of = held(store.owner(B), B)
    writes = [Put(A, b"done"), Acknowledge(Q, [of]), message(B + b"2")]
    if is_decided:
        decided(store, *writes)
    else:
        store.commit(*writes)
        store.step()
        store.deliver_requests(Prepare)
    store.network.packets.clear()
    store.network.answers.clear()
    store.take_over(1 if dies == "anchor" else 2)
    for _ in range(8):
        store.pass_time(0.7)
    member = store.owner(B)
    is_done = bool(store.owner(A).result(Get(A)).value)
    assert is_done or not is_decided
    assert store.records() == 0
    assert counted(member).acknowledged == int(is_done)
    assert counted(member).enqueued == 1 + int(is_done)


def test_a_later_ballot_of_a_transaction_ends_an_attempt_once(store: Several) -> None:
    member = store.owner(B)
    of = held(member, B)
    id_ = transaction_id()
    first = member.preparation(id_, Acknowledge(Q, [of]), ballot=Ballot(1, 1, 1))
    later = member.preparation(id_, Acknowledge(Q, [of]), ballot=Ballot(1, 1, 2))
    member.result(first)
    prepared = member.result(later)
    member.resolve(id_, prepared.timestamp + SECOND, Ballot(1, 1, 1))
    assert counted(member).acknowledged == 0
    member.resolve(id_, prepared.timestamp + SECOND, Ballot(1, 1, 2))
    assert counted(member).acknowledged == 1


def test_a_committed_message_waits_until_the_range_has_learned_which_queues_there_are(
    member: Participant, caplog: pytest.LogCaptureFixture
) -> None:
    id_ = transaction_id()
    prepared = member.prepare(id_, message(b"k"))
    learning = member.messaging.queues._directory.learning
    learning.knows = False
    with pytest.raises(Unavailable, match="yet to learn"):
        member.resolve(id_, prepared.timestamp)
    assert (member.records(), caplog.records) == (1, [])
    learning.knows = True
    member.resolve(id_, prepared.timestamp)
    assert counted(member).ready == 1
